-- A call as it came is content, so it goes with its run, also where the row of its execution was lost.

CREATE FUNCTION native_calls_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM native_calls WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER native_calls_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION native_calls_go_with_their_run();
