//! What stands for the older messages of a conversation.

use sqlx::Row as _;

use super::batch::Batch;
use super::connection::Tx;
use super::conversations::find;
use super::log::append;
use crate::domain::context::ContextSummary;
use crate::domain::ids::ConversationId;
use crate::domain::summary::compacted;
use crate::store::rows::{decode, encode_storable, history};
use crate::store::{Compact, Compacted, StoreResult, compose};

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

/// Does what the owner wishes.
pub(super) async fn compact_in(tx: &mut Tx, compact: &Compact) -> StoreResult<Compacted> {
    let Compact { owner, conversation, policy, now } = compact;
    let id = conversation.as_str();
    if find(tx, owner, conversation).await?.is_none() {
        return Ok(Compacted::NoConversation);
    }
    let is_busy: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM runs WHERE conversation_id = ? AND finished_at IS NULL)")
        .bind(id)
        .fetch_one(&mut **tx)
        .await?;
    if is_busy {
        return Ok(Compacted::Busy);
    }
    let found = sqlx::query(
        "SELECT c.body, r.first_seq, m.position FROM context_summaries c
         JOIN messages m ON m.id = c.covers AND m.superseded_by IS NULL JOIN runs r ON r.id = m.run_id
         WHERE c.conversation_id = ?",
    )
    .bind(id)
    .fetch_optional(&mut **tx)
    .await?;
    let (first_seq, position, body): (Option<i64>, Option<i64>, Option<String>) = match &found {
        None => (None, None, None),
        Some(row) => (row.try_get("first_seq")?, row.try_get("position")?, row.try_get("body")?),
    };
    let bodies: Vec<String> = sqlx::query_scalar(
        "SELECT m.body FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = ?1 AND m.superseded_by IS NULL AND (?2 IS NULL OR (r.first_seq, m.position) > (?2, ?3))
         ORDER BY r.first_seq, m.position",
    )
    .bind(id)
    .bind(first_seq)
    .bind(position)
    .fetch_all(&mut **tx)
    .await?;
    let before = body.map(|body| decode("context_summaries", "body", id, &body)).transpose()?;
    let after = compacted(policy, before.as_ref(), &history(id, &bodies)?);
    let (done, event) = compose::compacted(before, after, *now);
    if let (Compacted::Done { summary: Some(summary), .. }, Some(_)) = (&done, &event) {
        let mut batch = Batch::default();
        summarize(&mut batch, conversation, summary)?;
        batch.run(tx).await?;
    }
    let events = append(tx, conversation, event.into_iter().collect()).await?;
    Ok(done.with(events))
}
