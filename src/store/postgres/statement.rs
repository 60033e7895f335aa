//! The text of the log writer's statement. It contains only the parts that a batch needs, because each part takes time even without
//! rows.
//!
//! Heads, runs and leases are looked up by `= ANY(ARRAY[key])`, as in the statements of the queue. `= key` can also become a join that
//! reads the whole table, and the planner prefers that while it believes the table empty. Its plan is kept when the table has grown.

use crate::support::failpoint;

/// Updates the matching heads. `$1` to `$7`.
const HEADS: &str = "WITH fence AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bool[], $6::bigint[], $7::bigint[])
        WITH ORDINALITY AS f (conversation_id, run_id, epoch, events, releases_lease, joined, after, place)
), head AS (
    UPDATE conversation_heads h
    SET last_seq = h.last_seq + f.events, run_id = CASE WHEN f.releases_lease THEN NULL ELSE h.run_id END
    FROM fence f
    WHERE h.conversation_id = ANY(ARRAY[f.conversation_id]) AND h.run_id = f.run_id AND h.epoch = f.epoch
        AND h.joined = coalesce(f.joined, h.joined) AND h.last_seq >= f.after
    RETURNING f.place::int - 1 AS ord, h.conversation_id, h.owner_id, f.run_id, f.epoch, f.releases_lease, h.last_seq - f.events AS base
)";

/// Inserts the events of the matching heads. `$8` to `$14`.
const EVENTS: &str = ", event AS (
    INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
    SELECT h.conversation_id, h.owner_id, h.base + e.place, e.run_id, e.attempt, e.kind, e.at, e.data
    FROM unnest($8::int[], $9::bigint[], $10::text[], $11::bigint[], $12::text[], $13::bigint[], $14::text[])
        AS e (ord, place, run_id, attempt, kind, at, data)
    JOIN head h ON h.ord = e.ord
)";

/// Inserts events if conversations change. The title in an event comes from the row that the change updated: a title from another
/// statement could be older than the head's lock.
const EVENTS_AND_UPDATES: &str = ", event AS (
    INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
    SELECT h.conversation_id, h.owner_id, h.base + e.place, e.run_id, e.attempt, e.kind, e.at,
        CASE WHEN e.kind = 'conversation.updated' THEN '{\"title\":' || v.title || ',' || substr(e.data, 2) ELSE e.data END
    FROM unnest($8::int[], $9::bigint[], $10::text[], $11::bigint[], $12::text[], $13::bigint[], $14::text[])
        AS e (ord, place, run_id, attempt, kind, at, data)
    JOIN head h ON h.ord = e.ord LEFT JOIN conversation v ON v.ord = e.ord
)";

/// The first parameter that is a list of rows.
const FIRST_LIST: usize = 15;

/// A table that a batch changes, with the change. The rows are one JSON list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    sql: &'static str,
    /// Refuses the batch if a row does not have the expected state.
    check: Option<&'static str>,
}

impl Part {
    const fn new(sql: &'static str) -> Self {
        Self { sql, check: None }
    }
}

/// Returns the statement for a batch that changes these tables, in the order in which their lists are bound. `releases_lease`: a
/// run ends or is released.
///
/// The statement returns for each valid fence its index, the previous sequence number of its log, and the title of its conversation
/// as JSON if that changes.
pub(super) fn statement(parts: &[Part], releases_lease: bool) -> String {
    let mut text = String::from(HEADS);
    let forgets_the_fence =
        failpoint::is_planted("fence-ignored") || failpoint::is_planted("orphan-kept") && parts.contains(&CALLS_CHANGED);
    if forgets_the_fence {
        text = text.replace("AND h.run_id = f.run_id AND h.epoch = f.epoch", "");
    }
    let mut checks = Vec::new();
    let with_list = |index: usize, sql: &str| sql.replace("{list}", &format!("${}::json", FIRST_LIST + index));
    let conversations = parts.iter().position(|part| *part == CONVERSATIONS);
    match conversations {
        Some(index) => {
            text.push_str(", ");
            text.push_str(&with_list(index, CONVERSATIONS.sql));
            text.push_str(EVENTS_AND_UPDATES);
        }
        None => text.push_str(EVENTS),
    }
    for (index, part) in parts.iter().enumerate().filter(|(index, _)| Some(*index) != conversations) {
        text.push_str(", ");
        text.push_str(&with_list(index, part.sql));
        // Without the fence, the checks would still refuse most late writes.
        let check = part.check.filter(|_| !forgets_the_fence);
        checks.extend(check.map(|check| with_list(index, check)));
    }
    if releases_lease {
        text.push_str(", ");
        text.push_str(LEASES);
    }
    if !checks.is_empty() {
        text.push_str(", refused AS (");
        text.push_str(&checks.join(" UNION ALL "));
        text.push(')');
    }
    text.push_str(match conversations {
        Some(_) => " SELECT ord, base, (SELECT v.title FROM conversation v WHERE v.ord = head.ord) AS title FROM head",
        None => " SELECT ord, base, NULL::text AS title FROM head",
    });
    if !checks.is_empty() {
        text.push_str(" WHERE (SELECT count(reason) FROM refused) = 0");
    }
    text
}

