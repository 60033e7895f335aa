-- Copies of conversations that the holders of a link read.
CREATE TABLE conversation_shares (
    id              text COLLATE "C" PRIMARY KEY,
    owner_id        text COLLATE "C" NOT NULL,
    -- Servers of earlier versions delete conversations, too.
    conversation_id text COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    -- Of the token in the link.
    hash            text COLLATE "C" NOT NULL UNIQUE,
    -- The conversation when it was shared. The messages are a JSON list.
    title           text COLLATE "C" NOT NULL,
    messages        text NOT NULL,
    message_count   bigint NOT NULL,
    created_at      bigint NOT NULL,
    expires_at      bigint NOT NULL
);
CREATE INDEX conversation_shares_of_conversation ON conversation_shares (conversation_id, created_at DESC, id DESC);
CREATE INDEX conversation_shares_by_expiry ON conversation_shares (expires_at);
