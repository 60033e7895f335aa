//! The rows of runs, for several aggregates.
//!
//! Owns the statements that read a run. Must not know what a use case does with it.

use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::run::{FinishReason, Run, RunStatus, WaitReason};
use crate::domain::trace::TraceId;
use crate::store::StoreResult;
use crate::store::rows::{read_json, read_optional_json, read_optional_word, read_time, read_word, unsigned_count};
use crate::store::sql::{Row, Transaction, statements, values};
use crate::support::clock::UnixMillis;

/// Lists the columns of a [`RunRow`], of a table called `runs`.
macro_rules! run_columns {
    ($dialect:ident) => {
        "runs.id, runs.conversation_id, runs.status, runs.reason, runs.active, runs.agent, runs.agent_version,
         runs.model, runs.usage, runs.attempt, runs.crashes, runs.first_seq, runs.last_seq, runs.finish_reason, runs.error,
         runs.cancel_requested_by, runs.trace_id, runs.created_at, runs.started_at, runs.finished_at"
    };
}
pub(in crate::store::sql) use run_columns;

statements! {
    BY_ID = ["SELECT ", run_columns, " FROM runs WHERE id = $1 AND owner_id = $2"];

    UNFINISHED = ["SELECT id FROM runs WHERE conversation_id = $1 AND finished_at IS NULL ORDER BY first_seq LIMIT 1"];

    COUNT_UNFINISHED = ["SELECT count(*) FROM (SELECT 1 FROM runs WHERE owner_id = $1 AND finished_at IS NULL LIMIT $2) AS unfinished"];
}

/// A run with the columns that clients do not see.
pub struct RunRow {
    pub run: Run,
    pub crashes: u32,
    pub first_seq: i64,
    pub last_seq: Option<i64>,
    pub cancel_requested_by: Option<String>,
    pub created_at: i64,
}

impl RunRow {
    pub fn read(row: &Row) -> StoreResult<Self> {
        let (table, id, created_at) = ("runs", row.get::<String>("id")?, row.get("created_at")?);
        let usage: Usage = read_json(row, table, "usage", &id)?;
        let run = Run {
            conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
            status: read_word(row, table, "status", &id, RunStatus::from_name)?,
            reason: read_optional_word(row, table, "reason", &id, WaitReason::from_name)?,
            agent: row.get("agent")?,
            agent_version: unsigned_count(row.get("agent_version")?),
            model: row.get("model")?,
            attempt: unsigned_count(row.get("attempt")?),
            finish_reason: read_optional_word(row, table, "finish_reason", &id, FinishReason::from_name)?,
            usage: (usage != Usage::default()).then_some(usage),
            error: read_optional_json(row, table, "error", &id)?,
            output: None,
            trace_id: row.get::<Option<String>>("trace_id")?.map(TraceId::from_stored),
            created_at: UnixMillis(created_at).to_rfc3339(),
            started_at: read_time(row, "started_at")?,
            finished_at: read_time(row, "finished_at")?,
            id: RunId::from_stored(id),
        };
        Ok(Self {
            run,
            crashes: unsigned_count(row.get("crashes")?),
            first_seq: row.get("first_seq")?,
            last_seq: row.get("last_seq")?,
            cancel_requested_by: row.get("cancel_requested_by")?,
            created_at,
        })
    }
}

/// Reads a run, unless it is missing or belongs to another owner.
pub async fn find_run(tx: &mut Transaction, owner: &UserId, id: &RunId) -> StoreResult<Option<Run>> {
    let row = tx.fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
    Ok(row.as_ref().map(RunRow::read).transpose()?.map(|row| row.run))
}

/// Locks the head of a run's conversation, unless the run is missing or belongs to another owner.
///
/// Returns the conversation and its newest sequence number. Rows that the head protects must be read after this.
pub async fn lock_head_of_run(tx: &mut Transaction, owner: &UserId, id: &RunId) -> StoreResult<Option<(ConversationId, i64)>> {
    let Some(Run { conversation_id, .. }) = find_run(tx, owner, id).await? else { return Ok(None) };
    Ok(tx.lock_head(owner, &conversation_id).await?.map(|base| (conversation_id, base)))
}

/// Returns the first unfinished run of a conversation whose head is locked.
pub async fn unfinished_run(tx: &mut Transaction, conversation: &ConversationId) -> StoreResult<Option<RunId>> {
    let row = tx.fetch_optional(UNFINISHED, values![conversation.as_str()]).await?;
    Ok(row.map(|row| row.only()).transpose()?.map(RunId::from_stored))
}

/// Returns whether the owner has reached the limit of unfinished runs; 0 for no limit.
pub async fn has_all_runs(tx: &mut Transaction, owner: &UserId, most: u32) -> StoreResult<bool> {
    Ok(most > 0 && tx.fetch_one(COUNT_UNFINISHED, values![owner.as_str(), most]).await?.only::<i64>()? >= i64::from(most))
}
