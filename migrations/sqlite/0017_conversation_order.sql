-- How people keep their conversations in order.
ALTER TABLE conversations ADD COLUMN pinned integer NOT NULL DEFAULT 0;
-- When it was put away; NULL if it is not.
ALTER TABLE conversations ADD COLUMN archived_at integer;
-- JSON: a list of words.
ALTER TABLE conversations ADD COLUMN tags text NOT NULL DEFAULT '[]';
