-- Fail many attempts of one worker; the answer is that of finish_many.
WITH policies AS MATERIALIZED ({policies}),
{attempts},
{failing_many},
{unended}
