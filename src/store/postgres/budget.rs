//! What owners may spend.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::PostgresStore;
use super::answer::{ANSWER_LIMIT, ask, within};
use super::errors::retried;
use crate::domain::budget::{Amount, Reserve, Reserved, Standing};
use crate::domain::ids::UserId;
use crate::domain::record::Fence;
use crate::store::budget::{self, BudgetStore};
use crate::store::{StoreError, StoreResult};

/// Which advisory lock of an owner it is that reservations take.
const RESERVING: i64 = 0x6275_6467_6574;

#[async_trait]
impl BudgetStore for PostgresStore {
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>> {
        let one = || ask(&self.worker, async |connection| reserve_on(connection, fence, owner, reserve).await);
        within(ANSWER_LIMIT, retried(one)).await
    }
}

async fn reserve_on(
    connection: &mut PgConnection,
    fence: &Fence,
    owner: &UserId,
    reserve: &Reserve,
) -> StoreResult<Option<Reserved>> {
    let mut tx = connection.begin().await?;
    // What others were granted is read by a statement that begins after the lock was taken.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))")
        .bind(owner.as_str())
        .bind(RESERVING)
        .execute(&mut *tx)
        .await?;
    let found = sqlx::query(
        "SELECT t.now / 86400000 AS day, 86400000 - t.now % 86400000 AS left_ms, d.tokens, d.cost, o.held_tokens, o.held_cost
         FROM conversation_heads h
         CROSS JOIN (SELECT now_ms() AS now) t
         CROSS JOIN LATERAL (
             SELECT coalesce(sum(s.tokens), 0)::bigint AS tokens, coalesce(sum(s.cost), 0)::bigint AS cost
             FROM spending s WHERE s.owner_id = $4 AND s.day = t.now / 86400000
         ) d
         CROSS JOIN LATERAL (
             SELECT coalesce(sum(s.held_tokens), 0)::bigint AS held_tokens, coalesce(sum(s.held_cost), 0)::bigint AS held_cost
             FROM spending s JOIN conversation_heads c
                 ON c.conversation_id = s.conversation_id AND c.run_id = s.run_id AND c.epoch = s.held_epoch
             WHERE s.owner_id = $4 AND s.day = t.now / 86400000 AND s.held_epoch IS NOT NULL AND s.run_id <> $2
         ) o
         WHERE h.conversation_id = $1 AND h.run_id = $2 AND h.epoch = $3",
    )
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
        sqlx::query("DELETE FROM spending WHERE owner_id = $1 AND day < $2 - 1")
            .bind(owner.as_str())
            .bind(day)
            .execute(&mut *tx)
            .await?;
        let (tokens, cost) = budget::parts(reserve.amount);
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
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(Some(answer))
}

/// What all runs of a conversation have used.
async fn of_conversation(tx: &mut PgConnection, fence: &Fence) -> StoreResult<Amount> {
    let (tokens, cost): (i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum((u.used->>'input_tokens')::bigint + (u.used->>'output_tokens')::bigint), 0)::bigint,
                (coalesce(sum((u.used->'cost'->>'amount')::numeric), 0) * 1000000000000)::bigint
         FROM (SELECT usage::json AS used FROM runs WHERE conversation_id = $1 AND NOT is_copy) u",
    )
    .bind(fence.conversation_id.as_str())
    .fetch_one(tx)
    .await
    .map_err(StoreError::from)?;
    Ok(budget::amount(tokens, cost))
}
