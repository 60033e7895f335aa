-- Agents that people manage through the API.
CREATE TABLE agents (
    id          text PRIMARY KEY,
    -- NULL: the server's, for everybody's use.
    owner_id    text,
    name        text NOT NULL,
    description text NOT NULL,
    -- The version that runs get; NULL: the newest.
    pinned      bigint,
    latest      bigint NOT NULL,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    revision    bigint NOT NULL
);
CREATE UNIQUE INDEX agents_by_name ON agents (coalesce(owner_id, ''), name COLLATE "C");

-- What each version says. It is never changed.
CREATE TABLE agent_versions (
    agent_id   text NOT NULL,
    number     bigint NOT NULL,
    -- JSON: what differs from the agent of the settings.
    profile    text NOT NULL,
    note       text NOT NULL,
    created_by text NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (agent_id, number)
);
