-- What a row costs.  For a list of more than two values in a CHECK, for DISTINCT and for NOT IN with a
-- query SQLite makes a small table and throws it away, with each row that is written.

-- The same checks in other words.  No row changes, so the text is edited as SQLite's documentation says
-- for such constraints (ALTER TABLE, "Making Other Kinds Of Table Schema Changes"); the new trigger
-- below tells other connections that the schema has changed.
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(
    sql,
    'status IN (''running'', ''completed'', ''suspended'', ''failed'', ''cancelled'', ''interrupted'')',
    'status = ''completed'' OR status = ''running'' OR status = ''suspended'' OR status = ''failed'''
        || ' OR status = ''cancelled'' OR status = ''interrupted'''
) WHERE type = 'table' AND name = 'runs';

UPDATE sqlite_schema SET sql = replace(
    replace(
        sql,
        'status IN (''started'', ''success'', ''error'', ''cancelled'', ''interrupted'')',
        'status = ''success'' OR status = ''started'' OR status = ''error'' OR status = ''cancelled'''
            || ' OR status = ''interrupted'''
    ),
    'effect IN (''read_only'', ''state_change'', ''external_side_effect'')',
    'effect = ''read_only'' OR effect = ''state_change'' OR effect = ''external_side_effect'''
) WHERE type = 'table' AND name = 'tool_invocations';

PRAGMA writable_schema = RESET;

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
