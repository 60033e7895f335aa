//! Runs as rows, for the transactions of several aggregates.
//!
//! Owns how one run of an owner is read. Must not know what is done with it.

use super::row::read_row;
use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::domain::ids::{RunId, UserId};
use crate::store::StoreResult;
use crate::store::rows::RunRow;

/// Lists the columns of a [`RunRow`], of a table called `runs`.
macro_rules! run_columns {
    ($dialect:ident) => {
        "runs.id, runs.conversation_id, runs.status, runs.reason, runs.active, runs.agent, runs.agent_version,
         runs.model, runs.usage, runs.attempt, runs.crashes, runs.first_seq, runs.last_seq, runs.finish_reason, runs.error,
         runs.cancel_requested_by, runs.trace_id, runs.created_at, runs.started_at, runs.finished_at"
    };
}
pub(super) use run_columns;

statements! {
    BY_ID = ["SELECT ", run_columns, " FROM runs WHERE id = $1 AND owner_id = $2"];
}

/// Reads a run, unless it is missing or belongs to another owner.
pub(super) async fn find_run(tx: &mut Transaction, owner: &UserId, id: &RunId) -> StoreResult<Option<RunRow>> {
    let row = tx.fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
    Ok(row.as_ref().map(|row| read_row!(row, RunRow::read)).transpose()?)
}
