//! Uploaded files: the values.

use crate::domain::conversation::{FileOrigin, FilePurpose, FileText, StoredFile};
use crate::domain::ids::{FileId, UserId};
use crate::store::{RecordStore, StoreResult};

/// The size of a file's chunk in bytes. No statement transfers more, and no connection is held between chunks.
pub const FILE_CHUNK: usize = 1024 * 1024;

pub const FILES_PIECE: i64 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    pub id: FileId,
    pub owner: UserId,
    pub origin: FileOrigin,
    pub purpose: FilePurpose,
    pub name: String,
    pub media_type: String,
    pub size: u64,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    pub text: Option<FileText>,
}

/// Selects and orders the files of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileFilter {
    pub purpose: Option<FilePurpose>,
    /// Whether the oldest file is first. Otherwise the newest file is.
    pub is_oldest_first: bool,
}

/// A file with its text, for a request to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedFile {
    pub file: StoredFile,
    pub text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredOutcome {
    Stored(StoredFile),
    /// The owner has reached the limit of files with this origin.
    Full,
    /// The file was deleted while its chunks were being stored.
    Gone,
}

/// Stores a file with its bytes, chunk by chunk. `most` limits the owner's files of the same origin.
///
/// After an error, the stored chunks are removed together with unused files.
pub async fn store_file(store: &dyn RecordStore, new: &NewFile, bytes: &[u8], most: u32) -> StoreResult<StoredOutcome> {
    if !store.begin_file(new, most).await? {
        return Ok(StoredOutcome::Full);
    }
    for (number, piece) in (0_u32..).zip(bytes.chunks(FILE_CHUNK)) {
        store.add_file_chunk(&new.id, number, piece).await?;
    }
    let file = store.finish_file(&new.owner, &new.id).await?;
    Ok(file.map_or(StoredOutcome::Gone, StoredOutcome::Stored))
}
