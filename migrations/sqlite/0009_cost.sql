-- What runs and turns cost, in billionths of the currency of the prices: whole numbers add up exactly.
-- NULL: the model has no price, or the row is older than this column.

ALTER TABLE runs ADD COLUMN cost INTEGER;
ALTER TABLE turns ADD COLUMN cost INTEGER;