pub(super) const RUNS: Part = Part::new(
    "run AS (
    UPDATE runs r SET
        status = coalesce(p.status, r.status),
        reason = CASE WHEN p.status IS NULL THEN r.reason ELSE p.reason END,
        started_at = CASE WHEN p.started THEN coalesce(r.started_at, now_ms()) ELSE r.started_at END,
        tools_hash = coalesce(p.tools_hash, r.tools_hash),
        contexts = CASE WHEN NOT p.finished THEN coalesce(p.contexts, r.contexts) END,
        counters = coalesce(p.counters, r.counters),
        usage = coalesce(p.usage, r.usage),
        finish_reason = coalesce(p.finish_reason, r.finish_reason),
        error = coalesce(p.error, r.error),
        last_seq = CASE WHEN p.finished THEN h.base + p.last_place ELSE r.last_seq END,
        finished_at = CASE WHEN p.finished THEN now_ms() END,
        active = r.active AND NOT p.finished,
        -- A released run does not wait if its cancellation was requested, or if its question was answered, before the release.
        claimable_at = CASE
            WHEN p.finished THEN NULL
            WHEN p.released AND r.cancel_requested_at IS NOT NULL THEN now_ms()
            WHEN p.released AND p.reason IN ('input', 'approval', 'client_tool') AND r.answered_at IS NOT NULL THEN now_ms()
            -- A question may have been stored long before the release, so it may expire before `after_ms` ends.
            WHEN p.released AND p.reason IN ('input', 'approval', 'client_tool') THEN least(now_ms() + p.after_ms, (
                SELECT min(q.expires_at) FROM input_requests q
                WHERE q.run_id = r.id AND q.state = 'pending' AND q.id <> ALL (p.closed)
            ))
            WHEN p.released THEN now_ms() + p.after_ms
            ELSE r.claimable_at
        END,
        answered_at = CASE WHEN p.released THEN NULL ELSE r.answered_at END,
        -- If the lease ends after the run has started, the next claim is a hand-back, unless another cause is set.
        claim_cause = CASE
            WHEN p.released AND r.cancel_requested_at IS NOT NULL THEN 'request'
            ELSE coalesce(p.claim_cause, CASE WHEN p.started THEN 'handed_back' ELSE r.claim_cause END)
        END,
        -- The claim counted itself as a crash in advance. A run that ends or is released under it has not crashed.
        crashes = CASE WHEN p.released OR p.finished THEN greatest(r.crashes - 1, 0) ELSE r.crashes END
    FROM json_to_recordset({list}) AS p (ord int, status text, reason text, started bool, tools_hash text, contexts text,
        counters text, usage text, finished bool, finish_reason text, error text, last_place bigint, released bool,
        after_ms bigint, claim_cause text, closed text[])
    JOIN head h ON h.ord = p.ord
    WHERE r.id = ANY(ARRAY[h.run_id]) AND r.finished_at IS NULL
)",
);

/// Charges reserved model calls to the budgets of their owners, and ends the reservations. Sums stop at
/// [`MAX_CHARGED`](crate::store::runs::budget::MAX_CHARGED).
pub(super) const CHARGE_BUDGET: Part = Part::new(
    "charged AS (
    UPDATE spending s SET tokens = least(s.tokens + p.tokens, p.most), cost = least(s.cost + p.cost, p.most),
        held_tokens = 0, held_cost = 0, held_epoch = NULL
    FROM json_to_recordset({list}) AS p (ord int, day bigint, tokens bigint, cost bigint, most bigint)
    JOIN head h ON h.ord = p.ord JOIN runs r ON r.id = h.run_id
    WHERE s.owner_id = r.owner_id AND s.day = p.day AND s.run_id = h.run_id
)",
);

pub(super) const TOOL_SETS: Part = Part::new(
    "tool_set AS (
    INSERT INTO tool_sets (hash, definitions)
    SELECT DISTINCT ON (t.hash) t.hash, t.definitions
    FROM json_to_recordset({list}) AS t (ord int, hash text, definitions text)
    JOIN head h ON h.ord = t.ord ORDER BY t.hash
    ON CONFLICT (hash) DO NOTHING
)",
);

