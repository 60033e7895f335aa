//! What owners may spend.

use super::batch::Batch;
use crate::domain::budget::Amount;
use crate::domain::ids::RunId;
use crate::store::budget;

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
