-- Approvals: an exact snapshot of one planned call, and what a person decided about it.  A row changes by
-- conditional updates alone, and is used once.  Content (arguments, the reason that was given), so that it
-- goes with its days and its run; a call whose approval is gone does not run.

CREATE TABLE approvals (
    id                TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    run_id            TEXT COLLATE "C" NOT NULL,
    turn              BIGINT NOT NULL,
    seq               BIGINT NOT NULL,
    call_id           TEXT COLLATE "C" NOT NULL,
    caller            TEXT COLLATE "C" NOT NULL,
    client_key        TEXT COLLATE "C" NOT NULL,
    tool              TEXT COLLATE "C" NOT NULL,
    effect            TEXT COLLATE "C" NOT NULL,
    spec_digest       TEXT COLLATE "C" NOT NULL,
    arguments_digest  TEXT COLLATE "C" NOT NULL,
    arguments         TEXT COLLATE "C" NOT NULL,
    arguments_shown   TEXT COLLATE "C" NOT NULL,
    rule              TEXT COLLATE "C" NOT NULL,
    created_at        DOUBLE PRECISION NOT NULL,
    expires_at        DOUBLE PRECISION NOT NULL,
    status            TEXT COLLATE "C" NOT NULL
        CHECK (status IN ('pending', 'approved', 'used', 'denied', 'expired', 'superseded')),
    decided_by        TEXT COLLATE "C" NOT NULL,
    decided_via       TEXT COLLATE "C" NOT NULL,
    decided_at        DOUBLE PRECISION,
    words             TEXT COLLATE "C" NOT NULL,
    edited            TEXT COLLATE "C" NOT NULL,
    invocation_id     TEXT COLLATE "C" NOT NULL,
    decision_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    sealed_by         TEXT COLLATE "C"
);

CREATE INDEX approvals_by_time ON approvals (created_at);
CREATE INDEX approvals_by_run ON approvals (run_id);
CREATE INDEX approvals_by_caller ON approvals (caller, created_at);
CREATE INDEX approvals_waiting ON approvals (expires_at) WHERE status = 'pending';
CREATE INDEX approvals_sealed ON approvals (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE FUNCTION approvals_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM approvals WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER approvals_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION approvals_go_with_their_run();
