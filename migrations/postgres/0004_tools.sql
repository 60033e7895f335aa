-- Tool calls, their approvals and audit, and the MCP servers that offer tools.

-- Sets of tools frozen into runs, stored once per content.
CREATE TABLE tool_sets (
    hash        text COLLATE "C" PRIMARY KEY,
    definitions text NOT NULL
);

CREATE TABLE tool_calls (
    id               text COLLATE "C" PRIMARY KEY,
    run_id           text COLLATE "C" NOT NULL,
    owner_id         text COLLATE "C" NOT NULL,
    message_id       text COLLATE "C" NOT NULL,
    step             bigint NOT NULL,
    position         bigint NOT NULL,
    provider_call_id text NOT NULL,
    name             text COLLATE "C" NOT NULL,
    server           text COLLATE "C",
    arguments        text NOT NULL,
    arguments_hash   text COLLATE "C" NOT NULL,
    -- The repairs of the call, JSON; NULL without a repair.
    repair           text,
    replay           text NOT NULL,
    -- The idempotency key that the tool is given if the call is repeated; NULL for its own id.
    key              text COLLATE "C",
    -- The server's name for its work on the call, by which the next claim asks for the outcome.
    handle           text,
    state            text NOT NULL,
    -- The whole result; what the model reads is cut from it.
    outcome          text,
    -- The call that this one undoes.
    undoes           text COLLATE "C",
    -- The grant that allowed the call, if no question was asked about it.
    grant_id         text COLLATE "C",
    started_at       bigint,
    ended_at         bigint
);
CREATE UNIQUE INDEX tool_calls_by_run ON tool_calls (run_id, step, position);
CREATE INDEX tool_calls_undone ON tool_calls (undoes) WHERE undoes IS NOT NULL;

-- Approvals that hold for later calls, of one conversation or of all of its owner's. A tool with a changed definition is another tool.
CREATE TABLE tool_grants (
    id              text COLLATE "C" PRIMARY KEY,
    owner_id        text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C",
    server          text COLLATE "C",
    tool            text COLLATE "C" NOT NULL,
    definition_hash text COLLATE "C" NOT NULL,
    created_at      bigint NOT NULL
);
CREATE UNIQUE INDEX tool_grants_once ON tool_grants
    (owner_id, coalesce(conversation_id, ''), coalesce(server, ''), tool, definition_hash);
CREATE INDEX tool_grants_by_conversation ON tool_grants (conversation_id) WHERE conversation_id IS NOT NULL;

-- The outcome of every tool call, written with it. A row outlives its conversation and is never changed.
CREATE TABLE tool_audit (
    call_id         text COLLATE "C" PRIMARY KEY,
    owner_id        text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    agent           text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    server          text COLLATE "C",
    arguments_hash  text COLLATE "C" NOT NULL,
    -- 'success', 'error', 'denied', 'skipped' or 'unknown'.
    outcome         text NOT NULL,
    -- The user who allowed or denied it.
    decided_by      text COLLATE "C",
    grant_id        text COLLATE "C",
    duration_ms     bigint NOT NULL,
    at              bigint NOT NULL
);
CREATE INDEX tool_audit_by_owner ON tool_audit (owner_id, at DESC, call_id DESC);
CREATE INDEX tool_audit_by_age ON tool_audit (at, call_id);
CREATE INDEX tool_audit_by_run ON tool_audit (run_id);

-- Tool reviews: each definition that a server has offered, and whether it was accepted.
CREATE TABLE tool_pins (
    id              text COLLATE "C" PRIMARY KEY,
    -- The owner of the server; '' for an operator server.
    owner_id        text COLLATE "C" NOT NULL,
    server          text COLLATE "C" NOT NULL,
    tool            text COLLATE "C" NOT NULL,
    definition_hash text COLLATE "C" NOT NULL,
    description     text NOT NULL,
    parameters      text NOT NULL,
    hints           text NOT NULL,
    -- 'accepted' or 'changed'.
    status          text NOT NULL,
    seen_at         bigint NOT NULL,
    accepted_by     text COLLATE "C",
    accepted_at     bigint
);
CREATE UNIQUE INDEX tool_pins_once ON tool_pins (owner_id, server, tool, definition_hash);

CREATE TABLE mcp_servers (
    id         text COLLATE "C" PRIMARY KEY,
    -- NULL: shared by all users.
    owner_id   text COLLATE "C",
    name       text COLLATE "C" NOT NULL,
    -- As in an mcpServers document, JSON, with ${NAME} instead of each secret.
    entry      text NOT NULL,
    -- The master key's id, and the secrets by their names, encrypted with it; both NULL without secrets.
    key_id     text COLLATE "C",
    key_data   text,
    -- 'anywhere', or 'public': where the URL may lead, by the role of the user who gave it.
    reach      text NOT NULL,
    enabled    boolean NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    version    bigint NOT NULL,
    -- Raised when its connections are to end, in all processes.
    generation bigint NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX mcp_servers_by_name ON mcp_servers (coalesce(owner_id, ''), name);
CREATE INDEX mcp_servers_by_master_key ON mcp_servers (key_id, id) WHERE key_id IS NOT NULL;

-- Logins at the authorization server of an MCP server that have begun and not ended.
CREATE TABLE mcp_logins (
    owner_id     text COLLATE "C" NOT NULL,
    server_id    text COLLATE "C" NOT NULL,
    -- SHA-256 of the `state` that comes back with the code.
    state_hash   text COLLATE "C" NOT NULL UNIQUE,
    -- SHA-256 of the cookie of the browser that began it.
    browser_hash text COLLATE "C" NOT NULL,
    -- SHA-256 of the API key that it was begun with; NULL on a server without keys.
    key_hash     text COLLATE "C",
    -- The master key's id, and the verifier and endpoints encrypted with it.
    key_id       text COLLATE "C" NOT NULL,
    key_data     text NOT NULL,
    expires_at   bigint NOT NULL,
    PRIMARY KEY (owner_id, server_id)
);

CREATE TABLE mcp_tokens (
    server_id     text COLLATE "C" PRIMARY KEY,
    -- The owner of the server; NULL for one that is shared by all users.
    owner_id      text COLLATE "C",
    -- The master key's id, and the tokens encrypted with it; both NULL when they were lost with their key.
    key_id        text COLLATE "C",
    key_data      text,
    -- When they are to be refreshed; NULL if they have no known end.
    fresh_until   bigint,
    -- Until when one process refreshes them, alone.
    claimed_until bigint NOT NULL DEFAULT 0,
    version       bigint NOT NULL DEFAULT 1,
    -- When a process last had the server in its configuration: tokens of servers that are gone are removed.
    seen_at       bigint NOT NULL DEFAULT now_ms()
);
