//! What owners may spend.

use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable as _};
use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::answer::{ANSWER_LIMIT, ask, within};
use super::errors::retried;
use crate::domain::budget::{Amount, Lost, Reserve, Reserved};
use crate::domain::ids::UserId;
use crate::domain::record::Fence;
use crate::store::budget::{self, BudgetStore, OLD_PIECE};
use crate::store::{StoreError, StoreResult};

/// Which advisory lock of an owner it is that reservations take.
const RESERVING: i64 = 0x6275_6467_6574;

/// How long a turn among the reservations of an owner is waited for.
const TURN_LIMIT: Duration = Duration::from_secs(2);

/// What came of one try to reserve.
enum Tried {
    Answered(Option<Reserved>),
    /// Another reservation of the owner is being judged.
    NotNow,
}

#[async_trait]
impl BudgetStore for PostgresStore {
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>> {
        // Nobody holds a connection while others have their turn: hundreds of runs of one owner would hold all that there are.
        let turn = || async {
            let one = || ask(&self.worker, async |connection| reserve_on(connection, fence, owner, reserve).await);
            match within(ANSWER_LIMIT, retried(one)).await {
                Ok(Tried::Answered(answer)) => Ok(Ok(answer)),
                Ok(Tried::NotNow) => Err(()),
                Err(error) => Ok(Err(error)),
            }
        };
        let waits = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(2))
            .with_max_delay(Duration::from_millis(50))
            .with_total_delay(Some(TURN_LIMIT))
            .without_max_times()
            .with_jitter();
        turn.retry(waits).await.unwrap_or(Ok(Some(Reserved::Busy)))
    }

    async fn remove_old_spending(&self) -> StoreResult<u64> {
        let removed = sqlx::query(
            "DELETE FROM spending WHERE (owner_id, day, run_id) IN (
                 SELECT owner_id, day, run_id FROM spending WHERE day < now_ms() / 86400000 - 1 LIMIT $1
             )",
        )
        .bind(OLD_PIECE)
        .execute(&self.chores)
        .await?;
        Ok(removed.rows_affected())
    }
}

async fn reserve_on(connection: &mut PgConnection, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Tried> {
    let mut tx = connection.begin().await?;
    // What others were granted is read by a statement that begins after the lock was taken.
    let is_ours: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock(hashtextextended($1, $2))")
        .bind(owner.as_str())
        .bind(RESERVING)
        .fetch_one(&mut *tx)
        .await?;
    if !is_ours {
        tx.rollback().await?;
        return Ok(Tried::NotNow);
    }
    let found = sqlx::query(
        "SELECT t.now / 86400000 AS day, 86400000 - t.now % 86400000 AS left_ms, d.tokens, d.cost,
             coalesce(o.held_tokens, 0)::bigint AS held_tokens, coalesce(o.held_cost, 0)::bigint AS held_cost,
             coalesce(o.lost_tokens, 0)::bigint AS lost_tokens, coalesce(o.lost_cost, 0)::bigint AS lost_cost
         FROM conversation_heads h
         CROSS JOIN (SELECT now_ms() AS now) t
         CROSS JOIN LATERAL (
             SELECT coalesce(sum(s.tokens), 0)::bigint AS tokens, coalesce(sum(s.cost), 0)::bigint AS cost
             FROM spending s WHERE s.owner_id = $4 AND s.day = t.now / 86400000
         ) d
         CROSS JOIN LATERAL (
             SELECT sum(s.held_tokens) FILTER (WHERE c.run_id <> $2) AS held_tokens,
                 sum(s.held_cost) FILTER (WHERE c.run_id <> $2) AS held_cost,
                 sum(s.held_tokens) FILTER (WHERE c.run_id IS NULL) AS lost_tokens,
                 sum(s.held_cost) FILTER (WHERE c.run_id IS NULL) AS lost_cost
             FROM spending s LEFT JOIN conversation_heads c
                 ON c.conversation_id = s.conversation_id AND c.run_id = s.run_id AND c.epoch = s.held_epoch
             WHERE s.owner_id = $4 AND s.day = t.now / 86400000 AND s.held_epoch IS NOT NULL
         ) o
         WHERE h.conversation_id = $1 AND h.run_id = $2 AND h.epoch = $3",
    )
    .bind(fence.conversation_id.as_str())
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .bind(owner.as_str())
    .fetch_optional(&mut *tx)
    .await?;
    let Some(row) = found else { return Ok(Tried::Answered(None)) };
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
    Ok(Tried::Answered(Some(answer)))
}

async fn hold(tx: &mut PgConnection, fence: &Fence, owner: &UserId, amount: Amount, day: i64) -> StoreResult<()> {
    let (tokens, cost) = budget::parts(amount);
    sqlx::query(
        "INSERT INTO spending (owner_id, day, run_id, conversation_id, held_tokens, held_cost, held_epoch)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
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
    .execute(tx)
    .await?;
    Ok(())
}

/// What the run has reserved under this fence is free again.
async fn let_go(tx: &mut PgConnection, fence: &Fence, owner: &UserId, day: i64) -> StoreResult<()> {
    sqlx::query(
        "UPDATE spending SET held_tokens = 0, held_cost = 0, held_epoch = NULL
         WHERE owner_id = $1 AND day BETWEEN $2 - 1 AND $2 AND run_id = $3 AND held_epoch = $4",
    )
    .bind(owner.as_str())
    .bind(day)
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .execute(tx)
    .await?;
    Ok(())
}

/// The call that the run had reserved under an older fence.
pub(super) async fn lost(connection: &mut PgConnection, fence: &Fence, owner: &str) -> StoreResult<Option<Lost>> {
    let found = sqlx::query(
        "SELECT day, held_tokens, held_cost FROM spending
         WHERE owner_id = $1 AND day >= now_ms() / 86400000 - 1 AND run_id = $2 AND held_epoch < $3 ORDER BY day DESC LIMIT 1",
    )
    .bind(owner)
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .fetch_optional(connection)
    .await?;
    Ok(found.as_ref().map(budget::read_lost).transpose()?)
}

/// What all runs of a conversation have used, and its title.
async fn of_conversation(tx: &mut PgConnection, fence: &Fence) -> StoreResult<Amount> {
    let (tokens, cost): (i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum((u.used->>'input_tokens')::bigint + (u.used->>'output_tokens')::bigint), 0)::bigint,
                (coalesce(sum((u.used->'cost'->>'amount')::numeric), 0) * 1000000000000)::bigint
         FROM (
             SELECT usage::json AS used FROM runs WHERE conversation_id = $1 AND NOT is_copy
             UNION ALL SELECT title_usage::json FROM conversations WHERE id = $1 AND title_usage IS NOT NULL
         ) u",
    )
    .bind(fence.conversation_id.as_str())
    .fetch_one(tx)
    .await
    .map_err(StoreError::from)?;
    Ok(budget::amount(tokens, cost))
}
