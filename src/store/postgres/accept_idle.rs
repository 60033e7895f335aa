//! Accepts a message into a new or idle conversation, the usual case, in one statement.
//!
//! The statement needs no earlier lock. It also claims the run if a worker can start it. Every change of a conversation's runs
//! updates its head, and the statement writes only if the head is unchanged since it was read.

use std::time::Instant;

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::queue::{millis, next_epoch};
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::ids::RunId;
use crate::domain::run::{Fence, FirstClaim, RunRecord};
use crate::store::runs::created_rows;
use crate::store::sql::{Row, fresh_counters, fresh_usage, profile_json, text};
use crate::store::{AcceptOutcome, AcceptRun, IdempotencyKey, StoreResult, rows};
use crate::support::text::storable;

/// Tests whether the owner may have one more run. `$5` is the limit, 0 for no limit.
const HAS_ROOM: &str = "($5 = 0 OR $5 > (
    SELECT count(*) FROM (SELECT FROM runs WHERE owner_id = $2 AND finished_at IS NULL LIMIT $5) AS unfinished
))";

/// Creates the conversation with its head. An existing idempotency key violates its primary key, which rolls everything back.
const NEW: &str = "WITH conversation AS (
    INSERT INTO conversations (id, owner_id, title, title_by, status, created_at, updated_at, agent, model)
    SELECT $1, $2, $3, 'words', 'queued', $4, $4, coalesce($26, $8), $27 WHERE {has_room} ON CONFLICT (id) DO NOTHING RETURNING id, title
), head AS (
    INSERT INTO conversation_heads (conversation_id, owner_id, last_seq, run_id, epoch)
    SELECT id, $2, cardinality($15::text[]), {run_id}, CASE {claims} WHEN 0 THEN 0 ELSE now_ms() * 1000 END
    FROM conversation
    RETURNING conversation_id AS id, 0::bigint AS base, $3 AS title, epoch, joined, NULL::text AS system_prompt,
        NULL::text AS instructions
)";

/// Selects the head of an idle conversation. It must be unchanged since this statement read it.
const IDLE: &str = text!(postgres: "WITH found AS MATERIALIZED (
    SELECT c.id, h.last_seq AS base, CASE c.title WHEN '' THEN $3 ELSE c.title END AS title, c.system_prompt,
        c.instructions
    FROM conversations c JOIN conversation_heads h ON h.conversation_id = c.id
    WHERE c.id = $1 AND c.owner_id = $2 AND c.status <> 'queued'
        AND NOT EXISTS (SELECT FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)
        AND NOT EXISTS (SELECT FROM idempotency_keys k WHERE k.owner_id = $2 AND k.key = $19)
        AND {has_room}
), head AS (
    UPDATE conversation_heads h SET last_seq = found.base + cardinality($15::text[]), run_id = {run_id},
        epoch = CASE {claims} WHEN 0 THEN h.epoch ELSE " next_epoch " END
    FROM found WHERE h.conversation_id = found.id AND h.last_seq = found.base
    RETURNING found.id, found.base, found.title, h.epoch, h.joined, found.system_prompt, found.instructions
), conversation AS (
    UPDATE conversations c SET title = head.title, title_by = CASE c.title WHEN '' THEN 'words' ELSE c.title_by END,
        status = 'queued', updated_at = $4, archived_at = NULL, agent = coalesce($26, c.agent, $8), model = coalesce($27, c.model)
    FROM head WHERE c.id = head.id
)");

/// Stores the run, its message and their events. The last event contains the title that the statement read.
const RUN: &str = ", run AS (
    INSERT INTO runs (id, conversation_id, owner_id, status, active, claimable_at, claim_cause, profile, agent, agent_version,
        model, counters, usage, first_seq, created_at, trace_id, attempt, crashes, max_crashes)
    SELECT $6, id, $2, 'queued', true, {claimable_at}, 'first', $7, $8, $9, $10, $11, $12, base + 1, $4, $18, {claims}, {claims}, $28
    FROM head
), message AS (
    INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
    SELECT $13, id, $2, $6, base + 1, 'user', $14, $4 FROM head
), event AS (
    INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
    SELECT h.id, $2, h.base + e.place, e.run_id, 0, e.kind, $4, CASE e.kind
        WHEN 'conversation.updated' THEN '{\"title\":' || to_json(h.title)::text || ',' || substr(e.data, 2)
        ELSE e.data END
    FROM head h, unnest($15::text[], $16::text[], $17::text[]) WITH ORDINALITY AS e (run_id, kind, data, place)
)";