pub(super) const STEPS_BEGUN: Part = Part::new(
    "step_begun AS (
    INSERT INTO run_steps AS s (run_id, owner_id, step, kind, status, attempt, usage, started_at, ended_at, request, request_attempt)
    SELECT h.run_id, h.owner_id, b.step, b.kind, b.status, b.begins, b.usage, now_ms(), CASE WHEN b.ended THEN now_ms() END,
        b.request, b.begins
    FROM json_to_recordset({list})
        AS b (ord int, step bigint, kind text, status text, begins bigint, ended bool, usage text, request text)
    JOIN head h ON h.ord = b.ord
    ON CONFLICT (run_id, step) DO UPDATE SET kind = excluded.kind, status = excluded.status,
        attempt = s.attempt + excluded.attempt, usage = excluded.usage, started_at = excluded.started_at,
        ended_at = excluded.ended_at, request = excluded.request, request_attempt = s.attempt + excluded.attempt
)",
);

pub(super) const STEPS_ENDED: Part = Part {
    check: Some(NO_SUCH_STEP),
    ..Part::new(
        "step_ended AS (
    UPDATE run_steps s SET status = e.status, usage = coalesce(e.usage, s.usage), ended_at = now_ms()
    FROM json_to_recordset({list}) AS e (ord int, step bigint, status text, usage text)
    JOIN head h ON h.ord = e.ord
    WHERE s.run_id = h.run_id AND s.step = e.step
)",
    )
};

pub(super) const MESSAGES: Part = Part::new(
    "message AS (
    INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
    SELECT m.id, h.conversation_id, h.owner_id, h.run_id, h.base + m.place, m.role, m.body, now_ms()
    FROM json_to_recordset({list}) AS m (ord int, place bigint, id text, role text, body text)
    JOIN head h ON h.ord = m.ord
)",
);

pub(super) const CALLS: Part = Part::new(
    "call AS (
    INSERT INTO tool_calls (id, run_id, owner_id, message_id, step, position, provider_call_id, name, server, arguments,
        arguments_hash, replay, repair, state, outcome, key, undoes, grant_id, started_at, ended_at)
    SELECT c.id, h.run_id, h.owner_id, c.message_id, c.step, c.position, c.provider_call_id, c.name, c.server, c.arguments,
        c.arguments_hash, c.replay, c.repair, c.state, c.outcome, c.key, c.undoes, c.grant_id,
        CASE WHEN c.started THEN now_ms() END, CASE WHEN c.ended THEN now_ms() END
    FROM json_to_recordset({list}) AS c (ord int, id text, message_id text, step bigint, position bigint,
        provider_call_id text, name text, server text, arguments text, arguments_hash text, replay text, repair text, state text,
        outcome text, key text, undoes text, grant_id text, started bool, ended bool)
    JOIN head h ON h.ord = c.ord
)",
);

pub(super) const CALLS_CHANGED: Part = Part { check: Some(NO_SUCH_CALL), ..Part::new("call_changed AS (
    UPDATE tool_calls t SET state = coalesce(c.state, t.state), outcome = coalesce(c.outcome, t.outcome),
        started_at = CASE WHEN c.started THEN now_ms() ELSE t.started_at END,
        ended_at = CASE WHEN c.ended THEN now_ms() END,
        handle = CASE WHEN c.handle IS NULL THEN t.handle ELSE nullif(c.handle, '') END, grant_id = coalesce(c.grant_id, t.grant_id),
        arguments = coalesce(c.arguments, t.arguments), arguments_hash = coalesce(c.arguments_hash, t.arguments_hash),
        key = CASE WHEN c.arguments IS NULL THEN t.key END
    FROM json_to_recordset({list}) AS c (ord int, id text, state text, outcome text, started bool, ended bool,
        arguments text, arguments_hash text, handle text, grant_id text)
    JOIN head h ON h.ord = c.ord
    WHERE t.id = c.id AND t.run_id = h.run_id AND t.outcome IS NULL
)") };

/// Inserts audit records of ended calls. A call that the batch does not add has a row. A measured duration of 0 may mean that it
/// was not measured: then the time since the call's start counts. A call may have been approved first, and its unknown outcome
/// decided later: the last decision counts.
pub(super) const AUDIT: Part = Part::new(
    "audit AS (
    INSERT INTO tool_audit (call_id, owner_id, conversation_id, run_id, agent, name, server, arguments_hash, outcome, decided_by,
        grant_id, duration_ms, at)
    SELECT a.id, h.owner_id, h.conversation_id, h.run_id, r.agent, coalesce(a.name, t.name),
        CASE WHEN a.name IS NULL THEN t.server ELSE a.server END, coalesce(a.arguments_hash, t.arguments_hash), a.outcome,
        coalesce((SELECT q.resolved_by FROM input_requests q WHERE q.run_id = h.run_id AND q.call_id = a.id
            AND q.kind IN ('approval', 'unknown_outcome') AND q.resolved_by IS NOT NULL ORDER BY q.resolved_at DESC LIMIT 1),
            CASE WHEN coalesce(a.grant_id, t.grant_id) IS NOT NULL THEN h.owner_id END),
        coalesce(a.grant_id, t.grant_id), coalesce(nullif(a.duration_ms, 0), greatest(now_ms() - t.started_at, 0)), now_ms()
    FROM json_to_recordset({list})
        AS a (ord int, id text, name text, server text, arguments_hash text, outcome text, grant_id text, duration_ms bigint)
    JOIN head h ON h.ord = a.ord JOIN runs r ON r.id = h.run_id LEFT JOIN tool_calls t ON t.id = a.id AND t.run_id = h.run_id
    WHERE a.name IS NOT NULL OR t.id IS NOT NULL AND t.outcome IS NULL
    ON CONFLICT DO NOTHING
)",
);

