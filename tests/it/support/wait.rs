//! Waiting for a state, with a deadline.

use std::future::Future;
use std::time::Duration;

/// Asks `probe` again and again until it gives a value. Panics after `limit`, naming what was waited for.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    until_every(Duration::from_millis(20), what, limit, probe).await
}

/// Asks `probe` at most once in each `pause`, as [`until`] does.
pub async fn until_every<T, F, Fut>(pause: Duration, what: &str, limit: Duration, mut probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let asking = async {
        let mut pause = tokio::time::interval(pause);
        pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pause.tick().await;
            if let Some(value) = probe().await {
                return value;
            }
        }
    };
    match tokio::time::timeout(limit, asking).await {
        Ok(value) => value,
        Err(_) => panic!("waited {limit:?} for {what}"),
    }
}

/// A future with a deadline. Panics after `limit`, naming what was waited for.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {limit:?} for {what}"),
    }
}
