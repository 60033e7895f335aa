//! Waits for a database that is away for a moment, for callers without a log writer that would wait.

use std::time::Duration;

use tokio::time::Instant;

use super::StoreResult;

const PAUSE: Duration = Duration::from_millis(200);

/// Repeats a call while the database is away, for as long as `patience` lasts. Other errors are returned at once.
pub async fn patiently<T, F: Future<Output = StoreResult<T>>>(patience: Duration, ask: impl Fn() -> F) -> StoreResult<T> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_transient() && begun.elapsed() < patience => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}