const LEASE: &str = ", lease AS (
    INSERT INTO run_leases (run_id, owner_id, node_id, epoch, claimed_at, lease_until)
    SELECT $6, $2, $22, epoch, now_ms(), now_ms() + $23 FROM head{claims}
)";

const KEY: &str = ", key AS (
    INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at) SELECT $2, $19, $20, $21, now_ms() FROM head
)";

/// Selects the earlier messages, for a worker that starts the run at once.
const HISTORY: &str = "ARRAY (
    SELECT m.body FROM messages m JOIN runs o ON o.id = m.run_id WHERE m.conversation_id = head.id AND m.superseded_by IS NULL
        AND (o.first_seq, m.position) > ALL (
            SELECT x.first_seq, l.position FROM context_summaries c
            JOIN messages l ON l.id = c.covers AND l.superseded_by IS NULL JOIN runs x ON x.id = l.run_id
            WHERE c.conversation_id = head.id
        )
    ORDER BY o.first_seq, m.position
)";

/// Selects the summary of older messages.
const SUMMARY: &str = "(
    SELECT c.body FROM context_summaries c JOIN messages l ON l.id = c.covers AND l.superseded_by IS NULL
    WHERE c.conversation_id = head.id
)";

/// Whether the run is claimed when it is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimMode {
    No,
    Yes,
    /// If the owner has fewer running runs than the limit.
    WithinCap,
}

/// Tests whether the owner may have one more running run. `$24` is the limit, `$25` the
/// [mark](super::low_water_marks::Marks::leases).
const ROOM: &str = "WITH room AS MATERIALIZED (SELECT owner_room($2, $24, $25) > 0 AS claims), ";

fn statement(head: &str, claims: ClaimMode, keyed: bool) -> String {
    let (run_id, claimable_at, count) = match claims {
        ClaimMode::No => ("NULL", "now_ms()", "0"),
        ClaimMode::Yes => ("$6", "NULL", "1"),
        ClaimMode::WithinCap => (
            "(SELECT CASE WHEN claims THEN $6 END FROM room)",
            "(SELECT CASE WHEN NOT claims THEN now_ms() END FROM room)",
            "(SELECT claims::int FROM room)",
        ),
    };
    let head = match (claims, head.strip_prefix("WITH ")) {
        (ClaimMode::WithinCap, Some(rest)) => format!("{ROOM}{rest}"),
        (ClaimMode::No | ClaimMode::Yes | ClaimMode::WithinCap, _) => head.to_owned(),
    };
    let mut text = format!("{head}{RUN}")
        .replace("{has_room}", HAS_ROOM)
        .replace("{run_id}", run_id)
        .replace("{claimable_at}", claimable_at)
        .replace("{claims}", count);
    match claims {
        ClaimMode::No => {}
        ClaimMode::Yes => text.push_str(&LEASE.replace("{claims}", "")),
        ClaimMode::WithinCap => text.push_str(&LEASE.replace("{claims}", " WHERE (SELECT claims FROM room)")),
    }
    if keyed {
        text.push_str(KEY);
    }
    let (claimed, history, summary) = match claims {
        ClaimMode::No => ("false", "'{}'::text[]", "NULL::text"),
        ClaimMode::Yes => ("true", HISTORY, SUMMARY),
        ClaimMode::WithinCap => ("(SELECT claims FROM room)", HISTORY, SUMMARY),
    };
    text.push_str(&format!(
        " SELECT base, to_json(title)::text AS title, epoch, joined, {claimed} AS claimed, {history} AS history,
             {summary} AS summary, system_prompt, instructions FROM head"
    ));
    text
}

/// The limit of running runs of one owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnerCap {
    /// 0 for no limit.
    pub(super) most: u32,
    /// A time at or before the claim of the oldest lease.
    pub(super) since: i64,
}

/// The expected state of the conversation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Head {
    /// Presumably, neither the conversation nor the idempotency key exists.
    New,
    /// The conversation exists and is idle.
    Idle,
}

impl Head {
    fn title(self, accept: &AcceptRun) -> String {
        let title = match self {
            Self::New => accept.create_with_title.as_deref().unwrap_or_default(),
            Self::Idle => "",
        };
        created_rows::title_of_accepted(title, accept)
    }
}

