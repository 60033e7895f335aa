-- Agents that people manage through the API.
CREATE TABLE agents (
    id          text PRIMARY KEY,
    -- NULL: the server's, for everybody's use.
    owner_id    text,
    name        text NOT NULL,
    description text NOT NULL,
    -- The version that runs get; NULL: the newest.
    pinned      integer,
    latest      integer NOT NULL,
    created_at  integer NOT NULL,
    updated_at  integer NOT NULL,
    revision    integer NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX agents_by_name ON agents (coalesce(owner_id, ''), name);

-- What each version says. It is never changed.
CREATE TABLE agent_versions (
    agent_id   text NOT NULL,
    number     integer NOT NULL,
    -- JSON: what differs from the agent of the settings.
    profile    text NOT NULL,
    note       text NOT NULL,
    created_by text NOT NULL,
    created_at integer NOT NULL,
    PRIMARY KEY (agent_id, number)
) STRICT, WITHOUT ROWID;
