-- Users, their API keys, and the tickets of streams.
--
-- In all files: times are milliseconds since the Unix epoch. JSON is kept as text: it is written and read whole, and the bytes that were
-- sent to a client must be the bytes that come back.
-- Text that is compared or ordered (ids, names, hashes, keys) has the collation "C": its order is the order of bytes on every cluster.
--
-- A whole number is a bigint, so that Rust reads every number as i64.

-- Returns the database's clock in milliseconds, the only clock that decides leases and timers. It is clock_timestamp(), because now()
-- stands still within a transaction.
CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

CREATE TABLE users (
    id         text COLLATE "C" PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    role       text NOT NULL,
    -- A JSON list of the groups' names.
    groups     text NOT NULL DEFAULT '[]',
    created_at bigint NOT NULL
);

CREATE TABLE api_keys (
    id         text COLLATE "C" PRIMARY KEY,
    user_id    text COLLATE "C" NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash       text COLLATE "C" NOT NULL UNIQUE,
    label      text NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

CREATE TABLE stream_tickets (
    hash       text COLLATE "C" PRIMARY KEY,
    owner_id   text COLLATE "C" NOT NULL,
    -- The API key that requested the ticket; the ticket ends with it. NULL on a server without keys.
    key_hash   text COLLATE "C",
    -- 'socket', or the id of the run or conversation.
    target     text COLLATE "C" NOT NULL,
    origin     text,
    expires_at bigint NOT NULL
);

-- Where this database is served: a copy that is put somewhere else still says where it was.
CREATE TABLE clone_detection (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- The cluster's identifier, and the ids of the database and of this table in it.
    place    text NOT NULL
);
