//! Loads the row and the history of a claimed run.

use sqlx::Row as _;

use super::PostgresStore;
use super::timeouts::{ANSWER_LIMIT, with_deadline};
use crate::domain::run::{Fence, RunRecord};
use crate::store::sql::{Backend, History, Row, record};
use crate::store::{StoreResult, rows};

impl PostgresStore {
    pub(super) async fn load(&self, fence: &Fence, words: rows::TranscriptScope) -> StoreResult<Option<RunRecord>> {
        with_deadline(ANSWER_LIMIT, Box::pin(self.load_all(fence, words))).await
    }

    /// Loads a run with one statement, and a few more if it has steps or its agent needs them.
    async fn load_all(&self, fence: &Fence, words: rows::TranscriptScope) -> StoreResult<Option<RunRecord>> {
        let found = sqlx::query(
            "SELECT r.owner_id, r.attempt, r.crashes, r.claim_cause, r.status, r.reason, r.profile, r.counters, r.usage,
                     t.definitions, r.contexts, r.cancel_requested_by, h.joined, v.system_prompt, v.instructions, now_ms() - r.started_at AS elapsed_ms,
                     EXISTS (SELECT FROM run_steps s WHERE s.run_id = r.id)
                         OR EXISTS (SELECT FROM tool_calls t WHERE t.run_id = r.id)
                         OR EXISTS (SELECT FROM input_requests q WHERE q.run_id = r.id) AS has_steps,
                     ARRAY (
                         SELECT m.body FROM messages m JOIN runs o ON o.id = m.run_id
                         WHERE $4 AND m.conversation_id = r.conversation_id AND m.superseded_by IS NULL AND o.first_seq <= r.first_seq
                             AND (s.body IS NULL OR (o.first_seq, m.position) > (s.first_seq, s.position)
                                 OR m.run_id = r.id AND m.role = 'user'
                                 OR m.id IN (SELECT json_array_elements_text(s.body::json -> 'asked')))
                         ORDER BY o.first_seq, m.position
                     ) AS history,
                     s.body AS summary,
                     (
                         SELECT count(*) FROM messages m JOIN runs o ON o.id = m.run_id
                         WHERE m.conversation_id = r.conversation_id AND m.superseded_by IS NULL
                             AND (o.first_seq, m.position) <= (s.first_seq, s.position)
                             AND (m.run_id = r.id AND m.role = 'user'
                                 OR m.id IN (SELECT json_array_elements_text(s.body::json -> 'asked')))
                     ) AS covered
                 FROM conversation_heads h JOIN runs r ON r.id = h.run_id JOIN conversations v ON v.id = h.conversation_id
                 LEFT JOIN tool_sets t ON t.hash = r.tools_hash
                 LEFT JOIN LATERAL (
                     SELECT c.body, o.first_seq, m.position FROM context_summaries c
                     JOIN messages m ON m.id = c.covers AND m.superseded_by IS NULL JOIN runs o ON o.id = m.run_id
                     WHERE $4 AND c.conversation_id = r.conversation_id AND o.first_seq <= r.first_seq
                 ) s ON true
                 WHERE h.conversation_id = $1 AND h.run_id = $2 AND h.epoch = $3 AND r.finished_at IS NULL",
        )
        .bind(fence.conversation_id.as_str())
        .bind(fence.run_id.as_str())
        .bind(fence.epoch)
        .bind(words == rows::TranscriptScope::All)
        .fetch_optional(&self.worker)
        .await?;
        let Some(row) = found else { return Ok(None) };
        let id = fence.run_id.as_str();
        let (bodies, covered): (Vec<String>, i64) = (row.try_get("history")?, row.try_get("covered")?);
        let summary: Option<String> = row.try_get("summary")?;
        let history = History {
            messages: rows::history(id, &bodies)?,
            summary: summary.map(|json| rows::decode("context_summaries", "body", id, &json)).transpose()?,
            covered: usize::try_from(covered).unwrap_or(0),
        };
        Ok(Some(record(Backend::worker(self), fence, &Row::Postgres(row), history).await?))
    }
}
