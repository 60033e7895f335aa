//! What runs have used.

use async_trait::async_trait;

use super::SqliteStore;
use crate::domain::ids::UserId;
use crate::domain::usage::DayUsage;
use crate::store::usage::{self, UsageCursor, UsageFilter, UsageStore};
use crate::store::{Page, PageRequest, StoreResult};

#[async_trait]
impl UsageStore for SqliteStore {
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        let after = page.after.as_ref().map_or((i64::MAX, "", ""), |after| (after.day, after.owner.as_str(), after.model.as_str()));
        // SQLite has no exact decimals: the digits before and after the point are added up as whole numbers.
        let found = sqlx::query(
            "WITH used AS (
                 SELECT owner_id, model, created_at / 86400000 AS day, 1 AS runs, usage, json_extract(usage, '$.cost.amount') AS amount
                 FROM runs WHERE id >= ?1 AND created_at >= ?2 AND is_copy = 0 AND (?3 IS NULL OR owner_id = ?3)
                 UNION ALL
                 SELECT owner_id, title_model, title_at / 86400000, 0, title_usage, json_extract(title_usage, '$.cost.amount')
                 FROM conversations WHERE title_at >= ?2 AND (?3 IS NULL OR owner_id = ?3)
             )
             SELECT day, owner_id, model, sum(runs) AS runs,
                    sum(json_extract(usage, '$.input_tokens')) AS input_tokens,
                    sum(json_extract(usage, '$.output_tokens')) AS output_tokens,
                    sum(json_extract(usage, '$.cached_input_tokens')) AS cached_input_tokens,
                    sum(json_extract(usage, '$.reasoning_tokens')) AS reasoning_tokens,
                    sum(json_extract(usage, '$.model_calls')) AS model_calls,
                    sum(json_extract(usage, '$.abandoned_calls')) AS abandoned_calls,
                    max(json_extract(usage, '$.estimated')) AS estimated,
                    sum(CAST(amount AS INTEGER) * 1000000000000 + CASE WHEN instr(amount, '.') = 0 THEN 0 ELSE
                        CAST(substr(substr(amount, instr(amount, '.') + 1) || '000000000000', 1, 12) AS INTEGER) END) AS cost
             FROM used WHERE day < ?4 OR (day = ?4 AND (owner_id, model) > (?5, ?6))
             GROUP BY day, owner_id, model ORDER BY day DESC, owner_id, model LIMIT ?7",
        )
        .bind(filter.first_id())
        .bind(filter.since.0)
        .bind(filter.owner.as_ref().map(UserId::as_str))
        .bind(after.0)
        .bind(after.1)
        .bind(after.2)
        .bind(i64::from(page.limit.clamp(1, 100)) + 1)
        .fetch_all(self.reader())
        .await?;
        usage::page(&found, page.limit)
    }
}
