//! Grants: answers to approvals that hold for later calls.
//!
//! Owns the table `tool_grants`. Must not know which calls a grant covers.

use super::database::Database;
use super::row::Row;
use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::domain::approval::ToolGrant;
use crate::domain::ids::{ConversationId, GrantId, UserId};
use crate::store::{MAX_GRANTS, NewGrant, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    // The same grant given again changes nothing.
    INSERT = ["INSERT INTO tool_grants (id, owner_id, conversation_id, server, tool, definition_hash, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, ", now, ") ON CONFLICT DO NOTHING"];

    LIST = ["SELECT id, conversation_id, server, tool, definition_hash, created_at FROM tool_grants
         WHERE owner_id = $1 AND (CAST($2 AS text) IS NULL OR conversation_id IS NULL OR conversation_id = $2)
         ORDER BY created_at DESC, id DESC LIMIT $3"];

    DELETE = ["DELETE FROM tool_grants WHERE id = $1 AND owner_id = $2"];
}

/// Stores a grant.
pub(super) async fn insert(tx: &mut Transaction, owner: &UserId, grant: &NewGrant) -> StoreResult<()> {
    let grant = values![
        grant.id.as_str(),
        owner.as_str(),
        grant.conversation.as_ref().map(ConversationId::as_str),
        grant.server.as_deref(),
        &grant.tool,
        &grant.definition_hash,
    ];
    tx.execute(INSERT, grant).await?;
    Ok(())
}

/// Lists the grants of an owner, or those that hold in one conversation.
pub(super) async fn list(database: Database<'_>, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
    let filter = values![owner.as_str(), within.map(ConversationId::as_str), MAX_GRANTS];
    database.fetch_all(LIST, filter).await?.iter().map(read).collect()
}

/// Deletes a grant. Returns false if there is none.
pub(super) async fn delete(database: Database<'_>, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
    Ok(database.execute(DELETE, values![id.as_str(), owner.as_str()]).await? > 0)
}

fn read(row: &Row) -> StoreResult<ToolGrant> {
    Ok(ToolGrant {
        id: GrantId::from_stored(row.get("id")?),
        conversation_id: row.get::<Option<String>>("conversation_id")?.map(ConversationId::from_stored),
        server: row.get("server")?,
        tool: row.get("tool")?,
        definition_hash: row.get("definition_hash")?,
        created_at: UnixMillis(row.get("created_at")?).to_rfc3339(),
    })
}
