(%(only)s::{id_type}[] IS NULL OR {key} = ANY (%(only)s::{id_type}[]))
AND {key} <> ALL (%(skip)s::{id_type}[])
