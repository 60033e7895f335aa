//! What runs have used.

use async_trait::async_trait;

use super::PostgresStore;
use crate::domain::ids::UserId;
use crate::domain::usage::DayUsage;
use crate::store::usage::{self, UsageCursor, UsageFilter, UsageStore};
use crate::store::{Page, PageRequest, StoreResult};

#[async_trait]
impl UsageStore for PostgresStore {
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        let after = page.after.as_ref().map_or((i64::MAX, "", ""), |after| (after.day, after.owner.as_str(), after.model.as_str()));
        let found = sqlx::query(
            r#"WITH used AS (
                 SELECT owner_id, model COLLATE "C" AS model, created_at / 86400000 AS day, 1 AS runs, usage::json AS usage
                 FROM runs WHERE id >= $1 AND created_at >= $2 AND NOT is_copy AND ($3::text IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, title_model COLLATE "C", title_at / 86400000, 0, title_usage::json
                 FROM conversations WHERE title_at >= $2 AND owner_id = coalesce($3, owner_id) AND owner_id <> ''
             )
             SELECT day, owner_id, model, sum(runs)::bigint AS runs,
                    sum((usage->>'input_tokens')::bigint)::bigint AS input_tokens,
                    sum((usage->>'output_tokens')::bigint)::bigint AS output_tokens,
                    sum((usage->>'cached_input_tokens')::bigint)::bigint AS cached_input_tokens,
                    sum((usage->>'reasoning_tokens')::bigint)::bigint AS reasoning_tokens,
                    sum((usage->>'model_calls')::bigint)::bigint AS model_calls,
                    sum((usage->>'abandoned_calls')::bigint)::bigint AS abandoned_calls,
                    max(((usage->>'estimated')::boolean)::int)::bigint AS estimated,
                    (sum((usage->'cost'->>'amount')::numeric) * 1000000000000)::bigint AS cost
             FROM used WHERE day < $4 OR (day = $4 AND (owner_id, model) > ($5, $6))
             GROUP BY day, owner_id, model ORDER BY day DESC, owner_id, model LIMIT $7"#,
        )
        .bind(filter.first_id())
        .bind(filter.since.0)
        .bind(filter.owner.as_ref().map(UserId::as_str))
        .bind(after.0)
        .bind(after.1)
        .bind(after.2)
        .bind(i64::from(page.limit.clamp(1, 100)) + 1)
        .fetch_all(&self.api)
        .await?;
        usage::page(&found, page.limit)
    }
}
