-- The embeddings of one owner, day (UTC) and model. They belong to no run.
CREATE TABLE embedding_usage (
    owner_id     text COLLATE "C" NOT NULL,
    day          bigint NOT NULL,
    model        text COLLATE "C" NOT NULL,
    calls        bigint NOT NULL,
    input_tokens bigint NOT NULL,
    -- In trillionths of a US dollar; NULL if no price is known.
    cost         bigint,
    PRIMARY KEY (owner_id, day, model)
);

-- The purpose for which a client has uploaded the file.
ALTER TABLE files ADD COLUMN purpose text COLLATE "C" NOT NULL DEFAULT 'user_data';

-- Finds the run that waits for the result of a call.
CREATE INDEX input_requests_open_calls ON input_requests (call_id) WHERE kind = 'client_tool' AND state = 'pending';
