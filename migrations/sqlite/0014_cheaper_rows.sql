-- What a row costs.  For DISTINCT and for NOT IN with a query SQLite makes a small table and throws it
-- away, with each row that is written.

-- A tool that was called twice conflicts with itself, which does nothing.
DROP TRIGGER run_tools_of_a_run;

CREATE TRIGGER run_tools_of_a_run AFTER INSERT ON runs BEGIN
    INSERT INTO run_tools SELECT tool, NEW.started_at, NEW.id FROM tool_invocations
        WHERE run_id = NEW.id ON CONFLICT DO NOTHING;
END;

-- Nothing is looked for where nothing can be too many.
DROP TRIGGER hidden_turns_stay_two;

CREATE TRIGGER hidden_turns_stay_two AFTER INSERT ON hidden_turns
WHEN (SELECT count(*) FROM hidden_turns WHERE key = NEW.key) > 2 BEGIN
    DELETE FROM hidden_turns WHERE key = NEW.key AND variant NOT IN (
        SELECT variant FROM hidden_turns WHERE key = NEW.key ORDER BY created_at DESC, variant LIMIT 2
    );
END;
