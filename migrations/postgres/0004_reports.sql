-- What reading the record needs: how much of tools a client was shown, a digest of the prompt's
-- shape (model, tools, parameters; see relay/shape.py), and runs that can be deleted whole.
-- Empty in both columns: not known, the run is older than they are.

ALTER TABLE runs ADD COLUMN trace TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN shape TEXT NOT NULL DEFAULT '';

-- Invocations have no foreign key, so that the row of a side effect never waits for that of its run.
-- One that may still be under way stays on record.
CREATE FUNCTION invocations_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tool_invocations WHERE run_id = OLD.id AND status <> 'started';
    RETURN NULL;
END;
$$;

CREATE TRIGGER invocations_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION invocations_go_with_their_run();
