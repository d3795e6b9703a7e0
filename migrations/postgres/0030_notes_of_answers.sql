-- A note that nothing is hidden behind an answer is one row, found by its key and by its two loose keys, one
-- with the question (asked) and one without it (alone).  Rows of the last version, one for each key, stay.
--
-- A newer note takes a loose key from an older one, so that each loose key finds one note.

ALTER TABLE hidden_turns ADD COLUMN asked TEXT COLLATE "C";
ALTER TABLE hidden_turns ADD COLUMN alone TEXT COLLATE "C";

CREATE INDEX hidden_turns_asked ON hidden_turns (asked) WHERE asked IS NOT NULL;
CREATE INDEX hidden_turns_alone ON hidden_turns (alone) WHERE alone IS NOT NULL;

CREATE FUNCTION hidden_turns_take_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE hidden_turns SET asked = NULL
        WHERE asked = NEW.asked AND (created_at, key) < (NEW.created_at, NEW.key);
    UPDATE hidden_turns SET alone = NULL
        WHERE alone = NEW.alone AND (created_at, key) < (NEW.created_at, NEW.key);
    RETURN NULL;
END;
$$;

CREATE TRIGGER hidden_turns_take_keys AFTER INSERT OR UPDATE OF asked, alone ON hidden_turns
    FOR EACH ROW WHEN (NEW.asked IS NOT NULL AND NEW.alone IS NOT NULL)
    EXECUTE FUNCTION hidden_turns_take_keys();
