//! A message becomes durable: with its run and their first events, in one transaction.
//!
//! A message for a new conversation, or for one in which nothing happens, is one statement, and so one round trip: see
//! [`super::accept_alone`]. Any other takes five: begin, lock the head, read what it protects, write, commit.

use sqlx::{Connection as _, PgConnection, Row as _, raw_sql};

use super::accept_alone::{Head, OwnerCap};
use super::cancel::{self, Unfinished};
use super::conversations::{has_all_conversations, lock_head};
use super::errors::is_unique_violation;
use super::idempotency::{record, recorded_key};
use super::{PostgresStore, accept_alone, files};
use crate::domain::change::RunCounters;
use crate::domain::conversation::{AgentChoice, ConversationStatus};
use crate::domain::event::NewEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::message::Message;
use crate::domain::model::Usage;
use crate::domain::run::{OnBusy, Run};
use crate::domain::trace::TraceId;
use crate::store::{AcceptRun, Accepted, IdempotencyClaim, Keyed, StoreError, StoreResult, compose, rows};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// How often a message races with others that make or remove its conversation before that is called contention.
const MAX_RACES: usize = 5;

/// A conversation as a message finds it.
struct Found {
    base: i64,
    title: String,
    status: ConversationStatus,
    active: Option<Active>,
    /// Runs of the conversation that have not ended.
    unfinished: u32,
    /// Whether the owner has as many unfinished runs as allowed.
    full: bool,
}

struct Active {
    run_id: RunId,
    cancel_requested: bool,
}

/// All that a message writes into a conversation.
pub(super) struct Writing<'a> {
    pub(super) owner: &'a UserId,
    pub(super) conversation: &'a ConversationId,
    pub(super) base: i64,
    /// Title and status of the conversation from now on.
    pub(super) title: &'a str,
    pub(super) status: ConversationStatus,
    /// The agent and the model that the conversation keeps from now on, where they are named.
    pub(super) choice: Option<&'a AgentChoice>,
    pub(super) now: UnixMillis,
    pub(super) message: Option<&'a Message>,
    /// A new run with its frozen profile, whether it is the active one, and its first event's place in `events`.
    pub(super) run: Option<NewRun<'a>>,
    pub(super) events: &'a [NewEvent],
    /// Runs that have ended without their worker.
    pub(super) ended: &'a [&'a str],
    /// A key and what to answer when it comes again.
    pub(super) record: Option<(&'a IdempotencyClaim, String)>,
}

pub(super) struct NewRun<'a> {
    pub(super) run: &'a Run,
    /// The frozen profile as JSON.
    pub(super) profile: &'a str,
    pub(super) max_crashes: i64,
    pub(super) active: bool,
    pub(super) first_seq: i64,
    pub(super) trace: &'a TraceId,
}

impl PostgresStore {
    pub(super) async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        // One connection for all of it, so that a burst of requests queues for each only once.
        let mut taken = self.accept.take().await?;
        let cap = OwnerCap { most: self.owner_cap, since: self.low_water.marks().leases };
        let outcome = taken.ask(async |connection| accept_on(connection, accept, cap, key).await).await?;
        self.accept.keep(taken);
        Ok(outcome)
    }
}

