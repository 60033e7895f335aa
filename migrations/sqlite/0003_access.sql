-- Tickets that open one stream or one WebSocket each, for browsers, which cannot send a key there. Kept as hashes; a ticket
-- that was used is gone.
CREATE TABLE stream_tickets (
    hash       text PRIMARY KEY,
    owner_id   text NOT NULL,
    -- The key that it was made with, whose end is also that of the ticket; NULL on a server without keys.
    key_hash   text,
    -- 'socket', or the id of the run or conversation.
    target     text NOT NULL,
    origin     text,
    expires_at integer NOT NULL
) STRICT, WITHOUT ROWID;

-- The trace that the run was started in, for log lines. NULL for runs of before.
ALTER TABLE runs ADD COLUMN trace_id text;
