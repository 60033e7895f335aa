//! Ending runs by request, and what follows for the conversation.

use sqlx::{Connection as _, PgConnection, Row as _};

use super::PostgresStore;
use super::conversations::{append, lock_head};
use super::idempotency::{record, recorded_key, store_key};
use super::runs;
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::NewEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::RunStatus;
use crate::store::{Cancelled, IdempotencyClaim, Keyed, StoreResult, compose, rows};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// A run that has not ended, under the lock of its conversation's head.
pub(super) struct Unfinished {
    id: RunId,
    attempt: u32,
    active: bool,
    /// Whether a worker has begun with it, or holds its lease and may begin at any moment.
    begun: bool,
}

impl Unfinished {
    /// All unfinished runs of a conversation, oldest first.
    pub(super) async fn of_conversation(connection: &mut PgConnection, conversation: &ConversationId) -> StoreResult<Vec<Self>> {
        let found = sqlx::query(
            // One that begins with calls is ended by a worker, which gives each its outcome.
            "SELECT r.id, r.attempt, r.active, r.started_at IS NOT NULL OR l.run_id IS NOT NULL
                 OR EXISTS (SELECT FROM tool_calls t WHERE t.run_id = r.id) AS begun
             FROM runs r LEFT JOIN run_leases l ON l.run_id = r.id
             WHERE r.conversation_id = $1 AND r.finished_at IS NULL ORDER BY r.first_seq",
        )
        .bind(conversation.as_str())
        .fetch_all(connection)
        .await?;
        found
            .iter()
            .map(|row| {
                Ok(Self {
                    id: RunId::from_stored(row.try_get("id")?),
                    attempt: rows::unsigned(row.try_get("attempt")?),
                    active: row.try_get("active")?,
                    begun: row.try_get("begun")?,
                })
            })
            .collect()
    }
}

/// What became of runs that were to be cancelled.
pub(super) struct Stopped {
    /// Runs that are over, in order; `events` tells of them.
    pub(super) ended: Vec<RunId>,
    /// Whether the conversation's active run is among them.
    pub(super) ended_active: bool,
    /// Runs that a worker will end.
    pub(super) requested: Vec<RunId>,
    /// To be appended first of all, because the runs' `last_seq` is set accordingly.
    pub(super) events: Vec<NewEvent>,
}

/// Ends the runs that nobody has begun, and marks the others for their workers. One that waits without a worker is made
/// claimable. The head is locked and stands at `base`.
pub(super) async fn end_or_mark(
    connection: &mut PgConnection,
    unfinished: Vec<Unfinished>,
    base: i64,
    by: &str,
    now: UnixMillis,
) -> StoreResult<Stopped> {
    let mut stopped = Stopped { ended: Vec::new(), ended_active: false, requested: Vec::new(), events: Vec::new() };
    for run in unfinished {
        if run.begun {
            stopped.requested.push(run.id);
        } else {
            stopped.events.push(compose::run_cancelled(&run.id, run.attempt, by, now));
            stopped.ended_active |= run.active;
            stopped.ended.push(run.id);
        }
    }
    if !stopped.ended.is_empty() {
        sqlx::query(
            "UPDATE runs SET status = 'cancelled', reason = NULL, finish_reason = 'cancelled', active = false,
                 claimable_at = NULL, finished_at = now_ms(), last_seq = $2 + e.place,
                 cancel_requested_at = coalesce(cancel_requested_at, now_ms()), cancel_requested_by = coalesce(cancel_requested_by, $3)
             FROM unnest($1::text[]) WITH ORDINALITY AS e (id, place) WHERE runs.id = e.id",
        )
        .bind(stopped.ended.iter().map(RunId::as_str).collect::<Vec<_>>())
        .bind(base)
        .bind(storable(by))
        .execute(&mut *connection)
        .await?;
    }
    if !stopped.requested.is_empty() {
        sqlx::query(
            "UPDATE runs r SET cancel_requested_at = coalesce(r.cancel_requested_at, now_ms()),
                 cancel_requested_by = coalesce(r.cancel_requested_by, $2),
                 claimable_at = CASE WHEN w.leased THEN r.claimable_at ELSE least(r.claimable_at, now_ms()) END,
                 claim_cause = CASE WHEN w.leased OR r.claimable_at <= now_ms() THEN r.claim_cause ELSE 'request' END
             FROM (
                 SELECT w.id, l.run_id IS NOT NULL AS leased
                 FROM unnest($1::text[]) AS w (id) LEFT JOIN run_leases l ON l.run_id = w.id
             ) w
             WHERE r.id = w.id",
        )
        .bind(stopped.requested.iter().map(RunId::as_str).collect::<Vec<_>>())
        .bind(storable(by))
        .execute(connection)
        .await?;
    }
    Ok(stopped)
}

/// An event that tells what became of a conversation, and is written when that is known.
pub(super) struct Told<'a> {
    pub(super) conversation: &'a ConversationId,
    pub(super) seq: i64,
    pub(super) at: UnixMillis,
    /// Its data but for the title. `None`: it tells the status that the conversation gets.
    pub(super) data: Option<&'a str>,
}

/// The active run of a conversation, which has ended.
pub(super) struct Ended<'a> {
    pub(super) conversation: &'a ConversationId,
    pub(super) run: &'a RunId,
    /// What that makes of the conversation.
    pub(super) status: ConversationStatus,
}

/// What became of a conversation whose active run has ended.
pub(super) struct Settled {
    pub(super) conversation: ConversationId,
    pub(super) title: String,
    /// The title as JSON, as it stands in the events.
    pub(super) title_json: String,
    pub(super) status: ConversationStatus,
}

