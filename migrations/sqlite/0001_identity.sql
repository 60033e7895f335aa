-- Users, their API keys, and the tickets of streams.
--
-- In all files: times are milliseconds since the Unix epoch. JSON is kept as text: it is written and read whole, and the bytes that were
-- sent to a client must be the bytes that come back.

CREATE TABLE users (
    id         text PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    role       text NOT NULL,
    -- A JSON list of the groups' names.
    groups     text NOT NULL DEFAULT '[]',
    created_at integer NOT NULL
) STRICT;

CREATE TABLE api_keys (
    id         text PRIMARY KEY,
    user_id    text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash       text NOT NULL UNIQUE,
    label      text NOT NULL,
    created_at integer NOT NULL,
    revoked_at integer
) STRICT;

CREATE TABLE stream_tickets (
    hash       text PRIMARY KEY,
    owner_id   text NOT NULL,
    -- The API key that requested the ticket; the ticket ends with it. NULL on a server without keys.
    key_hash   text,
    -- 'socket', or the id of the run or conversation.
    target     text NOT NULL,
    origin     text,
    expires_at integer NOT NULL
) STRICT, WITHOUT ROWID;

-- The same as in a file beside the database: a copy that is put in the database's place does not go with that file.
CREATE TABLE clone_detection (
    only_row integer PRIMARY KEY CHECK (only_row = 1),
    -- A random word; another one after each copy that was accepted.
    word     text NOT NULL,
    -- Only ever rises. The file is written after it, so the file never says more than the database has reached.
    mark     integer NOT NULL,
    -- The file's words when a copy was accepted, until the file says the new word: an operator is not asked twice.
    accepted text
) STRICT;
