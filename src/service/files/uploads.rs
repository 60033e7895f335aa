//! Limits the uploads in this process, because each holds its file in memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::ids::UserId;
use crate::service::runs::user_counts::{UserCounts, UserPermit};
use crate::service::{Error, Result};

const MAX_UPLOADS: usize = 8;
const MAX_UPLOADS_OF_ONE: usize = 2;
/// How long an upload waits for others to finish.
const UPLOAD_TURN: Duration = Duration::from_secs(10);

pub(in crate::service) struct Uploads {
    all: Arc<Semaphore>,
    of_owners: Arc<UserCounts>,
}

impl Default for Uploads {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_UPLOADS)), of_owners: Arc::default() }
    }
}

pub struct UploadPermit {
    _all: OwnedSemaphorePermit,
    _owner: UserPermit,
}

impl Uploads {
    /// Waits for a permit, unless the owner has reached the limit.
    pub(in crate::service) async fn permit(&self, owner: &UserId) -> Result<UploadPermit> {
        let owner = self.of_owners.permit(owner, MAX_UPLOADS_OF_ONE).ok_or(Error::TooManyUploads)?;
        let turn = tokio::time::timeout(UPLOAD_TURN, Arc::clone(&self.all).acquire_owned()).await;
        let all = turn.map_err(|_| Error::TooManyUploads)?.map_err(|_| Error::Ending)?;
        Ok(UploadPermit { _all: all, _owner: owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn owner_holds_two_upload_permits() {
        let uploads = Uploads::default();
        let (ada, ben) = (UserId::from_stored("user_1".to_owned()), UserId::from_stored("user_2".to_owned()));
        let first = uploads.permit(&ada).await.unwrap();
        let _second = uploads.permit(&ada).await.unwrap();
        assert!(uploads.permit(&ada).await.is_err());
        assert!(uploads.permit(&ben).await.is_ok());
        drop(first);
        assert!(uploads.permit(&ada).await.is_ok());
    }
}
