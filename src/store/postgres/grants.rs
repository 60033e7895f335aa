//! Answers to approvals that hold for later calls.

use sqlx::PgConnection;

use crate::domain::ids::{ConversationId, UserId};
use crate::store::{NewGrant, StoreResult};

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
