-- Whether a client has the whole answer of a run that was answered with this effect.  Until then a request
-- that is the same may be a repeat of it whose client does not say so (rule R5).
ALTER TABLE effect_claims ADD COLUMN answered INTEGER NOT NULL DEFAULT 0 CHECK (answered IN (0, 1));
