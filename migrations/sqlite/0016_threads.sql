-- What the upstream keeps for a caller under an id that later requests go on from or refer to:
-- conversations, responses and their items.  untrusted is the tool whose untrusted result is in it, empty
-- where there is none.  For store.keep_days after it was seen last.

CREATE TABLE threads (
    id          TEXT NOT NULL,
    caller      TEXT NOT NULL,
    untrusted   TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (id, caller)
) STRICT;

CREATE INDEX threads_by_time ON threads (created_at);

-- The setting whose budget a run has spent; NULL: none, or the row is older than this column.
ALTER TABLE runs ADD COLUMN spent TEXT;

-- How many turns ended without a word of the upstream on what they used.  The counts of tokens are those
-- of the other turns.
ALTER TABLE runs ADD COLUMN unreported INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN unreported INTEGER NOT NULL DEFAULT 0;
