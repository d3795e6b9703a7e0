-- Client keys.  Of a secret only a keyed hash is kept; grants are the words of [keys.NAME] as JSON.
-- A key that was revoked stays: that there ever were keys keeps the door closed.

CREATE TABLE client_keys (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL,
    digest      BYTEA NOT NULL,
    hashed_by   TEXT COLLATE "C" NOT NULL,  -- 'pepper', or the seal key that the hash key is derived from
    grants      TEXT NOT NULL,
    verify_key  BYTEA,                      -- Ed25519; NULL: mints no tokens
    created_at  DOUBLE PRECISION NOT NULL,
    expires_at  DOUBLE PRECISION,
    revoked_at  DOUBLE PRECISION
);

CREATE UNIQUE INDEX client_keys_by_name ON client_keys (name) WHERE revoked_at IS NULL;

-- One row, once there was a key or a pepper.  version grows with every change of a key, whoever makes it.
CREATE TABLE key_state (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    version  BIGINT NOT NULL,
    pepper   BYTEA
);

-- Every process that checks keys listens; the word goes out with the commit.
CREATE FUNCTION client_keys_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO key_state (id, version) VALUES (1, 1)
        ON CONFLICT (id) DO UPDATE SET version = key_state.version + 1;
    PERFORM pg_notify('toolrelay_keys', TG_TABLE_SCHEMA);
    RETURN NULL;
END;
$$;

CREATE TRIGGER client_keys_changed AFTER INSERT OR UPDATE OR DELETE ON client_keys
    FOR EACH STATEMENT EXECUTE FUNCTION client_keys_changed();

-- Whose a response is that went through untouched, so that only the upstream keeps it.
-- For store.keep_days at most.
CREATE TABLE response_owners (
    id          TEXT COLLATE "C" NOT NULL,
    caller      TEXT COLLATE "C" NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id, caller)
);

CREATE INDEX response_owners_by_time ON response_owners (created_at);
