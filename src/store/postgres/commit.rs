//! The log writer's transaction: many writes at once, each under its own fence.
//!
//! The transaction is one statement, and so one round trip. It updates the heads whose run and epoch match, and assigns the
//! sequence numbers. All other parts join the matching heads, so a write with a void fence has no effect. The end of a run needs a
//! second statement in the same transaction: the next run may have been queued while the first statement waited for the head's
//! lock, and is not in its snapshot.

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::PostgresStore;
use super::activate_next_run::{PendingUpdate, UpdatedConversation, activate_next_runs};
use super::errors::{refusal, retried_at_locks};
use super::merged_batch::{self, FenceWrites, MergedBatch, WriteOffset};
use super::statement::statement;
use super::timeouts::{ANSWER_LIMIT, ask, with_deadline};
use crate::domain::conversation::ConversationStatus;
use crate::domain::ids::RunId;
use crate::domain::run::{Fence, RunWrite};
use crate::store::runs::created_rows;
use crate::store::{CommitReceipt, CommitResults, StoreResult, WriteRejection};

impl PostgresStore {
    /// Commits a batch. Retried only if the database reports a rollback.
    pub(super) async fn commit_batch(&self, writes: &[RunWrite]) -> StoreResult<CommitResults> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let batch = merged_batch::merge(writes)?;
        // All runs of the process wait for this commit, so a batch is not repeated after a lock timeout (2 s): the log writer then
        // searches for the blocked run. Only the write of that run is repeated, and waits up to 6 s: an aborted session holds its
        // locks for at most 5 s.
        let locks = if batch.fences.len() > 1 { 0 } else { 2 };
        let answers = match batch.refused {
            Some(_) => None,
            None => match retried_at_locks(locks, || self.write_batch(writes, &batch)).await {
                Ok(answers) => Some(answers),
                Err(error) if refusal(&error).is_some() => None,
                Err(error) => return Err(error),
            },
        };
        // A write that violates a rule rolls back its batch. Only that write must fail.
        match answers {
            Some(answers) => Ok(answers),
            None => retried_at_locks(locks, || self.write_one_by_one(writes)).await,
        }
    }

    async fn write_batch(&self, writes: &[RunWrite], batch: &MergedBatch<'_>) -> StoreResult<CommitResults> {
        let mut cached = self.log.take().await?;
        let written = cached.ask(async |connection| write_batch_on(connection, writes, batch).await);
        let answers = with_deadline(ANSWER_LIMIT, written).await?;
        self.log.keep(cached);
        Ok(answers)
    }

    /// Commits each write separately in one transaction, so that a refused write has no effect and the others are stored.
    async fn write_one_by_one(&self, writes: &[RunWrite]) -> StoreResult<CommitResults> {
        let written = ask(&self.worker, async |connection| {
            let mut tx = connection.begin().await?;
            let answers = write_each(&mut tx, writes).await?;
            tx.commit().await?;
            Ok(answers)
        });
        with_deadline(ANSWER_LIMIT, written).await
    }
}

async fn write_batch_on(connection: &mut PgConnection, writes: &[RunWrite], batch: &MergedBatch<'_>) -> StoreResult<CommitResults> {
    let answers = |found: &[Option<Head>]| -> Vec<_> {
        writes.iter().zip(&batch.places).map(|(write, offset)| answer(write, *offset, found)).collect()
    };
    if batch.fences.iter().all(|fenced| fenced.ends_as.is_none()) {
        return Ok(answers(&write(connection, batch).await?));
    }
    let mut tx = connection.begin().await?;
    let found = write_and_settle(&mut tx, batch).await?;
    let mut answers = answers(&found);
    // An end is early if a message has joined that the run has not processed. Then no write of its fence takes effect, although
    // only the end must fail. These writes are repeated one by one before the commit, so that every result is correct.
    let early = |fence: usize| batch.fences[fence].joined.is_some() && found[fence].is_none();
    let again: Vec<usize> =
        (0..writes.len()).filter(|index| batch.places[*index].is_some_and(|offset| early(offset.fence))).collect();
    if !again.is_empty() {
        let repeated: Vec<RunWrite> = again.iter().map(|index| writes[*index].clone()).collect();
        let second = write_each(&mut tx, &repeated).await?;
        for (index, answer) in again.into_iter().zip(second) {
            answers[index] = answer;
        }
    }
    tx.commit().await?;
    Ok(answers)
}

