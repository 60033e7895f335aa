-- The backbone: who owns what, the queue, the log.
--
-- Times are milliseconds since the Unix epoch. JSON is kept as text: it is written and read whole, and the bytes that were
-- sent to a client must be the bytes that come back.

CREATE TABLE users (
    id         text PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    role       text NOT NULL,
    created_at integer NOT NULL
) STRICT;

CREATE TABLE api_keys (
    id         text PRIMARY KEY,
    user_id    text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash       text NOT NULL UNIQUE,
    label      text NOT NULL,
    created_at integer NOT NULL,
    revoked_at integer
) STRICT;

CREATE TABLE conversations (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL,
    title      text NOT NULL,
    status     text NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL
) STRICT;
CREATE INDEX conversations_by_owner ON conversations (owner_id, created_at DESC, id DESC);

-- The fence and the counter of each log in one narrow row, which every write updates: it tests run and epoch and takes the
-- next numbers.
CREATE TABLE conversation_heads (
    conversation_id text PRIMARY KEY,
    last_seq        integer NOT NULL DEFAULT 0,
    run_id          text,
    epoch           integer NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    id                  text PRIMARY KEY,
    conversation_id     text NOT NULL,
    owner_id            text NOT NULL,
    status              text NOT NULL,
    reason              text,
    -- The conversation's one run under way. Runs queued behind it are not active.
    active              integer NOT NULL,
    -- Since when, or from when on, the run can be claimed; NULL while it cannot.
    claimable_at        integer,
    -- Why it will be claimed, for `run.resumed`.
    claim_cause         text NOT NULL,
    profile             text NOT NULL,
    agent               text NOT NULL,
    agent_version       integer NOT NULL,
    model               text NOT NULL,
    tools_hash          text,
    counters            text NOT NULL,
    usage               text NOT NULL,
    attempt             integer NOT NULL DEFAULT 0,
    -- Claims that have not ended well, raised when claiming and lowered by a release.
    crashes             integer NOT NULL DEFAULT 0,
    first_seq           integer NOT NULL,
    last_seq            integer,
    finish_reason       text,
    error               text,
    cancel_requested_at integer,
    cancel_requested_by text,
    created_at          integer NOT NULL,
    started_at          integer,
    finished_at         integer
) STRICT;
CREATE UNIQUE INDEX runs_one_active ON runs (conversation_id) WHERE active = 1;
CREATE INDEX runs_by_conversation ON runs (conversation_id, first_seq);
CREATE INDEX runs_claimable ON runs (owner_id, claimable_at, id) WHERE claimable_at IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (owner_id) WHERE finished_at IS NULL;
CREATE INDEX runs_to_cancel ON runs (id) WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL;

-- Leases are renewed every few seconds, so they live apart from the wide rows of their runs.
CREATE TABLE run_leases (
    run_id      text PRIMARY KEY,
    owner_id    text NOT NULL,
    node_id     text NOT NULL,
    epoch       integer NOT NULL,
    claimed_at  integer NOT NULL,
    lease_until integer NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run_steps (
    run_id     text NOT NULL,
    step       integer NOT NULL,
    kind       text NOT NULL,
    status     text NOT NULL,
    attempt    integer NOT NULL,
    usage      text,
    started_at integer NOT NULL,
    ended_at   integer,
    PRIMARY KEY (run_id, step)
) STRICT, WITHOUT ROWID;

-- Sets of tools frozen into runs, stored once per content.
CREATE TABLE tool_sets (
    hash        text PRIMARY KEY,
    definitions text NOT NULL
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
    created_at      integer NOT NULL
) STRICT;
CREATE UNIQUE INDEX messages_by_position ON messages (conversation_id, position);

CREATE TABLE tool_calls (
    id               text PRIMARY KEY,
    run_id           text NOT NULL,
    owner_id         text NOT NULL,
    message_id       text NOT NULL,
    step             integer NOT NULL,
    position         integer NOT NULL,
    provider_call_id text NOT NULL,
    name             text NOT NULL,
    server           text,
    arguments        text NOT NULL,
    arguments_hash   text NOT NULL,
    replay           text NOT NULL,
    state            text NOT NULL,
    -- The whole answer; what the model reads is cut from it.
    outcome          text,
    started_at       integer,
    ended_at         integer
) STRICT;
CREATE UNIQUE INDEX tool_calls_by_run ON tool_calls (run_id, step, position);

-- With a rowid: a batch holds events of many conversations, and appending its wide rows to the table while only the narrow
-- index is written all over took a third less time than keeping the rows themselves in the order of the key.
CREATE TABLE events (
    conversation_id text NOT NULL,
    seq             integer NOT NULL,
    run_id          text,
    attempt         integer NOT NULL,
    kind            text NOT NULL,
    at              integer NOT NULL,
    data            text NOT NULL,
    PRIMARY KEY (conversation_id, seq)
) STRICT;

CREATE TABLE idempotency_keys (
    owner_id    text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    -- What came of the request, from which its answer is made again.
    outcome     text NOT NULL,
    created_at  integer NOT NULL,
    PRIMARY KEY (owner_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
