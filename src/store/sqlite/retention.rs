//! Old deltas are folded.

use async_trait::async_trait;
use serde_json::json;

use super::SqliteStore;
use crate::domain::fold::FoldedDelta;
use crate::domain::ids::{ConversationId, RunId};
use crate::store::rows::{encode, read_ended_run};
use crate::store::{EndedRun, RetentionStore, StoreResult};

#[async_trait]
impl RetentionStore for SqliteStore {
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        let found = sqlx::query(concat!(
            "SELECT id, conversation_id, first_seq, last_seq, finished_at FROM runs
             WHERE folded_at IS NULL AND finished_at IS NOT NULL AND last_seq IS NOT NULL
               AND finished_at <= ",
            now!(),
            " - ? AND (finished_at, id) > (?, ?)
             ORDER BY finished_at, id LIMIT ?"
        ))
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(after.map_or(i64::MIN, |run| run.finished_at.0))
        .bind(after.map_or("", |run| run.id.as_str()))
        .bind(limit)
        .fetch_all(self.reader())
        .await?;
        found.iter().map(|row| Ok(read_ended_run(row)?)).collect()
    }

    async fn fold_deltas(
        &self,
        conversation: &ConversationId,
        folds: &[FoldedDelta],
        through: Option<&RunId>,
    ) -> StoreResult<bool> {
        let gone: Vec<i64> = folds.iter().flat_map(|fold| fold.gone.iter().copied()).collect();
        let texts: Vec<(i64, &str)> = folds.iter().map(|fold| (fold.seq, fold.data.as_str())).collect();
        let texts = encode("events", "data", conversation.as_str(), &texts)?;
        let (_turn, mut tx) = self.write_in_turn().await?;
        let removed = sqlx::query("DELETE FROM events WHERE conversation_id = ? AND seq IN (SELECT value FROM json_each(?))")
            .bind(conversation.as_str())
            .bind(json!(gone).to_string())
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let kept = sqlx::query(
            "UPDATE events SET data = fold.data FROM (SELECT value ->> 0 AS seq, value ->> 1 AS data FROM json_each(?)) AS fold
             WHERE conversation_id = ? AND events.seq = fold.seq",
        )
        .bind(texts)
        .bind(conversation.as_str())
        .execute(&mut *tx)
        .await?
        .rows_affected();
        if usize::try_from(removed) != Ok(gone.len()) || usize::try_from(kept) != Ok(folds.len()) {
            return Ok(false);
        }
        sqlx::query(concat!("UPDATE runs SET folded_at = ", now!(), " WHERE id = ?"))
            .bind(through.map(RunId::as_str))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(true)
    }
}
