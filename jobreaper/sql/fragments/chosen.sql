(%(only)s::{id_type}[] IS NULL OR job.{id} = ANY (%(only)s::{id_type}[]))
AND job.{id} <> ALL (%(skip)s::{id_type}[])
