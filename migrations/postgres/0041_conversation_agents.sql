-- The agent (a name, an id, or a name with @ and a version) and the model that messages of the conversation get when they name none.
-- NULL: the server's default agent, and the agent's own model. Servers of the previous version write neither column.
ALTER TABLE conversations ADD COLUMN agent text;
ALTER TABLE conversations ADD COLUMN model text;

-- Conversations of the previous version keep the agent of their newest run.
UPDATE conversations SET agent = (
    SELECT r.agent FROM runs r WHERE r.conversation_id = conversations.id ORDER BY r.first_seq DESC LIMIT 1
);

-- Serves the list of an owner's runs, newest first.
CREATE INDEX runs_by_owner ON runs (owner_id, created_at DESC, id DESC);
