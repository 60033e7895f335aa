//! What owners may spend.

use async_trait::async_trait;

use super::SqliteStore;
use super::batch::Batch;
use super::connection::Tx;
use crate::domain::budget::{Amount, Lost, Reserve, Reserved};
use crate::domain::ids::{RunId, UserId};
use crate::domain::record::Fence;
use crate::store::StoreResult;
use crate::store::budget::{self, BudgetStore, OLD_PIECE};

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
                 SELECT coalesce(sum(s.held_tokens) FILTER (WHERE c.run_id <> ?2), 0) AS held_tokens,
                     coalesce(sum(s.held_cost) FILTER (WHERE c.run_id <> ?2), 0) AS held_cost,
                     coalesce(sum(s.held_tokens) FILTER (WHERE c.run_id IS NULL), 0) AS lost_tokens,
                     coalesce(sum(s.held_cost) FILTER (WHERE c.run_id IS NULL), 0) AS lost_cost
                 FROM spending s LEFT JOIN conversation_heads c
                     ON c.conversation_id = s.conversation_id AND c.run_id = s.run_id AND c.epoch = s.held_epoch
                 WHERE s.owner_id = ?4 AND s.day = (SELECT now / 86400000 FROM t) AND s.held_epoch IS NOT NULL
             )
             SELECT now / 86400000 AS day, 86400000 - now % 86400000 AS left_ms,
                 tokens, cost, held_tokens, held_cost, lost_tokens, lost_cost
             FROM conversation_heads h, t, d, o WHERE h.conversation_id = ?1 AND h.run_id = ?2 AND h.epoch = ?3"
        ))
        .bind(fence.conversation_id.as_str())
        .bind(fence.run_id.as_str())
        .bind(fence.epoch)
        .bind(owner.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = found else { return Ok(None) };
        let of_conversation = match reserve.conversation.is_none() {
            true => Amount::default(),
            false => of_conversation(&mut tx, fence).await?,
        };
        let (day, answer) = budget::judge(reserve, of_conversation, &row)?;
        match answer {
            Reserved::Granted { .. } => hold(&mut tx, fence, owner, reserve.amount, day).await?,
            Reserved::Busy | Reserved::Spent { .. } => let_go(&mut tx, fence, owner, day).await?,
        }
        tx.commit().await?;
        Ok(Some(answer))
    }

    async fn remove_old_spending(&self) -> StoreResult<u64> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let removed = sqlx::query(concat!(
            "DELETE FROM spending WHERE (owner_id, day, run_id) IN (
                 SELECT owner_id, day, run_id FROM spending WHERE day < ",
            now!(),
            " / 86400000 - 1 LIMIT ?)"
        ))
        .bind(OLD_PIECE)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(removed.rows_affected())
    }
}

async fn hold(tx: &mut Tx, fence: &Fence, owner: &UserId, amount: Amount, day: i64) -> StoreResult<()> {
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

/// What the run has reserved under this fence is free again.
async fn let_go(tx: &mut Tx, fence: &Fence, owner: &UserId, day: i64) -> StoreResult<()> {
    sqlx::query(
        "UPDATE spending SET held_tokens = 0, held_cost = 0, held_epoch = NULL
         WHERE owner_id = ?1 AND day BETWEEN ?2 - 1 AND ?2 AND run_id = ?3 AND held_epoch = ?4",
    )
    .bind(owner.as_str())
    .bind(day)
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The call that the run had reserved under an older fence.
pub(super) async fn lost(tx: &mut Tx, fence: &Fence, owner: &str) -> StoreResult<Option<Lost>> {
    let found = sqlx::query(concat!(
        "SELECT day, held_tokens, held_cost FROM spending WHERE owner_id = ? AND day >= ",
        now!(),
        " / 86400000 - 1 AND run_id = ? AND held_epoch < ? ORDER BY day DESC LIMIT 1"
    ))
    .bind(owner)
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(found.as_ref().map(budget::read_lost).transpose()?)
}

/// What all runs of a conversation have used, and its title. SQLite has no exact decimals: the digits before and after the point are added up as
/// whole numbers.
async fn of_conversation(tx: &mut Tx, fence: &Fence) -> StoreResult<Amount> {
    let (tokens, cost): (i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum(json_extract(usage, '$.input_tokens') + json_extract(usage, '$.output_tokens')), 0),
                coalesce(sum(CAST(amount AS INTEGER) * 1000000000000 + CASE WHEN instr(amount, '.') = 0 THEN 0 ELSE
                    CAST(substr(substr(amount, instr(amount, '.') + 1) || '000000000000', 1, 12) AS INTEGER) END), 0)
         FROM (
             SELECT usage, json_extract(usage, '$.cost.amount') AS amount FROM (
                 SELECT usage FROM runs WHERE conversation_id = ?1 AND is_copy = 0
                 UNION ALL SELECT title_usage FROM conversations WHERE id = ?1 AND title_usage IS NOT NULL
             )
         )",
    )
    .bind(fence.conversation_id.as_str())
    .fetch_one(&mut **tx)
    .await?;
    Ok(budget::amount(tokens, cost))
}

/// What a reserved call has come to.
pub(super) fn settle(batch: &mut Batch, run: &RunId, day: i64, amount: Amount) {
    let (tokens, cost) = budget::parts(amount);
    let most = i64::try_from(budget::MOST).unwrap_or(i64::MAX);
    batch.add(
        "UPDATE spending SET tokens = min(tokens + ?, ?), cost = min(cost + ?, ?), held_tokens = 0, held_cost = 0, held_epoch = NULL
         WHERE owner_id = (SELECT owner_id FROM runs WHERE id = ?) AND day = ? AND run_id = ?",
    );
    batch.bind(tokens).bind(most).bind(cost).bind(most).bind(run.as_str()).bind(day).bind(run.as_str());
}
