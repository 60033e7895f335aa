//! Compaction on the owner's request: a summary replaces the older messages of a conversation.
//!
//! Owns the statements of use cases on `context_summaries`. A run writes its summaries through the log writer. Must not know how a
//! summary is composed.

use crate::domain::conversation::eviction_summary;
use crate::domain::conversation::eviction_summary::compact_history;
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::run::ContextSummary;
use crate::store::rows::{decode, encode_storable, history};
use crate::store::sql::{Transaction, refuse, statements, values};
use crate::store::{Compact, CompactOutcome, IdempotencyKey, IdempotentResult};

statements! {
    IS_BUSY = ["SELECT EXISTS (SELECT 1 FROM runs WHERE conversation_id = $1 AND finished_at IS NULL)"];

    SUMMARY = ["SELECT s.body, r.first_seq, m.position FROM context_summaries s
         JOIN messages m ON m.id = s.covers AND m.superseded_by IS NULL JOIN runs r ON r.id = m.run_id
         WHERE s.conversation_id = $1"];

    // Selects the messages after those that the summary covers.
    HISTORY = ["SELECT m.body FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = $1 AND m.superseded_by IS NULL
             AND (CAST($2 AS bigint) IS NULL OR (r.first_seq, m.position) > ($2, $3))
         ORDER BY r.first_seq, m.position"];

    SUMMARIZE = ["INSERT INTO context_summaries (conversation_id, owner_id, covers, body, updated_at)
         VALUES ($1, $2, $3, $4, ", now, ")
         ON CONFLICT (conversation_id) DO UPDATE
         SET covers = excluded.covers, body = excluded.body, updated_at = excluded.updated_at"];
}

pub async fn compact_in(tx: &mut Transaction, compact: &Compact, key: Option<&IdempotencyKey>) -> IdempotentResult<CompactOutcome> {
    let Compact { owner, conversation, policy, now } = compact;
    let id = conversation.as_str();
    let head = tx.lock_head(owner, conversation).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some(base) = head else { return refuse(CompactOutcome::NoConversation) };
    if tx.fetch_one(IS_BUSY, values![id]).await?.only()? {
        return refuse(CompactOutcome::Busy);
    }
    let (mut before, mut covered) = (None::<ContextSummary>, (None::<i64>, None::<i64>));
    if let Some(row) = tx.fetch_optional(SUMMARY, values![id]).await? {
        before = Some(decode("context_summaries", "body", id, row.get("body")?)?);
        covered = (row.get("first_seq")?, row.get("position")?);
    }
    let rows = tx.fetch_all(HISTORY, values![id, covered.0, covered.1]).await?;
    let bodies = rows.iter().map(|row| row.only()).collect::<Result<Vec<String>, _>>()?;
    let after = compact_history(policy, before.as_ref(), &history(id, &bodies)?);
    let Some(after) = after else {
        return tx.record(key, CompactOutcome::Done { messages: 0, summary: before, events: Vec::new() }).await;
    };
    let body = encode_storable("context_summaries", "body", id, &after)?;
    tx.execute(SUMMARIZE, values![id, owner.as_str(), after.covers.as_str(), body]).await?;
    let messages = after.messages.saturating_sub(before.map_or(0, |before| before.messages));
    let (through, section) = (Some(after.covers.clone()), eviction_summary::section(&after));
    let compacted = EventBody::ContextCompacted { messages, texts: 0, through, summary: section };
    let events = tx.append(conversation, base, vec![NewEvent::new(&compacted, None, 0, *now)]).await?;
    tx.record(key, CompactOutcome::Done { messages, summary: Some(after), events }).await
}
