-- The executor's own table, as its owner made it.
CREATE TABLE executor_jobs (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    dedupe_key text,
    type text NOT NULL,
    status text NOT NULL DEFAULT 'queued'
        CHECK (status IN ('queued', 'running', 'processing', 'success', 'failed', 'dead')),
    locked_at timestamptz,
    locked_by text,
    attempts int NOT NULL DEFAULT 0,
    last_error text,
    payload jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
