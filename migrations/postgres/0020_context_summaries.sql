-- What stands in requests to models for the older messages of a conversation.
CREATE TABLE context_summaries (
    conversation_id text PRIMARY KEY,
    -- The newest message that it stands for. Where that is not part of the conversation any more, it stands for nothing.
    covers          text NOT NULL,
    -- JSON.
    body            text NOT NULL,
    updated_at      bigint NOT NULL
);
