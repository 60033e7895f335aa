//! Counts open uses of a resource per user in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::domain::ids::UserId;
use crate::support::locks::lock;

#[derive(Default)]
pub struct UserCounts(Mutex<HashMap<UserId, usize>>);

/// One open use. Dropping it releases it.
pub struct UserPermit {
    counts: Arc<UserCounts>,
    user: UserId,
}

impl UserCounts {
    /// Returns a permit for one more use, unless the user has `most` already.
    pub fn permit(self: &Arc<Self>, user: &UserId, most: usize) -> Option<UserPermit> {
        let mut open = lock(&self.0);
        let count = open.entry(user.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(UserPermit { counts: Arc::clone(self), user: user.clone() })
    }
}

impl Drop for UserPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.counts.0);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_permits_are_forgotten() {
        let (counts, ada) = (Arc::new(UserCounts::default()), UserId::from_stored("user_1".to_owned()));
        let first = counts.permit(&ada, 1);
        assert!(first.is_some() && counts.permit(&ada, 1).is_none());
        drop(first);
        assert!(lock(&counts.0).is_empty());
    }
}
