//! Bounds of the uploads under way in this process: each holds its file in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Error, Result};
use crate::domain::ids::UserId;

/// Uploads under way at a time, in this process: each holds its file in memory.
const MAX_UPLOADS: usize = 8;

/// The same of one owner.
const MAX_UPLOADS_OF_ONE: usize = 2;

/// How long an upload waits for others to end.
const UPLOAD_TURN: Duration = Duration::from_secs(10);

/// The uploads under way.
pub(super) struct Uploads {
    all: Arc<Semaphore>,
    of_owners: Mutex<HashMap<UserId, usize>>,
}

impl Default for Uploads {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_UPLOADS)), of_owners: Mutex::default() }
    }
}

impl Uploads {
    fn of_owners(&self) -> MutexGuard<'_, HashMap<UserId, usize>> {
        self.of_owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat of its owner's; it still has to wait for one of all.
    pub(super) fn seat(self: &Arc<Self>, owner: &UserId) -> Option<UploadSeat> {
        let mut of_owners = self.of_owners();
        let count = of_owners.entry(owner.clone()).or_default();
        if *count >= MAX_UPLOADS_OF_ONE {
            return None;
        }
        *count += 1;
        Some(UploadSeat { uploads: Arc::clone(self), owner: owner.clone(), permit: None })
    }
}

/// The right to hold a file in memory.
pub struct UploadSeat {
    uploads: Arc<Uploads>,
    owner: UserId,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for UploadSeat {
    fn drop(&mut self) {
        self.permit = None;
        let mut of_owners = self.uploads.of_owners();
        if let Some(count) = of_owners.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                of_owners.remove(&self.owner);
            }
        }
    }
}

impl UploadSeat {
    /// Waits until fewer than all uploads of this process are under way.
    pub(super) async fn wait(mut self) -> Result<Self> {
        let turn = tokio::time::timeout(UPLOAD_TURN, Arc::clone(&self.uploads.all).acquire_owned()).await;
        self.permit = Some(turn.map_err(|_| Error::TooManyUploads)?.map_err(|_| Error::Ending)?);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_owner_holds_two_seats() {
        let uploads = Arc::new(Uploads::default());
        let (ada, ben) = (UserId::from_stored("user_1".to_owned()), UserId::from_stored("user_2".to_owned()));
        let first = uploads.seat(&ada).unwrap();
        let _second = uploads.seat(&ada).unwrap();
        assert!(uploads.seat(&ada).is_none());
        assert!(uploads.seat(&ben).is_some());
        drop(first);
        assert!(uploads.seat(&ada).is_some());
        assert_eq!(uploads.of_owners().len(), 1, "who has none is forgotten");
    }
}
