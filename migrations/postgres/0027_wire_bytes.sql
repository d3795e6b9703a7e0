-- Content: the bytes of a run on both sides of the wire, as they came and went, with their times.  size is
-- how many bytes of bodies are kept, and cut says that there were more.

CREATE TABLE wire_bytes (
    run_id      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    caller      TEXT COLLATE "C" NOT NULL,
    size        BIGINT NOT NULL,
    cut         BIGINT NOT NULL CHECK (cut IN (0, 1)),
    payload     BYTEA NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    sealed_by   TEXT COLLATE "C"
);

CREATE INDEX wire_bytes_by_time ON wire_bytes (created_at);
CREATE INDEX wire_bytes_by_caller ON wire_bytes (caller, created_at);
CREATE INDEX wire_bytes_sealed ON wire_bytes (sealed_by) WHERE sealed_by IS NOT NULL;

CREATE FUNCTION wire_bytes_go_with_their_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM wire_bytes WHERE run_id = OLD.id;
    RETURN NULL;
END;
$$;

CREATE TRIGGER wire_bytes_go_with_their_run AFTER DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION wire_bytes_go_with_their_run();
