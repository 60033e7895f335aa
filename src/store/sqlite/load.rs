//! Loads the row and the history of a claimed run.

use sqlx::Row as _;

use super::SqliteStore;
use super::connection::Tx;
use crate::domain::conversation::Message;
use crate::domain::run::{Fence, RunRecord};
use crate::store::StoreResult;
use crate::store::rows::{TranscriptScope, decode};
use crate::store::sql::{Backend as _, History, Row, record};

impl SqliteStore {
    pub(super) async fn load(&self, fence: &Fence, words: TranscriptScope) -> StoreResult<Option<RunRecord>> {
        // The row and the history are read in one snapshot: the row counts the messages that joined the run.
        let mut tx = self.read().await?;
        let run = sqlx::query(sql!(
            "SELECT runs.owner_id, runs.status, runs.reason, runs.claim_cause, runs.profile, runs.counters, runs.usage,
                    runs.attempt, runs.crashes, runs.cancel_requested_by, h.joined, tool_sets.definitions, runs.contexts,
                    c.system_prompt, c.instructions, " now " - runs.started_at AS elapsed_ms,
                    EXISTS (SELECT 1 FROM run_steps s WHERE s.run_id = runs.id)
                        OR EXISTS (SELECT 1 FROM tool_calls t WHERE t.run_id = runs.id)
                        OR EXISTS (SELECT 1 FROM input_requests q WHERE q.run_id = runs.id) AS has_steps
             FROM runs
             JOIN conversation_heads h ON h.conversation_id = runs.conversation_id AND h.run_id = runs.id AND h.epoch = ?
             JOIN conversations c ON c.id = runs.conversation_id
             LEFT JOIN tool_sets ON tool_sets.hash = runs.tools_hash
             WHERE runs.id = ? AND runs.finished_at IS NULL"))
        .bind(fence.epoch)
        .bind(fence.run_id.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(run) = run else { return Ok(None) };
        let history = match words {
            TranscriptScope::All => history(&mut tx, fence).await?,
            TranscriptScope::None => History::default(),
        };
        // The other statements use another reader each: a transaction that waits for a second reader could deadlock with itself.
        drop(tx);
        Ok(Some(record(self.worker(), fence, &Row::Sqlite(run), history).await?))
    }
}

/// Reads the messages ordered by run, because a message for a later run may have arrived before this run's answer. Of the messages
/// that a summary covers, only the user messages of this run and those in the summary's `asked` are read.
async fn history(tx: &mut Tx, fence: &Fence) -> StoreResult<History> {
    let id = fence.conversation_id.as_str();
    let summary = sqlx::query(
        "SELECT c.body, r.first_seq, m.position FROM context_summaries c
         JOIN messages m ON m.id = c.covers AND m.superseded_by IS NULL JOIN runs r ON r.id = m.run_id
         WHERE c.conversation_id = ? AND r.first_seq <= (SELECT first_seq FROM runs WHERE id = ?)",
    )
    .bind(id)
    .bind(fence.run_id.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let (first_seq, position, body): (Option<i64>, Option<i64>, Option<String>) = match &summary {
        None => (None, None, None),
        Some(row) => (row.try_get("first_seq")?, row.try_get("position")?, row.try_get("body")?),
    };
    let rows = sqlx::query(
        "SELECT m.body, coalesce((r.first_seq, m.position) <= (?3, ?4), 0) AS is_covered FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = ?1 AND m.superseded_by IS NULL AND r.first_seq <= (SELECT first_seq FROM runs WHERE id = ?2)
           AND (?3 IS NULL OR (r.first_seq, m.position) > (?3, ?4) OR m.run_id = ?2 AND m.role = 'user'
             OR m.id IN (SELECT value FROM json_each(?5, '$.asked')))
         ORDER BY r.first_seq, m.position",
    )
    .bind(id)
    .bind(fence.run_id.as_str())
    .bind(first_seq)
    .bind(position)
    .bind(&body)
    .fetch_all(&mut **tx)
    .await?;
    let mut history = History::default();
    for row in rows {
        let mut message: Message = decode("messages", "body", id, row.try_get("body")?)?;
        message.parts.shrink_to_fit();
        history.messages.push(message);
        history.covered += usize::from(row.try_get::<bool, _>("is_covered")?);
    }
    history.summary = body.map(|body| decode("context_summaries", "body", id, &body)).transpose()?;
    Ok(history)
}
