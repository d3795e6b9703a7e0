-- Tokens of tools' connections: access tokens and rotated refresh tokens, shared by all processes.
-- No content: they neither expire with it nor go with a run.  Always sealed (store.seal_key).

CREATE TABLE connection_tokens (
    id          TEXT NOT NULL PRIMARY KEY,
    tokens      BLOB NOT NULL,
    updated_at  REAL NOT NULL,
    sealed_by   TEXT NOT NULL
) STRICT;
