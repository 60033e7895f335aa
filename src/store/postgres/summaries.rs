//! What stands for the older messages of a conversation, at its owner's wish.

use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::record;
use super::cancel::store_key;
use super::conversations::{append, lock_head, recorded_key};
use crate::domain::summary::compacted;
use crate::store::{Compact, Compacted, IdempotencyClaim, Keyed, StoreResult, compose, rows};

impl PostgresStore {
    pub(super) async fn compact_older(&self, compact: &Compact, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
        let done = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let outcome = compact_locked(&mut tx, compact, key).await?;
            // Also if nothing was written: a transaction that is dropped would hold its lock a little longer than the call.
            tx.commit().await?;
            Ok(outcome)
        });
        self.or_recorded(done.await, key).await
    }
}

async fn compact_locked(tx: &mut PgConnection, compact: &Compact, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
    let Compact { owner, conversation, policy, now } = compact;
    let id = conversation.as_str();
    let head = lock_head(tx, owner, conversation).await?;
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    let Some(base) = head else { return Ok(Keyed::Fresh(Compacted::NoConversation)) };
    let (is_busy, before, history): (bool, Option<String>, Vec<String>) = sqlx::query_as(
        "SELECT EXISTS (SELECT FROM runs WHERE conversation_id = h.conversation_id AND finished_at IS NULL), s.body,
             ARRAY (
                 SELECT m.body FROM messages m JOIN runs o ON o.id = m.run_id
                 WHERE m.conversation_id = h.conversation_id AND m.superseded_by IS NULL
                     AND (s.body IS NULL OR (o.first_seq, m.position) > (s.first_seq, s.position))
                 ORDER BY o.first_seq, m.position
             )
         FROM conversation_heads h LEFT JOIN LATERAL (
             SELECT c.body, o.first_seq, m.position FROM context_summaries c
             JOIN messages m ON m.id = c.covers AND m.superseded_by IS NULL JOIN runs o ON o.id = m.run_id
             WHERE c.conversation_id = h.conversation_id
         ) s ON true
         WHERE h.conversation_id = $1",
    )
    .bind(id)
    .fetch_one(&mut *tx)
    .await?;
    if is_busy {
        return Ok(Keyed::Fresh(Compacted::Busy));
    }
    let before = before.map(|json| rows::decode("context_summaries", "body", id, &json)).transpose()?;
    let after = compacted(policy, before.as_ref(), &rows::history(id, &history)?);
    let (done, event) = compose::compacted(before, after, *now);
    if let (Compacted::Done { summary: Some(summary), .. }, Some(_)) = (&done, &event) {
        sqlx::query(
            "INSERT INTO context_summaries (conversation_id, owner_id, covers, body, updated_at) VALUES ($1, $4, $2, $3, now_ms())
             ON CONFLICT (conversation_id) DO UPDATE
             SET covers = excluded.covers, body = excluded.body, updated_at = excluded.updated_at",
        )
        .bind(id)
        .bind(summary.covers.as_str())
        .bind(rows::encode_storable("context_summaries", "body", id, summary)?)
        .bind(owner.as_str())
        .execute(&mut *tx)
        .await?;
    }
    store_key(tx, record(key, &done)?).await?;
    let events: Vec<_> = event.into_iter().collect();
    if !events.is_empty() {
        append(tx, conversation, base, &events, &[]).await?;
    }
    Ok(Keyed::Fresh(done.with(compose::numbered(conversation, base, events))))
}
