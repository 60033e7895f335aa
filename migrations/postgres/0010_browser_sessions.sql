-- Browsers that are signed in.
CREATE TABLE browser_sessions (
    -- Of the secret in the browser's cookie.
    hash       text COLLATE "C" PRIMARY KEY,
    owner_id   text COLLATE "C" NOT NULL,
    -- The API key that the browser signed in with; the session ends with it.
    key_hash   text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL
);
