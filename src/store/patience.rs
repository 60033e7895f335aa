//! Waiting for a database that is away for a moment, for whoever has no log to write that would wait for it.

use std::time::Duration;

use tokio::time::Instant;

use super::StoreResult;

/// How soon it is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks until the database answers, for as long as `patience` lasts. What goes wrong for another reason than that it is away is no
/// matter of time.
///
/// # Errors
/// What it said last.
pub async fn patiently<T, F: Future<Output = StoreResult<T>>>(patience: Duration, ask: impl Fn() -> F) -> StoreResult<T> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_transient() && begun.elapsed() < patience => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}
