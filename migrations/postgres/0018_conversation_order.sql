-- How people keep their conversations in order.
ALTER TABLE conversations
    ADD COLUMN pinned      boolean NOT NULL DEFAULT false,
    -- When it was put away; NULL if it is not.
    ADD COLUMN archived_at bigint,
    -- JSON: a list of words.
    ADD COLUMN tags        text NOT NULL DEFAULT '[]';
