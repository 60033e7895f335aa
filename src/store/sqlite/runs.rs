//! Runs as the transactions of SQLite read them.

use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteRow;

use super::connection::Tx;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::StoreResult;
use crate::store::rows::{RUN_COLUMNS, RunRow};

/// A query for [`RunRow`]s. The condition is a literal of ours.
pub(super) fn select_run(condition: &'static str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("SELECT {RUN_COLUMNS} FROM runs WHERE {condition}"))
}

/// The run inside a transaction, unless it is missing or somebody else's.
pub(super) async fn find_run(tx: &mut Tx, owner: &UserId, id: &RunId) -> StoreResult<Option<RunRow>> {
    let row = sqlx::query(select_run("runs.id = ? AND runs.owner_id = ?"))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    read_run(row)
}

/// The conversation's active run inside a transaction.
pub(super) async fn active_run(tx: &mut Tx, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<RunRow>> {
    let row = sqlx::query(select_run("runs.conversation_id = ? AND runs.active = 1 AND runs.owner_id = ?"))
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    read_run(row)
}

fn read_run(row: Option<SqliteRow>) -> StoreResult<Option<RunRow>> {
    Ok(row.as_ref().map(RunRow::read).transpose()?)
}
