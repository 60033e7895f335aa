//! Conversations as rows, for the transactions of several aggregates.
//!
//! Owns how one conversation of an owner is read. Must not know what is done with it.

use super::row::{Row, read_row};
use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::StoreResult;
use crate::store::rows::ConversationRow;

macro_rules! newest_run {
    (postgres) => {
        "LEFT JOIN LATERAL (
             SELECT id, status, error FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1
         ) n ON true"
    };
    (sqlite) => {
        "LEFT JOIN runs n ON n.id = (SELECT id FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1)"
    };
}

statements! {
    BY_ID = ["SELECT c.id, c.title, c.status, c.created_at, c.updated_at, c.pinned, c.archived_at, c.tags, c.forked_from, c.agent,
             c.model, c.system_prompt, c.instructions, h.last_seq, r.id AS active_run_id, r.reason, n.id AS last_run_id,
             n.status AS last_run_status, n.error AS last_run_error
         FROM conversations c JOIN conversation_heads h ON h.conversation_id = c.id
         LEFT JOIN runs r ON r.conversation_id = c.id AND r.active", { postgres: " ", sqlite: " = 1 " }, newest_run, "
         WHERE c.id = $1 AND c.owner_id = $2"];

    HAS_ALL = ["SELECT count(*) >= $2 FROM (
             SELECT 1 FROM conversations WHERE owner_id = $1 AND archived_at IS NULL LIMIT $2
         ) AS kept"];
}

/// Reads a conversation, unless it is missing or belongs to another owner.
pub(super) async fn find(tx: &mut Transaction, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
    let row = tx.fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
    row.as_ref().map(read_conversation).transpose()
}

/// Returns whether the owner has as many conversations as allowed, not counting archived ones.
///
/// Concurrent requests may exceed the limit by as many: no row is locked that all of an owner's conversations share.
pub(super) async fn has_all(tx: &mut Transaction, owner: &UserId, most: u32) -> StoreResult<bool> {
    if most == 0 {
        return Ok(false);
    }
    Ok(tx.fetch_one(HAS_ALL, values![owner.as_str(), most]).await?.only()?)
}

/// Reads the row of [`BY_ID`].
pub(super) fn read_conversation(row: &Row) -> StoreResult<Conversation> {
    read_row!(row, ConversationRow::read)?.into_conversation()
}
