//! The log: group commit, appends by use cases, reads.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use sqlx::Row as _;

use super::SqliteStore;
use super::apply::{Applied, apply};
use super::batch::Batch;
use super::connection::Tx;
use crate::domain::change::Change;
use crate::domain::event::{NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::record::RunWrite;
use crate::store::rows::{UNREADABLE, encode, read_event, stored};
use crate::store::{Committed, LogBounds, LogStore, Refused, SQL_PAGE_BYTES, StoreError, StoreResult, compose};
use crate::support::clock::UnixMillis;

/// The head of a conversation's log as a transaction sees and changes it.
struct Head {
    owner: Arc<str>,
    last_seq: i64,
    run_id: Option<String>,
    epoch: i64,
    joined: i64,
    changed: bool,
}

/// How a try to commit a batch ended.
enum Attempt {
    /// It is committed.
    Committed(Vec<Result<Committed, Refused>>),
    /// The write at this place breaks a rule of the rows. Nothing is committed: the batch is to be made again without it.
    Refused(usize),
}

#[async_trait]
impl LogStore for SqliteStore {
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        let mut refused = HashSet::new();
        loop {
            match self.try_commit(writes, &refused).await? {
                Attempt::Committed(answers) => return Ok(answers),
                // What the same run wrote after it would leave a hole in the log.
                Attempt::Refused(at) => refused.extend((at..writes.len()).filter(|later| writes[*later].fence == writes[at].fence)),
            }
        }
    }

    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        let rows = sqlx::query(
            "SELECT seq, run_id, attempt, kind, at, data FROM (
                 SELECT page.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before FROM (
                     SELECT seq, run_id, attempt, kind, at, data FROM events
                     WHERE conversation_id = ? AND owner_id = ? AND seq > ? ORDER BY seq LIMIT ?
                 ) AS page
             ) WHERE before < ? ORDER BY seq",
        )
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .bind(after)
        .bind(limit.clamp(1, 1_000))
        .bind(SQL_PAGE_BYTES)
        .fetch_all(self.reader())
        .await?;
        rows.iter().map(|row| Ok(read_event(row, conversation)?)).collect()
    }

    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        let row: Option<(i64, Option<i64>)> = sqlx::query_as(
            "SELECT h.last_seq, (SELECT min(e.seq) FROM events e WHERE e.conversation_id = h.conversation_id)
             FROM conversation_heads h WHERE h.conversation_id = ? AND h.owner_id = ?",
        )
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .fetch_optional(self.reader())
        .await?;
        Ok(row.map(|(head, oldest)| LogBounds { oldest: oldest.unwrap_or(head + 1), head }))
    }

    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT conversation_id, last_seq FROM conversation_heads
             WHERE conversation_id IN (SELECT value FROM json_each(?)) AND last_seq > 0",
        )
        .bind(json!(conversations).to_string())
        .fetch_all(self.reader())
        .await?;
        Ok(rows.into_iter().map(|(id, head)| (ConversationId::from_stored(id), head)).collect())
    }

    async fn news(&self, after: &[(ConversationId, i64)], limit: u32) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        let mut news = Vec::new();
        // No other process writes: this is for what was stored and, since its task died, not published.
        for (conversation, seq) in after {
            let owner: Option<String> = sqlx::query_scalar("SELECT owner_id FROM conversation_heads WHERE conversation_id = ?")
                .bind(conversation.as_str())
                .fetch_optional(self.reader())
                .await?;
            let Some(owner) = owner else { continue };
            let events = self.events(&UserId::from_stored(owner), conversation, *seq, limit).await?;
            if !events.is_empty() {
                news.push((conversation.clone(), events));
            }
        }
        Ok(news)
    }
}

impl SqliteStore {
    async fn try_commit(&self, writes: &[RunWrite], refused: &HashSet<usize>) -> StoreResult<Attempt> {
        let mut tx = self.write().await?;
        let mut heads = read_heads(&mut tx, writes).await?;
        let mut events = Rows::default();
        let mut answers = Vec::with_capacity(writes.len());
        for (at, write) in writes.iter().enumerate() {
            let fence = &write.fence;
            let head = heads
                .get_mut(fence.conversation_id.as_str())
                .filter(|head| head.run_id.as_deref() == Some(fence.run_id.as_str()) && head.epoch == fence.epoch)
                .filter(|head| head.last_seq >= write.after);
            let Some(head) = head.filter(|_| !refused.contains(&at)) else {
                answers.push(Err(Refused::Fenced));
                continue;
            };
            if ends_unheard(write, head.joined) {
                answers.push(Err(Refused::Unheard));
                continue;
            }
            let base = head.last_seq;
            let mut next_waits = false;
            match spare_neighbours(apply(&mut tx, write, base).await)? {
                Applied::Goes => {}
                Applied::Ended { next_waits: next } => {
                    next_waits = next;
                    head.run_id = None;
                    head.changed = true;
                }
                Applied::Refused(reason) => {
                    tracing::error!(run.id = %fence.run_id, reason, "a write of run {} breaks a rule", fence.run_id);
                    return Ok(Attempt::Refused(at));
                }
            }
            let completed = complete(&mut tx, write).await?;
            for (place, event) in write.events.iter().enumerate() {
                head.last_seq += 1;
                let data = completed.iter().find(|(at, _)| *at == place).map(|(_, data)| data.clone());
                events.push(&fence.conversation_id, &head.owner, head.last_seq, event, data);
            }
            head.changed |= !write.events.is_empty();
            answers.push(Ok(Committed { first_seq: base + 1, next_waits, completed }));
        }
        let mut batch = Batch::default();
        events.insert(&mut batch)?;
        write_heads(&mut batch, &heads);
        batch.run(&mut tx).await?;
        tx.commit().await?;
        Ok(Attempt::Committed(answers))
    }
}

