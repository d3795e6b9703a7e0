-- Grants: what lets later calls of a tool run without asking a person about each of them.  A grant is made
-- with the decision about an approval, and goes with the run that asked.  A column is set to NULL, and so the
-- whole write refused, where a grant is used that has expired or was revoked.

CREATE TABLE approval_grants (
    id           TEXT NOT NULL PRIMARY KEY,
    approval_id  TEXT NOT NULL UNIQUE,
    run_id       TEXT NOT NULL,
    caller       TEXT NOT NULL,
    tool         TEXT NOT NULL,
    spec_digest  TEXT NOT NULL,
    rule         TEXT NOT NULL,
    bounds       TEXT NOT NULL,
    scope        TEXT NOT NULL CHECK (scope IN ('caller', 'conversation')),
    created_at   REAL NOT NULL,
    expires_at   REAL NOT NULL,
    made_by      TEXT NOT NULL,
    made_via     TEXT NOT NULL,
    revoked_at   REAL,
    revoked_by   TEXT NOT NULL,
    uses         INTEGER NOT NULL,
    used_at      REAL,
    sealed_by    TEXT
) STRICT;

CREATE INDEX approval_grants_by_time ON approval_grants (created_at);
CREATE INDEX approval_grants_by_run ON approval_grants (run_id);
CREATE INDEX approval_grants_by_caller ON approval_grants (caller, expires_at);
CREATE INDEX approval_grants_sealed ON approval_grants (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE TRIGGER grants_go_with_their_run AFTER DELETE ON runs BEGIN
    DELETE FROM approval_grants WHERE run_id = OLD.id;
END;
