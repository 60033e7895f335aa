//! What owners may spend.

use async_trait::async_trait;
use sqlx::Row as _;

use super::SqliteStore;
use super::connection::Tx;
use crate::domain::budget::{Amount, Reserve, Reserved, Standing};
use crate::domain::ids::{RunId, UserId};
use crate::domain::record::Fence;
use crate::store::StoreResult;
use crate::store::budget::{self, BudgetStore};

#[async_trait]
impl BudgetStore for SqliteStore {
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>> {
        let mut tx = self.write().await?;
        let found = sqlx::query(concat!(
            "WITH t AS (SELECT ",
            now!(),
            " AS now), d AS (
                 SELECT coalesce(sum(tokens), 0) AS tokens, coalesce(sum(cost), 0) AS cost
                 FROM spending WHERE owner_id = ?4 AND day = (SELECT now / 86400000 FROM t)
             ), o AS (
                 SELECT coalesce(sum(s.held_tokens), 0) AS held_tokens, coalesce(sum(s.held_cost), 0) AS held_cost
                 FROM spending s JOIN conversation_heads c
                     ON c.conversation_id = s.conversation_id AND c.run_id = s.run_id AND c.epoch = s.held_epoch
                 WHERE s.owner_id = ?4 AND s.day = (SELECT now / 86400000 FROM t) AND s.run_id <> ?2
             )
             SELECT now / 86400000 AS day, 86400000 - now % 86400000 AS left_ms, tokens, cost, held_tokens, held_cost
             FROM conversation_heads h, t, d, o WHERE h.conversation_id = ?1 AND h.run_id = ?2 AND h.epoch = ?3"
        ))
        .bind(fence.conversation_id.as_str())
        .bind(fence.run_id.as_str())
        .bind(fence.epoch)
        .bind(owner.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = found else { return Ok(None) };
        let (day, left_ms): (i64, i64) = (row.try_get("day")?, row.try_get("left_ms")?);
        let of_day = Standing {
            spent: budget::amount(row.try_get("tokens")?, row.try_get("cost")?),
            held: budget::amount(row.try_get("held_tokens")?, row.try_get("held_cost")?),
        };
        let of_conversation = match reserve.conversation.is_none() {
            true => Amount::default(),
            false => of_conversation(&mut tx, fence).await?,
        };
        let answer = reserve.judge(of_conversation, of_day, day, u64::try_from(left_ms).unwrap_or(0));
        if matches!(answer, Reserved::Granted { .. }) {
            hold(&mut tx, fence, owner, reserve.amount, day).await?;
        }
        tx.commit().await?;
        Ok(Some(answer))
    }
}

async fn hold(tx: &mut Tx, fence: &Fence, owner: &UserId, amount: Amount, day: i64) -> StoreResult<()> {
    sqlx::query("DELETE FROM spending WHERE owner_id = ? AND day < ? - 1")
        .bind(owner.as_str())
        .bind(day)
        .execute(&mut **tx)
        .await?;
    let (tokens, cost) = budget::parts(amount);
    sqlx::query(
        "INSERT INTO spending (owner_id, day, run_id, conversation_id, held_tokens, held_cost, held_epoch) VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (owner_id, day, run_id) DO UPDATE SET
             held_tokens = excluded.held_tokens, held_cost = excluded.held_cost, held_epoch = excluded.held_epoch",
    )
    .bind(owner.as_str())
    .bind(day)
    .bind(fence.run_id.as_str())
    .bind(fence.conversation_id.as_str())
    .bind(tokens)
    .bind(cost)
    .bind(fence.epoch)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// What all runs of a conversation have used. SQLite has no exact decimals: the digits before and after the point are added up as
/// whole numbers.
async fn of_conversation(tx: &mut Tx, fence: &Fence) -> StoreResult<Amount> {
    let (tokens, cost): (i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum(json_extract(usage, '$.input_tokens') + json_extract(usage, '$.output_tokens')), 0),
                coalesce(sum(CAST(amount AS INTEGER) * 1000000000000 + CASE WHEN instr(amount, '.') = 0 THEN 0 ELSE
                    CAST(substr(substr(amount, instr(amount, '.') + 1) || '000000000000', 1, 12) AS INTEGER) END), 0)
         FROM (SELECT usage, json_extract(usage, '$.cost.amount') AS amount FROM runs WHERE conversation_id = ? AND is_copy = 0)",
    )
    .bind(fence.conversation_id.as_str())
    .fetch_one(&mut **tx)
    .await?;
    Ok(budget::amount(tokens, cost))
}

/// What a reserved call has come to.
pub(super) async fn settle(tx: &mut Tx, run: &RunId, day: i64, amount: Amount) -> StoreResult<()> {
    let (tokens, cost) = budget::parts(amount);
    sqlx::query(
        "UPDATE spending SET tokens = min(tokens + ?3, ?5), cost = min(cost + ?4, ?5), held_tokens = 0, held_cost = 0, held_epoch = NULL
         WHERE owner_id = (SELECT owner_id FROM runs WHERE id = ?1) AND day = ?2 AND run_id = ?1",
    )
    .bind(run.as_str())
    .bind(day)
    .bind(tokens)
    .bind(cost)
    .bind(i64::try_from(budget::MOST).unwrap_or(i64::MAX))
    .execute(&mut **tx)
    .await?;
    Ok(())
}