/// Accepts a message. `None` if the state is not the expected one, or the owner has too many runs.
pub(super) async fn write(
    connection: &mut PgConnection,
    head: Head,
    accept: &AcceptRun,
    cap: OwnerCap,
    key: Option<&IdempotencyKey>,
) -> StoreResult<Option<AcceptOutcome>> {
    let (message, body) = rows::storable_message(created_rows::accepted_message(accept, &accept.run_id))?;
    let run = created_rows::queued_run(accept);
    let updated = EventBody::ConversationUpdated { title: None, status: ConversationStatus::Queued, supersedes: Vec::new() };
    let mut events = vec![
        created_rows::message_created(&message, 0, accept.now),
        created_rows::run_queued(&accept.run_id, 0, accept.now),
        NewEvent::new(&updated, None, 0, accept.now),
    ];
    let accepted = AcceptOutcome::Run { run, message, first_seq: 0, events: Vec::new(), interrupted: Vec::new(), claim: None };
    let outcome = key.map(|key| rows::encode_storable("idempotency_keys", "outcome", &key.key, &accepted)).transpose()?;
    let AcceptOutcome::Run { run, message, .. } = accepted else { return Ok(None) };
    let taker = accept.taker.as_ref();
    // This statement returns everything that a worker would load, except calls of earlier runs.
    let (text, is_known) = match head {
        Head::New => (NEW, true),
        Head::Idle => (IDLE, !accept.profile.counts_earlier_failures()),
    };
    let claims = match (taker.filter(|_| is_known), cap.most) {
        (None, _) => ClaimMode::No,
        (Some(_), 0) => ClaimMode::Yes,
        (Some(_), _) => ClaimMode::WithinCap,
    };
    let claimed_at = Instant::now();
    let row = sqlx::query(AssertSqlSafe(statement(text, claims, key.is_some())))
        .bind(accept.conversation_id.as_str())
        .bind(accept.owner.as_str())
        .bind(head.title(accept))
        .bind(accept.now.0)
        .bind(i64::from(accept.max_active_runs))
        .bind(accept.run_id.as_str())
        .bind(profile_json(accept)?)
        .bind(&run.agent)
        .bind(i64::from(run.agent_version))
        .bind(&run.model)
        .bind(fresh_counters()?)
        .bind(fresh_usage()?)
        .bind(message.id.as_str())
        .bind(&body)
        .bind(events.iter().map(|event| event.run_id.as_ref().map(RunId::as_str)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.kind).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.data.as_str()).collect::<Vec<_>>())
        .bind(accept.trace.as_str())
        .bind(key.map(|key| storable(&key.key)))
        .bind(key.map(|key| key.fingerprint.as_str()))
        .bind(outcome)
        .bind(taker.map(|taker| taker.node.as_str()))
        .bind(taker.map(|taker| millis(taker.lease_ms)))
        .bind(i64::from(cap.most))
        .bind(cap.since)
        .bind(accept.choice.agent.as_deref())
        .bind(accept.choice.model.as_deref())
        .bind(i64::from(accept.profile.max_crashes))
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let base: i64 = row.try_get("base")?;
    let title: String = row.try_get("title")?;
    if let Some(updated) = events.last_mut() {
        updated.data = created_rows::with_title(&updated.data, &title);
    }
    let claim = match row.try_get("claimed")? {
        false => None,
        true => {
            let (id, epoch) = (&accept.conversation_id, row.try_get("epoch")?);
            let fence = Fence { run_id: accept.run_id.clone(), conversation_id: id.clone(), epoch };
            let before: Vec<String> = row.try_get("history")?;
            let joined = row.try_get("joined")?;
            // The run is stored already. If its history cannot be read, the worker gets no record: it loads the run itself, and
            // fails it.
            let summary: Option<String> = row.try_get("summary")?;
            let own_layers = rows::own_layers(&Row::Postgres(row))?;
            let summary = summary.map(|json| rows::decode("context_summaries", "body", id.as_str(), &json)).transpose();
            let record = rows::history(id.as_str(), &before).ok().zip(summary.ok()).map(|(mut history, summary)| {
                history.push(message.clone());
                let record = RunRecord::first(fence.clone(), accept.owner.clone(), accept.profile.clone());
                Box::new(RunRecord { summary, own_layers, history, joined, ..record })
            });
            Some(FirstClaim { fence, claimed_at, record })
        }
    };
    let events = created_rows::number_events(&accept.conversation_id, base, events);
    Ok(Some(AcceptOutcome::Run { run, message, first_seq: base + 1, events, interrupted: Vec::new(), claim }))
}
