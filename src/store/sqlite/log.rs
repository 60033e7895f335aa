//! The log writer: group commit.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::json;
use sqlx::Row as _;

use super::SqliteStore;
use super::apply_changes::{Applied, apply};
use super::batch::Batch;
use super::connection::Tx;
use crate::domain::run::{Change, RunWrite};
use crate::store::rows::{UNREADABLE, encode};
use crate::store::runs::created_rows;
use crate::store::{CommitReceipt, CommitResults, StoreError, StoreResult, WriteRejection};

/// The head of a conversation's log, as a transaction reads and changes it.
struct Head {
    owner: Arc<str>,
    last_seq: i64,
    run_id: Option<String>,
    epoch: i64,
    joined: i64,
    changed: bool,
}

/// The outcome of one attempt to commit a batch.
enum Attempt {
    Committed(CommitResults),
    /// The write at this index violates a rule of the rows. Nothing was committed: the batch must be repeated without it.
    Refused(usize),
}

impl SqliteStore {
    pub(super) async fn commit_batch(&self, writes: &[RunWrite]) -> StoreResult<CommitResults> {
        let mut refused = HashSet::new();
        loop {
            match self.try_commit(writes, &refused).await? {
                Attempt::Committed(answers) => return Ok(answers),
                // A later write of the same run would leave a gap in the log.
                Attempt::Refused(at) => refused.extend((at..writes.len()).filter(|later| writes[*later].fence == writes[at].fence)),
            }
        }
    }

    async fn try_commit(&self, writes: &[RunWrite], refused: &HashSet<usize>) -> StoreResult<Attempt> {
        let mut tx = self.write().await?;
        let mut heads = read_heads(&mut tx, writes).await?;
        let mut events = Vec::new();
        let mut answers = Vec::with_capacity(writes.len());
        for (at, write) in writes.iter().enumerate() {
            let fence = &write.fence;
            let head = heads
                .get_mut(fence.conversation_id.as_str())
                .filter(|head| head.run_id.as_deref() == Some(fence.run_id.as_str()) && head.epoch == fence.epoch)
                .filter(|head| head.last_seq >= write.after);
            let Some(head) = head.filter(|_| !refused.contains(&at)) else {
                answers.push(Err(WriteRejection::Fenced));
                continue;
            };
            if ends_unheard(write, head.joined) {
                answers.push(Err(WriteRejection::MessageJoined));
                continue;
            }
            let base = head.last_seq;
            let mut has_next_run = false;
            match spare_neighbours(apply(&mut tx, write, base).await)? {
                Applied::Continues => {}
                Applied::LeaseEnded { has_next_run: next } => {
                    has_next_run = next;
                    head.run_id = None;
                    head.changed = true;
                }
                Applied::Refused(reason) => {
                    created_rows::report_broken_rule(write, reason);
                    return Ok(Attempt::Refused(at));
                }
            }
            let completed = complete(&mut tx, write).await?;
            for (index, event) in write.events.iter().enumerate() {
                head.last_seq += 1;
                let data = completed.iter().find(|(at, _)| *at == index).map(|(_, data)| data.clone());
                let data = data.map_or(Cow::Borrowed(event.data.as_str()), Cow::Owned);
                let (id, owner, run) = (&fence.conversation_id, Arc::clone(&head.owner), event.run_id.as_ref());
                events.push((id, owner, head.last_seq, run, event.attempt, event.kind, event.at, data));
            }
            head.changed |= !write.events.is_empty();
            answers.push(Ok(CommitReceipt { first_seq: base + 1, has_next_run, completed }));
        }
        let mut batch = Batch::default();
        if !events.is_empty() {
            batch.add(
                "INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
                 SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
                 FROM json_each(?)",
            );
            batch.bind(encode("events", "data", "batch", &events)?);
        }
        write_heads(&mut batch, &heads);
        batch.run(&mut tx).await?;
        tx.commit().await?;
        Ok(Attempt::Committed(answers))
    }
}

/// Returns the data of the write's events about its conversation, after the write has changed the rows.
async fn complete(tx: &mut Tx, write: &RunWrite) -> StoreResult<Vec<(usize, String)>> {
    if write.events.iter().all(|event| event.kind != created_rows::UPDATED) {
        return Ok(Vec::new());
    }
    let id = write.fence.conversation_id.as_str();
    let (title, status): (String, String) =
        sqlx::query_as("SELECT title, status FROM conversations WHERE id = ?").bind(id).fetch_one(&mut **tx).await?;
    Ok(created_rows::update_events(write, &encode("conversations", "title", id, &title)?, &status))
}

/// Returns whether a write would end its run although the run has not processed all joined messages.
fn ends_unheard(write: &RunWrite, joined: i64) -> bool {
    write.changes.iter().any(|change| matches!(change, Change::Finish { joined: Some(heard), .. } if *heard != joined))
}

/// Converts the error of a row that exists already, or could not be read again, into a refusal. It is an error of one run, and must
/// not roll back the whole batch.
fn spare_neighbours(applied: StoreResult<Applied>) -> StoreResult<Applied> {
    match applied {
        Err(error) if error.is_unique_violation() => Ok(Applied::Refused("a row exists already")),
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

/// Writes the heads. They were read in this transaction, the only writer, so they cannot have changed since.
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
