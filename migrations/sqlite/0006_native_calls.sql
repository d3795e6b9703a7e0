-- Content: a call as the upstream sent it, beside the row of its execution.  Kept only as
-- store.content allows and for store.keep_days at most; nothing is decided by it.
-- No foreign key on invocation_id, and a trigger in place of ON DELETE CASCADE: the row of the
-- execution may be lost, and this one must not take a whole group of writes with it.

CREATE TABLE native_calls (
    invocation_id  TEXT NOT NULL PRIMARY KEY,
    run_id         TEXT NOT NULL,
    payload        TEXT NOT NULL,
    created_at     REAL NOT NULL,
    sealed_by      TEXT
) STRICT;

CREATE INDEX native_calls_by_time ON native_calls (created_at);
CREATE INDEX native_calls_by_run ON native_calls (run_id);
CREATE INDEX native_calls_sealed ON native_calls (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE TRIGGER native_calls_go_with_their_execution AFTER DELETE ON tool_invocations BEGIN
    DELETE FROM native_calls WHERE invocation_id = OLD.id;
END;
