-- Which rows a verb takes: not those that could not be written a moment ago.

-- name: chosen
{key} <> ALL (%(skip)s::{id_type}[])
AND {not_refused}


-- name: chosen_one_by_one
CASE WHEN %(again)s
     THEN {tried_again}
     ELSE {chosen} END


-- name: not_refused
(NOT (SELECT EXISTS (SELECT FROM {jobreaper_refused_rows} AS refused
                      WHERE refused."table" = {table_name}
                        AND refused.verb = {verb}))
 OR NOT EXISTS (SELECT FROM {jobreaper_refused_rows} AS refused
                 WHERE refused."table" = {table_name}
                   AND refused.verb = {verb}
                   AND refused.key = {key}::text))


-- name: tried_again
EXISTS (SELECT FROM {jobreaper_refused_rows} AS refused
         WHERE refused."table" = {table_name}
           AND refused.verb = {verb}
           AND refused.key = {key}::text
           AND refused.next_try_at <= statement_timestamp())
