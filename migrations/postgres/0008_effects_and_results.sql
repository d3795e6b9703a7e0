-- What several workers have to know of one another: which side effect has been begun for whom, so
-- that a request which is repeated elsewhere does not cause it again (rule R5), and results too
-- large to be shown at once, which any worker may be asked for.

-- A row is committed with the invocation's, before the effect.  key is a digest: of a place (run,
-- turn, seq), or of a client's request and the call that it led to.  asked_at is when the request
-- came in.  result is content, and NULL until the call is over; how it ended its invocation says.
CREATE TABLE effect_claims (
    key            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    invocation_id  TEXT COLLATE "C" NOT NULL,
    owner_id       TEXT COLLATE "C" NOT NULL REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,
    is_repeat      BIGINT NOT NULL CHECK (is_repeat IN (0, 1)),
    asked_at       DOUBLE PRECISION NOT NULL,
    created_at     DOUBLE PRECISION NOT NULL,
    result         BYTEA,
    sealed_by      TEXT COLLATE "C"
);

CREATE INDEX effect_claims_by_time ON effect_claims (created_at);
CREATE INDEX effect_claims_by_invocation ON effect_claims (invocation_id);
CREATE INDEX effect_claims_sealed ON effect_claims (sealed_by) WHERE sealed_by IS NOT NULL;

-- A purge takes the content; that the effect was caused stays known for as long as a repeat may come.
CREATE FUNCTION effect_results_go_with_their_call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE effect_claims SET result = NULL, sealed_by = NULL WHERE invocation_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER effect_results_go_with_their_call AFTER DELETE ON tool_invocations
    FOR EACH ROW EXECUTE FUNCTION effect_results_go_with_their_call();

-- Content.  The handle is the key: random, and good for its caller alone.
CREATE TABLE kept_results (
    handle      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    run_id      TEXT COLLATE "C" NOT NULL,
    caller      TEXT COLLATE "C" NOT NULL,
    untrusted   BIGINT NOT NULL CHECK (untrusted IN (0, 1)),
    content     TEXT COLLATE "C" NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    sealed_by   TEXT COLLATE "C"
);

CREATE INDEX kept_results_by_time ON kept_results (created_at);
CREATE INDEX kept_results_by_run ON kept_results (run_id);
CREATE INDEX kept_results_by_caller ON kept_results (caller, created_at);
CREATE INDEX kept_results_sealed ON kept_results (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE FUNCTION kept_results_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM kept_results WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER kept_results_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION kept_results_go_with_their_run();

-- What one caller keeps is bounded, and its oldest goes first.
CREATE INDEX suspended_turns_by_caller ON suspended_turns (caller, created_at);
CREATE INDEX hidden_turns_by_caller ON hidden_turns (caller, created_at);
CREATE INDEX responses_by_caller ON responses (caller, created_at);
