//! What an error of the database means for the caller, and which are tried again here.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};

use crate::store::{StoreError, StoreResult};

/// Whether a statement met a row that is there already.
pub(super) fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

/// Runs a transaction again, up to five times, when the database says that it was rolled back for the sake of another. Any
/// other error may come after a commit whose answer was lost, so it is the caller's to judge.
pub(super) async fn retried<T, F, Fut>(transaction: F) -> StoreResult<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = StoreResult<T>>,
{
    let waits = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(5))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(5)
        .with_jitter();
    transaction.retry(waits).when(was_rolled_back).await
}

/// serialization_failure, deadlock_detected, lock_not_available: nothing of the transaction is left, for certain.
pub(super) fn was_rolled_back(error: &StoreError) -> bool {
    let StoreError::Contended(sqlx::Error::Database(database)) = error else { return false };
    matches!(database.code().as_deref(), Some("40001" | "40P01" | "55P03"))
}

/// Whether a write was refused by a rule of the rows: by `refuse` in a statement of ours, or by a row that is there already.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    let StoreError::Statement(sqlx::Error::Database(database)) = error else { return false };
    matches!(database.code().as_deref(), Some("CA001" | "23505"))
}
