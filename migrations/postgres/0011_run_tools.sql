-- Which tools a run called, the newest first: runs of one tool are listed from here, at the same
-- cost whatever else there is.  A run and its calls may be written in either order.

CREATE TABLE run_tools (
    tool        TEXT COLLATE "C" NOT NULL,
    started_at  DOUBLE PRECISION NOT NULL,  -- of the run
    run_id      TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE
                DEFERRABLE INITIALLY DEFERRED,
    PRIMARY KEY (tool, started_at, run_id)
);

CREATE INDEX run_tools_by_run ON run_tools (run_id);

INSERT INTO run_tools
    SELECT DISTINCT i.tool, r.started_at, r.id FROM tool_invocations i JOIN runs r ON r.id = i.run_id;

CREATE FUNCTION run_tools_of_a_call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO run_tools SELECT NEW.tool, started_at, id FROM runs WHERE id = NEW.run_id
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END;
$$;

CREATE TRIGGER run_tools_of_a_call AFTER INSERT ON tool_invocations
    FOR EACH ROW EXECUTE FUNCTION run_tools_of_a_call();

CREATE FUNCTION run_tools_of_a_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO run_tools SELECT DISTINCT tool, NEW.started_at, NEW.id FROM tool_invocations
        WHERE run_id = NEW.id ON CONFLICT DO NOTHING;
    RETURN NULL;
END;
$$;

CREATE TRIGGER run_tools_of_a_run AFTER INSERT ON runs
    FOR EACH ROW EXECUTE FUNCTION run_tools_of_a_run();

-- Nothing asks for calls by their tool any more.
DROP INDEX tool_invocations_by_tool;
