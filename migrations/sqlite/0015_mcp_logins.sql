-- Logins at MCP servers that are under way, the newest one of each user and server.
CREATE TABLE mcp_logins (
    owner_id     text NOT NULL,
    server_id    text NOT NULL,
    -- SHA-256 of what comes back with the code.
    state_hash   text NOT NULL UNIQUE,
    -- SHA-256 of what the browser shows that has begun it.
    browser_hash text NOT NULL,
    -- SHA-256 of the key that it was begun with; NULL on a server without keys.
    key_hash     text,
    -- What is needed to end it, sealed, and the master key.
    key_id       text NOT NULL,
    key_data     text NOT NULL,
    expires_at   integer NOT NULL,
    PRIMARY KEY (owner_id, server_id)
) STRICT, WITHOUT ROWID;
-- The tokens that logins gave, one set for each server.
CREATE TABLE mcp_tokens (
    server_id     text PRIMARY KEY,
    -- Whose the server is; NULL for one of everybody.
    owner_id      text,
    -- The master key, and the tokens sealed with it; both NULL when they were lost with their key.
    key_id        text,
    key_data      text,
    -- When they are to be refreshed; NULL if nobody has said that they end.
    fresh_until   integer,
    -- Until when somebody refreshes them, alone.
    claimed_until integer NOT NULL DEFAULT 0,
    version       integer NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
