-- Background responses: which process runs each one, and what another one would run it again from if that
-- process dies.  A row changes by conditional updates alone.  asked_at is when the response was created,
-- created_at when the row last changed, from which its days count.  request is content, and NULL once the
-- response has ended.

CREATE TABLE background_runs (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner_id    TEXT COLLATE "C" NOT NULL,
    caller      TEXT COLLATE "C" NOT NULL,
    run_id      TEXT COLLATE "C" NOT NULL,
    asked_at    DOUBLE PRECISION NOT NULL,
    attempt     BIGINT NOT NULL CHECK (attempt >= 1),
    deaths      BIGINT NOT NULL CHECK (deaths >= 0),
    state       TEXT COLLATE "C" NOT NULL CHECK (state IN ('running', 'released', 'ended')),
    cancelled   BIGINT NOT NULL CHECK (cancelled IN (0, 1)),
    request     BYTEA,
    created_at  DOUBLE PRECISION NOT NULL,
    sealed_by   TEXT COLLATE "C"
);

CREATE INDEX background_runs_by_time ON background_runs (created_at);
CREATE INDEX background_runs_by_run ON background_runs (run_id);
CREATE INDEX background_runs_by_caller ON background_runs (caller, created_at);
CREATE INDEX background_runs_open ON background_runs (asked_at) WHERE state <> 'ended';
CREATE INDEX background_runs_sealed ON background_runs (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE FUNCTION background_runs_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM background_runs WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER background_runs_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION background_runs_go_with_their_run();

-- The run whose background response a run has taken over; empty for none.
ALTER TABLE runs ADD COLUMN takes_over TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_taking_over ON runs (takes_over) WHERE takes_over <> '';
