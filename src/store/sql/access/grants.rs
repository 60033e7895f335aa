//! Grants: answers to approvals that also allow later calls.
//!
//! Owns the table `tool_grants`. Must not know what a grant allows.

use crate::domain::ids::{ConversationId, GrantId, UserId};
use crate::domain::tool::ToolGrant;
use crate::store::sql::{Database, Row, Transaction, statements, values};
use crate::store::{MAX_GRANTS, NewGrant, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    LIST = ["SELECT id, conversation_id, server, tool, definition_hash, created_at FROM tool_grants
         WHERE owner_id = $1 AND (CAST($2 AS text) IS NULL OR conversation_id IS NULL OR conversation_id = $2)
         ORDER BY created_at DESC, id DESC LIMIT $3"];

    DELETE = ["DELETE FROM tool_grants WHERE id = $1 AND owner_id = $2"];

    INSERT = ["INSERT INTO tool_grants (id, owner_id, conversation_id, server, tool, definition_hash, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, ", now, ") ON CONFLICT DO NOTHING"];
}

impl Database<'_> {
    /// Returns the grants of an owner, newest first: those of one conversation, or all.
    pub async fn tool_grants(self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        let values = values![owner.as_str(), within.map(ConversationId::as_str), MAX_GRANTS];
        self.fetch_all(LIST, values).await?.iter().map(read_grant).collect()
    }

    /// Deletes a grant. Returns false if there is none.
    pub async fn delete_tool_grant(self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        Ok(self.execute(DELETE, values![id.as_str(), owner.as_str()]).await? > 0)
    }
}

impl Transaction {
    /// Stores a grant. Idempotent.
    pub async fn insert_tool_grant(&mut self, owner: &UserId, grant: &NewGrant) -> StoreResult<()> {
        let values = values![
            grant.id.as_str(),
            owner.as_str(),
            grant.conversation.as_ref().map(ConversationId::as_str),
            grant.server.as_deref(),
            &grant.tool,
            &grant.definition_hash,
        ];
        self.execute(INSERT, values).await?;
        Ok(())
    }
}

fn read_grant(row: &Row) -> StoreResult<ToolGrant> {
    Ok(ToolGrant {
        id: GrantId::from_stored(row.get("id")?),
        conversation_id: row.get::<Option<String>>("conversation_id")?.map(ConversationId::from_stored),
        server: row.get("server")?,
        tool: row.get("tool")?,
        definition_hash: row.get("definition_hash")?,
        created_at: UnixMillis(row.get("created_at")?).to_rfc3339(),
    })
}
