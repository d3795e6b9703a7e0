-- A process is alive while its lease lasts, by this server's clock.  Before, an advisory lock under lock_key said
-- so.  Without that column a process of an earlier version, which claims no lease, cannot enter itself any more,
-- and so writes nothing.  schema is the newest schema that the process knows.

ALTER TABLE owners
    DROP COLUMN lock_key,
    ADD COLUMN lease_until DOUBLE PRECISION NOT NULL DEFAULT 0,
    ADD COLUMN schema BIGINT NOT NULL DEFAULT 0;

CREATE INDEX owners_alive ON owners (id) WHERE ended_at IS NULL;

-- The names of the keys that servers seal content with, so that a server with another key does not start, also
-- where nothing is sealed yet.

CREATE TABLE seal_keys (
    id        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    host      TEXT COLLATE "C" NOT NULL,  -- that used it first
    noted_at  DOUBLE PRECISION NOT NULL
);