/// Makes the next run of each conversation the active one, and sets the conversation's status: `queued` if there is a next
/// run, and else that which the run that ended calls for. The heads are locked since an earlier statement, and the runs that
/// ended are not active any more. What they have still to ask needs no answer any more: their workers have closed what
/// they knew of, but the server of a call may have asked at the last moment.
pub(super) async fn settle(connection: &mut PgConnection, ended: &[Ended<'_>], told: &[Told<'_>]) -> StoreResult<Vec<Settled>> {
    let settled = sqlx::query(
        "WITH ended AS (
             SELECT * FROM unnest($1::text[], $2::text[], $7::text[]) AS e (conversation_id, status, run_id)
         ), next AS (
             UPDATE runs r SET active = true, claimable_at = now_ms(), claim_cause = 'first'
             FROM ended e CROSS JOIN LATERAL (
                 SELECT id FROM runs WHERE conversation_id = e.conversation_id AND finished_at IS NULL ORDER BY first_seq LIMIT 1
             ) n
             WHERE r.id = n.id AND NOT r.active RETURNING r.conversation_id
         ), settled AS (
             UPDATE conversations c SET status = s.status, updated_at = CASE WHEN c.status = s.status THEN c.updated_at ELSE now_ms() END
             FROM (
                 SELECT e.conversation_id, CASE WHEN n.conversation_id IS NULL THEN e.status ELSE 'queued' END AS status
                 FROM ended e LEFT JOIN next n ON n.conversation_id = e.conversation_id
             ) s
             WHERE c.id = s.conversation_id
             RETURNING c.id, c.owner_id, c.title, c.status, to_json(c.title)::text AS title_json
         ), closed AS (
             UPDATE input_requests q SET state = 'cancelled', resolved_at = now_ms()
             FROM ended e WHERE q.run_id = e.run_id AND q.state = 'pending'
         ), event AS (
             INSERT INTO events (conversation_id, owner_id, seq, attempt, kind, at, data)
             SELECT s.id, s.owner_id, t.seq, 0, 'conversation.updated', t.at,
                 '{\"title\":' || s.title_json || ',' || coalesce(substr(t.data, 2), '\"status\":\"' || s.status || '\"}')
             FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[]) AS t (conversation_id, seq, at, data)
             JOIN settled s ON s.id = t.conversation_id
         )
         SELECT id, title, status, title_json FROM settled",
    )
    .bind(ended.iter().map(|ended| ended.conversation.as_str()).collect::<Vec<_>>())
    .bind(ended.iter().map(|ended| ended.status.as_str()).collect::<Vec<_>>())
    .bind(told.iter().map(|told| told.conversation.as_str()).collect::<Vec<_>>())
    .bind(told.iter().map(|told| told.seq).collect::<Vec<_>>())
    .bind(told.iter().map(|told| told.at.0).collect::<Vec<_>>())
    .bind(told.iter().map(|told| told.data).collect::<Vec<_>>())
    .bind(ended.iter().map(|ended| ended.run.as_str()).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    settled
        .iter()
        .map(|row| {
            let id: String = row.try_get("id")?;
            let status: String = row.try_get("status")?;
            let status = rows::word("conversations", "status", &id, &status, ConversationStatus::from_word)?;
            let (title, title_json) = (row.try_get("title")?, row.try_get("title_json")?);
            Ok(Settled { title, title_json, status, conversation: ConversationId::from_stored(id) })
        })
        .collect()
}

impl PostgresStore {
    pub(super) async fn cancel(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        let cancelled = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let outcome = cancel_locked(&mut tx, owner, id, by, now, key).await?;
            // Also if nothing was written: a transaction that is dropped would hold its lock a little longer than the call.
            tx.commit().await?;
            Ok(outcome)
        });
        self.or_recorded(cancelled.await, key).await
    }
}

async fn cancel_locked(
    tx: &mut PgConnection,
    owner: &UserId,
    id: &RunId,
    by: &str,
    now: UnixMillis,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Keyed<Cancelled>> {
    let run = runs::read(tx, owner, id).await?;
    let conversation = run.map(|run| ConversationId::from_stored(run.conversation_id));
    let head = match &conversation {
        Some(conversation) => lock_head(tx, owner, conversation).await?.map(|base| (conversation, base)),
        None => None,
    };
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    let Some((conversation, base)) = head else { return Ok(Keyed::Fresh(Cancelled::NoRun)) };
    let unfinished = Unfinished::of_conversation(tx, conversation).await?;
    let stopped = end_or_mark(tx, unfinished.into_iter().filter(|run| run.id == *id).collect(), base, by, now).await?;
    let mut events = stopped.events;
    if stopped.ended_active {
        let settled = settle(tx, &[Ended { conversation, run: id, status: RunStatus::Cancelled.into() }], &[]).await?;
        // A run that nobody had begun left its conversation queued.
        let changed = settled.into_iter().filter(|settled| settled.status != ConversationStatus::Queued);
        events.extend(changed.map(|settled| compose::conversation_updated(&settled.title, settled.status, now)));
    }
    if !events.is_empty() {
        append(tx, conversation, base, &events, &[id.as_str()]).await?;
    }
    let Some(run) = runs::read(tx, owner, id).await?.map(rows::RunRow::into_run).transpose()? else {
        return Ok(Keyed::Fresh(Cancelled::NoRun));
    };
    let events = compose::numbered(conversation, base, events);
    let cancelled = if run.status.is_terminal() { Cancelled::Over { run, events } } else { Cancelled::Requested { run } };
    store_key(tx, record(key, &cancelled)?).await?;
    Ok(Keyed::Fresh(cancelled))
}