pub(super) const INPUTS: Part = Part::new(
    "input AS (
    INSERT INTO input_requests (id, conversation_id, run_id, owner_id, call_id, kind, question, state, created_at, expires_at)
    SELECT i.id, h.conversation_id, h.run_id, h.owner_id, i.call_id, i.kind, i.question, i.state, now_ms(),
        now_ms() + i.expires_in_ms
    FROM json_to_recordset({list})
        AS i (ord int, id text, call_id text, kind text, question text, state text, expires_in_ms bigint)
    JOIN head h ON h.ord = i.ord
)",
);

pub(super) const INPUTS_CLOSED: Part = Part::new(
    "input_closed AS (
    UPDATE input_requests q SET state = i.state, resolved_at = coalesce(q.resolved_at, now_ms())
    FROM json_to_recordset({list}) AS i (ord int, id text, state text) JOIN head h ON h.ord = i.ord
    WHERE q.id = i.id AND q.run_id = h.run_id
)",
);

pub(super) const SUMMARIES: Part = Part::new(
    "summary AS (
    INSERT INTO context_summaries (conversation_id, owner_id, covers, body, updated_at)
    SELECT h.conversation_id, h.owner_id, s.covers, s.body, now_ms()
    FROM json_to_recordset({list}) AS s (ord int, covers text, body text) JOIN head h ON h.ord = s.ord
    ON CONFLICT (conversation_id) DO UPDATE SET covers = excluded.covers, body = excluded.body, updated_at = excluded.updated_at
)",
);

pub(super) const CONVERSATIONS: Part = Part::new(
    "conversation AS (
    UPDATE conversations v SET status = c.status,
        updated_at = CASE WHEN v.status = c.status THEN v.updated_at ELSE now_ms() END
    FROM json_to_recordset({list}) AS c (ord int, status text) JOIN head h ON h.ord = c.ord
    WHERE v.id = h.conversation_id RETURNING h.ord, to_json(v.title)::text AS title
)",
);

/// Deletes the lease when a run ends or is released.
const LEASES: &str = "lease AS (
    DELETE FROM run_leases WHERE run_id = ANY(ARRAY(
        SELECT l.run_id FROM head h JOIN run_leases l ON l.run_id = ANY(ARRAY[h.run_id]) AND l.epoch = h.epoch
        WHERE h.releases_lease ORDER BY h.run_id FOR UPDATE OF l
    ))
)";

const NO_SUCH_CALL: &str = "SELECT CASE
        WHEN c.started AND coalesce(t.state NOT IN ('planned', 'awaiting_approval'), true)
            OR c.state = 'awaiting_approval' AND t.state IS DISTINCT FROM 'planned'
            OR c.arguments IS NOT NULL AND coalesce(t.state NOT IN ('planned', 'awaiting_approval'), true)
            THEN refuse('a tool call changes that has already started or ended')
        WHEN c.handle IS NOT NULL AND NOT c.started AND t.state IS DISTINCT FROM 'started'
            THEN refuse('a tool call that is not under way gets a handle')
        WHEN t.id IS NULL OR t.outcome IS NOT NULL THEN refuse('a tool call gets a second outcome')
    END AS reason
    FROM json_to_recordset({list}) AS c (ord int, id text, state text, started bool, arguments text, handle text)
    JOIN head h ON h.ord = c.ord LEFT JOIN tool_calls t ON t.id = c.id AND t.run_id = h.run_id";

const NO_SUCH_STEP: &str = "SELECT CASE WHEN s.run_id IS NULL THEN refuse('a step ends that never began') END AS reason
    FROM json_to_recordset({list}) AS e (ord int, step bigint)
    JOIN head h ON h.ord = e.ord LEFT JOIN run_steps s ON s.run_id = h.run_id AND s.step = e.step";
