policy.stage = CASE WHEN job.{stage} IN (SELECT stage FROM policies) THEN job.{stage} ELSE '' END
