//! What owners may spend: the trait.

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::StoreResult;
use crate::domain::budget::{Amount, Lost, Reserve, Reserved};
use crate::domain::cost::Cost;
use crate::domain::ids::UserId;
use crate::domain::record::Fence;

/// The most that one run is noted to have spent on one day, in tokens and in trillionths of a US dollar: nine thousand of them. Sums of a
/// thousand such rows are numbers still.
pub(super) const MOST: u64 = 1 << 53;

/// What owners may spend. What was spent is written by the log, with what charges it.
#[async_trait]
pub trait BudgetStore: Send + Sync {
    /// Reserves a call of the run that the fence is for, or says why it may not be made. Of calls of one owner one is judged at a
    /// time; who does not get a turn within two seconds is told that others are busy. What is reserved counts until the log settles
    /// it, and is taken to be spent once the fence is void. A run has one reservation: asking again ends the one before, also if
    /// the answer is no. Days are those of the database's clock. `None` if the fence is not the newest.
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>>;

    /// Removes what was spent before yesterday, a piece of it. Returns how many rows; 0 if none is left.
    async fn remove_old_spending(&self) -> StoreResult<u64>;
}

/// How many rows of old days are removed at a time.
pub(super) const OLD_PIECE: i64 = 1_000;

/// An amount as it is kept.
pub(super) fn parts(amount: Amount) -> (i64, i64) {
    let kept = |number: u64| i64::try_from(number.min(MOST)).unwrap_or(i64::MAX);
    (kept(amount.tokens), kept(amount.cost.as_trillionths()))
}

/// An amount as it was kept.
pub(super) fn amount(tokens: i64, cost: i64) -> Amount {
    let number = |kept: i64| u64::try_from(kept).unwrap_or(0);
    Amount { tokens: number(tokens), cost: Cost::trillionths(number(cost)) }
}

/// Reads a row with `day, held_tokens, held_cost`.
pub(super) fn read_lost<'r, R>(row: &'r R) -> Result<Lost, sqlx::Error>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(Lost { day: row.try_get("day")?, amount: amount(row.try_get("held_tokens")?, row.try_get("held_cost")?) })
}
