//! Runs as the transactions of Postgres read them.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::domain::ids::{RunId, UserId};
use crate::store::rows::RunRow;
use crate::store::{StoreResult, rows};

/// A run of this owner.
pub(super) async fn read(connection: &mut PgConnection, owner: &UserId, id: &RunId) -> StoreResult<Option<RunRow>> {
    let columns = rows::RUN_COLUMNS;
    let found = sqlx::query(AssertSqlSafe(format!("SELECT {columns} FROM runs WHERE id = $1 AND owner_id = $2")))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(connection)
        .await?;
    Ok(found.as_ref().map(RunRow::read).transpose()?)
}
