//! The log writer's transaction: many writes at once, each under its own fence.
//!
//! Everything is one statement, which is its own transaction and one round trip: it updates the heads whose run and epoch
//! match, taking the numbers, and every other part hangs on the heads that matched. A write whose fence does not match finds
//! no head and leaves nothing. A run's end takes a second statement in the same transaction, because the run that follows it
//! may have been queued while the first one waited for the head's lock, and would not be in its snapshot.

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::PostgresStore;
use super::answer::{ANSWER_LIMIT, ask, within};
use super::errors::{is_refusal, retried_at_locks};
use super::fold::{self, Fenced, Folded, Place};
use super::settle::{PendingUpdate, Settled, settle};
use super::statement::statement;
use crate::domain::conversation::ConversationStatus;
use crate::domain::ids::RunId;
use crate::domain::run::record::{Fence, RunWrite};
use crate::store::runs::compose;
use crate::store::{Committed, Refused, StoreError, StoreResult};

impl PostgresStore {
    /// Commits a batch. Tried again only when the database says that it was rolled back.
    pub(super) async fn commit_batch(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let batch = fold::fold(writes)?;
        // All runs of the process wait behind this, and the log writer finds out which of them is locked out. That one waits for longer
        // than a session that was cut off in a transaction is suffered, 5 s.
        let locks = if batch.fences.len() > 1 { 0 } else { 2 };
        let answers = match batch.refused {
            Some(_) => None,
            None => match retried_at_locks(locks, || self.write_batch(writes, &batch)).await {
                Ok(answers) => Some(answers),
                Err(error) if is_refusal(&error) => None,
                Err(error) => return Err(error),
            },
        };
        // A write that breaks a rule takes back all of its batch, but shall only cost itself.
        match answers {
            Some(answers) => Ok(answers),
            None => retried_at_locks(locks, || self.write_one_by_one(writes)).await,
        }
    }

    async fn write_batch(&self, writes: &[RunWrite], batch: &Folded<'_>) -> StoreResult<Vec<Result<Committed, Refused>>> {
        let mut cached = self.log.take().await?;
        let written = cached.ask(async |connection| write_batch_on(connection, writes, batch).await);
        let answers = within(ANSWER_LIMIT, written).await?;
        self.log.keep(cached);
        Ok(answers)
    }

    /// Each write on its own in one transaction, so that one that is refused leaves nothing and the others stay.
    async fn write_one_by_one(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        let written = ask(&self.worker, async |connection| {
            let mut tx = connection.begin().await?;
            let answers = write_each(&mut tx, writes).await?;
            tx.commit().await?;
            Ok(answers)
        });
        within(ANSWER_LIMIT, written).await
    }
}

