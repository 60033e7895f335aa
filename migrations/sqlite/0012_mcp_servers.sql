-- MCP servers that people manage through the API. Their secrets are sealed with a master key that is not in the database.
CREATE TABLE mcp_servers (
    id         text PRIMARY KEY,
    -- NULL: the server's, for everybody's use.
    owner_id   text,
    name       text NOT NULL,
    -- As in an mcpServers document, JSON, with ${NAME} in the place of each secret.
    entry      text NOT NULL,
    -- The master key, and the secrets by their names, sealed with it; both NULL without secrets.
    key_id     text,
    key_data   text,
    -- 'anywhere', or 'public': where the URL may lead, by the role of whoever gave it.
    reach      text NOT NULL,
    enabled    integer NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    version    integer NOT NULL,
    -- Raised when its connections are to end, in whatever process they are.
    generation integer NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX mcp_servers_by_name ON mcp_servers (coalesce(owner_id, ''), name);
