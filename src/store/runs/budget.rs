//! Budgets of owners: the trait.

use async_trait::async_trait;

use crate::domain::ids::UserId;
use crate::domain::model::cost::Cost;
use crate::domain::run::budget::{Amount, Reserve, Reserved};
use crate::domain::run::record::Fence;
use crate::store::StoreResult;

/// The most that is booked for one run and day, in tokens and in trillionths of a US dollar. Sums of a thousand such rows fit into 64 bits.
pub(in crate::store) const MOST: u64 = 1 << 53;

/// Budgets of owners. The log books what was spent, with the changes that charge it.
#[async_trait]
pub trait BudgetStore: Send + Sync {
    /// Reserves a model call of the fence's run, or says why the call is refused. `None` if the fence is not the newest.
    ///
    /// One reservation of an owner is judged at a time; after two seconds without a turn the outcome is busy. A reservation counts until
    /// the log settles it, and as spent once the fence is void. A run has one reservation: a new request ends the one before, even if
    /// it is refused. Days are those of the database's clock.
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>>;

    /// Removes some rows that are older than yesterday. Returns how many; 0 if none is left.
    async fn remove_old_spending(&self) -> StoreResult<u64>;
}

/// The most rows of old days that are removed at a time.
pub(in crate::store) const OLD_PIECE: i64 = 1_000;

/// Returns an amount as it is stored.
pub(in crate::store) fn parts(amount: Amount) -> (i64, i64) {
    let kept = |number: u64| i64::try_from(number.min(MOST)).unwrap_or(i64::MAX);
    (kept(amount.tokens), kept(amount.cost.as_trillionths()))
}

/// Returns a stored amount.
pub(in crate::store) fn amount(tokens: i64, cost: i64) -> Amount {
    let number = |kept: i64| u64::try_from(kept).unwrap_or(0);
    Amount { tokens: number(tokens), cost: Cost::trillionths(number(cost)) }
}
