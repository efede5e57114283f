unnest(%(ids)s::{id_type}[], %(fail_codes)s::text[], %(fail_reasons)s::text[])
           AS error (id, fail_code, fail_reason) ON error.id = job.id
