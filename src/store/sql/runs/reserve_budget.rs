//! Reserves the budget of an owner before a model call, and charges embeddings, which belong to no run.
//!
//! Owns the reservations in the table `spending`. The log writer commits the writes of all runs. It ends a reservation when it
//! charges the call. Must not know what a budget allows.

use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable as _};

use crate::domain::ids::UserId;
use crate::domain::run::{Allowance, Amount, BudgetUse, Fence, ReservationOutcome, ReservationRequest};
use crate::store::postgres::timeouts::{ANSWER_LIMIT, with_deadline};
use crate::store::runs::budget::{self, BudgetStore, MAX_REMOVED_ROWS, amount, parts};
use crate::store::sql::{Backend, Database, Row, Transaction, statements, text, values};
use crate::store::{EmbeddingCharge, RecordStore, StoreResult};

/// The number of the lock under which the reservations of an owner are decided one at a time.
const OWNER_LOCK: i64 = 0x6275_6467_6574;

/// The longest time that a reservation waits for the lock of its owner.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Selects the use of the budget of owner `$1` today.
///
/// - `tokens`, `cost`: charged amounts
/// - `held_tokens`, `held_cost`: amounts that runs other than `$2` have reserved
/// - `lost_tokens`, `lost_cost`: amounts reserved under void fences; they count as spent
/// - `left_ms`: milliseconds until the end of the day (UTC)
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
    DAY_USE_OF_RUN = [day_use, " CROSS JOIN conversation_heads h WHERE h.conversation_id = $3 AND h.run_id = $2 AND h.epoch = $4"];

    DAY_USE_OF_OWNER = [day_use];

    // Embeddings belong to no run, so they have no reservation: a charge before the call is corrected after it.
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
    CONVERSATION_USE = [{
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

    REMOVE_OLD_SPENDING = ["DELETE FROM spending WHERE (owner_id, day, run_id) IN (
             SELECT owner_id, day, run_id FROM spending WHERE day < ", now, " / 86400000 - 1 LIMIT $1
         )"];
}

/// The result of one attempt to reserve an amount.
enum Attempt {
    /// The decision. `None` if the fence is not the newest.
    Decided(Option<ReservationOutcome>),
    /// Another transaction decides about a reservation of the owner.
    Locked,
}

#[async_trait]
impl<B: Backend> BudgetStore for B {
    async fn reserve(
        &self,
        fence: &Fence,
        owner: &UserId,
        request: &ReservationRequest,
    ) -> StoreResult<Option<ReservationOutcome>> {
        let database = self.worker();
        repeat_while_locked(database, || try_reserve(database, fence, owner, request)).await
    }

    async fn remove_old_spending(&self) -> StoreResult<u64> {
        let database = self.maintenance_database();
        let removed = database.execute(REMOVE_OLD_EMBEDDINGS, &[]).await?;
        Ok(removed + database.execute(REMOVE_OLD_SPENDING, values![MAX_REMOVED_ROWS]).await?)
    }
}

/// Charges embeddings to the budgets of owners.
impl dyn RecordStore + '_ {
    /// Charges the estimated cost of a request for embeddings to the owner's day, or returns why it is refused.
    pub async fn reserve_embeddings(&self, owner: &UserId, amount: Amount, day: Allowance) -> StoreResult<ReservationOutcome> {
        let (database, request) = (self.database(), ReservationRequest { amount, conversation: Allowance::default(), day });
        let outcome = repeat_while_locked(database, || async {
            let mut tx = database.begin_at_once().await?;
            let attempt = reserve_embeddings_in(&mut tx, owner, &request).await;
            tx.end(attempt, |attempt| matches!(attempt, Attempt::Decided(_))).await
        });
        Ok(outcome.await?.unwrap_or(ReservationOutcome::Busy))
    }

    /// Replaces the estimated charge of a request for embeddings by its real cost, and records its usage.
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
        let cost = charge.is_cost_known.then_some(cost);
        tx.execute(RECORD_EMBEDDINGS, values![owner.as_str(), model, tokens, cost]).await?;
    }
    Ok(())
}

