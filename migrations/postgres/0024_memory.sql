-- What was put back into a run's request, and why other hidden turns were not (JSON, no content; NULL where
-- nothing was looked up); and the newest run whose hidden turns were put back.

ALTER TABLE runs ADD COLUMN memory TEXT;
ALTER TABLE runs ADD COLUMN continues TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_continuing ON runs (continues, started_at, id) WHERE continues <> '';
