-- Content may be sealed (store.seal_key).  sealed_by names the key of a sealed row; NULL: it is not.
-- The small indexes let a start see at once which keys the record needs.

ALTER TABLE messages ADD COLUMN sealed_by TEXT COLLATE "C";
ALTER TABLE suspended_turns ADD COLUMN sealed_by TEXT COLLATE "C";
ALTER TABLE hidden_turns ADD COLUMN sealed_by TEXT COLLATE "C";
ALTER TABLE responses ADD COLUMN sealed_by TEXT COLLATE "C";

CREATE INDEX messages_sealed ON messages (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX suspended_turns_sealed ON suspended_turns (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX hidden_turns_sealed ON hidden_turns (sealed_by) WHERE sealed_by IS NOT NULL;
CREATE INDEX responses_sealed ON responses (sealed_by) WHERE sealed_by IS NOT NULL;
