-- Copies of conversations that the holders of a link read.
CREATE TABLE conversation_shares (
    id              text PRIMARY KEY,
    owner_id        text NOT NULL,
    -- Servers of earlier versions delete conversations, too.
    conversation_id text NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    -- Of the token in the link.
    hash            text NOT NULL UNIQUE,
    -- The conversation when it was shared. The messages are a JSON list.
    title           text NOT NULL,
    messages        text NOT NULL,
    message_count   integer NOT NULL,
    created_at      integer NOT NULL,
    expires_at      integer NOT NULL
) STRICT;
CREATE INDEX conversation_shares_of_conversation ON conversation_shares (conversation_id, created_at DESC, id DESC);
CREATE INDEX conversation_shares_by_expiry ON conversation_shares (expires_at);
