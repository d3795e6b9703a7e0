-- Client keys.  Of a secret only a keyed hash is kept; grants are the words of [keys.NAME] as JSON.
-- A key that was revoked stays: that there ever were keys keeps the door closed.

CREATE TABLE client_keys (
    id          TEXT NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL,
    digest      BLOB NOT NULL,
    hashed_by   TEXT NOT NULL,       -- 'pepper', or the seal key that the hash key is derived from
    grants      TEXT NOT NULL,
    verify_key  BLOB,                -- Ed25519; NULL: mints no tokens
    created_at  REAL NOT NULL,
    expires_at  REAL,
    revoked_at  REAL
) STRICT;

CREATE UNIQUE INDEX client_keys_by_name ON client_keys (name) WHERE revoked_at IS NULL;

-- One row, once there was a key or a pepper.  version grows with every change of a key, whoever makes it.
CREATE TABLE key_state (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    version  INTEGER NOT NULL,
    pepper   BLOB
) STRICT;

CREATE TRIGGER client_keys_inserted AFTER INSERT ON client_keys BEGIN
    INSERT INTO key_state (id, version) VALUES (1, 1)
        ON CONFLICT (id) DO UPDATE SET version = key_state.version + 1;
END;

CREATE TRIGGER client_keys_updated AFTER UPDATE ON client_keys BEGIN
    INSERT INTO key_state (id, version) VALUES (1, 1)
        ON CONFLICT (id) DO UPDATE SET version = key_state.version + 1;
END;

CREATE TRIGGER client_keys_deleted AFTER DELETE ON client_keys BEGIN
    INSERT INTO key_state (id, version) VALUES (1, 1)
        ON CONFLICT (id) DO UPDATE SET version = key_state.version + 1;
END;

-- Whose a response is that went through untouched, so that only the upstream keeps it.
-- For store.keep_days at most.
CREATE TABLE response_owners (
    id          TEXT NOT NULL,
    caller      TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (id, caller)
) STRICT;

CREATE INDEX response_owners_by_time ON response_owners (created_at);
