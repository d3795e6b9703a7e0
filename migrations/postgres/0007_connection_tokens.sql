-- Tokens of tools' connections: access tokens and rotated refresh tokens, shared by all processes.
-- No content: they neither expire with it nor go with a run.  Always sealed (store.seal_key).

CREATE TABLE connection_tokens (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tokens      BYTEA NOT NULL,
    updated_at  DOUBLE PRECISION NOT NULL,
    sealed_by   TEXT COLLATE "C" NOT NULL
);
