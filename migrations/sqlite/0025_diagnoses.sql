-- What `toolrelay doctor` found of an upstream, the newest for each, for the web UI.  It names no conversation,
-- so it neither expires nor goes with a run.

CREATE TABLE diagnoses (
    upstream    TEXT NOT NULL PRIMARY KEY,
    diagnosis   TEXT NOT NULL,           -- JSON: when, of which address and model, each finding in words
    updated_at  REAL NOT NULL
) STRICT;
