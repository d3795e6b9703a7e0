-- Content: responses of the Responses wire that server tools took part in, kept only as
-- store.content allows and for store.keep_days at most.
--
-- The ids are the upstreams' words, and two of them may say the same one.  So a response belongs
-- to its caller by its key: nobody reads, replaces or deletes another's.
-- No foreign key on run_id: a response must be writable even where the row of its run was lost.
-- The trigger does what ON DELETE CASCADE does for other content: none outlives its run.

CREATE TABLE responses (
    id            TEXT COLLATE "C" NOT NULL,
    caller        TEXT COLLATE "C" NOT NULL,
    run_id        TEXT COLLATE "C" NOT NULL,
    response      BYTEA NOT NULL,  -- JSON of the Response resource
    input_items   BYTEA NOT NULL,  -- JSON of the list of its input items
    continuation  BYTEA NOT NULL,  -- JSON of what the next request goes on with; the wire alone reads it
    created_at    DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id, caller)
);

CREATE INDEX responses_by_time ON responses (created_at);
CREATE INDEX responses_by_run ON responses (run_id);

CREATE FUNCTION responses_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM responses WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER responses_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION responses_go_with_their_run();
