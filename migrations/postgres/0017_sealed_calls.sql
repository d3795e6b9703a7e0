-- Arguments and results of calls are sealed, too, where there is a key: the one that sealed a row is named.

ALTER TABLE tool_invocations ADD COLUMN sealed_by TEXT COLLATE "C";

CREATE INDEX tool_invocations_sealed ON tool_invocations (sealed_by) WHERE sealed_by IS NOT NULL;
