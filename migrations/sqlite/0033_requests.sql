-- Requests of clients that have no run: they passed through, were refused, or failed before a run began.
-- Processes of schema 32 write none and delete none. unreported: a model answered and its tokens are unknown.
-- cost is in billionths of the currency of the prices; NULL: not known.

CREATE TABLE requests (
    id             TEXT NOT NULL PRIMARY KEY,
    request_id     TEXT NOT NULL,
    caller         TEXT NOT NULL,
    dialect        TEXT NOT NULL,
    operation      TEXT NOT NULL,
    endpoint       TEXT NOT NULL,
    model          TEXT NOT NULL,
    upstream       TEXT NOT NULL,
    status         INTEGER NOT NULL,
    error_code     TEXT,
    created_at     REAL NOT NULL,
    duration_s     REAL NOT NULL,
    first_byte_s   REAL,
    input_tokens   INTEGER,
    output_tokens  INTEGER,
    total_tokens   INTEGER,
    cost           INTEGER,
    unreported     INTEGER NOT NULL,
    caller_key     TEXT GENERATED ALWAYS AS (substr(caller, 1, instr(caller || '/', '/') - 1)) VIRTUAL
) STRICT;

CREATE INDEX requests_by_time ON requests (created_at, id);
CREATE INDEX requests_by_key ON requests (caller_key, created_at, id);
