-- What a row costs: a tool that was called twice conflicts with itself, which does nothing.

CREATE OR REPLACE FUNCTION run_tools_of_a_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO run_tools SELECT tool, NEW.started_at, NEW.id FROM tool_invocations
        WHERE run_id = NEW.id ON CONFLICT DO NOTHING;
    RETURN NULL;
END;
$$;
