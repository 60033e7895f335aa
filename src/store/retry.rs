//! Waits for a database that is briefly unavailable, for callers without a log writer.

use std::time::Duration;

use tokio::time::Instant;

use super::StoreResult;

const PAUSE: Duration = Duration::from_millis(200);

/// Retries a call while it fails with a [transient](crate::store::StoreError::is_transient) error, for at most `time_limit`.
/// Returns other errors at once.
pub async fn retry_while_unavailable<T, F: Future<Output = StoreResult<T>>>(
    time_limit: Duration,
    ask: impl Fn() -> F,
) -> StoreResult<T> {
    let started_at = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_transient() && started_at.elapsed() < time_limit => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}
