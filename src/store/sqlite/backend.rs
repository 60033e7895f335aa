//! The operations with a separate implementation on SQLite.
//!
//! Owns the deletion of a conversation with all its rows. Must not know how writes are committed.

use async_trait::async_trait;

use super::SqliteStore;
use super::audit::insert_abandoned;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::RunWrite;
use crate::store::sql::{Backend, Database, IdleAge, accept_once};
use crate::store::{
    AcceptOutcome, AcceptRun, CommitResults, DeletedConversation, IdempotencyKey, IdempotentOutcome, IdempotentResult, StoreResult,
};

/// Without its head, the conversation accepts no write of any run.
const REMOVE: [&str; 10] = [
    "DELETE FROM conversation_heads WHERE conversation_id = ?",
    "DELETE FROM run_leases WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
    "DELETE FROM run_steps WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
    "DELETE FROM input_requests WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
    "DELETE FROM context_summaries WHERE conversation_id = ?",
    "DELETE FROM tool_grants WHERE conversation_id = ?",
    "DELETE FROM tool_calls WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
    "DELETE FROM messages WHERE conversation_id = ?",
    "DELETE FROM events WHERE conversation_id = ?",
    "DELETE FROM runs WHERE conversation_id = ?",
];

#[async_trait]
impl Backend for SqliteStore {
    fn database(&self) -> Database<'_> {
        Database::Sqlite(self)
    }

    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        Ok(accept_once(self.database(), accept, key).await?.unwrap_or(IdempotentOutcome::Fresh(AcceptOutcome::NoConversation)))
    }

    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleAge>) -> StoreResult<Option<DeletedConversation>> {
        // Dropping the transaction rolls it back.
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(IdleAge { statement, age_ms }) = idle {
            let age_ms = i64::try_from(age_ms).unwrap_or(i64::MAX);
            let holds: bool = sqlx::query_scalar(statement.sqlite).bind(age_ms).bind(id.as_str()).fetch_one(&mut *tx).await?;
            if !holds {
                return Ok(None);
            }
        }
        let deleted = sqlx::query("DELETE FROM conversations WHERE id = ? AND owner_id = ?")
            .bind(id.as_str())
            .bind(owner.as_str())
            .execute(&mut *tx)
            .await?;
        if deleted.rows_affected() == 0 {
            return Ok(None);
        }
        let active: Option<String> = sqlx::query_scalar("SELECT id FROM runs WHERE conversation_id = ? AND active = 1")
            .bind(id.as_str())
            .fetch_optional(&mut *tx)
            .await?;
        insert_abandoned(&mut tx, id).await?;
        for statement in REMOVE {
            sqlx::query(statement).bind(id.as_str()).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(Some(DeletedConversation { active_run: active.map(RunId::from_stored) }))
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<CommitResults> {
        self.commit_batch(writes).await
    }
}
