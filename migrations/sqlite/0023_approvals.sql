-- Approvals: an exact snapshot of one planned call, and what a person decided about it.  A row changes by
-- conditional updates alone, and is used once.  Content (arguments, the reason that was given), so that it
-- goes with its days and its run; a call whose approval is gone does not run.

CREATE TABLE approvals (
    id                TEXT NOT NULL PRIMARY KEY,
    run_id            TEXT NOT NULL,
    turn              INTEGER NOT NULL,
    seq               INTEGER NOT NULL,
    call_id           TEXT NOT NULL,
    caller            TEXT NOT NULL,
    client_key        TEXT NOT NULL,
    tool              TEXT NOT NULL,
    effect            TEXT NOT NULL,
    spec_digest       TEXT NOT NULL,
    arguments_digest  TEXT NOT NULL,
    arguments         TEXT NOT NULL,
    arguments_shown   TEXT NOT NULL,
    rule              TEXT NOT NULL,
    created_at        REAL NOT NULL,
    expires_at        REAL NOT NULL,
    status            TEXT NOT NULL
        CHECK (status IN ('pending', 'approved', 'used', 'denied', 'expired', 'superseded')),
    decided_by        TEXT NOT NULL,
    decided_via       TEXT NOT NULL,
    decided_at        REAL,
    words             TEXT NOT NULL,
    edited            TEXT NOT NULL,
    invocation_id     TEXT NOT NULL,
    decision_id       TEXT NOT NULL DEFAULT '',
    sealed_by         TEXT
) STRICT;

CREATE INDEX approvals_by_time ON approvals (created_at);
CREATE INDEX approvals_by_run ON approvals (run_id);
CREATE INDEX approvals_by_caller ON approvals (caller, created_at);
CREATE INDEX approvals_waiting ON approvals (expires_at) WHERE status = 'pending';
CREATE INDEX approvals_sealed ON approvals (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE TRIGGER approvals_go_with_their_run AFTER DELETE ON runs BEGIN
    DELETE FROM approvals WHERE run_id = OLD.id;
END;
