-- Each running job: how long ago its last sign of life was, what its limit is and how it stands.
CREATE OR REPLACE VIEW {view} AS
{monitor}
