-- Content: hidden turns behind an answer, put back when a client sends that answer again (rule R4).
-- Kept only as store.content allows and for store.keep_days at most.
--
-- The variants of one key are the ways in which the same visible conversation came about.  Two of
-- them already say that nothing is to be put back, so the two newest stay and others go.
-- No foreign key on run_id, and a trigger in place of ON DELETE CASCADE, as with responses.

CREATE TABLE hidden_turns (
    key         TEXT NOT NULL,
    variant     TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    caller      TEXT NOT NULL,
    wire        TEXT NOT NULL,
    payload     BLOB NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (key, variant)
) STRICT;

CREATE INDEX hidden_turns_by_time ON hidden_turns (created_at);
CREATE INDEX hidden_turns_by_run ON hidden_turns (run_id);

CREATE TRIGGER hidden_turns_stay_two AFTER INSERT ON hidden_turns BEGIN
    DELETE FROM hidden_turns WHERE key = NEW.key AND variant NOT IN (
        SELECT variant FROM hidden_turns WHERE key = NEW.key ORDER BY created_at DESC, variant LIMIT 2
    );
END;

CREATE TRIGGER hidden_turns_go_with_their_run AFTER DELETE ON runs BEGIN
    DELETE FROM hidden_turns WHERE run_id = OLD.id;
END;
