-- Answers to approvals that hold for later calls: of one conversation, or of all of their owner. A tool whose definition changes
-- is another tool.
CREATE TABLE tool_grants (
    id              text PRIMARY KEY,
    owner_id        text NOT NULL,
    conversation_id text,
    server          text,
    tool            text NOT NULL,
    definition_hash text NOT NULL,
    created_at      integer NOT NULL
) STRICT;
CREATE UNIQUE INDEX tool_grants_once ON tool_grants
    (owner_id, coalesce(conversation_id, ''), coalesce(server, ''), tool, definition_hash);
CREATE INDEX tool_grants_by_conversation ON tool_grants (conversation_id) WHERE conversation_id IS NOT NULL;
