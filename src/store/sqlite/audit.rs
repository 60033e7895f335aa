//! What became of every call of a tool.

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use super::SqliteStore;
use super::batch::Batch;
use super::connection::Tx;
use crate::domain::audit::{AuditOutcome, AuditRecord};
use crate::domain::ids::{CallId, ConversationId, RunId, UserId};
use crate::store::rows::{AUDIT_COLUMNS, audit_page};
use crate::store::{AUDIT_PIECE, AuditCursor, AuditFilter, AuditStore, Page, PageRequest, StoreResult};

/// Keeps the ends of the calls `c`, of runs `r`, for which `which` holds: their outcome, and the milliseconds that somebody measured.
/// Where those are 0 nobody may have, and the time since a call was started is what is known of one that was. A call may have been
/// allowed and, when nobody knew what became of it, been asked about again: who answered last decided.
macro_rules! keep_ends {
    ($outcome:literal, $duration:literal, $which:literal) => {
        concat!(
            "INSERT INTO tool_audit (call_id, owner_id, conversation_id, run_id, agent, name, server, arguments_hash, outcome,
                                     decided_by, grant_id, duration_ms, at)
             SELECT c.id, c.owner_id, r.conversation_id, c.run_id, r.agent, c.name, c.server, c.arguments_hash, ",
            $outcome,
            ", coalesce((SELECT q.resolved_by FROM input_requests q WHERE q.run_id = c.run_id AND q.call_id = c.id
                   AND q.kind IN ('approval', 'unknown_outcome') AND q.resolved_by IS NOT NULL
                   ORDER BY q.resolved_at DESC LIMIT 1), CASE WHEN c.grant_id IS NOT NULL THEN c.owner_id END),
                c.grant_id, coalesce(nullif(",
            $duration,
            ", 0), max(",
            now!(),
            " - c.started_at, 0), 0), ",
            now!(),
            " FROM tool_calls c JOIN runs r ON r.id = c.run_id WHERE ",
            $which
        )
    };
}

/// Keeps the end of a call, whose row has its outcome already.
pub(super) fn insert(batch: &mut Batch, call: &CallId, outcome: AuditOutcome, duration_ms: u64) {
    batch.add(keep_ends!("?", "?", "c.id = ?"));
    batch.bind(outcome.as_str()).bind(i64::try_from(duration_ms).unwrap_or(i64::MAX)).bind(call.as_str());
}

/// The calls without an outcome of a conversation that is being deleted. Of those that may be under way nobody will hear how they
/// end; the others are not made, and a denial that no worker has acted on is the reason for that.
pub(super) async fn insert_abandoned(tx: &mut Tx, conversation: &ConversationId) -> StoreResult<()> {
    sqlx::query(keep_ends!(
        "CASE WHEN c.state = 'started' THEN 'unknown'
              WHEN EXISTS (SELECT 1 FROM input_requests q WHERE q.run_id = c.run_id AND q.call_id = c.id
                  AND q.kind = 'approval' AND q.state = 'answered' AND q.answer ->> 'choice' = 'deny') THEN 'denied'
              ELSE 'skipped' END",
        "0",
        "r.conversation_id = ? AND c.state IN ('planned', 'awaiting_approval', 'started')"
    ))
    .bind(conversation.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

#[async_trait]
impl AuditStore for SqliteStore {
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        let after = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let statement = format!(
            "SELECT {AUDIT_COLUMNS} FROM tool_audit
             WHERE (?1 IS NULL OR owner_id = ?1) AND (at, call_id) < (?2, ?3) AND (?4 IS NULL OR run_id = ?4)
               AND (?5 IS NULL OR name = ?5) AND (?6 IS NULL OR outcome = ?6)
             ORDER BY at DESC, call_id DESC LIMIT ?7"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(filter.owner.as_ref().map(UserId::as_str))
            .bind(after.0)
            .bind(after.1)
            .bind(filter.run.as_ref().map(RunId::as_str))
            .bind(filter.tool.as_deref())
            .bind(filter.outcome.map(AuditOutcome::as_str))
            .bind(i64::from(page.limit.clamp(1, 100)) + 1)
            .fetch_all(self.reader())
            .await?;
        audit_page(&found, page.limit)
    }

    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let gone = sqlx::query(concat!(
            "DELETE FROM tool_audit WHERE call_id IN (SELECT call_id FROM tool_audit WHERE at <= ",
            now!(),
            " - ? ORDER BY at, call_id LIMIT ?)"
        ))
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(AUDIT_PIECE)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(gone.rows_affected())
    }
}
