-- Runs, the queue and its leases, steps, questions, and what runs have spent.

CREATE TABLE runs (
    id                  text PRIMARY KEY,
    conversation_id     text NOT NULL,
    owner_id            text NOT NULL,
    status              text NOT NULL,
    reason              text,
    -- The conversation's one run under way. Runs queued behind it are not active.
    active              integer NOT NULL,
    -- Since when, or from when on, the run can be claimed; NULL while it cannot.
    claimable_at        integer,
    -- Why it will be claimed, for `run.resumed`.
    claim_cause         text NOT NULL,
    -- When the answer to a question was stored for which the run waits; a claim clears it.
    answered_at         integer,
    -- The frozen agent profile, JSON.
    profile             text NOT NULL,
    agent               text NOT NULL,
    agent_version       integer NOT NULL,
    model               text NOT NULL,
    tools_hash          text,
    -- JSON: the results of the context providers, which are asked once.
    contexts            text,
    counters            text NOT NULL,
    usage               text NOT NULL,
    attempt             integer NOT NULL DEFAULT 0,
    -- Claims that have not ended well, raised when claiming and lowered by a release.
    crashes             integer NOT NULL DEFAULT 0,
    -- The crash count at which the run fails, from the profile; 0 for no limit.
    max_crashes         integer NOT NULL,
    first_seq           integer NOT NULL,
    last_seq            integer,
    finish_reason       text,
    error               text,
    cancel_requested_at integer,
    cancel_requested_by text,
    created_at          integer NOT NULL,
    started_at          integer,
    finished_at         integer,
    -- When the deltas of its events were compacted. The index below is the list of runs that are left.
    folded_at           integer,
    -- Whether the run came with a copied conversation: it executed nothing here, and its usage does not count.
    is_copy             integer NOT NULL DEFAULT 0,
    trace_id            text
) STRICT;
CREATE UNIQUE INDEX runs_one_active ON runs (conversation_id) WHERE active = 1;
CREATE INDEX runs_by_conversation ON runs (conversation_id, first_seq);
CREATE INDEX runs_by_owner ON runs (owner_id, created_at DESC, id DESC);
CREATE INDEX runs_claimable ON runs (owner_id, claimable_at, id) WHERE claimable_at IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (owner_id) WHERE finished_at IS NULL;
CREATE INDEX runs_to_cancel ON runs (id) WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_to_fold ON runs (finished_at, id) WHERE folded_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX runs_tools ON runs (tools_hash) WHERE tools_hash IS NOT NULL;

-- Leases are renewed every few seconds, so they live apart from the wide rows of their runs.
CREATE TABLE run_leases (
    run_id      text PRIMARY KEY,
    owner_id    text NOT NULL,
    node_id     text NOT NULL,
    epoch       integer NOT NULL,
    claimed_at  integer NOT NULL,
    lease_until integer NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run_steps (
    run_id     text NOT NULL,
    owner_id   text NOT NULL,
    step       integer NOT NULL,
    kind       text NOT NULL,
    status     text NOT NULL,
    attempt    integer NOT NULL,
    usage      text,
    started_at integer NOT NULL,
    ended_at   integer,
    PRIMARY KEY (run_id, step)
) STRICT, WITHOUT ROWID;

-- Questions to a human.
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
CREATE INDEX input_requests_by_owner ON input_requests (owner_id, created_at, id);

-- The tokens and the cost (in trillionths of a US dollar) of one run on one day (UTC), if the run has a budget of its conversation or
-- of the day. A reservation holds while the run is at the head of its conversation under `held_epoch`. After that it counts as spent,
-- until the next claim settles it. A deleted conversation leaves its rows.
CREATE TABLE spending (
    owner_id        text NOT NULL,
    day             integer NOT NULL,
    run_id          text NOT NULL,
    conversation_id text NOT NULL,
    tokens          integer NOT NULL DEFAULT 0,
    cost            integer NOT NULL DEFAULT 0,
    -- The reservation of the model call under way.
    held_tokens     integer NOT NULL DEFAULT 0,
    held_cost       integer NOT NULL DEFAULT 0,
    held_epoch      integer,
    PRIMARY KEY (owner_id, day, run_id)
) STRICT, WITHOUT ROWID;
-- Sums of past days are removed.
CREATE INDEX spending_by_day ON spending (day);
