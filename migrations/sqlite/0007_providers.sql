-- Model endpoints that people manage through the API. Keys are sealed with a master key that is not in the database.
CREATE TABLE providers (
    id         text PRIMARY KEY,
    -- NULL: the server's, for everybody's use.
    owner_id   text,
    name       text NOT NULL,
    kind       text NOT NULL,
    base_url   text NOT NULL,
    -- 'anywhere', or 'public': where the URL may lead.
    reach      text NOT NULL,
    -- The master key, and the key sealed with it; both NULL without a key.
    key_id     text,
    key_data   text,
    -- Its last characters.
    key_hint   text,
    models     text NOT NULL,
    enabled    integer NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    version    integer NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX providers_by_name ON providers (coalesce(owner_id, ''), name);

-- Logins at a provider that are under way, the newest one of each owner.
CREATE TABLE provider_logins (
    owner_id     text PRIMARY KEY,
    -- SHA-256 of what the provider gives back with the code.
    state_hash   text NOT NULL UNIQUE,
    -- SHA-256 of what the browser shows that has begun it.
    browser_hash text NOT NULL,
    -- The verifier, sealed, and the master key.
    key_id       text NOT NULL,
    key_data     text NOT NULL,
    expires_at   integer NOT NULL
) STRICT, WITHOUT ROWID;
