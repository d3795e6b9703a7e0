-- Grants: what lets later calls of a tool run without asking a person about each of them.  A grant is made
-- with the decision about an approval, and goes with the run that asked.  A column is set to NULL, and so the
-- whole write refused, where a grant is used that has expired or was revoked.

CREATE TABLE approval_grants (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    approval_id  TEXT COLLATE "C" NOT NULL UNIQUE,
    run_id       TEXT COLLATE "C" NOT NULL,
    caller       TEXT COLLATE "C" NOT NULL,
    tool         TEXT COLLATE "C" NOT NULL,
    spec_digest  TEXT COLLATE "C" NOT NULL,
    rule         TEXT COLLATE "C" NOT NULL,
    bounds       TEXT COLLATE "C" NOT NULL,
    scope        TEXT COLLATE "C" NOT NULL CHECK (scope IN ('caller', 'conversation')),
    created_at   DOUBLE PRECISION NOT NULL,
    expires_at   DOUBLE PRECISION NOT NULL,
    made_by      TEXT COLLATE "C" NOT NULL,
    made_via     TEXT COLLATE "C" NOT NULL,
    revoked_at   DOUBLE PRECISION,
    revoked_by   TEXT COLLATE "C" NOT NULL,
    uses         BIGINT NOT NULL,
    used_at      DOUBLE PRECISION,
    sealed_by    TEXT COLLATE "C"
);

CREATE INDEX approval_grants_by_time ON approval_grants (created_at);
CREATE INDEX approval_grants_by_run ON approval_grants (run_id);
CREATE INDEX approval_grants_by_caller ON approval_grants (caller, expires_at);
CREATE INDEX approval_grants_sealed ON approval_grants (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE FUNCTION grants_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM approval_grants WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER grants_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION grants_go_with_their_run();
