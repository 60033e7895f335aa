//! Budgets of owners: the trait.

use async_trait::async_trait;

use crate::domain::ids::UserId;
use crate::domain::model::Cost;
use crate::domain::run::{Amount, Fence, ReservationOutcome, ReservationRequest};
use crate::store::StoreResult;

/// The largest amount charged to one run and day, in tokens and in trillionths of a US dollar. The sum of a thousand such rows fits
/// into 64 bits.
pub const MAX_CHARGED: u64 = 1 << 53;

/// Budgets of owners. The log writer charges model calls, together with the changes that they belong to.
#[async_trait]
#[warn(missing_docs)]
pub trait BudgetStore: Send + Sync {
    /// Reserves a model call of the fence's run, or returns why it is refused. `None` if the fence is not the newest.
    ///
    /// The reservations of an owner are decided one at a time. A call that waits two seconds for its turn is refused as busy. A
    /// reservation counts until the log writer charges the call. When its fence becomes void, it counts as spent. A run has one
    /// reservation: a new request ends the previous one, even if it is refused. Days are those of the database's clock.
    async fn reserve(&self, fence: &Fence, owner: &UserId, request: &ReservationRequest)
    -> StoreResult<Option<ReservationOutcome>>;

    /// Removes spending rows from before yesterday, at most 1,000, and usage of embeddings older than a year. Returns the number of
    /// rows; 0 if none is left.
    async fn remove_old_spending(&self) -> StoreResult<u64>;
}

/// The usage of a finished request for embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingCharge {
    /// The day and the amount that were charged before the call, if the owner has a budget.
    pub reserved: Option<(i64, Amount)>,
    /// The model and its usage. `None` if the call has failed.
    pub used: Option<(String, Amount)>,
    /// Whether the cost is known.
    pub is_cost_known: bool,
}

/// The maximum number of rows of old days that one call removes.
pub const MAX_REMOVED_ROWS: i64 = 1_000;

/// Returns an amount as stored.
pub fn parts(amount: Amount) -> (i64, i64) {
    let stored = |number: u64| i64::try_from(number.min(MAX_CHARGED)).unwrap_or(i64::MAX);
    (stored(amount.tokens), stored(amount.cost.as_trillionths()))
}

/// Returns a stored amount.
pub fn amount(tokens: i64, cost: i64) -> Amount {
    let number = |stored: i64| u64::try_from(stored).unwrap_or(0);
    Amount { tokens: number(tokens), cost: Cost::from_trillionths(number(cost)) }
}
