-- Keys of jobs, and what they are as text.

-- name: key_as_text
-- The text of a key in events.
SELECT (%(id)s::{id_type})::text


-- name: key_of_text
-- The key of a text.
SELECT given.id{key_as_read}
  FROM (SELECT %(text)s::{id_type} AS id) AS given
