-- Runs, the queue and its leases, steps, questions, and what runs have spent.

CREATE TABLE runs (
    id                  text COLLATE "C" PRIMARY KEY,
    conversation_id     text COLLATE "C" NOT NULL,
    owner_id            text COLLATE "C" NOT NULL,
    status              text NOT NULL,
    reason              text,
    -- The conversation's one run under way. Runs queued behind it are not active.
    active              boolean NOT NULL,
    -- Since when, or from when on, the run can be claimed; NULL while it cannot.
    claimable_at        bigint,
    -- Why it will be claimed, for `run.resumed`.
    claim_cause         text NOT NULL,
    -- When the answer to a question was stored for which the run waits; a claim clears it.
    answered_at         bigint,
    -- The frozen agent profile, JSON.
    profile             text NOT NULL,
    agent               text COLLATE "C" NOT NULL,
    agent_version       bigint NOT NULL,
    model               text COLLATE "C" NOT NULL,
    tools_hash          text COLLATE "C",
    -- JSON: the results of the context providers, which are asked once.
    contexts            text,
    counters            text NOT NULL,
    usage               text NOT NULL,
    attempt             bigint NOT NULL DEFAULT 0,
    -- Claims that have not ended well, raised when claiming and lowered by a release.
    crashes             bigint NOT NULL DEFAULT 0,
    -- The crash count at which the run fails, from the profile; 0 for no limit.
    max_crashes         bigint NOT NULL,
    first_seq           bigint NOT NULL,
    last_seq            bigint,
    finish_reason       text,
    error               text,
    cancel_requested_at bigint,
    cancel_requested_by text COLLATE "C",
    created_at          bigint NOT NULL,
    started_at          bigint,
    finished_at         bigint,
    -- When the deltas of its events were compacted. The index below is the list of runs that are left.
    folded_at           bigint,
    -- Whether the run came with a copied conversation: it executed nothing here, and its usage does not count.
    is_copy             boolean NOT NULL DEFAULT false,
    trace_id            text COLLATE "C"
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE UNIQUE INDEX runs_one_active ON runs (conversation_id) WHERE active;
CREATE INDEX runs_by_conversation ON runs (conversation_id, first_seq);
CREATE INDEX runs_by_owner ON runs (owner_id, created_at DESC, id DESC);
-- The next run of a conversation, however many have ended.
CREATE INDEX runs_open ON runs (conversation_id, first_seq) WHERE finished_at IS NULL;
CREATE INDEX runs_claimable ON runs (owner_id, claimable_at, id) WHERE claimable_at IS NOT NULL;
-- The queue in the order of time: owners with waiting runs are found in the little that has become claimable lately.
CREATE INDEX runs_waiting ON runs (claimable_at) WHERE claimable_at IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (owner_id) WHERE finished_at IS NULL;
CREATE INDEX runs_to_cancel ON runs (id) WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_to_fold ON runs (finished_at, id) WHERE folded_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX runs_tools ON runs (tools_hash) WHERE tools_hash IS NOT NULL;

-- Leases are renewed every few seconds, so they live apart from the wide rows of their runs.
CREATE TABLE run_leases (
    run_id      text COLLATE "C" PRIMARY KEY,
    owner_id    text COLLATE "C" NOT NULL,
    node_id     text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    claimed_at  bigint NOT NULL,
    lease_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- Counting leases passes the dead rows of those that have ended. While a transaction holds a snapshot none of them can be cleaned away,
-- so rows older than every lease must not be passed at all.
CREATE INDEX run_leases_claimed ON run_leases (claimed_at);

CREATE TABLE run_steps (
    run_id     text COLLATE "C" NOT NULL,
    owner_id   text COLLATE "C" NOT NULL,
    step       bigint NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    status     text NOT NULL,
    attempt    bigint NOT NULL,
    usage      text,
    started_at bigint NOT NULL,
    ended_at   bigint,
    PRIMARY KEY (run_id, step)
);

-- Questions to a human.
CREATE TABLE input_requests (
    id              text COLLATE "C" PRIMARY KEY,
    conversation_id text COLLATE "C" NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    owner_id        text COLLATE "C" NOT NULL,
    -- The tool call that it is about.
    call_id         text COLLATE "C",
    kind            text NOT NULL,
    question        text NOT NULL,
    -- 'pending', 'answered', 'applied' (the run has acted on the answer) or 'cancelled' (the run ended).
    state           text NOT NULL,
    answer          text,
    resolved_by     text COLLATE "C",
    created_at      bigint NOT NULL,
    resolved_at     bigint,
    -- From when on it takes no answer any more.
    expires_at      bigint
);
CREATE INDEX input_requests_by_run ON input_requests (run_id);
CREATE INDEX input_requests_by_owner ON input_requests (owner_id, created_at, id);

-- The tokens and the cost (in trillionths of a US dollar) of one run on one day (UTC), if the run has a budget of its conversation or
-- of the day. A reservation holds while the run is at the head of its conversation under `held_epoch`. After that it counts as spent,
-- until the next claim settles it. A deleted conversation leaves its rows.
CREATE TABLE spending (
    owner_id        text COLLATE "C" NOT NULL,
    day             bigint NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    tokens          bigint NOT NULL DEFAULT 0,
    cost            bigint NOT NULL DEFAULT 0,
    -- The reservation of the model call under way.
    held_tokens     bigint NOT NULL DEFAULT 0,
    held_cost       bigint NOT NULL DEFAULT 0,
    held_epoch      bigint,
    PRIMARY KEY (owner_id, day, run_id)
);
-- Sums of past days are removed.
CREATE INDEX spending_by_day ON spending (day);

-- Rolls back the whole statement that meets a row which breaks a rule.
CREATE FUNCTION refuse(reason text) RETURNS text LANGUAGE plpgsql VOLATILE AS
    'BEGIN RAISE EXCEPTION USING ERRCODE = ''CA001'', MESSAGE = reason; END';

-- Returns how many more leases an owner may have, and locks that number until the transaction ends; 0, without waiting, while another
-- transaction holds the lock. It is a function because the statement that calls it sees the leases of its beginning; the function sees
-- those of the moment in which it has the lock. No lease was claimed before `since`.
CREATE FUNCTION owner_room(owner text, cap bigint, since bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(1128353614, hashtext(owner)) THEN
        RETURN 0;
    END IF;
    RETURN greatest(cap - (SELECT count(*) FROM run_leases WHERE owner_id = owner AND claimed_at >= since), 0);
END $$;
