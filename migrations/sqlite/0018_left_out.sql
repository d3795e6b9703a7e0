-- The fields of a client's request that an upstream of another dialect was not sent, as a JSON list of names.
ALTER TABLE runs ADD COLUMN left_out TEXT NOT NULL DEFAULT '[]';
