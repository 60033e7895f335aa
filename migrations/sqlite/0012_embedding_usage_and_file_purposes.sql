-- The embeddings of one owner, day (UTC) and model. They belong to no run.
CREATE TABLE embedding_usage (
    owner_id     TEXT NOT NULL,
    day          INTEGER NOT NULL,
    model        TEXT NOT NULL,
    calls        INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    -- In trillionths of a US dollar; NULL if no price is known.
    cost         INTEGER,
    PRIMARY KEY (owner_id, day, model)
) STRICT, WITHOUT ROWID;

-- The purpose for which a client has uploaded the file.
ALTER TABLE files ADD COLUMN purpose TEXT NOT NULL DEFAULT 'user_data';

-- Finds the run that waits for the result of a call.
CREATE INDEX input_requests_open_calls ON input_requests (call_id) WHERE kind = 'client_tool' AND state = 'pending';
