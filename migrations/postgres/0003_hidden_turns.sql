-- Content: hidden turns behind an answer, put back when a client sends that answer again (rule R4).
-- Kept only as store.content allows and for store.keep_days at most.
--
-- The variants of one key are the ways in which the same visible conversation came about.  Two of
-- them already say that nothing is to be put back, so the two newest stay and others go.
-- No foreign key on run_id, and a trigger in place of ON DELETE CASCADE, as with responses.

CREATE TABLE hidden_turns (
    key         TEXT COLLATE "C" NOT NULL,
    variant     TEXT COLLATE "C" NOT NULL,
    run_id      TEXT COLLATE "C" NOT NULL,
    caller      TEXT COLLATE "C" NOT NULL,
    wire        TEXT COLLATE "C" NOT NULL,
    payload     BYTEA NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (key, variant)
);

CREATE INDEX hidden_turns_by_time ON hidden_turns (created_at);
CREATE INDEX hidden_turns_by_run ON hidden_turns (run_id);

CREATE FUNCTION hidden_turns_stay_two() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM hidden_turns WHERE key = NEW.key AND variant NOT IN (
        SELECT variant FROM hidden_turns WHERE key = NEW.key ORDER BY created_at DESC, variant LIMIT 2
    );
    RETURN NULL;
END;
$$;

CREATE TRIGGER hidden_turns_stay_two AFTER INSERT ON hidden_turns
    FOR EACH ROW EXECUTE FUNCTION hidden_turns_stay_two();

CREATE FUNCTION hidden_turns_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM hidden_turns WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER hidden_turns_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION hidden_turns_go_with_their_run();