/// Repeats `reserve` while another transaction holds the lock of the owner. Returns [`ReservationOutcome::Busy`] after
/// [`MAX_LOCK_WAIT`].
async fn repeat_while_locked<F: Future<Output = StoreResult<Attempt>>>(
    database: Database<'_>,
    reserve: impl Fn() -> F,
) -> StoreResult<Option<ReservationOutcome>> {
    // The wait between attempts holds no connection: otherwise the runs of one owner could hold all connections.
    let reserve_once = || async {
        let reservation = database.retry(&reserve);
        let result = match database {
            Database::Postgres(_) => Box::pin(with_deadline(ANSWER_LIMIT, reservation)).await,
            Database::Sqlite(_) => reservation.await,
        };
        match result {
            Ok(Attempt::Decided(outcome)) => Ok(Ok(outcome)),
            Ok(Attempt::Locked) => Err(()),
            Err(error) => Ok(Err(error)),
        }
    };
    let backoff = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(50))
        .with_total_delay(Some(MAX_LOCK_WAIT))
        .without_max_times()
        .with_jitter();
    Box::pin(reserve_once.retry(backoff)).await.unwrap_or(Ok(Some(ReservationOutcome::Busy)))
}

async fn reserve_embeddings_in(tx: &mut Transaction, owner: &UserId, request: &ReservationRequest) -> StoreResult<Attempt> {
    if !tx.try_lock(owner.as_str(), OWNER_LOCK).await? {
        return Ok(Attempt::Locked);
    }
    let day_use = tx.fetch_one(DAY_USE_OF_OWNER, values![owner.as_str(), ""]).await?;
    let outcome = decide(request, Amount::default(), &day_use)?;
    if let ReservationOutcome::Granted { day } = outcome {
        let (tokens, cost) = parts(request.amount);
        tx.execute(CHARGE_EMBEDDINGS, values![owner.as_str(), day, tokens, cost, budget::MAX_CHARGED]).await?;
    }
    Ok(Attempt::Decided(Some(outcome)))
}

async fn try_reserve(database: Database<'_>, fence: &Fence, owner: &UserId, request: &ReservationRequest) -> StoreResult<Attempt> {
    let mut tx = database.begin_at_once().await?;
    let attempt = reserve_in(&mut tx, fence, owner, request).await;
    tx.end(attempt, |attempt| matches!(attempt, Attempt::Decided(Some(_)))).await
}

async fn reserve_in(tx: &mut Transaction, fence: &Fence, owner: &UserId, request: &ReservationRequest) -> StoreResult<Attempt> {
    // The lock comes first. Later statements then see the reservations of the lock's previous holder.
    if !tx.try_lock(owner.as_str(), OWNER_LOCK).await? {
        return Ok(Attempt::Locked);
    }
    let (conversation, run) = (fence.conversation_id.as_str(), fence.run_id.as_str());
    let day_use = tx.fetch_optional(DAY_USE_OF_RUN, values![owner.as_str(), run, conversation, fence.epoch]).await?;
    let Some(day_use) = day_use else { return Ok(Attempt::Decided(None)) };
    let conversation_use = match request.conversation == Allowance::default() {
        true => Amount::default(),
        false => read_amount(&tx.fetch_one(CONVERSATION_USE, values![conversation]).await?, "tokens", "cost")?,
    };
    let outcome = decide(request, conversation_use, &day_use)?;
    match outcome {
        ReservationOutcome::Granted { day } => {
            let (tokens, cost) = parts(request.amount);
            tx.execute(PUT_RESERVATION, values![owner.as_str(), day, run, conversation, tokens, cost, fence.epoch]).await?;
        }
        // A refused run holds no reservation: an earlier one under this fence ends.
        ReservationOutcome::Busy | ReservationOutcome::Spent { .. } => {
            let day: i64 = day_use.get("day")?;
            tx.execute(END_RESERVATION, values![owner.as_str(), day, run, fence.epoch]).await?;
        }
    }
    Ok(Attempt::Decided(Some(outcome)))
}

/// Decides about a reservation. `day_use` is a row that the macro of this name selects.
fn decide(request: &ReservationRequest, conversation_use: Amount, day_use: &Row) -> StoreResult<ReservationOutcome> {
    let of_day = BudgetUse {
        spent: read_amount(day_use, "tokens", "cost")?.plus(read_amount(day_use, "lost_tokens", "lost_cost")?),
        held: read_amount(day_use, "held_tokens", "held_cost")?,
    };
    let (day, left_ms): (i64, i64) = (day_use.get("day")?, day_use.get("left_ms")?);
    Ok(request.decide(conversation_use, of_day, day, u64::try_from(left_ms).unwrap_or(0)))
}

fn read_amount(row: &Row, tokens: &'static str, cost: &'static str) -> Result<Amount, sqlx::Error> {
    Ok(amount(row.get(tokens)?, row.get(cost)?))
}
