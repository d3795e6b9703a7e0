-- The prompt hash (model, instructions, system messages, tools), and which version of an agent's definition
-- a run had.  The column shape, which the prompt hash replaces, stays for processes of the last version that
-- still write it.

ALTER TABLE runs ADD COLUMN prompt_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN agent_version TEXT NOT NULL DEFAULT '';
