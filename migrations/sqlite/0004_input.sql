-- Questions to a human. The run that asks waits without a lease; the answer makes it claimable in the same transaction.
CREATE TABLE input_requests (
    id              text PRIMARY KEY,
    conversation_id text NOT NULL,
    run_id          text NOT NULL,
    owner_id        text NOT NULL,
    -- The tool call that it is about.
    call_id         text,
    kind            text NOT NULL,
    question        text NOT NULL,
    -- 'pending', 'answered', 'applied' (the run has acted on the answer) or 'cancelled' (the run ended).
    state           text NOT NULL,
    answer          text,
    resolved_by     text,
    created_at      integer NOT NULL,
    resolved_at     integer,
    -- From when on it takes no answer any more.
    expires_at      integer
) STRICT, WITHOUT ROWID;
CREATE INDEX input_requests_by_run ON input_requests (run_id);

-- An answer came while a worker had the run: it must not begin to wait for it.
ALTER TABLE runs ADD COLUMN answered_at integer;
