-- The backbone: who owns what, the queue, the log.
--
-- Times are milliseconds since the Unix epoch. JSON is kept as text: it is written and read whole, and the bytes that were
-- sent to a client must be the bytes that come back.

-- The database's clock in milliseconds: the only clock that decides leases and timers. clock_timestamp() rather than now(),
-- which stands still within a transaction.
CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- Takes back the whole statement that meets a row which breaks a rule.
CREATE FUNCTION refuse(reason text) RETURNS text LANGUAGE plpgsql VOLATILE AS
    'BEGIN RAISE EXCEPTION USING ERRCODE = ''CA001'', MESSAGE = reason; END';

CREATE TABLE users (
    id         text PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    role       text NOT NULL,
    created_at bigint NOT NULL
);

CREATE TABLE api_keys (
    id         text PRIMARY KEY,
    user_id    text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash       text NOT NULL UNIQUE,
    label      text NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

CREATE TABLE conversations (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL,
    title      text NOT NULL,
    status     text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
CREATE INDEX conversations_by_owner ON conversations (owner_id, created_at DESC, id DESC);

-- The fence and the counter of each log in one narrow row, which every write updates: the update waits for a concurrent
-- claim, tests run and epoch, and takes the next numbers. Without a secondary index and with room on the page, it is always
-- updated in place (HOT).
CREATE TABLE conversation_heads (
    conversation_id text PRIMARY KEY,
    last_seq        bigint NOT NULL DEFAULT 0,
    run_id          text,
    epoch           bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE TABLE runs (
    id                  text PRIMARY KEY,
    conversation_id     text NOT NULL,
    owner_id            text NOT NULL,
    status              text NOT NULL,
    reason              text,
    -- The conversation's one run under way. Runs queued behind it are not active.
    active              boolean NOT NULL,
    -- Since when, or from when on, the run can be claimed; NULL while it cannot.
    claimable_at        bigint,
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
    first_seq           bigint NOT NULL,
    last_seq            bigint,
    finish_reason       text,
    error               text,
    cancel_requested_at bigint,
    cancel_requested_by text,
    created_at          bigint NOT NULL,
    started_at          bigint,
    finished_at         bigint
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE UNIQUE INDEX runs_one_active ON runs (conversation_id) WHERE active;
CREATE INDEX runs_by_conversation ON runs (conversation_id, first_seq);
-- The next run of a conversation, however many have ended.
CREATE INDEX runs_open ON runs (conversation_id, first_seq) WHERE finished_at IS NULL;
CREATE INDEX runs_claimable ON runs (owner_id, claimable_at, id) WHERE claimable_at IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (owner_id) WHERE finished_at IS NULL;
CREATE INDEX runs_to_cancel ON runs (id) WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL;

-- Leases are renewed every few seconds, so they live apart from the wide rows of their runs.
CREATE TABLE run_leases (
    run_id      text PRIMARY KEY,
    owner_id    text NOT NULL,
    node_id     text NOT NULL,
    epoch       bigint NOT NULL,
    claimed_at  bigint NOT NULL,
    lease_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE run_steps (
    run_id     text NOT NULL,
    step       integer NOT NULL,
    kind       text NOT NULL,
    status     text NOT NULL,
    attempt    integer NOT NULL,
    usage      text,
    started_at bigint NOT NULL,
    ended_at   bigint,
    PRIMARY KEY (run_id, step)
);

-- Sets of tools frozen into runs, stored once per content.
CREATE TABLE tool_sets (
    hash        text PRIMARY KEY,
    definitions text NOT NULL
);

CREATE TABLE messages (
    id              text PRIMARY KEY,
    conversation_id text NOT NULL,
    owner_id        text NOT NULL,
    run_id          text NOT NULL,
    -- Order within the conversation, taken from the log's numbers.
    position        bigint NOT NULL,
    role            text NOT NULL,
    -- The whole message as clients see it.
    body            text NOT NULL,
    created_at      bigint NOT NULL
);
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
    started_at       bigint,
    ended_at         bigint
);
CREATE UNIQUE INDEX tool_calls_by_run ON tool_calls (run_id, step, position);

CREATE TABLE events (
    conversation_id text NOT NULL,
    seq             bigint NOT NULL,
    run_id          text,
    attempt         integer NOT NULL,
    kind            text NOT NULL,
    at              bigint NOT NULL,
    data            text NOT NULL,
    PRIMARY KEY (conversation_id, seq)
);

CREATE TABLE idempotency_keys (
    owner_id    text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    -- What came of the request, from which its answer is made again.
    outcome     text NOT NULL,
    created_at  bigint NOT NULL,
    PRIMARY KEY (owner_id, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
