//! Retries of transactions that the database rolled back.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};

use crate::store::{StoreError, StoreResult};

/// Repeats a transaction, up to five times, if the database reports that it rolled the transaction back because of another one.
/// Returns any other error at once, because it may follow a commit whose reply was lost.
pub async fn retry_transaction<T, F: Future<Output = StoreResult<T>>>(transaction: impl FnMut() -> F) -> StoreResult<T> {
    retried_when(was_rolled_back, transaction).await
}

/// Retries like [`retry_transaction`], but at most `most` times after a lock timeout, because other writes may wait for this
/// transaction.
pub(super) async fn retried_at_locks<T, F: Future<Output = StoreResult<T>>>(
    mut most: u32,
    transaction: impl FnMut() -> F,
) -> StoreResult<T> {
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

async fn retried_when<T, F: Future<Output = StoreResult<T>>>(
    may_repeat: impl FnMut(&StoreError) -> bool,
    transaction: impl FnMut() -> F,
) -> StoreResult<T> {
    let waits = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(5))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(5)
        .with_jitter();
    transaction.retry(waits).when(may_repeat).await
}

/// serialization_failure, deadlock_detected, lock_not_available: the transaction certainly had no effect.
fn was_rolled_back(error: &StoreError) -> bool {
    has_code(error, &["40001", "40P01", "55P03"])
}

fn has_code(error: &StoreError, codes: &[&str]) -> bool {
    let StoreError::Contended(sqlx::Error::Database(database)) = error else { return false };
    database.code().is_some_and(|code| codes.contains(&&*code))
}

/// Returns the database's message, without values of a row, if a rule of the rows refused a write: by `refuse` in a statement, or
/// because a row exists already.
pub(super) fn refusal(error: &StoreError) -> Option<&str> {
    let StoreError::Statement(sqlx::Error::Database(database)) = error else { return None };
    matches!(database.code().as_deref(), Some("CA001" | "23505")).then(|| database.message())
}
