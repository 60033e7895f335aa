//! Requests to end a run.

use super::SqliteStore;
use super::apply::promote_next;
use super::connection::Tx;
use super::conversations::set_status;
use super::idempotency;
use super::log::append;
use super::runs::find_run;
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::RunStatus;
use crate::store::rows::{RunRow, unsigned};
use crate::store::{Cancelled, IdempotencyClaim, Keyed, StoreResult, compose};
use crate::support::clock::UnixMillis;

/// What came of asking a run to end.
pub(super) enum Ask {
    /// It is over, and these events say so.
    Ended(Vec<StoredEvent>),
    /// A worker will end it: the one that has it, or the next one that claims it.
    Marked,
}

impl SqliteStore {
    pub(super) async fn cancel(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let Some(row) = find_run(&mut tx, owner, id).await? else { return Ok(Keyed::Fresh(Cancelled::NoRun)) };
        let ask = if row.run_status()?.is_terminal() { Ask::Ended(Vec::new()) } else { request(&mut tx, &row, by, now).await? };
        let Some(row) = find_run(&mut tx, owner, id).await? else { return Ok(Keyed::Fresh(Cancelled::NoRun)) };
        let cancelled = match ask {
            Ask::Ended(events) => Cancelled::Over { run: row.into_run()?, events },
            Ask::Marked => Cancelled::Requested { run: row.into_run()? },
        };
        idempotency::keep(&mut tx, key, &cancelled).await?;
        tx.commit().await?;
        Ok(Keyed::Fresh(cancelled))
    }
}

/// Asks a run that has not ended to end.
pub(super) async fn request(tx: &mut Tx, row: &RunRow, by: &str, now: UnixMillis) -> StoreResult<Ask> {
    let leased: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM run_leases WHERE run_id = ?)").bind(&row.id).fetch_one(&mut **tx).await?;
    // One that begins with calls is ended by a worker, which gives each its outcome.
    let has_calls: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM tool_calls WHERE run_id = ?)").bind(&row.id).fetch_one(&mut **tx).await?;
    if !leased && !has_calls && row.started_at.is_none() && row.run_status()? == RunStatus::Queued {
        return Ok(Ask::Ended(end_unstarted(tx, row, by, now).await?));
    }
    // Without a lease the run waits, for a time or for something outside: it need not any longer.
    sqlx::query(concat!(
        "UPDATE runs SET
           cancel_requested_at = coalesce(cancel_requested_at, ?2),
           cancel_requested_by = coalesce(cancel_requested_by, ?3),
           claim_cause = CASE WHEN NOT ?4 AND status = 'waiting' THEN 'request' ELSE claim_cause END,
           claimable_at = CASE WHEN NOT ?4 THEN min(coalesce(claimable_at, ",
        now!(),
        "), ",
        now!(),
        ") ELSE claimable_at END
         WHERE id = ?1"
    ))
    .bind(&row.id)
    .bind(now.0)
    .bind(by)
    .bind(leased)
    .execute(&mut **tx)
    .await?;
    Ok(Ask::Marked)
}

/// Ends a run that no worker has and that has not started.
pub(super) async fn end_unstarted(tx: &mut Tx, row: &RunRow, by: &str, now: UnixMillis) -> StoreResult<Vec<StoredEvent>> {
    let conversation = ConversationId::from_stored(row.conversation_id.clone());
    sqlx::query(
        "UPDATE runs SET status = 'cancelled', finish_reason = 'cancelled', active = 0, claimable_at = NULL,
                cancel_requested_at = coalesce(cancel_requested_at, ?2),
                cancel_requested_by = coalesce(cancel_requested_by, ?3), finished_at = ?2
         WHERE id = ?1 AND finished_at IS NULL",
    )
    .bind(&row.id)
    .bind(now.0)
    .bind(by)
    .execute(&mut **tx)
    .await?;
    let mut events = vec![compose::run_cancelled(&row.run_id(), unsigned(row.attempt), by, now)];
    if row.active {
        let promoted = promote_next(tx, &conversation).await?;
        let status = if promoted { ConversationStatus::Queued } else { RunStatus::Cancelled.into() };
        events.extend(set_status(tx, &conversation, status, now).await?);
    }
    let events = append(tx, &conversation, events).await?;
    sqlx::query("UPDATE runs SET last_seq = ? WHERE id = ?")
        .bind(events.first().map(|event| event.seq))
        .bind(&row.id)
        .execute(&mut **tx)
        .await?;
    Ok(events)
}
