-- Records of users and administrators: model providers and agents.

CREATE TABLE providers (
    id         text COLLATE "C" PRIMARY KEY,
    -- NULL: shared by all users.
    owner_id   text COLLATE "C",
    name       text COLLATE "C" NOT NULL,
    kind       text NOT NULL,
    base_url   text NOT NULL,
    -- 'anywhere', or 'public': where the URL may lead.
    reach      text NOT NULL,
    -- The master key's id, and the API key encrypted with it; both NULL without a key.
    key_id     text COLLATE "C",
    key_data   text,
    -- The API key's last characters.
    key_hint   text,
    models     text NOT NULL,
    limits     text NOT NULL DEFAULT '{}',
    -- The name of its quirks.
    accent     text,
    enabled    boolean NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    version    bigint NOT NULL
);
CREATE UNIQUE INDEX providers_by_name ON providers (coalesce(owner_id, ''), name);
CREATE INDEX providers_by_master_key ON providers (key_id, id) WHERE key_id IS NOT NULL;

-- Logins at a provider that have begun and not ended.
CREATE TABLE provider_logins (
    owner_id     text COLLATE "C" PRIMARY KEY,
    -- SHA-256 of the `state` that comes back with the code.
    state_hash   text COLLATE "C" NOT NULL UNIQUE,
    -- SHA-256 of the cookie of the browser that began it.
    browser_hash text COLLATE "C" NOT NULL,
    -- SHA-256 of the API key that it was begun with; NULL on a server without keys.
    key_hash     text COLLATE "C",
    -- The master key's id, and the verifier encrypted with it.
    key_id       text COLLATE "C" NOT NULL,
    key_data     text NOT NULL,
    expires_at   bigint NOT NULL
);

CREATE TABLE agents (
    id          text COLLATE "C" PRIMARY KEY,
    -- NULL: shared by all users.
    owner_id    text COLLATE "C",
    name        text COLLATE "C" NOT NULL,
    description text NOT NULL,
    -- The version that runs get; NULL: the newest.
    pinned      bigint,
    latest      bigint NOT NULL,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    revision    bigint NOT NULL
);
CREATE UNIQUE INDEX agents_by_name ON agents (coalesce(owner_id, ''), name);

-- Versions are never changed.
CREATE TABLE agent_versions (
    agent_id   text COLLATE "C" NOT NULL,
    number     bigint NOT NULL,
    -- JSON: what differs from the agent of the settings.
    profile    text NOT NULL,
    note       text NOT NULL,
    created_by text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (agent_id, number)
);
