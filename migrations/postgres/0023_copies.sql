-- Of a conversation that is a copy, where it comes from: JSON.
ALTER TABLE conversations ADD COLUMN forked_from text;
-- A turn that was copied: nothing was executed, and it does not count as used.
ALTER TABLE runs ADD COLUMN is_copy boolean NOT NULL DEFAULT false;
