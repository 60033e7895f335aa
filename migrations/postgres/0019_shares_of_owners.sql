-- Lists the shares of an owner in all conversations.
CREATE INDEX IF NOT EXISTS conversation_shares_of_owner ON conversation_shares (owner_id, created_at DESC, id DESC);
