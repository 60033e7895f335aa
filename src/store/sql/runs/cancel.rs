//! Cancellation requests: for one run, or for all runs of a conversation that a message interrupts.
//!
//! Owns the end of a run that no worker holds. Must not know how a worker ends its run.

use crate::domain::conversation::ConversationStatus;
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::run::RunStatus;
use crate::store::rows::unsigned_count;
use crate::store::runs::created_rows;
use crate::store::sql::runs::run_rows::{find_run, lock_head_of_run};
use crate::store::sql::{Transaction, Value, refuse, statements, values};
use crate::store::{CancelOutcome, CancelRun, IdempotencyKey, IdempotentResult, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    // A run has begun if a worker has started it, or holds its lease and may start it at any moment. A worker ends a run that
    // begins with calls, because each call needs an outcome.
    UNFINISHED = ["SELECT r.id, r.attempt, r.active, r.started_at IS NOT NULL OR l.run_id IS NOT NULL
             OR EXISTS (SELECT 1 FROM tool_calls t WHERE t.run_id = r.id) AS begun
         FROM runs r LEFT JOIN run_leases l ON l.run_id = r.id
         WHERE r.conversation_id = $1 AND r.finished_at IS NULL AND (CAST($2 AS text) IS NULL OR r.id = $2) ORDER BY r.first_seq"];

    // The runs end one after another: the last event of each run is its end.
    END = ["UPDATE runs SET status = 'cancelled', reason = NULL, finish_reason = 'cancelled', active = false, claimable_at = NULL,
             finished_at = ", now, ", last_seq = $2 + e.place, cancel_requested_at = coalesce(cancel_requested_at, ", now, "),
             cancel_requested_by = coalesce(cancel_requested_by, $3)
         FROM ", {
             postgres: "unnest($1::text[]) WITH ORDINALITY AS e (id, place)",
             sqlite: "(SELECT value AS id, key + 1 AS place FROM json_each($1)) AS e"
         }, "
         WHERE runs.id = e.id"];

    FENCE_OFF = ["UPDATE conversation_heads SET run_id = NULL WHERE conversation_id = $1 AND run_id ", (in_list "$2")];

    // A run without a lease waits for a time or an answer, and must not wait any longer.
    MARK = ["UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, ", now, "),
             cancel_requested_by = coalesce(cancel_requested_by, $2),
             claimable_at = CASE WHEN leased THEN claimable_at ELSE ", least, "(coalesce(claimable_at, ", now, "), ", now, ") END,
             claim_cause = CASE WHEN leased OR claimable_at <= ", now, " THEN claim_cause ELSE 'request' END
         FROM (SELECT e.id, EXISTS (SELECT 1 FROM run_leases l WHERE l.run_id = e.id) AS leased FROM ", {
             postgres: "unnest($1::text[]) AS e (id)",
             sqlite: "(SELECT value AS id FROM json_each($1)) AS e"
         }, ") AS marked
         WHERE runs.id = marked.id"];

    PROMOTE_NEXT = ["UPDATE runs SET active = true, claimable_at = ", now, ", claim_cause = 'first'
         WHERE id = (SELECT id FROM runs WHERE conversation_id = $1 AND finished_at IS NULL ORDER BY first_seq LIMIT 1)"];

    SET_STATUS = ["UPDATE conversations SET status = $2, updated_at = ", now, " WHERE id = $1 AND status <> $2 RETURNING title"];
}

/// The outcome of cancelling runs.
#[derive(Default)]
pub struct CancelledRuns {
    /// The events of the ended runs. They must be appended before any others, because the runs' `last_seq` refers to them.
    pub events: Vec<NewEvent>,
    /// Whether the conversation's active run has ended.
    pub ended_active: bool,
    /// Runs that a worker will end.
    pub requested: Vec<RunId>,
}

/// Cancels a run, or requests that its worker ends it.
pub async fn cancel_in(
    tx: &mut Transaction,
    CancelRun { owner, id, by, now }: CancelRun<'_>,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<CancelOutcome> {
    let head = lock_head_of_run(tx, owner, id).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some((conversation, base)) = head else { return refuse(CancelOutcome::NoRun) };
    let mut stopped = stop_runs(tx, &conversation, Some(id), base, by, now).await?;
    if stopped.ended_active {
        let is_queued = tx.execute(PROMOTE_NEXT, values![conversation.as_str()]).await? > 0;
        let status = if is_queued { ConversationStatus::Queued } else { RunStatus::Cancelled.into() };
        if let Some(row) = tx.fetch_optional(SET_STATUS, values![conversation.as_str(), status.as_str()]).await? {
            stopped.events.push(created_rows::conversation_updated(row.only()?, status, now));
        }
    }
    let events = tx.append(&conversation, base, stopped.events).await?;
    let Some(run) = find_run(tx, owner, id).await? else { return refuse(CancelOutcome::NoRun) };
    let cancelled = if run.status.is_terminal() { CancelOutcome::Over { run, events } } else { CancelOutcome::Requested { run } };
    tx.record(key, cancelled).await
}

/// Ends the unfinished runs of a conversation that have not begun, and marks the others for their workers. With `only`, just that
/// run.
///
/// The head is locked, and `base` is its newest number.
pub async fn stop_runs(
    tx: &mut Transaction,
    conversation: &ConversationId,
    only: Option<&RunId>,
    base: i64,
    by: &str,
    now: UnixMillis,
) -> StoreResult<CancelledRuns> {
    let mut stopped = CancelledRuns::default();
    let mut ended = Vec::new();
    for row in tx.fetch_all(UNFINISHED, values![conversation.as_str(), only.map(RunId::as_str)]).await? {
        let id = RunId::from_stored(row.get("id")?);
        if row.get("begun")? {
            stopped.requested.push(id);
        } else {
            let cancelled = EventBody::RunCancelled { by: by.to_owned() };
            stopped.events.push(NewEvent::new(&cancelled, Some(id.clone()), unsigned_count(row.get("attempt")?), now));
            stopped.ended_active |= row.get::<bool>("active")?;
            ended.push(id);
        }
    }
    // A conversation may have thousands of queued runs, and its head is locked, so one statement ends all of them.
    if !ended.is_empty() {
        let ids = || ended.iter().map(RunId::as_str).collect::<Value<'_>>();
        tx.execute(END, values![ids(), base, by]).await?;
        tx.execute(FENCE_OFF, values![conversation.as_str(), ids()]).await?;
    }
    if !stopped.requested.is_empty() {
        let ids: Value<'_> = stopped.requested.iter().map(RunId::as_str).collect();
        tx.execute(MARK, values![ids, by]).await?;
    }
    Ok(stopped)
}
