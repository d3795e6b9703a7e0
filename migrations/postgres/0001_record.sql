-- The record: who wrote it, what ran, and the content the model must see again.
-- Times are seconds since the epoch (UTC).  JSON is kept as text, which bears any escape.
-- Names are compared byte by byte ("C"), whatever the database's own order is: pages and prefixes
-- hang on it.
-- Foreign keys are deferred, so that one transaction may write its rows in any order.

-- One row for each process that has written here.  Its session holds the advisory lock
-- (1953655929, lock_key); a lock that stays free says that the process is gone, whatever its pid.
CREATE TABLE owners (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    pid         BIGINT NOT NULL,
    host        TEXT COLLATE "C" NOT NULL,
    lock_key    INTEGER NOT NULL,
    started_at  DOUBLE PRECISION NOT NULL,
    seen_at     DOUBLE PRECISION NOT NULL,
    ended_at    DOUBLE PRECISION
);

CREATE TABLE runs (
    id             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner_id       TEXT COLLATE "C" NOT NULL REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,
    request_id     TEXT COLLATE "C" NOT NULL,
    caller         TEXT COLLATE "C" NOT NULL,
    wire           TEXT COLLATE "C" NOT NULL,
    model          TEXT COLLATE "C" NOT NULL,
    upstream       TEXT COLLATE "C" NOT NULL,
    stream         SMALLINT NOT NULL CHECK (stream IN (0, 1)),
    status         TEXT COLLATE "C" NOT NULL CHECK (
        status IN ('running', 'completed', 'suspended', 'failed', 'cancelled', 'interrupted')
    ),
    started_at     DOUBLE PRECISION NOT NULL,
    ended_at       DOUBLE PRECISION,
    error_code     TEXT COLLATE "C",
    finish_reason  TEXT COLLATE "C",
    turns          BIGINT NOT NULL DEFAULT 0,
    tool_calls     BIGINT NOT NULL DEFAULT 0,
    input_tokens   BIGINT NOT NULL DEFAULT 0,
    output_tokens  BIGINT NOT NULL DEFAULT 0,
    total_tokens   BIGINT NOT NULL DEFAULT 0,
    offered        TEXT NOT NULL DEFAULT '[]',  -- JSON list of tool names
    withheld       TEXT NOT NULL DEFAULT '{}'   -- JSON object: tool name to the rule that withheld it
);

CREATE INDEX runs_by_time ON runs (started_at, id);
CREATE INDEX runs_by_status ON runs (status, started_at, id);
CREATE INDEX runs_by_model ON runs (model, started_at, id);
CREATE INDEX runs_by_caller ON runs (caller, started_at, id);
CREATE INDEX runs_with_errors ON runs (started_at, id)
    WHERE error_code IS NOT NULL OR status IN ('failed', 'interrupted');
CREATE INDEX runs_open ON runs (owner_id) WHERE status = 'running';

CREATE TABLE turns (
    run_id         TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    number         BIGINT NOT NULL CHECK (number >= 1),
    upstream_id    TEXT COLLATE "C" NOT NULL,
    finish_reason  TEXT COLLATE "C",
    started_at     DOUBLE PRECISION NOT NULL,
    ended_at       DOUBLE PRECISION NOT NULL,
    input_tokens   BIGINT NOT NULL DEFAULT 0,
    output_tokens  BIGINT NOT NULL DEFAULT 0,
    total_tokens   BIGINT NOT NULL DEFAULT 0,
    tool_calls     BIGINT NOT NULL DEFAULT 0,
    error_code     TEXT COLLATE "C",
    PRIMARY KEY (run_id, number)
);

-- Content: kept only as store.content allows and for store.keep_days at most.
CREATE TABLE messages (
    run_id         TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    turn           BIGINT NOT NULL,
    seq            BIGINT NOT NULL,
    role           TEXT COLLATE "C" NOT NULL,
    content        TEXT,
    content_json   TEXT,
    tool_calls     TEXT,
    function_call  TEXT,
    tool_call_id   TEXT COLLATE "C",
    name           TEXT COLLATE "C",
    created_at     DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (run_id, turn, seq)
);

CREATE INDEX messages_by_time ON messages (created_at);

-- Record, redacted.  No foreign key on run_id: the row of a side effect must be writable
-- even where the row of its run was lost.
CREATE TABLE tool_invocations (
    id                  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner_id            TEXT COLLATE "C" NOT NULL REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,
    run_id              TEXT COLLATE "C" NOT NULL,
    turn                BIGINT NOT NULL,
    seq                 BIGINT NOT NULL,
    call_id             TEXT COLLATE "C" NOT NULL,
    tool                TEXT COLLATE "C" NOT NULL,
    provider            TEXT COLLATE "C" NOT NULL,
    spec_digest         TEXT COLLATE "C" NOT NULL,
    effect              TEXT COLLATE "C" NOT NULL CHECK (effect IN ('read_only', 'state_change', 'external_side_effect')),
    decision            TEXT COLLATE "C" NOT NULL,
    status              TEXT COLLATE "C" NOT NULL CHECK (
        status IN ('started', 'success', 'error', 'cancelled', 'interrupted')
    ),
    error_code          TEXT COLLATE "C",
    arguments_redacted  TEXT,
    result_redacted     TEXT,
    result_bytes        BIGINT NOT NULL DEFAULT 0,
    started_at          DOUBLE PRECISION NOT NULL,
    ended_at            DOUBLE PRECISION
);

CREATE INDEX tool_invocations_by_run ON tool_invocations (run_id, turn, seq);
CREATE INDEX tool_invocations_by_tool ON tool_invocations (tool, run_id);
CREATE INDEX tool_invocations_open ON tool_invocations (owner_id) WHERE status = 'started';

-- Content: the hidden part of a conversation that waits for its client.  The last one of a key counts.
CREATE TABLE suspended_turns (
    key         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    run_id      TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    caller      TEXT COLLATE "C" NOT NULL,
    wire        TEXT COLLATE "C" NOT NULL,
    payload     BYTEA NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL
);

CREATE INDEX suspended_turns_by_time ON suspended_turns (created_at);
CREATE INDEX suspended_turns_by_run ON suspended_turns (run_id);
