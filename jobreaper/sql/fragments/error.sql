(SELECT %(fail_code)s::text AS fail_code, %(fail_reason)s::text AS fail_reason) AS error ON true
