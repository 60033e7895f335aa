//! What stands for the older messages of a conversation.

use super::batch::Batch;
use crate::domain::context::ContextSummary;
use crate::domain::ids::ConversationId;
use crate::store::StoreResult;
use crate::store::rows::encode_storable;

/// Has it stand from now on.
pub(super) fn summarize(batch: &mut Batch, conversation: &ConversationId, summary: &ContextSummary) -> StoreResult<()> {
    let body = encode_storable("context_summaries", "body", conversation.as_str(), summary)?;
    batch.add(concat!(
        "INSERT INTO context_summaries (conversation_id, owner_id, covers, body, updated_at)
         SELECT conversation_id, owner_id, ?, ?, ",
        now!(),
        " FROM conversation_heads WHERE conversation_id = ? ON CONFLICT (conversation_id) DO UPDATE SET covers = excluded.covers, body = excluded.body,
           updated_at = excluded.updated_at"
    ));
    batch.bind(summary.covers.as_str()).bind(body).bind(conversation.as_str());
    Ok(())
}
