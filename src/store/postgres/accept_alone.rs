//! A message whose conversation is new or idle, as most are.
//!
//! It takes no lock and one statement, which also claims the run if the caller would take it at once. Every change of a conversation's
//! runs moves its head, and the statement writes only if the head is the one it has read.

use std::time::Instant;

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::queue::{millis, next_epoch};
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::ids::RunId;
use crate::domain::run::record::{Fence, FirstClaim, RunRecord};
use crate::store::runs::compose;
use crate::store::sql::{Row, fresh_counters, fresh_usage, profile_json};
use crate::store::{AcceptRun, Accepted, IdempotencyClaim, StoreResult, rows};
use crate::support::text::storable;

/// The owner may have one more run. `$5` is the most, 0 for no limit.
const HAS_ROOM: &str = "($5 = 0 OR $5 > (
    SELECT count(*) FROM (SELECT FROM runs WHERE owner_id = $2 AND finished_at IS NULL LIMIT $5) AS unfinished
))";

/// A head for a conversation that is made now. A key that is there already violates its primary key, which takes all back.
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

/// The head of a conversation in which nothing happens. It must still stand where this statement has read it.
const IDLE: &str = concat!(
    "WITH found AS MATERIALIZED (
    SELECT c.id, h.last_seq AS base, CASE c.title WHEN '' THEN $3 ELSE c.title END AS title, c.system_prompt,
        c.instructions
    FROM conversations c JOIN conversation_heads h ON h.conversation_id = c.id
    WHERE c.id = $1 AND c.owner_id = $2 AND c.status <> 'queued'
        AND NOT EXISTS (SELECT FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)
        AND NOT EXISTS (SELECT FROM idempotency_keys k WHERE k.owner_id = $2 AND k.key = $19)
        AND {has_room}
), head AS (
    UPDATE conversation_heads h SET last_seq = found.base + cardinality($15::text[]), run_id = {run_id},
        epoch = CASE {claims} WHEN 0 THEN h.epoch ELSE ",
    next_epoch!(),
    " END
    FROM found WHERE h.conversation_id = found.id AND h.last_seq = found.base
    RETURNING found.id, found.base, found.title, h.epoch, h.joined, found.system_prompt, found.instructions
), conversation AS (
    UPDATE conversations c SET title = head.title, title_by = CASE c.title WHEN '' THEN 'words' ELSE c.title_by END,
        status = 'queued', updated_at = $4, archived_at = NULL, agent = coalesce($26, c.agent, $8), model = coalesce($27, c.model)
    FROM head WHERE c.id = head.id
)"
);

/// The run, its message and their events. The last event is put together from the title that the statement has met.
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

/// The earlier messages, for a worker that takes the run at once.
const HISTORY: &str = "ARRAY (
    SELECT m.body FROM messages m JOIN runs o ON o.id = m.run_id WHERE m.conversation_id = head.id AND m.superseded_by IS NULL
        AND (o.first_seq, m.position) > ALL (
            SELECT x.first_seq, l.position FROM context_summaries c
            JOIN messages l ON l.id = c.covers AND l.superseded_by IS NULL JOIN runs x ON x.id = l.run_id
            WHERE c.conversation_id = head.id
        )
    ORDER BY o.first_seq, m.position
)";

/// The summary of the older ones.
const SUMMARY: &str = "(
    SELECT c.body FROM context_summaries c JOIN messages l ON l.id = c.covers AND l.superseded_by IS NULL
    WHERE c.conversation_id = head.id
)";

/// Whether the run is claimed with its acceptance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claims {
    No,
    Yes,
    /// If its owner has less than the most runs under way.
    WithinCap,
}

/// Whether the owner may have one more run under way. `$24` is the most, `$25` the [mark](super::low_water::Marks::leases).
const ROOM: &str = "WITH room AS MATERIALIZED (SELECT owner_room($2, $24, $25) > 0 AS claims), ";

