//! The lock of the data folder: only one server process uses a SQLite database at a time.
//!
//! Owns the lock file. Must not know the database in the folder.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::store::{StoreError, StoreResult};

/// Locks the folder. The operating system releases the lock when the process ends, however it ends.
pub(super) fn lock_folder(folder: &Path) -> StoreResult<File> {
    let path = folder.join("capstan.lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(|error| StoreError::Locked(format!("cannot open the lock file {}: {error}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(format!(
            "another server process holds {}: stop it, give this one another data folder, or use Postgres for several servers",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => {
            Err(StoreError::Locked(format!("cannot lock {}: {error}; is the folder on a local disk?", path.display())))
        }
    }
}
