//! Limits the logins at MCP servers that an owner begins in this process.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::ids::UserId;
use crate::service::{Error, Result};
use crate::support::locks::lock;

const PERIOD: Duration = Duration::from_secs(600);

/// The recent logins of each owner. A login sends requests to external servers before anything is stored.
#[derive(Default)]
pub(in crate::service) struct McpLoginLimit(Mutex<HashMap<UserId, VecDeque<Instant>>>);

impl McpLoginLimit {
    /// Counts one more login of an owner, unless the owner has reached `most`; 0 for no limit.
    pub(in crate::service) fn admit(&self, owner: &UserId, most: u32, now: Instant) -> Result<()> {
        if most == 0 {
            return Ok(());
        }
        let mut all = lock(&self.0);
        all.retain(|_, starts| {
            starts.retain(|at| now.duration_since(*at) < PERIOD);
            !starts.is_empty()
        });
        let starts = all.entry(owner.clone()).or_default();
        if starts.len() >= most as usize {
            return Err(Error::TooManyLogins(most));
        }
        starts.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_counted_by_owner_and_for_ten_minutes() {
        let (starts, start) = (McpLoginLimit::default(), Instant::now());
        let (ann, bob) = (UserId::from_stored("user_ann".to_owned()), UserId::from_stored("user_bob".to_owned()));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(starts.admit(&ann, 2, at(0)).is_ok() && starts.admit(&ann, 2, at(300)).is_ok());
        assert!(starts.admit(&ann, 2, at(599)).is_err() && starts.admit(&bob, 2, at(599)).is_ok());
        assert!(starts.admit(&ann, 2, at(600)).is_ok(), "the first one is ten minutes ago");
        assert!(starts.admit(&ann, 2, at(601)).is_err());
        assert!((0..100).all(|_| starts.admit(&ann, 0, at(602)).is_ok()));
        assert!(starts.admit(&bob, 2, at(10_000)).is_ok());
        assert_eq!(starts.0.lock().unwrap().len(), 1, "owners without recent logins are removed");
    }
}
