//! Usage of runs, titles and embeddings, summed by period, owner, and model, agent or conversation.
//!
//! Owns the statement that sums usage. Reads stored costs, and must not know prices.

use crate::domain::ids::{ConversationId, UserId};
use crate::domain::model::{Cost, Usage};
use crate::domain::run::{PeriodUsage, UsageGroup, UsagePeriod};
use crate::store::pages::page_of;
use crate::store::runs::usage::{DAY_MS, HOUR_MS, UsageCursor, UsageFilter};
use crate::store::sql::{Row, statements, values};
use crate::store::{Page, PageRequest, RecordStore, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    // SQLite has no exact decimals: the digits before and after a cost's decimal point are summed as integers. Embeddings are stored by
    // day, so a report by hour shows them in the first hour of the day.
    USAGE_PAGE = [
        {
            postgres: "WITH used AS (
                 SELECT owner_id, CASE $5::text WHEN 'agent' THEN agent WHEN 'conversation' THEN conversation_id ELSE model END AS grouped,
                     created_at / $4::bigint AS period, 1 AS runs, usage::json AS usage
                 FROM runs WHERE id >= $1 AND created_at >= $2 AND NOT is_copy AND ($3::text IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, CASE $5::text WHEN 'agent' THEN '' WHEN 'conversation' THEN id ELSE title_model END,
                     title_at / $4::bigint, 0, title_usage::json
                 FROM conversations WHERE title_at >= $2 AND owner_id = coalesce($3, owner_id) AND owner_id <> ''
                 UNION ALL
                 SELECT owner_id, CASE $5::text WHEN 'model' THEN model ELSE '' END, day * (86400000 / $4::bigint), 0,
                     json_build_object('input_tokens', input_tokens, 'output_tokens', 0,
                     'cached_input_tokens', 0, 'reasoning_tokens', 0, 'model_calls', calls, 'abandoned_calls', 0, 'estimated', false,
                     'cost', json_build_object('amount', cost::numeric / 1000000000000))
                 FROM embedding_usage WHERE day >= $2 / 86400000 AND ($3::text IS NULL OR owner_id = $3)
             )
             SELECT period, owner_id, grouped, sum(runs)::bigint AS runs,
                    sum((usage->>'input_tokens')::bigint)::bigint AS input_tokens,
                    sum((usage->>'output_tokens')::bigint)::bigint AS output_tokens,
                    sum((usage->>'cached_input_tokens')::bigint)::bigint AS cached_input_tokens,
                    sum((usage->>'reasoning_tokens')::bigint)::bigint AS reasoning_tokens,
                    sum((usage->>'model_calls')::bigint)::bigint AS model_calls,
                    sum((usage->>'abandoned_calls')::bigint)::bigint AS abandoned_calls,
                    max(((usage->>'estimated')::boolean)::int)::bigint AS estimated,
                    (sum((usage->'cost'->>'amount')::numeric) * 1000000000000)::bigint AS cost",
            sqlite: "WITH used AS (
                 SELECT owner_id, CASE $5 WHEN 'agent' THEN agent WHEN 'conversation' THEN conversation_id ELSE model END AS grouped,
                     created_at / $4 AS period, 1 AS runs, usage, json_extract(usage, '$.cost.amount') AS amount
                 FROM runs WHERE id >= $1 AND created_at >= $2 AND NOT is_copy AND ($3 IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, CASE $5 WHEN 'agent' THEN '' WHEN 'conversation' THEN id ELSE title_model END,
                     title_at / $4, 0, title_usage, json_extract(title_usage, '$.cost.amount')
                 FROM conversations WHERE title_at >= $2 AND ($3 IS NULL OR owner_id = $3)
                 UNION ALL
                 SELECT owner_id, CASE $5 WHEN 'model' THEN model ELSE '' END, day * (86400000 / $4), 0,
                     json_object('input_tokens', input_tokens, 'output_tokens', 0,
                     'cached_input_tokens', 0, 'reasoning_tokens', 0, 'model_calls', calls, 'abandoned_calls', 0, 'estimated', 0),
                     CASE WHEN cost IS NOT NULL THEN printf('%d.%012d', cost / 1000000000000, cost % 1000000000000) END
                 FROM embedding_usage WHERE day >= $2 / 86400000 AND ($3 IS NULL OR owner_id = $3)
             )
             SELECT period, owner_id, grouped, sum(runs) AS runs,
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
        " FROM used WHERE period < $6 OR (period = $6 AND (owner_id, grouped) > ($7, $8))
          GROUP BY period, owner_id, grouped ORDER BY period DESC, owner_id, grouped LIMIT $9"
    ];
}

impl dyn RecordStore + '_ {
    /// Returns the usage of stored runs, titles and embeddings, summed by period, owner, and model, agent or conversation. The
    /// newest period comes first. A page has at most 100 rows.
    pub async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<PeriodUsage>> {
        let limit = page.limit.clamp(1, 100);
        let (period, owner, group) =
            page.after.as_ref().map_or((i64::MAX, "", ""), |after| (after.period, after.owner.as_str(), &after.group));
        let only_owner = filter.owner.as_ref().map(UserId::as_str);
        let group_kind = filter.group.as_str();
        let values =
            values![filter.first_id(), filter.since, only_owner, filter.period_ms(), group_kind, period, owner, group, limit + 1];
        let sums = self.database().read_all(USAGE_PAGE, values, |row| read_sum(row, filter)).await?;
        let Page { items, next } = page_of(sums, limit, |(cursor, _)| cursor.to_string());
        Ok(Page { items: items.into_iter().map(|(_, sum)| sum).collect(), next })
    }
}

/// Reads one sum of usage, with its cursor.
fn read_sum(row: &Row, filter: &UsageFilter) -> StoreResult<(UsageCursor, PeriodUsage)> {
    let period: i64 = row.get("period")?;
    let cost: Option<i64> = row.get("cost")?;
    let usage = Usage {
        input_tokens: row.count("input_tokens")?,
        output_tokens: row.count("output_tokens")?,
        cached_input_tokens: row.count("cached_input_tokens")?,
        reasoning_tokens: row.count("reasoning_tokens")?,
        model_calls: row.count("model_calls")?,
        abandoned_calls: u32::try_from(row.count("abandoned_calls")?).unwrap_or(u32::MAX),
        estimated: row.count("estimated")? > 0,
        cost: cost.and_then(|cost| u64::try_from(cost).ok()).map(Cost::from_trillionths),
        ..Usage::default()
    };
    let (owner_id, group) = (UserId::from_stored(row.get("owner_id")?), row.get::<String>("grouped")?);
    let cursor = UsageCursor { period, owner: owner_id.clone(), group: group.clone() };
    let start = period * filter.period_ms();
    let hour = (filter.period == UsagePeriod::Hour).then(|| u32::try_from(start.rem_euclid(DAY_MS) / HOUR_MS).unwrap_or(0));
    let group_if = |kind: UsageGroup| (filter.group == kind && !group.is_empty()).then(|| group.clone());
    let sum = PeriodUsage {
        day: UnixMillis(start).to_rfc3339().chars().take(10).collect(),
        hour,
        owner_id,
        model: group_if(UsageGroup::Model),
        agent: group_if(UsageGroup::Agent),
        conversation_id: group_if(UsageGroup::Conversation).map(ConversationId::from_stored),
        runs: row.count("runs")?,
        usage,
    };
    Ok((cursor, sum))
}