/// What the write's events are to say of its conversation, whose rows are as the write leaves them.
async fn complete(tx: &mut Tx, write: &RunWrite) -> StoreResult<Vec<(usize, String)>> {
    if write.events.iter().all(|event| event.kind != compose::UPDATED) {
        return Ok(Vec::new());
    }
    let id = write.fence.conversation_id.as_str();
    let (title, status): (String, String) =
        sqlx::query_as("SELECT title, status FROM conversations WHERE id = ?").bind(id).fetch_one(&mut **tx).await?;
    Ok(compose::updates(write, &encode("conversations", "title", id, &title)?, &status))
}

/// Whether a write would end its run before a message that joined it is heard.
fn ends_unheard(write: &RunWrite, joined: i64) -> bool {
    write.changes.iter().any(|change| matches!(change, Change::Finish { joined: Some(heard), .. } if *heard != joined))
}

/// A row that meets another one, or that could not be read again, is a mistake of one run and must not take the batch of all
/// others with it.
fn spare_neighbours(applied: StoreResult<Applied>) -> StoreResult<Applied> {
    match applied {
        Err(StoreError::Statement(error)) if error.as_database_error().is_some_and(|error| error.is_unique_violation()) => {
            Ok(Applied::Refused("a row exists already"))
        }
        Err(StoreError::Corrupt { .. }) => Ok(Applied::Refused(UNREADABLE)),
        Ok(_) | Err(_) => applied,
    }
}

async fn read_heads(tx: &mut Tx, writes: &[RunWrite]) -> StoreResult<HashMap<String, Head>> {
    let ids: HashSet<&str> = writes.iter().map(|write| write.fence.conversation_id.as_str()).collect();
    let rows = sqlx::query(
        "SELECT conversation_id, owner_id, last_seq, run_id, epoch, joined FROM conversation_heads
         WHERE conversation_id IN (SELECT value FROM json_each(?))",
    )
    .bind(json!(ids).to_string())
    .fetch_all(&mut **tx)
    .await?;
    let mut heads = HashMap::with_capacity(rows.len());
    for row in &rows {
        let head = Head {
            owner: row.try_get::<String, _>("owner_id")?.into(),
            last_seq: row.try_get("last_seq")?,
            run_id: row.try_get("run_id")?,
            epoch: row.try_get("epoch")?,
            joined: row.try_get("joined")?,
            changed: false,
        };
        heads.insert(row.try_get("conversation_id")?, head);
    }
    Ok(heads)
}

/// The heads were read in this transaction, which is the only one that writes: nothing can have changed them since.
fn write_heads(batch: &mut Batch, heads: &HashMap<String, Head>) {
    let changed: Vec<_> =
        heads.iter().filter(|(_, head)| head.changed).map(|(id, head)| json!([id, head.last_seq, head.run_id])).collect();
    if changed.is_empty() {
        return;
    }
    batch.add(
        "UPDATE conversation_heads SET last_seq = new.last_seq, run_id = new.run_id
         FROM (SELECT value ->> 0 AS id, value ->> 1 AS last_seq, value ->> 2 AS run_id FROM json_each(?)) AS new
         WHERE conversation_id = new.id",
    );
    batch.bind(json!(changed).to_string());
}

/// Events to insert with one statement.
#[derive(Default)]
struct Rows<'a>(Vec<EventRow<'a>>);

/// A row in the order of the columns below.
type EventRow<'a> = (&'a ConversationId, Arc<str>, i64, Option<&'a RunId>, u32, &'a str, UnixMillis, Cow<'a, str>);

impl<'a> Rows<'a> {
    /// An event with its own data, or with other data than its own.
    fn push(&mut self, conversation: &'a ConversationId, owner: &Arc<str>, seq: i64, event: &'a NewEvent, data: Option<String>) {
        let data = data.map_or(Cow::Borrowed(event.data.as_str()), Cow::Owned);
        self.0.push((conversation, Arc::clone(owner), seq, event.run_id.as_ref(), event.attempt, event.kind, event.at, data));
    }

    fn insert(self, batch: &mut Batch) -> StoreResult<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let rows = encode("events", "data", "batch", &self.0)?;
        batch.add(
            "INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
             FROM json_each(?)",
        );
        batch.bind(rows);
        Ok(())
    }
}

/// Appends events of a use case, which needs no fence: it changes nothing that a worker decides about.
pub(in crate::store) async fn append(
    tx: &mut Tx,
    conversation: &ConversationId,
    events: Vec<NewEvent>,
) -> StoreResult<Vec<StoredEvent>> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let (head, owner): (i64, String) = sqlx::query_as(
        "UPDATE conversation_heads SET last_seq = last_seq + ? WHERE conversation_id = ? RETURNING last_seq, owner_id",
    )
    .bind(count)
    .bind(conversation.as_str())
    .fetch_one(&mut **tx)
    .await?;
    let owner = owner.into();
    let mut rows = Rows::default();
    for (seq, event) in (head - count + 1..).zip(&events) {
        rows.push(conversation, &owner, seq, event, None);
    }
    let mut batch = Batch::default();
    rows.insert(&mut batch)?;
    batch.run(tx).await?;
    Ok((head - count + 1..).zip(events).map(|(seq, event)| stored(event, conversation, seq)).collect())
}
