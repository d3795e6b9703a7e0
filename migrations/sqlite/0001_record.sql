-- The record: who wrote it, what ran, and the content the model must see again.
-- Times are seconds since the epoch (UTC).  JSON is kept as text.
-- Foreign keys are deferred, so that one transaction may write its rows in any order.

PRAGMA application_id = 0x74726C79;  -- "trly"

-- One row for each process that has written here.  It is alive while it holds an exclusive lock
-- on lock_file; a lock that can be taken proves that it is dead, whatever happened to its pid.
CREATE TABLE owners (
    id          TEXT NOT NULL PRIMARY KEY,
    pid         INTEGER NOT NULL,
    host        TEXT NOT NULL,
    lock_file   TEXT,                -- NULL: no lock could be taken, so nothing is ever provable
    started_at  REAL NOT NULL,
    seen_at     REAL NOT NULL,
    ended_at    REAL
) STRICT;

CREATE TABLE runs (
    id             TEXT NOT NULL PRIMARY KEY,
    owner_id       TEXT NOT NULL REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,
    request_id     TEXT NOT NULL,
    caller         TEXT NOT NULL,
    wire           TEXT NOT NULL,
    model          TEXT NOT NULL,
    upstream       TEXT NOT NULL,
    stream         INTEGER NOT NULL CHECK (stream IN (0, 1)),
    status         TEXT NOT NULL CHECK (
        status IN ('running', 'completed', 'suspended', 'failed', 'cancelled', 'interrupted')
    ),
    started_at     REAL NOT NULL,
    ended_at       REAL,
    error_code     TEXT,
    finish_reason  TEXT,
    turns          INTEGER NOT NULL DEFAULT 0,
    tool_calls     INTEGER NOT NULL DEFAULT 0,
    input_tokens   INTEGER NOT NULL DEFAULT 0,
    output_tokens  INTEGER NOT NULL DEFAULT 0,
    total_tokens   INTEGER NOT NULL DEFAULT 0,
    offered        TEXT NOT NULL DEFAULT '[]',  -- JSON list of tool names
    withheld       TEXT NOT NULL DEFAULT '{}'   -- JSON object: tool name to the rule that withheld it
) STRICT;

CREATE INDEX runs_by_time ON runs (started_at, id);
CREATE INDEX runs_by_status ON runs (status, started_at, id);
CREATE INDEX runs_by_model ON runs (model, started_at, id);
CREATE INDEX runs_by_caller ON runs (caller, started_at, id);
CREATE INDEX runs_with_errors ON runs (started_at, id)
    WHERE error_code IS NOT NULL OR status IN ('failed', 'interrupted');
CREATE INDEX runs_open ON runs (owner_id) WHERE status = 'running';

CREATE TABLE turns (
    run_id         TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    number         INTEGER NOT NULL CHECK (number >= 1),
    upstream_id    TEXT NOT NULL,
    finish_reason  TEXT,
    started_at     REAL NOT NULL,
    ended_at       REAL NOT NULL,
    input_tokens   INTEGER NOT NULL DEFAULT 0,
    output_tokens  INTEGER NOT NULL DEFAULT 0,
    total_tokens   INTEGER NOT NULL DEFAULT 0,
    tool_calls     INTEGER NOT NULL DEFAULT 0,
    error_code     TEXT,
    PRIMARY KEY (run_id, number)
) STRICT;

-- Content: kept only as store.content allows and for store.keep_days at most.
CREATE TABLE messages (
    run_id         TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    turn           INTEGER NOT NULL,
    seq            INTEGER NOT NULL,
    role           TEXT NOT NULL,
    content        TEXT,
    content_json   TEXT,
    tool_calls     TEXT,
    function_call  TEXT,
    tool_call_id   TEXT,
    name           TEXT,
    created_at     REAL NOT NULL,
    PRIMARY KEY (run_id, turn, seq)
) STRICT;

CREATE INDEX messages_by_time ON messages (created_at);

-- Record, redacted.  No foreign key on run_id: the row of a side effect must be writable
-- even where the row of its run was lost.
CREATE TABLE tool_invocations (
    id                  TEXT NOT NULL PRIMARY KEY,
    owner_id            TEXT NOT NULL REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,
    run_id              TEXT NOT NULL,
    turn                INTEGER NOT NULL,
    seq                 INTEGER NOT NULL,
    call_id             TEXT NOT NULL,
    tool                TEXT NOT NULL,
    provider            TEXT NOT NULL,
    spec_digest         TEXT NOT NULL,
    effect              TEXT NOT NULL CHECK (effect IN ('read_only', 'state_change', 'external_side_effect')),
    decision            TEXT NOT NULL,
    status              TEXT NOT NULL CHECK (
        status IN ('started', 'success', 'error', 'cancelled', 'interrupted')
    ),
    error_code          TEXT,
    arguments_redacted  TEXT,
    result_redacted     TEXT,
    result_bytes        INTEGER NOT NULL DEFAULT 0,
    started_at          REAL NOT NULL,
    ended_at            REAL
) STRICT;

CREATE INDEX tool_invocations_by_run ON tool_invocations (run_id, turn, seq);
CREATE INDEX tool_invocations_by_tool ON tool_invocations (tool, run_id);
CREATE INDEX tool_invocations_open ON tool_invocations (owner_id) WHERE status = 'started';

-- Content: the hidden part of a conversation that waits for its client.  The last one of a key counts.
CREATE TABLE suspended_turns (
    key         TEXT NOT NULL PRIMARY KEY,
    run_id      TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    caller      TEXT NOT NULL,
    wire        TEXT NOT NULL,
    payload     BLOB NOT NULL,
    created_at  REAL NOT NULL
) STRICT;

CREATE INDEX suspended_turns_by_time ON suspended_turns (created_at);
CREATE INDEX suspended_turns_by_run ON suspended_turns (run_id);
