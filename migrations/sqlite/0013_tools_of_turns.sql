-- What a turn was not shown of the tools that its run offers, with the rule: a JSON object.

ALTER TABLE turns ADD COLUMN withheld TEXT NOT NULL DEFAULT '{}';
