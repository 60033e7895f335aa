-- Conversations, their messages, and the event log of each.

CREATE TABLE conversations (
    id            text PRIMARY KEY,
    owner_id      text NOT NULL,
    title         text NOT NULL,
    -- 'words': the first message's words; 'asked': the same until the model's title arrives, which is requested once; NULL: the user's own.
    title_by      text,
    -- The model call for the title: its usage (JSON), model and time. It belongs to no run.
    title_usage   text,
    title_model   text,
    title_at      integer,
    status        text NOT NULL,
    pinned        integer NOT NULL DEFAULT 0,
    -- The conversation of one request: listed nowhere, and deleted early.
    hidden        integer NOT NULL DEFAULT 0,
    -- A JSON list.
    tags          text NOT NULL DEFAULT '[]',
    system_prompt text,
    instructions  text,
    -- The agent (a name, an id, or a name with @ and a version) and the model of messages that name none.
    -- NULL: the server's default agent, and the agent's own model.
    agent         text,
    model         text,
    -- JSON: the origin of a copy.
    forked_from   text,
    created_at    integer NOT NULL,
    updated_at    integer NOT NULL,
    archived_at   integer
) STRICT;
CREATE INDEX conversations_by_owner ON conversations (owner_id, created_at DESC, id DESC);
CREATE INDEX conversations_hidden ON conversations (id) WHERE hidden;
CREATE INDEX conversations_titled ON conversations (title_at) WHERE title_at IS NOT NULL;

-- The fence and the counter of each log in one narrow row, which every write updates: the update waits for a concurrent claim, tests
-- run and epoch, and takes the next numbers.
CREATE TABLE conversation_heads (
    conversation_id text PRIMARY KEY,
    owner_id        text NOT NULL,
    last_seq        integer NOT NULL DEFAULT 0,
    run_id          text,
    epoch           integer NOT NULL DEFAULT 0,
    -- The number of messages that have joined a run under way. A run ends only if its worker has processed all of them: its end names
    -- the number that the worker knows.
    joined          integer NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    conversation_id text NOT NULL,
    owner_id        text NOT NULL,
    seq             integer NOT NULL,
    run_id          text,
    attempt         integer NOT NULL,
    kind            text NOT NULL,
    at              integer NOT NULL,
    data            text NOT NULL,
    PRIMARY KEY (conversation_id, seq)
) STRICT;

CREATE TABLE messages (
    id              text PRIMARY KEY,
    conversation_id text NOT NULL,
    owner_id        text NOT NULL,
    run_id          text NOT NULL,
    -- Order within the conversation, taken from the log's numbers.
    position        integer NOT NULL,
    role            text NOT NULL,
    -- The whole message as clients see it.
    body            text NOT NULL,
    created_at      integer NOT NULL,
    -- The run that replaced this message. The message is kept, but neither listed nor sent to a model.
    superseded_by   text,
    -- Feedback of the owner, and its review by an administrator.
    rating          text,
    comment         text,
    rated_at        integer,
    reviewed_at     integer,
    reviewed_by     text
) STRICT;
CREATE UNIQUE INDEX messages_by_position ON messages (conversation_id, position);
CREATE INDEX messages_rated_by_owner ON messages (owner_id, rated_at, id) WHERE rated_at IS NOT NULL;

CREATE TABLE context_summaries (
    conversation_id text PRIMARY KEY,
    owner_id        text NOT NULL,
    -- The newest message that the summary covers. If the conversation no longer has it, the summary is void.
    covers          text NOT NULL,
    -- JSON.
    body            text NOT NULL,
    updated_at      integer NOT NULL
) STRICT;

CREATE TABLE idempotency_keys (
    owner_id    text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    -- The outcome of the request, from which the replayed response is made.
    outcome     text NOT NULL,
    created_at  integer NOT NULL,
    PRIMARY KEY (owner_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
