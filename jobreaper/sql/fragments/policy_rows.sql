jsonb_to_recordset(%(policies)s::jsonb) AS policy ({policy_columns})
