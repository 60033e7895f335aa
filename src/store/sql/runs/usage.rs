//! Usage of runs, titles and embeddings, summed by day, owner and model.
//!
//! Owns the statement that sums usage. Must not know prices.

use crate::domain::ids::UserId;
use crate::domain::model::Usage;
use crate::domain::model::cost::Cost;
use crate::domain::run::usage::DayUsage;
use crate::store::pages::page_of;
use crate::store::runs::usage::{DAY_MS, UsageCursor, UsageFilter};
use crate::store::sql::row::Row;
use crate::store::sql::statement::statements;
use crate::store::sql::value::values;
use crate::store::{Page, PageRequest, RecordStore, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    // SQLite has no exact decimals: the digits before and after a cost's decimal point are summed as integers.
    PAGE = [
        {
            postgres: "WITH used AS (
                 SELECT owner_id, model, created_at / 86400000 AS day, 1 AS runs, usage::json AS usage
                 FROM runs WHERE id >= $1 AND created_at >= $2 AND NOT is_copy AND ($3::text IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, title_model, title_at / 86400000, 0, title_usage::json
                 FROM conversations WHERE title_at >= $2 AND owner_id = coalesce($3, owner_id) AND owner_id <> ''
                 UNION ALL
                 SELECT owner_id, model, day, 0, json_build_object('input_tokens', input_tokens, 'output_tokens', 0,
                     'cached_input_tokens', 0, 'reasoning_tokens', 0, 'model_calls', calls, 'abandoned_calls', 0, 'estimated', false,
                     'cost', json_build_object('amount', cost::numeric / 1000000000000))
                 FROM embedding_usage WHERE day >= $2 / 86400000 AND ($3::text IS NULL OR owner_id = $3)
             )
             SELECT day, owner_id, model, sum(runs)::bigint AS runs,
                    sum((usage->>'input_tokens')::bigint)::bigint AS input_tokens,
                    sum((usage->>'output_tokens')::bigint)::bigint AS output_tokens,
                    sum((usage->>'cached_input_tokens')::bigint)::bigint AS cached_input_tokens,
                    sum((usage->>'reasoning_tokens')::bigint)::bigint AS reasoning_tokens,
                    sum((usage->>'model_calls')::bigint)::bigint AS model_calls,
                    sum((usage->>'abandoned_calls')::bigint)::bigint AS abandoned_calls,
                    max(((usage->>'estimated')::boolean)::int)::bigint AS estimated,
                    (sum((usage->'cost'->>'amount')::numeric) * 1000000000000)::bigint AS cost",
            sqlite: "WITH used AS (
                 SELECT owner_id, model, created_at / 86400000 AS day, 1 AS runs, usage, json_extract(usage, '$.cost.amount') AS amount
                 FROM runs WHERE id >= $1 AND created_at >= $2 AND NOT is_copy AND ($3 IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, title_model, title_at / 86400000, 0, title_usage, json_extract(title_usage, '$.cost.amount')
                 FROM conversations WHERE title_at >= $2 AND ($3 IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, model, day, 0, json_object('input_tokens', input_tokens, 'output_tokens', 0,
                     'cached_input_tokens', 0, 'reasoning_tokens', 0, 'model_calls', calls, 'abandoned_calls', 0, 'estimated', 0),
                     CASE WHEN cost IS NOT NULL THEN printf('%d.%012d', cost / 1000000000000, cost % 1000000000000) END
                 FROM embedding_usage WHERE day >= $2 / 86400000 AND ($3 IS NULL OR owner_id = $3)
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
                        CAST(substr(substr(amount, instr(amount, '.') + 1) || '000000000000', 1, 12) AS INTEGER) END) AS cost"
        },
        " FROM used WHERE day < $4 OR (day = $4 AND (owner_id, model) > ($5, $6))
          GROUP BY day, owner_id, model ORDER BY day DESC, owner_id, model LIMIT $7"
    ];
}

impl dyn RecordStore + '_ {
    /// Returns the usage of stored runs, titles and embeddings by day, owner and model, newest day first.
    pub async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        let limit = page.limit.clamp(1, 100);
        let (day, owner, model) =
            page.after.as_ref().map_or((i64::MAX, "", ""), |after| (after.day, after.owner.as_str(), &after.model));
        let whose = filter.owner.as_ref().map(UserId::as_str);
        let values = values![filter.first_id(), filter.since, whose, day, owner, model, limit + 1];
        let rows = self.database().fetch_all(PAGE, values).await?;
        let days = rows.iter().map(read_day).collect::<StoreResult<Vec<_>>>()?;
        let Page { items, next } = page_of(days, limit, |(cursor, _)| cursor.to_string());
        Ok(Page { items: items.into_iter().map(|(_, day)| day).collect(), next })
    }
}

/// Reads the usage of one day, owner and model, with its cursor.
fn read_day(row: &Row) -> StoreResult<(UsageCursor, DayUsage)> {
    let day: i64 = row.get("day")?;
    let cost: Option<i64> = row.get("cost")?;
    let usage = Usage {
        input_tokens: row.count("input_tokens")?,
        output_tokens: row.count("output_tokens")?,
        cached_input_tokens: row.count("cached_input_tokens")?,
        reasoning_tokens: row.count("reasoning_tokens")?,
        model_calls: row.count("model_calls")?,
        abandoned_calls: u32::try_from(row.count("abandoned_calls")?).unwrap_or(u32::MAX),
        estimated: row.count("estimated")? > 0,
        cost: cost.and_then(|cost| u64::try_from(cost).ok()).map(Cost::trillionths),
        ..Usage::default()
    };
    let (owner, model) = (UserId::from_stored(row.get("owner_id")?), row.get::<String>("model")?);
    let cursor = UsageCursor { day, owner: owner.clone(), model: model.clone() };
    let date = UnixMillis(day * DAY_MS).to_rfc3339().chars().take(10).collect();
    Ok((cursor, DayUsage { day: date, owner_id: owner, model, runs: row.count("runs")?, usage }))
}
