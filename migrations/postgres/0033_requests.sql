-- Requests of clients that have no run: they passed through, were refused, or failed before a run began.
-- Processes of schema 32 write none and delete none. unreported: a model answered and its tokens are unknown.
-- cost is in billionths of the currency of the prices; NULL: not known.

CREATE TABLE requests (
    id             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    request_id     TEXT COLLATE "C" NOT NULL,
    caller         TEXT COLLATE "C" NOT NULL,
    dialect        TEXT COLLATE "C" NOT NULL,
    operation      TEXT COLLATE "C" NOT NULL,
    endpoint       TEXT COLLATE "C" NOT NULL,
    model          TEXT COLLATE "C" NOT NULL,
    upstream       TEXT COLLATE "C" NOT NULL,
    status         BIGINT NOT NULL,
    error_code     TEXT COLLATE "C",
    created_at     DOUBLE PRECISION NOT NULL,
    duration_s     DOUBLE PRECISION NOT NULL,
    first_byte_s   DOUBLE PRECISION,
    input_tokens   BIGINT,
    output_tokens  BIGINT,
    total_tokens   BIGINT,
    cost           BIGINT,
    unreported     BIGINT NOT NULL,
    caller_key     TEXT COLLATE "C" GENERATED ALWAYS AS (split_part(caller, '/', 1)) STORED
);

CREATE INDEX requests_by_time ON requests (created_at, id);
CREATE INDEX requests_by_key ON requests (caller_key, created_at, id);
