-- Running jobs beyond twice their limit. Rows here mean that no reaper runs.
CREATE OR REPLACE VIEW {view} AS
SELECT * FROM ({monitor}) AS monitor WHERE age_sec > 2 * limit_sec
