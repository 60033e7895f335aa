//! Uploaded files: the trait and its values.

use async_trait::async_trait;

use crate::domain::conversation::file::{FileOrigin, FileText, StoredFile};
use crate::domain::ids::{FileId, UserId};
use crate::store::{FileCursor, Page, PageRequest, StoreResult};

/// Bytes of one piece of a file. No statement carries more, and no connection is held from one piece to the next.
pub const FILE_CHUNK: usize = 1024 * 1024;

pub const FILES_PIECE: i64 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    pub id: FileId,
    pub owner: UserId,
    pub origin: FileOrigin,
    pub name: String,
    pub media_type: String,
    pub size: u64,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    pub text: Option<FileText>,
}

/// A file with its text, for a request to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedFile {
    pub file: StoredFile,
    pub text: Option<String>,
}

/// Uploaded files, always of one owner. Which conversations use them is noted by the database itself, when messages are stored.
#[async_trait]
pub trait FileStore: Send + Sync {
    /// Begins to store a file. False if its owner has `most` files of its origin already.
    async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool>;

    /// Stores a piece of it; all but the last have [`FILE_CHUNK`] bytes.
    async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()>;

    /// Says that all pieces are stored. `None` if the file is gone.
    async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>>;

    /// Returns the file, unless it is missing or another owner's.
    async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>>;

    /// The newest file of this name that has these bytes, by their SHA-256 in hex.
    async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>>;

    /// A page of files, newest first.
    async fn files(&self, owner: &UserId, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>>;

    async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>>;

    /// Those of the files that are there, with their texts.
    async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>>;

    /// Deletes a file. False if there is none.
    async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool>;

    /// How many files no message has that are at least `age_ms` old by the database's clock.
    async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64>;

    /// Removes some of them, at most [`FILES_PIECE`]. Returns how many.
    async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64>;

    async fn file_bytes(&self) -> StoreResult<u64>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredOutcome {
    Stored(StoredFile),
    /// Its owner has as many files of its origin as are allowed.
    Full,
    /// It was deleted while its pieces were being stored.
    Gone,
}

/// Stores a file with its bytes, piece by piece. `most` bounds the files of its owner that have its origin.
///
/// After an error, the pieces that are stored are removed with the files that no message has.
pub async fn store_file<S: FileStore + ?Sized>(store: &S, new: &NewFile, bytes: &[u8], most: u32) -> StoreResult<StoredOutcome> {
    if !store.begin_file(new, most).await? {
        return Ok(StoredOutcome::Full);
    }
    for (number, piece) in (0_u32..).zip(bytes.chunks(FILE_CHUNK)) {
        store.add_file_chunk(&new.id, number, piece).await?;
    }
    let file = store.finish_file(&new.owner, &new.id).await?;
    Ok(file.map_or(StoredOutcome::Gone, StoredOutcome::Stored))
}
