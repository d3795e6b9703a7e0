-- Content: the bytes of a run on both sides of the wire, as they came and went, with their times.  size is
-- how many bytes of bodies are kept, and cut says that there were more.

CREATE TABLE wire_bytes (
    run_id      TEXT NOT NULL PRIMARY KEY,
    caller      TEXT NOT NULL,
    size        INTEGER NOT NULL,
    cut         INTEGER NOT NULL CHECK (cut IN (0, 1)),
    payload     BLOB NOT NULL,
    created_at  REAL NOT NULL,
    sealed_by   TEXT
) STRICT;

CREATE INDEX wire_bytes_by_time ON wire_bytes (created_at);
CREATE INDEX wire_bytes_by_caller ON wire_bytes (caller, created_at);
CREATE INDEX wire_bytes_sealed ON wire_bytes (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE TRIGGER wire_bytes_go_with_their_run AFTER DELETE ON runs BEGIN
    DELETE FROM wire_bytes WHERE run_id = OLD.id;
END;
