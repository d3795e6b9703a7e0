-- Runs of agents: the agent's name, the run that called it, and the execution of its tool there.

ALTER TABLE runs ADD COLUMN agent TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN parent_run TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN parent_call TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_of_a_run ON runs (parent_run, started_at, id) WHERE parent_run <> '';