/// Applies each write separately in the open transaction.
async fn write_each(tx: &mut PgConnection, writes: &[RunWrite]) -> StoreResult<CommitResults> {
    sqlx::query("SELECT FROM conversation_heads WHERE conversation_id = ANY($1::text[]) ORDER BY conversation_id FOR UPDATE")
        .bind(writes.iter().map(|write| write.fence.conversation_id.as_str()).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await?;
    let mut answers = Vec::with_capacity(writes.len());
    // Fences with a refused write. A later write of the same fence would leave a gap in the log.
    let mut broken: HashSet<&Fence> = HashSet::new();
    for write in writes {
        if broken.contains(&write.fence) {
            answers.push(Err(WriteRejection::Fenced));
            continue;
        }
        let alone = merged_batch::merge(std::slice::from_ref(write))?;
        if let Some(reason) = alone.refused {
            created_rows::report_broken_rule(write, reason);
            broken.insert(&write.fence);
            answers.push(Err(WriteRejection::Fenced));
            continue;
        }
        let mut savepoint = tx.begin().await?;
        match write_and_settle(&mut savepoint, &alone).await {
            Ok(found) => {
                savepoint.commit().await?;
                let offset = alone.places.first().copied().flatten();
                let answer = match answer(write, offset, &found) {
                    Err(WriteRejection::Fenced) if has_unprocessed_messages(tx, &alone).await? => {
                        Err(WriteRejection::MessageJoined)
                    }
                    answer => answer,
                };
                if answer == Err(WriteRejection::Fenced) {
                    broken.insert(&write.fence);
                }
                answers.push(answer);
            }
            Err(error) => {
                let Some(reason) = refusal(&error) else { return Err(error) };
                savepoint.rollback().await?;
                created_rows::report_broken_rule(write, reason);
                broken.insert(&write.fence);
                answers.push(Err(WriteRejection::Fenced));
            }
        }
    }
    Ok(answers)
}

/// The head that matched a write.
#[derive(Clone)]
struct Head {
    /// The newest sequence number before the write.
    base: i64,
    /// The conversation's title as JSON, if it was read.
    title: Option<String>,
    /// The conversation's status after the run's end.
    status: Option<ConversationStatus>,
}

fn answer(write: &RunWrite, write_offset: Option<WriteOffset>, found: &[Option<Head>]) -> Result<CommitReceipt, WriteRejection> {
    let write_offset = write_offset.ok_or(WriteRejection::Fenced)?;
    let Head { base, title, status } = found.get(write_offset.fence).and_then(Option::as_ref).ok_or(WriteRejection::Fenced)?;
    let completed = match title {
        Some(title) => created_rows::update_events(write, title, status.map_or("", ConversationStatus::as_str)),
        None => Vec::new(),
    };
    let has_next_run = *status == Some(ConversationStatus::Queued);
    Ok(CommitReceipt { first_seq: base + write_offset.offset + 1, has_next_run, completed })
}

/// Returns whether a write matched no head only because its run has not processed all joined messages. Locks the head.
async fn has_unprocessed_messages(connection: &mut PgConnection, alone: &MergedBatch<'_>) -> StoreResult<bool> {
    let Some((fenced, heard)) = alone.fences.first().and_then(|fenced| Some((fenced, fenced.joined?))) else {
        return Ok(false);
    };
    Ok(sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM conversation_heads
         WHERE conversation_id = $1 AND run_id = $2 AND epoch = $3 AND last_seq >= $4 AND joined <> $5)",
    )
    .bind(fenced.fence.conversation_id.as_str())
    .bind(fenced.fence.run_id.as_str())
    .bind(fenced.fence.epoch)
    .bind(fenced.after)
    .bind(heard)
    .fetch_one(connection)
    .await?)
}

async fn write_and_settle(connection: &mut PgConnection, batch: &MergedBatch<'_>) -> StoreResult<Vec<Option<Head>>> {
    let mut found = write(connection, batch).await?;
    let ended = merged_batch::ended(&batch.fences, |fence| found.get(fence).is_some_and(Option::is_some));
    if !ended.is_empty() {
        let updates = batch.updates.iter().filter_map(|update| {
            let base = found.get(update.fence)?.as_ref()?.base;
            let data = (!update.is_final).then_some(update.event.data.as_str());
            let conversation = &batch.fences.get(update.fence)?.fence.conversation_id;
            Some(PendingUpdate { conversation, seq: base + update.place, at: update.event.at, data })
        });
        let updates: Vec<_> = updates.collect();
        for UpdatedConversation { conversation, title_json, status } in activate_next_runs(connection, &ended, &updates).await? {
            let of_it = |fenced: &FenceWrites<'_>| fenced.ends_as.is_some() && fenced.fence.conversation_id == conversation;
            let heads = batch.fences.iter().zip(&mut found).filter(|(fenced, _)| of_it(fenced));
            if let Some(head) = heads.filter_map(|(_, head)| head.as_mut()).next() {
                (head.title, head.status) = (Some(title_json), Some(status));
            }
        }
    }
    Ok(found)
}

async fn write(connection: &mut PgConnection, batch: &MergedBatch<'_>) -> StoreResult<Vec<Option<Head>>> {
    let MergedBatch { fences, events, lists, .. } = batch;
    let parts: Vec<_> = lists.iter().map(|(part, _)| *part).collect();
    // The text consists of constants.
    let statement = AssertSqlSafe(statement(&parts, fences.iter().any(|fenced| fenced.releases_lease)));
    let mut query = sqlx::query(statement)
        .bind(fences.iter().map(|fenced| fenced.fence.conversation_id.as_str()).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.fence.run_id.as_str()).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.fence.epoch).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.events).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.releases_lease).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.joined).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.after).collect::<Vec<_>>())
        .bind(events.iter().map(|(ord, _, _)| *ord).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, offset, _)| *offset).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.run_id.as_ref().map(RunId::as_str)).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| i64::from(event.attempt)).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.kind).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.at.0).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.data.as_str()).collect::<Vec<_>>());
    for (_, list) in lists {
        query = query.bind(list);
    }
    let mut found = vec![None; fences.len()];
    for row in query.fetch_all(connection).await? {
        let ord: i32 = row.try_get("ord")?;
        let base: i64 = row.try_get("base")?;
        if let Some(slot) = usize::try_from(ord).ok().and_then(|ord| found.get_mut(ord)) {
            *slot = Some(Head { base, title: row.try_get("title")?, status: None });
        }
    }
    Ok(found)
}
