//! Reserves the budget of an owner before a model call, and charges embeddings, which belong to no run.
//!
//! Owns the reservations in `spending`. The log writer ends them. Must not know what a budget allows.

use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable as _};

use crate::domain::ids::UserId;
use crate::domain::run::{Allowance, Amount, BudgetUse, Fence, ReservationOutcome, ReservationRequest};
use crate::store::postgres::timeouts::{ANSWER_LIMIT, with_deadline};
use crate::store::runs::budget::{self, BudgetStore, OLD_PIECE, amount, parts};
use crate::store::sql::{Backend, Database, Row, Transaction, statements, text, values};
use crate::store::{EmbeddingCharge, RecordStore, StoreResult};

/// The number of the lock that allows one reservation decision per owner at a time.
const LOCK: i64 = 0x6275_6467_6574;

/// The time limit for a reservation of an owner to get its turn.
const TURN_LIMIT: Duration = Duration::from_secs(2);

/// Selects the amounts that owner `$1` has spent, holds and has lost today. The held amounts exclude the reservation of run `$2`.
macro_rules! day_use {
    ($dialect:ident) => {
        text!($dialect: "WITH t AS (SELECT " now " AS now), d AS (
                 SELECT CAST(coalesce(sum(tokens), 0) AS bigint) AS tokens, CAST(coalesce(sum(cost), 0) AS bigint) AS cost
                 FROM spending WHERE owner_id = $1 AND day = (SELECT now / 86400000 FROM t)
             ), o AS (
                 SELECT CAST(coalesce(sum(s.held_tokens) FILTER (WHERE c.run_id <> $2), 0) AS bigint) AS held_tokens,
                     CAST(coalesce(sum(s.held_cost) FILTER (WHERE c.run_id <> $2), 0) AS bigint) AS held_cost,
                     CAST(coalesce(sum(s.held_tokens) FILTER (WHERE c.run_id IS NULL), 0) AS bigint) AS lost_tokens,
                     CAST(coalesce(sum(s.held_cost) FILTER (WHERE c.run_id IS NULL), 0) AS bigint) AS lost_cost
                 FROM spending s LEFT JOIN conversation_heads c
                     ON c.conversation_id = s.conversation_id AND c.run_id = s.run_id AND c.epoch = s.held_epoch
                 WHERE s.owner_id = $1 AND s.day = (SELECT now / 86400000 FROM t) AND s.held_epoch IS NOT NULL
             )
             SELECT t.now / 86400000 AS day, 86400000 - t.now % 86400000 AS left_ms,
                 d.tokens, d.cost, o.held_tokens, o.held_cost, o.lost_tokens, o.lost_cost
             FROM t CROSS JOIN d CROSS JOIN o")
    };
}

