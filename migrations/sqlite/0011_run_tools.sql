-- Which tools a run called, the newest first: runs of one tool are listed from here, at the same
-- cost whatever else there is.  A run and its calls may be written in either order.

CREATE TABLE run_tools (
    tool        TEXT NOT NULL,
    started_at  REAL NOT NULL,  -- of the run
    run_id      TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    PRIMARY KEY (tool, started_at, run_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_tools_by_run ON run_tools (run_id);

INSERT INTO run_tools
    SELECT DISTINCT i.tool, r.started_at, r.id FROM tool_invocations i JOIN runs r ON r.id = i.run_id;

CREATE TRIGGER run_tools_of_a_call AFTER INSERT ON tool_invocations BEGIN
    INSERT INTO run_tools SELECT NEW.tool, started_at, id FROM runs WHERE id = NEW.run_id
        ON CONFLICT DO NOTHING;
END;

CREATE TRIGGER run_tools_of_a_run AFTER INSERT ON runs BEGIN
    INSERT INTO run_tools SELECT DISTINCT tool, NEW.started_at, NEW.id FROM tool_invocations
        WHERE run_id = NEW.id ON CONFLICT DO NOTHING;
END;

-- Nothing asks for calls by their tool any more.
DROP INDEX tool_invocations_by_tool;
