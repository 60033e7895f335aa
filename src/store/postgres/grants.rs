//! Answers to approvals that hold for later calls.

use sqlx::PgConnection;

use super::PostgresStore;
use crate::domain::approval::ToolGrant;
use crate::domain::ids::{ConversationId, GrantId, UserId};
use crate::store::{MAX_GRANTS, NewGrant, StoreResult, rows};

/// Keeps one; the same one given again changes nothing.
pub(super) async fn insert(connection: &mut PgConnection, owner: &UserId, grant: &NewGrant) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO tool_grants (id, owner_id, conversation_id, server, tool, definition_hash, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, now_ms()) ON CONFLICT DO NOTHING",
    )
    .bind(grant.id.as_str())
    .bind(owner.as_str())
    .bind(grant.conversation.as_ref().map(ConversationId::as_str))
    .bind(grant.server.as_deref())
    .bind(&grant.tool)
    .bind(&grant.definition_hash)
    .execute(connection)
    .await?;
    Ok(())
}

impl PostgresStore {
    pub(super) async fn grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        let found = sqlx::query(
            "SELECT id, conversation_id, server, tool, definition_hash, created_at FROM tool_grants
             WHERE owner_id = $1 AND ($2::text IS NULL OR conversation_id IS NULL OR conversation_id = $2)
             ORDER BY created_at DESC, id DESC LIMIT $3",
        )
        .bind(owner.as_str())
        .bind(within.map(ConversationId::as_str))
        .bind(MAX_GRANTS)
        .fetch_all(&self.api)
        .await?;
        found.iter().map(rows::read_grant).collect()
    }

    pub(super) async fn delete_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        let gone = sqlx::query("DELETE FROM tool_grants WHERE id = $1 AND owner_id = $2")
            .bind(id.as_str())
            .bind(owner.as_str())
            .execute(&self.api)
            .await?;
        Ok(gone.rows_affected() > 0)
    }
}
