-- Tool calls, their approvals and audit, and the MCP servers that offer tools.

-- Sets of tools frozen into runs, stored once per content.
CREATE TABLE tool_sets (
    hash        text PRIMARY KEY,
    definitions text NOT NULL
) STRICT;

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
    -- The repairs of the call, JSON; NULL without a repair.
    repair           text,
    replay           text NOT NULL,
    -- The idempotency key that the tool is given if the call is repeated; NULL for its own id.
    key              text,
    -- The server's name for its work on the call, by which the next claim asks for the outcome.
    handle           text,
    state            text NOT NULL,
    -- The whole result; what the model reads is cut from it.
    outcome          text,
    -- The call that this one undoes.
    undoes           text,
    -- The grant that allowed the call, if no question was asked about it.
    grant_id         text,
    started_at       integer,
    ended_at         integer
) STRICT;
CREATE UNIQUE INDEX tool_calls_by_run ON tool_calls (run_id, step, position);
CREATE INDEX tool_calls_undone ON tool_calls (undoes) WHERE undoes IS NOT NULL;

-- Approvals that hold for later calls, of one conversation or of all of its owner's. A tool with a changed definition is another tool.
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

-- The outcome of every tool call, written with it. A row outlives its conversation and is never changed.
CREATE TABLE tool_audit (
    call_id         text PRIMARY KEY,
    owner_id        text NOT NULL,
    conversation_id text NOT NULL,
    run_id          text NOT NULL,
    agent           text NOT NULL,
    name            text NOT NULL,
    server          text,
    arguments_hash  text NOT NULL,
    -- 'success', 'error', 'denied', 'skipped' or 'unknown'.
    outcome         text NOT NULL,
    -- The user who allowed or denied it.
    decided_by      text,
    grant_id        text,
    duration_ms     integer NOT NULL,
    at              integer NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tool_audit_by_owner ON tool_audit (owner_id, at DESC, call_id DESC);
CREATE INDEX tool_audit_by_age ON tool_audit (at, call_id);
CREATE INDEX tool_audit_by_run ON tool_audit (run_id);

-- Tool reviews: each definition that a server has offered, and whether it was accepted.
CREATE TABLE tool_pins (
    id              text PRIMARY KEY,
    -- The owner of the server; '' for an operator server.
    owner_id        text NOT NULL,
    server          text NOT NULL,
    tool            text NOT NULL,
    definition_hash text NOT NULL,
    description     text NOT NULL,
    parameters      text NOT NULL,
    hints           text NOT NULL,
    -- 'accepted' or 'changed'.
    status          text NOT NULL,
    seen_at         integer NOT NULL,
    accepted_by     text,
    accepted_at     integer
) STRICT;
CREATE UNIQUE INDEX tool_pins_once ON tool_pins (owner_id, server, tool, definition_hash);

CREATE TABLE mcp_servers (
    id         text PRIMARY KEY,
    -- NULL: shared by all users.
    owner_id   text,
    name       text NOT NULL,
    -- As in an mcpServers document, JSON, with ${NAME} instead of each secret.
    entry      text NOT NULL,
    -- The master key's id, and the secrets by their names, encrypted with it; both NULL without secrets.
    key_id     text,
    key_data   text,
    -- 'anywhere', or 'public': where the URL may lead, by the role of the user who gave it.
    reach      text NOT NULL,
    enabled    integer NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    version    integer NOT NULL,
    -- Raised when its connections are to end, in all processes.
    generation integer NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX mcp_servers_by_name ON mcp_servers (coalesce(owner_id, ''), name);

-- Logins at the authorization server of an MCP server that have begun and not ended.
CREATE TABLE mcp_logins (
    owner_id     text NOT NULL,
    server_id    text NOT NULL,
    -- SHA-256 of the `state` that comes back with the code.
    state_hash   text NOT NULL UNIQUE,
    -- SHA-256 of the cookie of the browser that began it.
    browser_hash text NOT NULL,
    -- SHA-256 of the API key that it was begun with; NULL on a server without keys.
    key_hash     text,
    -- The master key's id, and the verifier and endpoints encrypted with it.
    key_id       text NOT NULL,
    key_data     text NOT NULL,
    expires_at   integer NOT NULL,
    PRIMARY KEY (owner_id, server_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE mcp_tokens (
    server_id     text PRIMARY KEY,
    -- The owner of the server; NULL for one that is shared by all users.
    owner_id      text,
    -- The master key's id, and the tokens encrypted with it; both NULL when they were lost with their key.
    key_id        text,
    key_data      text,
    -- When they are to be refreshed; NULL if they have no known end.
    fresh_until   integer,
    -- Until when one process refreshes them, alone.
    claimed_until integer NOT NULL DEFAULT 0,
    version       integer NOT NULL DEFAULT 1,
    -- When a process last had the server in its configuration: tokens of servers that are gone are removed.
    seen_at       integer NOT NULL
) STRICT, WITHOUT ROWID;