async fn accept_on(
    connection: &mut PgConnection,
    accept: &AcceptRun,
    cap: OwnerCap,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Keyed<Accepted>> {
    let mut last = None;
    // Whether another conversation may be made is known once the conversation was looked for.
    let mut may_be_made = accept.create_with_title.is_some() && accept.max_conversations == 0;
    for _ in 0..MAX_RACES {
        if may_be_made {
            match alone(connection, Head::New, accept, cap, key).await {
                Ok(Some(accepted)) => return Ok(Keyed::Fresh(accepted)),
                Ok(None) => {}
                Err(StoreError::Statement(error)) if is_unique_violation(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        match accept_into(connection, accept, cap, key).await {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => may_be_made = accept.create_with_title.is_some(),
            Err(StoreError::Statement(error)) if is_unique_violation(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(StoreError::Contended(last.unwrap_or(sqlx::Error::RowNotFound)))
}

/// Accepts in one statement, if that can be done. A message with files takes a transaction, because only what is stored tells whether
/// it has them.
async fn alone(
    connection: &mut PgConnection,
    head: Head,
    accept: &AcceptRun,
    cap: OwnerCap,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Accepted>> {
    if accept.files().is_empty() {
        return accept_alone::write(connection, head, accept, cap, key).await;
    }
    let mut tx = connection.begin().await?;
    let accepted = accept_alone::write(&mut tx, head, accept, cap, key).await?;
    if accepted.is_some()
        && let Some(refused) = files::refused(&mut tx, accept).await?
    {
        tx.rollback().await?;
        return Ok(Some(refused));
    }
    tx.commit().await?;
    Ok(accepted)
}

/// Accepts into a conversation that exists. `None` if it has just gone or not yet come and another try will tell.
async fn accept_into(
    connection: &mut PgConnection,
    accept: &AcceptRun,
    cap: OwnerCap,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Keyed<Accepted>>> {
    if let Some(accepted) = alone(connection, Head::Idle, accept, cap, key).await? {
        return Ok(Some(Keyed::Fresh(accepted)));
    }
    let mut tx = connection.begin().await?;
    let outcome = accept_locked(&mut tx, accept, key).await?;
    // Not dropped: a transaction that is would hold its lock a little longer than the call.
    match &outcome {
        Some(Keyed::Fresh(Accepted::Run { .. } | Accepted::Steered { .. })) => tx.commit().await?,
        Some(_) | None => tx.rollback().await?,
    }
    Ok(outcome)
}

pub(in crate::store) async fn accept_locked(
    tx: &mut PgConnection,
    accept: &AcceptRun,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Keyed<Accepted>>> {
    if lock_head(tx, &accept.owner, &accept.conversation_id).await?.is_none() {
        return without_conversation(tx, accept, key).await;
    }
    // The same key waited for the lock above, or is found by its primary key when this one is written.
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(Some(recorded));
    }
    let Some(found) = find(tx, accept).await? else { return Ok(None) };
    let written = match (&found.active, accept.on_busy) {
        (Some(active), OnBusy::Reject) => {
            return Ok(Some(Keyed::Fresh(Accepted::Busy { run_id: active.run_id.clone() })));
        }
        (Some(active), OnBusy::Steer) if !active.cancel_requested => steer(tx, accept, key, &found, &active.run_id).await?,
        (Some(_), OnBusy::Interrupt) => match interrupt(tx, accept, &found).await? {
            Some(ended) => start(tx, accept, key, &found, ended).await?,
            None => return Ok(Some(Keyed::Fresh(Accepted::TooManyRuns))),
        },
        // A run that is about to be cancelled answers nobody any more: a message that would join it waits behind it.
        (Some(_), OnBusy::Queue | OnBusy::Steer) | (None, _) if found.full => {
            return Ok(Some(Keyed::Fresh(Accepted::TooManyRuns)));
        }
        (Some(_), OnBusy::Queue | OnBusy::Steer) => {
            start(tx, accept, key, &found, Ended { waiting: found.unfinished, ..Ended::default() }).await?
        }
        (None, OnBusy::Queue | OnBusy::Steer | OnBusy::Interrupt | OnBusy::Reject) => {
            start(tx, accept, key, &found, Ended::default()).await?
        }
    };
    let Some((mut accepted, events)) = written else { return Ok(None) };
    if let Some(refused) = files::refused(tx, accept).await? {
        return Ok(Some(Keyed::Fresh(refused)));
    }
    match &mut accepted {
        Accepted::Run { events: written, .. } | Accepted::Steered { events: written, .. } => {
            *written = compose::numbered(&accept.conversation_id, found.base, events);
        }
        Accepted::Busy { .. }
        | Accepted::NoConversation
        | Accepted::TooManyRuns
        | Accepted::TooManyConversations
        | Accepted::NoFile { .. }
        | Accepted::TooManyFiles { .. } => {}
    }
    Ok(Some(Keyed::Fresh(accepted)))
}

/// What to answer if there is no such conversation of this owner.
async fn without_conversation(
    connection: &mut PgConnection,
    accept: &AcceptRun,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Keyed<Accepted>>> {
    if let Some(key) = key
        && let Some(recorded) = recorded_key(connection, key).await?
    {
        return Ok(Some(recorded));
    }
    if accept.create_with_title.is_none() {
        return Ok(Some(Keyed::Fresh(Accepted::NoConversation)));
    }
    if has_all_conversations(connection, &accept.owner, accept.max_conversations).await? {
        return Ok(Some(Keyed::Fresh(Accepted::TooManyConversations)));
    }
    let (taken, unfinished): (bool, i64) = sqlx::query_as(
        "SELECT EXISTS (SELECT FROM conversations WHERE id = $1 AND owner_id <> $2),
             (SELECT count(*) FROM (SELECT FROM runs WHERE owner_id = $2 AND finished_at IS NULL LIMIT $3) AS unfinished)",
    )
    .bind(accept.conversation_id.as_str())
    .bind(accept.owner.as_str())
    .bind(i64::from(accept.max_active_runs))
    .fetch_one(connection)
    .await?;
    if taken {
        return Ok(Some(Keyed::Fresh(Accepted::NoConversation)));
    }
    let full = accept.max_active_runs > 0 && unfinished >= i64::from(accept.max_active_runs);
    Ok(full.then_some(Keyed::Fresh(Accepted::TooManyRuns)))
}

async fn find(connection: &mut PgConnection, accept: &AcceptRun) -> StoreResult<Option<Found>> {
    let row = sqlx::query(
        "SELECT h.last_seq, c.title, c.status, a.id AS active_id, a.cancel_requested_at IS NOT NULL AS cancel_requested,
             (SELECT count(*) FROM runs WHERE conversation_id = c.id AND finished_at IS NULL) AS unfinished,
             (SELECT count(*) FROM (
                 SELECT FROM runs WHERE owner_id = c.owner_id AND finished_at IS NULL LIMIT $2
             ) AS of_owner) >= $2 AND $2 > 0 AS \"full\"
         FROM conversations c JOIN conversation_heads h ON h.conversation_id = c.id
             LEFT JOIN runs a ON a.conversation_id = c.id AND a.active WHERE c.id = $1 AND c.owner_id = $3",
    )
    .bind(accept.conversation_id.as_str())
    .bind(i64::from(accept.max_active_runs))
    .bind(accept.owner.as_str())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let status: String = row.try_get("status")?;
    let id = accept.conversation_id.as_str();
    let cancel_requested: bool = row.try_get("cancel_requested")?;
    Ok(Some(Found {
        base: row.try_get("last_seq")?,
        title: row.try_get("title")?,
        status: rows::word("conversations", "status", id, &status, ConversationStatus::from_word)?,
        active: row
            .try_get::<Option<String>, _>("active_id")?
            .map(|id| Active { run_id: RunId::from_stored(id), cancel_requested }),
        unfinished: u32::try_from(row.try_get::<i64, _>("unfinished")?).unwrap_or(u32::MAX),
        full: row.try_get("full")?,
    }))
}

/// What an interruption has left: runs that are still to end, and what was written about those that have.
#[derive(Default)]
struct Ended {
    waiting: u32,
    events: Vec<NewEvent>,
    runs: Vec<RunId>,
    requested: Vec<RunId>,
}

/// Ends what can be ended here and now, and asks the rest to end. `None`, and nothing has changed, if the owner has as many
/// unfinished runs as allowed even without those.
async fn interrupt(connection: &mut PgConnection, accept: &AcceptRun, found: &Found) -> StoreResult<Option<Ended>> {
    // In plain words: the driver would begin a transaction of its own where it has not begun the outer one.
    raw_sql("SAVEPOINT interrupt").execute(&mut *connection).await?;
    let unfinished = Unfinished::of_conversation(connection, &accept.conversation_id).await?;
    let cancelled = cancel::end_or_mark(connection, unfinished, found.base, "interrupt", accept.now).await?;
    // Those that have just ended do not count any more.
    if found.full && is_full(connection, &accept.owner, accept.max_active_runs).await? {
        raw_sql("ROLLBACK TO SAVEPOINT interrupt").execute(&mut *connection).await?;
        return Ok(None);
    }
    raw_sql("RELEASE SAVEPOINT interrupt").execute(&mut *connection).await?;
    let waiting = u32::try_from(cancelled.requested.len()).unwrap_or(u32::MAX);
    Ok(Some(Ended { waiting, events: cancelled.events, runs: cancelled.ended, requested: cancelled.requested }))
}

/// Whether the owner has as many unfinished runs as allowed.
pub(super) async fn is_full(connection: &mut PgConnection, owner: &UserId, most: u32) -> StoreResult<bool> {
    let full = sqlx::query_scalar(
        "SELECT count(*) >= $2 FROM (SELECT FROM runs WHERE owner_id = $1 AND finished_at IS NULL LIMIT $2) AS unfinished",
    );
    Ok(full.bind(owner.as_str()).bind(i64::from(most)).fetch_one(connection).await?)
}

/// Stores the message with a run of its own, for the queue. `None` if the conversation is not as it was found.
async fn start(
    connection: &mut PgConnection,
    accept: &AcceptRun,
    key: Option<&IdempotencyClaim>,
    found: &Found,
    ended: Ended,
) -> StoreResult<Option<(Accepted, Vec<NewEvent>)>> {
    let active = ended.waiting == 0;
    let title = compose::title_or_made(&found.title, accept.profile.title, &accept.parts);
    let status = if active { ConversationStatus::Queued } else { found.status };
    let (message, body) = rows::storable_message(compose::user_message(accept, &accept.run_id))?;
    let run = compose::queued_run(accept);
    let mut events = ended.events;
    let first_seq = found.base + 1 + i64::try_from(events.len()).unwrap_or(0);
    let before = (found.title.as_str(), found.status);
    events.extend(compose::accepted_events(&message, ended.waiting, before, (&title, status), accept.now));
    let accepted = Accepted::Run { run, message, first_seq, events: Vec::new(), interrupted: ended.requested, claim: None };
    let Accepted::Run { run, message, .. } = &accepted else { return Ok(None) };
    let profile = profile_json(accept)?;
    let ended: Vec<&str> = ended.runs.iter().map(RunId::as_str).collect();
    let writing = Writing {
        owner: &accept.owner,
        conversation: &accept.conversation_id,
        base: found.base,
        title: &title,
        status,
        choice: Some(&accept.choice),
        now: accept.now,
        message: Some(message),
        run: Some(NewRun {
            run,
            profile: &profile,
            max_crashes: rows::signed(accept.profile.max_crashes),
            active,
            first_seq,
            trace: &accept.trace,
        }),
        events: &events,
        ended: &ended,
        record: record(key, &accepted)?,
    };
    let written = write(connection, writing, Some(body)).await?;
    Ok(written.then_some((accepted, events)))
}

/// Stores the message as one of the active run.
async fn steer(
    connection: &mut PgConnection,
    accept: &AcceptRun,
    key: Option<&IdempotencyClaim>,
    found: &Found,
    active: &RunId,
) -> StoreResult<Option<(Accepted, Vec<NewEvent>)>> {
    let run = super::runs::read(connection, &accept.owner, active).await?;
    let Some(run) = run.map(rows::RunRow::into_run).transpose()? else { return Err(sqlx::Error::RowNotFound.into()) };
    let (message, body) = rows::storable_message(compose::user_message(accept, active))?;
    let events = vec![compose::message_created(&message, run.attempt, accept.now)];
    let accepted = Accepted::Steered { run, message, first_seq: found.base + 1, events: Vec::new() };
    let Accepted::Steered { message, .. } = &accepted else { return Ok(None) };
    let writing = Writing {
        owner: &accept.owner,
        conversation: &accept.conversation_id,
        base: found.base,
        title: &found.title,
        status: found.status,
        choice: Some(&accept.choice),
        now: accept.now,
        message: Some(message),
        run: None,
        events: &events,
        ended: &[],
        record: record(key, &accepted)?,
    };
    Ok(write(connection, writing, Some(body)).await?.then_some((accepted, events)))
}

/// Writes into a conversation in one statement, provided that its head stands at `base`: false if it does not, and nothing is
/// written. A message's place is the number of the first event that is written after those of the runs that ended before it.
pub(super) async fn write(connection: &mut PgConnection, writing: Writing<'_>, body: Option<String>) -> StoreResult<bool> {
    let Writing { owner, conversation, base, title, status, choice, now, message, run, events, ended, record } = writing;
    let first_seq = run.as_ref().map_or(base + 1, |new| new.first_seq);
    let written = sqlx::query(
        "WITH head AS (
             UPDATE conversation_heads
             SET last_seq = $3 + cardinality($15::text[]),
                 run_id = CASE WHEN run_id = ANY($20::text[]) THEN NULL ELSE run_id END,
                 -- A message without a run of its own joins the one under way.
                 joined = joined + CASE WHEN $22 IS NOT NULL AND $7 IS NULL THEN 1 ELSE 0 END
             WHERE conversation_id = $1 AND last_seq = $3 RETURNING conversation_id AS id
         ), conversation AS (
             UPDATE conversations c SET title = $4, status = $5, updated_at = $6, archived_at = NULL,
                 title_by = CASE c.title WHEN '' THEN 'words' ELSE c.title_by END,
                 agent = coalesce($29, c.agent, $10), model = coalesce($30, c.model)
             FROM head WHERE c.id = head.id
         ), run AS (
             INSERT INTO runs (id, conversation_id, owner_id, status, active, claimable_at, claim_cause, profile, agent,
                 agent_version, model, counters, usage, first_seq, created_at, trace_id, max_crashes)
             SELECT $7, id, $2, 'queued', $8, CASE WHEN $8 THEN now_ms() END, 'first', $9, $10, $11, $12, $13, $14, $21, $6, $28, $31
             FROM head WHERE $7 IS NOT NULL
         ), event AS (
             INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
             SELECT head.id, $2, $3 + e.place, e.run_id, e.attempt, e.kind, e.at, e.data
             FROM head, unnest($15::text[], $16::bigint[], $17::text[], $18::bigint[], $19::text[])
                 WITH ORDINALITY AS e (run_id, attempt, kind, at, data, place)
         ), message AS (
             INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
             SELECT $22, id, $2, $23, $21, 'user', $24, $6 FROM head WHERE $22 IS NOT NULL
         ), key AS (
             INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at)
             SELECT $2, $25, $26, $27, now_ms() FROM head WHERE $25 IS NOT NULL
         )
         SELECT FROM head",
    )
    .bind(conversation.as_str())
    .bind(owner.as_str())
    .bind(base)
    .bind(title)
    .bind(status.as_str())
    .bind(now.0)
    .bind(run.as_ref().map(|new| new.run.id.as_str()))
    .bind(run.as_ref().is_some_and(|new| new.active))
    .bind(run.as_ref().map(|new| new.profile))
    .bind(run.as_ref().map(|new| new.run.agent.as_str()))
    .bind(run.as_ref().map(|new| rows::signed(new.run.agent_version)))
    .bind(run.as_ref().map(|new| new.run.model.as_str()))
    .bind(fresh_counters()?)
    .bind(fresh_usage()?)
    .bind(events.iter().map(|event| event.run_id.as_ref().map(RunId::as_str)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| rows::signed(event.attempt)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.kind).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.at.0).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.data.as_str()).collect::<Vec<_>>())
    .bind(ended)
    .bind(first_seq)
    .bind(message.map(|message| message.id.as_str()))
    .bind(message.map(|message| message.run_id.as_str()))
    .bind(body)
    .bind(record.as_ref().map(|(key, _)| storable(&key.key)))
    .bind(record.as_ref().map(|(key, _)| key.fingerprint.as_str()))
    .bind(record.as_ref().map(|(_, outcome)| outcome.as_str()))
    .bind(run.as_ref().map(|new| new.trace.as_str()))
    .bind(choice.and_then(|choice| choice.agent.as_deref()))
    .bind(choice.and_then(|choice| choice.model.as_deref()))
    .bind(run.as_ref().map(|new| new.max_crashes))
    .fetch_optional(connection)
    .await?;
    Ok(written.is_some())
}

pub(super) fn profile_json(accept: &AcceptRun) -> StoreResult<String> {
    rows::encode_storable("runs", "profile", accept.run_id.as_str(), &accept.profile)
}

pub(super) fn fresh_counters() -> StoreResult<String> {
    rows::encode("runs", "counters", "", &RunCounters::default())
}

pub(super) fn fresh_usage() -> StoreResult<String> {
    rows::encode("runs", "usage", "", &Usage::default())
}
