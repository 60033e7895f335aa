//! Retries after errors by which the database says that it rolled a transaction back.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};

use crate::store::{StoreError, StoreResult};

/// Runs a transaction again, up to five times, when the database says that it was rolled back for the sake of another. Any
/// other error may come after a commit whose answer was lost, so it is the caller's to judge.
pub(in crate::store) async fn retried<T, F, Fut>(transaction: F) -> StoreResult<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = StoreResult<T>>,
{
    retried_when(was_rolled_back, transaction).await
}

/// Retries like [`retried`], but at most `most` times after a lock timeout: other writes may wait behind this transaction.
pub(super) async fn retried_at_locks<T, F, Fut>(mut most: u32, transaction: F) -> StoreResult<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = StoreResult<T>>,
{
    let may_repeat = |error: &StoreError| {
        if !has_code(error, &["55P03"]) {
            return was_rolled_back(error);
        }
        let is_left = most > 0;
        most = most.saturating_sub(1);
        is_left
    };
    retried_when(may_repeat, transaction).await
}

async fn retried_when<T, F, Fut>(may_repeat: impl FnMut(&StoreError) -> bool, transaction: F) -> StoreResult<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = StoreResult<T>>,
{
    let waits = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(5))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(5)
        .with_jitter();
    transaction.retry(waits).when(may_repeat).await
}

/// serialization_failure, deadlock_detected, lock_not_available: nothing of the transaction is left, for certain.
fn was_rolled_back(error: &StoreError) -> bool {
    has_code(error, &["40001", "40P01", "55P03"])
}

fn has_code(error: &StoreError, codes: &[&str]) -> bool {
    let StoreError::Contended(sqlx::Error::Database(database)) = error else { return false };
    database.code().is_some_and(|code| codes.contains(&&*code))
}

/// Whether a write was refused by a rule of the rows: by `refuse` in a statement of ours, or by a row that is there already.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    let StoreError::Statement(sqlx::Error::Database(database)) = error else { return false };
    matches!(database.code().as_deref(), Some("CA001" | "23505"))
}
