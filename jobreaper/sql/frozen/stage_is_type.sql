-- The stage of a job is its type unless it has one of its own, whoever makes the row and however:
-- limits and policies look at the stage alone.
CREATE FUNCTION jobreaper_stage_is_type() RETURNS trigger
LANGUAGE plpgsql
AS $body$
BEGIN
    NEW.stage := NEW.type;
    RETURN NEW;
END
$body$;
CREATE TRIGGER jobreaper_stage_is_type
    BEFORE INSERT OR UPDATE OF stage ON jobreaper_jobs
    FOR EACH ROW WHEN (NEW.stage IS NULL)
    EXECUTE FUNCTION jobreaper_stage_is_type();
