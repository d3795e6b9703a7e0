-- The words of runs whose content is kept unsealed, so that a search need not read all runs. The words of a
-- run are a set, sorted, with a space between: proxy/records/words.py makes them of its messages and its facts.
-- Triggers keep the index true whoever writes messages, also processes of schema 33: new messages put their
-- run into the queue of what is to be indexed, and messages that change, are sealed or deleted take its words
-- away. Sealed messages change nothing here. The triggers run once for each statement.

CREATE TABLE run_texts (
    run_id  TEXT COLLATE "C" NOT NULL PRIMARY KEY
            REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    words   TEXT NOT NULL
);

CREATE INDEX run_words ON run_texts USING gin (array_to_tsvector(string_to_array(words, ' ')));

-- added counts the changes: words made before the last of them are not the newest.
CREATE TABLE runs_to_index (
    run_id  TEXT COLLATE "C" NOT NULL PRIMARY KEY
            REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    added   BIGINT NOT NULL
);

CREATE FUNCTION note_messages() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM run_texts WHERE run_id IN (SELECT run_id FROM gone);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO runs_to_index AS waiting (run_id, added)
        SELECT DISTINCT run_id, 1 FROM come WHERE sealed_by IS NULL ORDER BY run_id
        ON CONFLICT (run_id) DO UPDATE SET added = waiting.added + 1;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER messages_added AFTER INSERT ON messages
    REFERENCING NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION note_messages();
CREATE TRIGGER messages_changed AFTER UPDATE ON messages
    REFERENCING OLD TABLE AS gone NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION note_messages();
CREATE TRIGGER messages_deleted AFTER DELETE ON messages
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note_messages();

-- What is kept unsealed already; the servers index it in small steps.
INSERT INTO runs_to_index (run_id, added)
SELECT run_id, 1 FROM messages
EXCEPT SELECT run_id, 1 FROM messages WHERE sealed_by IS NOT NULL;
