-- Refuse an UPDATE that would undo a claim: a lower epoch, or a job that has ended and is to wait or
-- run again at the epoch at which it ended. After all other triggers, so that none changes the row
-- later.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    RAISE EXCEPTION 'job % of % is % at epoch %, and cannot be made % at epoch %',
        to_jsonb(OLD) ->> {key}, TG_TABLE_NAME, OLD.{status}, OLD.{lease_epoch},
        NEW.{status}, NEW.{lease_epoch}
        USING ERRCODE = 'integrity_constraint_violation',
              HINT = 'The write came from a stale copy of the row. Leave the columns of the lease'
                     ' alone, and use requeue(), fail() or cancel() to change a job by hand.';
END
$body$;
CREATE OR REPLACE TRIGGER {trigger}
    AFTER UPDATE ON {table}
    FOR EACH ROW
    WHEN (NEW.{lease_epoch} < OLD.{lease_epoch}
          OR NEW.{lease_epoch} = OLD.{lease_epoch}
             AND OLD.{status} IN ({success}, {failed}, {cancelled})
             AND NEW.{status} IN ({queued}, {processing}))
    EXECUTE FUNCTION {function}();
