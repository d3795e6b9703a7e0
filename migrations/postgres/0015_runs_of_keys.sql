-- A caller is a key, or one of its end users: KEY/PERSON.  Runs of a key are those of all of them.

ALTER TABLE runs ADD COLUMN caller_key TEXT COLLATE "C"
    GENERATED ALWAYS AS (split_part(caller, '/', 1)) STORED;

CREATE INDEX runs_by_key ON runs (caller_key, started_at, id);
