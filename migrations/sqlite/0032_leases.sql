-- schema is the newest schema that a process knows: a process of an earlier version may not write beside this one.

ALTER TABLE owners ADD COLUMN schema INTEGER NOT NULL DEFAULT 0;

CREATE INDEX owners_alive ON owners (id) WHERE ended_at IS NULL;

-- The names of the keys that servers seal content with.  A record in a file has its key beside it, and none here.

CREATE TABLE seal_keys (
    id        TEXT NOT NULL PRIMARY KEY,
    host      TEXT NOT NULL,
    noted_at  REAL NOT NULL
) STRICT;