async fn write_batch_on(
    connection: &mut PgConnection,
    writes: &[RunWrite],
    batch: &Folded<'_>,
) -> StoreResult<Vec<Result<Committed, Refused>>> {
    let answers = |found: &[Option<Head>]| -> Vec<_> {
        writes.iter().zip(&batch.places).map(|(write, place)| answer(write, *place, found)).collect()
    };
    if batch.fences.iter().all(|fenced| fenced.ends_as.is_none()) {
        return Ok(answers(&write(connection, batch).await?));
    }
    let mut tx = connection.begin().await?;
    let found = write_and_settle(&mut tx, batch).await?;
    let mut answers = answers(&found);
    // An end that comes too early takes back all writes of its fence, and shall only cost itself. They are made again before the
    // others are committed, so that every answer is true even if they fail.
    let early = |fence: usize| batch.fences[fence].joined.is_some() && found[fence].is_none();
    let again: Vec<usize> =
        (0..writes.len()).filter(|index| batch.places[*index].is_some_and(|place| early(place.fence))).collect();
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

/// Each write on its own, in the transaction that is under way.
async fn write_each(tx: &mut PgConnection, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
    sqlx::query("SELECT FROM conversation_heads WHERE conversation_id = ANY($1::text[]) ORDER BY conversation_id FOR UPDATE")
        .bind(writes.iter().map(|write| write.fence.conversation_id.as_str()).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await?;
    let mut answers = Vec::with_capacity(writes.len());
    // Those of whom a write was refused: what they wrote after it would leave a hole in the log.
    let mut broken: HashSet<&Fence> = HashSet::new();
    for write in writes {
        if broken.contains(&write.fence) {
            answers.push(Err(Refused::Fenced));
            continue;
        }
        let alone = fold::fold(std::slice::from_ref(write))?;
        if let Some(reason) = alone.refused {
            compose::report_broken_rule(write, reason);
            broken.insert(&write.fence);
            answers.push(Err(Refused::Fenced));
            continue;
        }
        let mut savepoint = tx.begin().await?;
        match write_and_settle(&mut savepoint, &alone).await {
            Ok(found) => {
                savepoint.commit().await?;
                let place = alone.places.first().copied().flatten();
                let answer = match answer(write, place, &found) {
                    Err(Refused::Fenced) if is_unheard(tx, &alone).await? => Err(Refused::Unheard),
                    answer => answer,
                };
                if answer == Err(Refused::Fenced) {
                    broken.insert(&write.fence);
                }
                answers.push(answer);
            }
            Err(error) if is_refusal(&error) => {
                savepoint.rollback().await?;
                compose::report_broken_rule(write, &refusal(&error));
                broken.insert(&write.fence);
                answers.push(Err(Refused::Fenced));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

/// The head that a write has found.
#[derive(Clone)]
struct Head {
    /// The number that the log stood at.
    base: i64,
    /// The conversation's title as JSON, if it was looked at.
    title: Option<String>,
    /// The conversation's status after the run's end.
    status: Option<ConversationStatus>,
}

fn answer(write: &RunWrite, place: Option<Place>, found: &[Option<Head>]) -> Result<Committed, Refused> {
    let place = place.ok_or(Refused::Fenced)?;
    let Head { base, title, status } = found.get(place.fence).and_then(Option::as_ref).ok_or(Refused::Fenced)?;
    let completed = match title {
        Some(title) => compose::updates(write, title, status.map_or("", ConversationStatus::as_str)),
        None => Vec::new(),
    };
    let next_waits = *status == Some(ConversationStatus::Queued);
    Ok(Committed { first_seq: base + place.offset + 1, next_waits, completed })
}

/// Returns whether a write found no head only because its run has not processed all joined messages. The head is locked.
async fn is_unheard(connection: &mut PgConnection, alone: &Folded<'_>) -> StoreResult<bool> {
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

/// The database's words for a refusal, without the values that a row holds.
fn refusal(error: &StoreError) -> String {
    let StoreError::Statement(sqlx::Error::Database(database)) = error else { return error.to_string() };
    database.message().to_owned()
}

async fn write_and_settle(connection: &mut PgConnection, batch: &Folded<'_>) -> StoreResult<Vec<Option<Head>>> {
    let mut found = write(connection, batch).await?;
    let ended = fold::ended(&batch.fences, |fence| found.get(fence).is_some_and(Option::is_some));
    if !ended.is_empty() {
        let updates = batch.updates.iter().filter_map(|update| {
            let base = found.get(update.fence)?.as_ref()?.base;
            let data = (!update.is_final).then_some(update.event.data.as_str());
            let conversation = &batch.fences.get(update.fence)?.fence.conversation_id;
            Some(PendingUpdate { conversation, seq: base + update.place, at: update.event.at, data })
        });
        let updates: Vec<_> = updates.collect();
        for Settled { conversation, title_json, status } in settle(connection, &ended, &updates).await? {
            let of_it = |fenced: &Fenced<'_>| fenced.ends_as.is_some() && fenced.fence.conversation_id == conversation;
            let heads = batch.fences.iter().zip(&mut found).filter(|(fenced, _)| of_it(fenced));
            if let Some(head) = heads.filter_map(|(_, head)| head.as_mut()).next() {
                (head.title, head.status) = (Some(title_json), Some(status));
            }
        }
    }
    Ok(found)
}

async fn write(connection: &mut PgConnection, batch: &Folded<'_>) -> StoreResult<Vec<Option<Head>>> {
    let Folded { fences, events, lists, .. } = batch;
    let parts: Vec<_> = lists.iter().map(|(part, _)| *part).collect();
    // Made of constants only.
    let statement = AssertSqlSafe(statement(&parts, fences.iter().any(|fenced| fenced.lets_go)));
    let mut query = sqlx::query(statement)
        .bind(fences.iter().map(|fenced| fenced.fence.conversation_id.as_str()).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.fence.run_id.as_str()).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.fence.epoch).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.events).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.lets_go).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.joined).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.after).collect::<Vec<_>>())
        .bind(events.iter().map(|(ord, _, _)| *ord).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, place, _)| *place).collect::<Vec<_>>())
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
