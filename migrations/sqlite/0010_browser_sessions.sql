-- Browsers that are signed in.
CREATE TABLE browser_sessions (
    -- Of the secret in the browser's cookie.
    hash       text PRIMARY KEY,
    owner_id   text NOT NULL,
    -- The API key that the browser signed in with; the session ends with it.
    key_hash   text NOT NULL,
    expires_at integer NOT NULL
) STRICT, WITHOUT ROWID;
