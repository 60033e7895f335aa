-- Lists the conversations of an owner by their last change.
CREATE INDEX IF NOT EXISTS conversations_by_change ON conversations (owner_id, updated_at DESC, id DESC);