statements! {
    STANDING = [day_use, " CROSS JOIN conversation_heads h WHERE h.conversation_id = $3 AND h.run_id = $2 AND h.epoch = $4"];

    OF_OWNER = [day_use];

    // Embeddings belong to no run. They are charged before the call, and corrected after it.
    CHARGE_EMBEDDINGS = ["INSERT INTO spending AS s (owner_id, day, run_id, conversation_id, tokens, cost)
         VALUES ($1, $2, 'embeddings', '', $3, $4)
         ON CONFLICT (owner_id, day, run_id) DO UPDATE SET
             tokens = ", least, "(s.tokens + excluded.tokens, $5), cost = ", least, "(s.cost + excluded.cost, $5)"];

    CORRECT_EMBEDDINGS = ["UPDATE spending SET tokens = ", least, "(tokens + $3, $5), cost = ", least, "(cost + $4, $5)
         WHERE owner_id = $1 AND day = $2 AND run_id = 'embeddings'"];

    RECORD_EMBEDDINGS = ["INSERT INTO embedding_usage AS u (owner_id, day, model, calls, input_tokens, cost)
         VALUES ($1, ", now, " / 86400000, $2, 1, $3, $4)
         ON CONFLICT (owner_id, day, model) DO UPDATE SET calls = u.calls + 1, input_tokens = u.input_tokens + excluded.input_tokens,
             cost = coalesce(u.cost + excluded.cost, u.cost, excluded.cost)"];

    REMOVE_OLD_EMBEDDINGS = ["DELETE FROM embedding_usage WHERE day < ", now, " / 86400000 - 366"];

    PUT_RESERVATION = ["INSERT INTO spending (owner_id, day, run_id, conversation_id, held_tokens, held_cost, held_epoch)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (owner_id, day, run_id) DO UPDATE SET
             held_tokens = excluded.held_tokens, held_cost = excluded.held_cost, held_epoch = excluded.held_epoch"];

    END_RESERVATION = ["UPDATE spending SET held_tokens = 0, held_cost = 0, held_epoch = NULL
         WHERE owner_id = $1 AND day BETWEEN $2 - 1 AND $2 AND run_id = $3 AND held_epoch = $4"];

    // SQLite has no exact decimals: the digits before and after the decimal point are summed as integers.
    OF_CONVERSATION = [{
        postgres: "SELECT coalesce(sum((u.used->>'input_tokens')::bigint + (u.used->>'output_tokens')::bigint), 0)::bigint AS tokens,
                 (coalesce(sum((u.used->'cost'->>'amount')::numeric), 0) * 1000000000000)::bigint AS cost
             FROM (
                 SELECT usage::json AS used FROM runs WHERE conversation_id = $1 AND NOT is_copy
                 UNION ALL SELECT title_usage::json FROM conversations WHERE id = $1 AND title_usage IS NOT NULL
             ) u",
        sqlite: "SELECT coalesce(sum(json_extract(usage, '$.input_tokens') + json_extract(usage, '$.output_tokens')), 0) AS tokens,
                 coalesce(sum(CAST(amount AS INTEGER) * 1000000000000 + CASE WHEN instr(amount, '.') = 0 THEN 0 ELSE
                     CAST(substr(substr(amount, instr(amount, '.') + 1) || '000000000000', 1, 12) AS INTEGER) END), 0) AS cost
             FROM (
                 SELECT usage, json_extract(usage, '$.cost.amount') AS amount FROM (
                     SELECT usage FROM runs WHERE conversation_id = $1 AND is_copy = 0
                     UNION ALL SELECT title_usage FROM conversations WHERE id = $1 AND title_usage IS NOT NULL
                 )
             )"
    }];

    REMOVE_OLD = ["DELETE FROM spending WHERE (owner_id, day, run_id) IN (
             SELECT owner_id, day, run_id FROM spending WHERE day < ", now, " / 86400000 - 1 LIMIT $1
         )"];
}

/// The outcome of one attempt to reserve.
enum Attempt {
    /// The reservation was decided. `None` if the fence is not the newest.
    Judged(Option<ReservationOutcome>),
    /// Another reservation of the owner is being decided.
    Locked,
}

#[async_trait]
impl<B: Backend> BudgetStore for B {
    async fn reserve(
        &self,
        fence: &Fence,
        owner: &UserId,
        reserve: &ReservationRequest,
    ) -> StoreResult<Option<ReservationOutcome>> {
        let database = self.worker();
        in_turn(database, || judge_once(database, fence, owner, reserve)).await
    }

    async fn remove_old_spending(&self) -> StoreResult<u64> {
        let database = self.maintenance_database();
        let removed = database.execute(REMOVE_OLD_EMBEDDINGS, &[]).await?;
        Ok(removed + database.execute(REMOVE_OLD, values![OLD_PIECE]).await?)
    }
}

/// Embeddings in the budgets of owners. They belong to no run.
impl dyn RecordStore + '_ {
    /// Charges the possible cost of a request to the owner's day, or returns why it is refused.
    pub async fn reserve_embeddings(&self, owner: &UserId, amount: Amount, day: Allowance) -> StoreResult<ReservationOutcome> {
        let (database, reserve) = (self.database(), ReservationRequest { amount, conversation: Allowance::default(), day });
        let decided = in_turn(database, || async {
            let mut tx = database.begin_at_once().await?;
            let attempt = judge_embeddings(&mut tx, owner, &reserve).await;
            tx.end(attempt, |attempt| matches!(attempt, Attempt::Judged(_))).await
        });
        Ok(decided.await?.unwrap_or(ReservationOutcome::Busy))
    }

    /// Replaces the charge of a request by its real cost, and records its usage.
    pub async fn charge_embeddings(&self, owner: &UserId, charge: &EmbeddingCharge) -> StoreResult<()> {
        let database = self.database();
        database.retry(|| database.transaction(async |tx| charge_in(tx, owner, charge).await, |()| true)).await
    }
}

async fn charge_in(tx: &mut Transaction, owner: &UserId, charge: &EmbeddingCharge) -> StoreResult<()> {
    let used = charge.used.as_ref().map_or(Amount::default(), |(_, used)| *used);
    let (tokens, cost) = parts(used);
    if let Some((day, reserved)) = charge.reserved {
        let (charged_tokens, charged_cost) = parts(reserved);
        let change = values![owner.as_str(), day, tokens - charged_tokens, cost - charged_cost, budget::MAX_CHARGED];
        tx.execute(CORRECT_EMBEDDINGS, change).await?;
    }
    if let Some((model, _)) = &charge.used {
        let cost = charge.is_priced.then_some(cost);
        tx.execute(RECORD_EMBEDDINGS, values![owner.as_str(), model, tokens, cost]).await?;
    }
    Ok(())
}

/// Repeats an attempt until no other reservation of the owner is being decided. After [`TURN_LIMIT`] the outcome is busy.
async fn in_turn<F: Future<Output = StoreResult<Attempt>>>(
    database: Database<'_>,
    attempt: impl Fn() -> F,
) -> StoreResult<Option<ReservationOutcome>> {
    // No connection is held during the wait: otherwise hundreds of runs of one owner would hold all connections.
    let turn = || async {
        let attempt = database.retry(&attempt);
        let attempt = match database {
            Database::Postgres(_) => Box::pin(with_deadline(ANSWER_LIMIT, attempt)).await,
            Database::Sqlite(_) => attempt.await,
        };
        match attempt {
            Ok(Attempt::Judged(answer)) => Ok(Ok(answer)),
            Ok(Attempt::Locked) => Err(()),
            Err(error) => Ok(Err(error)),
        }
    };
    let waits = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(50))
        .with_total_delay(Some(TURN_LIMIT))
        .without_max_times()
        .with_jitter();
    Box::pin(turn.retry(waits)).await.unwrap_or(Ok(Some(ReservationOutcome::Busy)))
}

async fn judge_embeddings(tx: &mut Transaction, owner: &UserId, reserve: &ReservationRequest) -> StoreResult<Attempt> {
    if !tx.try_lock(owner.as_str(), LOCK).await? {
        return Ok(Attempt::Locked);
    }
    let standing = tx.fetch_one(OF_OWNER, values![owner.as_str(), ""]).await?;
    let outcome = decide(reserve, Amount::default(), &standing)?;
    if let ReservationOutcome::Granted { day } = outcome {
        let (tokens, cost) = parts(reserve.amount);
        tx.execute(CHARGE_EMBEDDINGS, values![owner.as_str(), day, tokens, cost, budget::MAX_CHARGED]).await?;
    }
    Ok(Attempt::Judged(Some(outcome)))
}

async fn judge_once(database: Database<'_>, fence: &Fence, owner: &UserId, reserve: &ReservationRequest) -> StoreResult<Attempt> {
    let mut tx = database.begin_at_once().await?;
    let attempt = judge_in(&mut tx, fence, owner, reserve).await;
    tx.end(attempt, |attempt| matches!(attempt, Attempt::Judged(Some(_)))).await
}

async fn judge_in(tx: &mut Transaction, fence: &Fence, owner: &UserId, reserve: &ReservationRequest) -> StoreResult<Attempt> {
    // A statement that begins after the lock reads the other reservations.
    if !tx.try_lock(owner.as_str(), LOCK).await? {
        return Ok(Attempt::Locked);
    }
    let (conversation, run) = (fence.conversation_id.as_str(), fence.run_id.as_str());
    let standing = tx.fetch_optional(STANDING, values![owner.as_str(), run, conversation, fence.epoch]).await?;
    let Some(standing) = standing else { return Ok(Attempt::Judged(None)) };
    let of_conversation = match reserve.conversation == Allowance::default() {
        true => Amount::default(),
        false => read_amount(&tx.fetch_one(OF_CONVERSATION, values![conversation]).await?, "tokens", "cost")?,
    };
    let answer = decide(reserve, of_conversation, &standing)?;
    match answer {
        ReservationOutcome::Granted { day } => {
            let (tokens, cost) = parts(reserve.amount);
            tx.execute(PUT_RESERVATION, values![owner.as_str(), day, run, conversation, tokens, cost, fence.epoch]).await?;
        }
        // Also ends an earlier reservation of the run under this fence.
        ReservationOutcome::Busy | ReservationOutcome::Spent { .. } => {
            let day: i64 = standing.get("day")?;
            tx.execute(END_RESERVATION, values![owner.as_str(), day, run, fence.epoch]).await?;
        }
    }
    Ok(Attempt::Judged(Some(answer)))
}

/// Decides about a reservation. `standing` is the row of `day_use`.
fn decide(reserve: &ReservationRequest, of_conversation: Amount, standing: &Row) -> StoreResult<ReservationOutcome> {
    let of_day = BudgetUse {
        spent: read_amount(standing, "tokens", "cost")?.plus(read_amount(standing, "lost_tokens", "lost_cost")?),
        held: read_amount(standing, "held_tokens", "held_cost")?,
    };
    let (day, left_ms): (i64, i64) = (standing.get("day")?, standing.get("left_ms")?);
    Ok(reserve.decide(of_conversation, of_day, day, u64::try_from(left_ms).unwrap_or(0)))
}

fn read_amount(row: &Row, tokens: &'static str, cost: &'static str) -> Result<Amount, sqlx::Error> {
    Ok(amount(row.get(tokens)?, row.get(cost)?))
}