fn statement(head: &str, claims: Claims, keyed: bool) -> String {
    let (run_id, claimable_at, count) = match claims {
        Claims::No => ("NULL", "now_ms()", "0"),
        Claims::Yes => ("$6", "NULL", "1"),
        Claims::WithinCap => (
            "(SELECT CASE WHEN claims THEN $6 END FROM room)",
            "(SELECT CASE WHEN NOT claims THEN now_ms() END FROM room)",
            "(SELECT claims::int FROM room)",
        ),
    };
    let head = match (claims, head.strip_prefix("WITH ")) {
        (Claims::WithinCap, Some(rest)) => format!("{ROOM}{rest}"),
        (Claims::No | Claims::Yes | Claims::WithinCap, _) => head.to_owned(),
    };
    let mut text = format!("{head}{RUN}")
        .replace("{has_room}", HAS_ROOM)
        .replace("{run_id}", run_id)
        .replace("{claimable_at}", claimable_at)
        .replace("{claims}", count);
    match claims {
        Claims::No => {}
        Claims::Yes => text.push_str(&LEASE.replace("{claims}", "")),
        Claims::WithinCap => text.push_str(&LEASE.replace("{claims}", " WHERE (SELECT claims FROM room)")),
    }
    if keyed {
        text.push_str(KEY);
    }
    let (claimed, history, summary) = match claims {
        Claims::No => ("false", "'{}'::text[]", "NULL::text"),
        Claims::Yes => ("true", HISTORY, SUMMARY),
        Claims::WithinCap => ("(SELECT claims FROM room)", HISTORY, SUMMARY),
    };
    text.push_str(&format!(
        " SELECT base, to_json(title)::text AS title, epoch, joined, {claimed} AS claimed, {history} AS history,
             {summary} AS summary, system_prompt, instructions FROM head"
    ));
    text
}

/// How many runs of an owner may be under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnerCap {
    /// 0 for no limit.
    pub(super) most: u32,
    /// When the oldest of all leases was claimed, or before.
    pub(super) since: i64,
}

/// The conversation that a message finds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Head {
    /// Neither the conversation nor the key, it is assumed.
    New,
    /// A conversation in which nothing happens.
    Idle,
}

impl Head {
    fn statement(self) -> &'static str {
        match self {
            Self::New => NEW,
            Self::Idle => IDLE,
        }
    }

    fn title(self, accept: &AcceptRun) -> String {
        let given = match self {
            Self::New => accept.create_with_title.as_deref().unwrap_or_default(),
            Self::Idle => "",
        };
        compose::title_or_made(given, accept.profile.title, &accept.parts)
    }
}

/// Accepts a message. `None` if it finds something else, or the owner has too many runs.
pub(super) async fn write(
    connection: &mut PgConnection,
    head: Head,
    accept: &AcceptRun,
    cap: OwnerCap,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Accepted>> {
    let (message, body) = rows::storable_message(compose::user_message(accept, &accept.run_id))?;
    let run = compose::queued_run(accept);
    let updated = EventBody::ConversationUpdated { title: None, status: ConversationStatus::Queued, supersedes: Vec::new() };
    let mut events = vec![
        compose::message_created(&message, 0, accept.now),
        compose::run_queued(&accept.run_id, 0, accept.now),
        NewEvent::new(&updated, None, 0, accept.now),
    ];
    let accepted = Accepted::Run { run, message, first_seq: 0, events: Vec::new(), interrupted: Vec::new(), claim: None };
    let outcome = key.map(|key| rows::encode_storable("idempotency_keys", "outcome", &key.key, &accepted)).transpose()?;
    let Accepted::Run { run, message, .. } = accepted else { return Ok(None) };
    let taker = accept.taker.as_ref();
    // This statement returns all that a worker would load, except for calls of earlier runs.
    let is_known = match head {
        Head::New => true,
        Head::Idle => !accept.profile.counts_earlier_failures(),
    };
    let claims = match (taker.filter(|_| is_known), cap.most) {
        (None, _) => Claims::No,
        (Some(_), 0) => Claims::Yes,
        (Some(_), _) => Claims::WithinCap,
    };
    let claimed_at = Instant::now();
    let row = sqlx::query(AssertSqlSafe(statement(head.statement(), claims, key.is_some())))
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
        updated.data = compose::with_title(&updated.data, &title);
    }
    let claim = match row.try_get("claimed")? {
        false => None,
        true => {
            let (id, epoch) = (&accept.conversation_id, row.try_get("epoch")?);
            let fence = Fence { run_id: accept.run_id.clone(), conversation_id: id.clone(), epoch };
            let before: Vec<String> = row.try_get("history")?;
            let joined = row.try_get("joined")?;
            // The run is stored: rows that cannot be read are for the driver, which fails the run for them.
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
    let events = compose::numbered(&accept.conversation_id, base, events);
    Ok(Some(Accepted::Run { run, message, first_seq: base + 1, events, interrupted: Vec::new(), claim }))
}
