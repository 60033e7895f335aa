//! Compaction on the owner's request: a summary replaces the older messages of a conversation.
//!
//! Owns the statements of use cases on `context_summaries`. Runs write theirs through the log writer. Must not know how a summary
//! is made.

use crate::domain::conversation::summary::compact_history;
use crate::store::rows::{decode, encode_storable, history};
use crate::store::runs::created_rows;
use crate::store::sql::statement::statements;
use crate::store::sql::transaction::Transaction;
use crate::store::sql::value::values;
use crate::store::{Compact, CompactOutcome, IdempotencyKey, IdempotentOutcome, StoreResult};

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

pub(in crate::store::sql) async fn compact_in(
    tx: &mut Transaction,
    compact: &Compact,
    key: Option<&IdempotencyKey>,
) -> StoreResult<IdempotentOutcome<CompactOutcome>> {
    let Compact { owner, conversation, policy, now } = compact;
    let id = conversation.as_str();
    let head = tx.lock_head(owner, conversation).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some(base) = head else { return Ok(IdempotentOutcome::Fresh(CompactOutcome::NoConversation)) };
    if tx.fetch_one(IS_BUSY, values![id]).await?.only()? {
        return Ok(IdempotentOutcome::Fresh(CompactOutcome::Busy));
    }
    let (mut before, mut covered) = (None, (None::<i64>, None::<i64>));
    if let Some(row) = tx.fetch_optional(SUMMARY, values![id]).await? {
        before = Some(decode("context_summaries", "body", id, row.get("body")?)?);
        covered = (row.get("first_seq")?, row.get("position")?);
    }
    let rows = tx.fetch_all(HISTORY, values![id, covered.0, covered.1]).await?;
    let bodies = rows.iter().map(|row| row.only()).collect::<Result<Vec<String>, _>>()?;
    let after = compact_history(policy, before.as_ref(), &history(id, &bodies)?);
    let (done, event) = created_rows::compaction_events(before, after, *now);
    if let (CompactOutcome::Done { summary: Some(summary), .. }, Some(_)) = (&done, &event) {
        let body = encode_storable("context_summaries", "body", id, summary)?;
        tx.execute(SUMMARIZE, values![id, owner.as_str(), summary.covers.as_str(), body]).await?;
    }
    tx.record(key, &done).await?;
    let events = tx.append(conversation, base, event.into_iter().collect()).await?;
    Ok(IdempotentOutcome::Fresh(done.with(events)))
}
