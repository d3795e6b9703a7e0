-- The words of runs whose content is kept unsealed, so that a search need not read all runs. The words of a
-- run are a set, sorted, with a space between: proxy/records/words.py makes them of its messages and its facts.
-- Triggers keep the index true whoever writes messages, also processes of schema 33: new messages put their
-- run into the queue of what is to be indexed, and messages that change, are sealed or deleted take its words
-- away. Sealed messages change nothing here.

CREATE TABLE run_texts (
    id      INTEGER PRIMARY KEY,
    run_id  TEXT NOT NULL UNIQUE REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    words   TEXT NOT NULL
) STRICT;

-- added counts the changes: words made before the last of them are not the newest.
CREATE TABLE runs_to_index (
    run_id  TEXT NOT NULL PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    added   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE VIRTUAL TABLE run_words USING fts5 (
    words, content = 'run_texts', content_rowid = 'id', detail = 'none', columnsize = 0, tokenize = 'ascii'
);

-- Words that are to leave the index: a trigger may not use a virtual table, because the record's connections
-- do not trust its schema.
CREATE TABLE words_gone (
    id     INTEGER NOT NULL,
    words  TEXT NOT NULL
) STRICT;

CREATE TRIGGER run_texts_deleted AFTER DELETE ON run_texts BEGIN
    INSERT INTO words_gone (id, words) VALUES (OLD.id, OLD.words);
END;

CREATE TRIGGER messages_added AFTER INSERT ON messages WHEN NEW.sealed_by IS NULL BEGIN
    INSERT INTO runs_to_index (run_id, added) VALUES (NEW.run_id, 1)
    ON CONFLICT (run_id) DO UPDATE SET added = added + 1;
END;

CREATE TRIGGER messages_changed AFTER UPDATE ON messages BEGIN
    DELETE FROM run_texts WHERE run_id = NEW.run_id;
END;

CREATE TRIGGER messages_replaced AFTER UPDATE ON messages WHEN NEW.sealed_by IS NULL BEGIN
    INSERT INTO runs_to_index (run_id, added) VALUES (NEW.run_id, 1)
    ON CONFLICT (run_id) DO UPDATE SET added = added + 1;
END;

CREATE TRIGGER messages_deleted AFTER DELETE ON messages BEGIN
    DELETE FROM run_texts WHERE run_id = OLD.run_id;
END;

-- What is kept unsealed already; the server indexes it in small steps.
INSERT INTO runs_to_index (run_id, added)
SELECT run_id, 1 FROM messages
EXCEPT SELECT run_id, 1 FROM messages WHERE sealed_by IS NOT NULL;
