//! What became of every call of a tool. The log writer's statement writes it, with the outcomes.

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use super::PostgresStore;
use crate::domain::audit::{AuditOutcome, AuditRecord};
use crate::domain::ids::{RunId, UserId};
use crate::store::rows::{AUDIT_COLUMNS, audit_page};
use crate::store::{AUDIT_PIECE, AuditCursor, AuditFilter, AuditStore, Page, PageRequest, StoreResult};

#[async_trait]
impl AuditStore for PostgresStore {
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        let after = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let statement = format!(
            "SELECT {AUDIT_COLUMNS} FROM tool_audit
             WHERE ($1::text IS NULL OR owner_id = $1) AND (at, call_id) < ($2, $3) AND ($4::text IS NULL OR run_id = $4)
               AND ($5::text IS NULL OR name = $5) AND ($6::text IS NULL OR outcome = $6)
             ORDER BY at DESC, call_id DESC LIMIT $7"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(filter.owner.as_ref().map(UserId::as_str))
            .bind(after.0)
            .bind(after.1)
            .bind(filter.run.as_ref().map(RunId::as_str))
            .bind(filter.tool.as_deref())
            .bind(filter.outcome.map(AuditOutcome::as_str))
            .bind(i64::from(page.limit.clamp(1, 100)) + 1)
            .fetch_all(&self.api)
            .await?;
        audit_page(&found, page.limit)
    }

    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64> {
        let gone = sqlx::query(
            "DELETE FROM tool_audit WHERE call_id IN (
                 SELECT call_id FROM tool_audit WHERE at <= (SELECT now_ms()) - $1 ORDER BY at, call_id LIMIT $2
             )",
        )
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(AUDIT_PIECE)
        .execute(&self.chores)
        .await?;
        Ok(gone.rows_affected())
    }
}
