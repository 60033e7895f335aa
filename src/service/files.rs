//! Files that people upload, for their messages to refer to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::input::MAX_FILE_NAME;
use super::{Error, FileCursor, Page, PageRequest, Result, Service};
use crate::domain::file::{FileFacts, StoredFile};
use crate::domain::ids::{FileId, UserId};
use crate::domain::message::Part;
use crate::domain::principal::Principal;
use crate::store::{FILE_CHUNK, NewFile};
use crate::support::{json, text};

/// Uploads under way at a time, in this process: each holds its file in memory.
const MAX_UPLOADS: usize = 8;

/// The same of one owner.
const MAX_UPLOADS_OF_ONE: usize = 2;

/// How long an upload waits for others to end.
const UPLOAD_TURN: Duration = Duration::from_secs(10);

/// Finds out what a file is, and the text in it.
#[async_trait]
pub trait FileReader: Send + Sync {
    /// What the bytes are, and at most `most_chars` of their text.
    ///
    /// # Errors
    /// If they are not accepted, or nobody can tell.
    async fn read(&self, bytes: Bytes, name: &str, most_chars: usize) -> std::result::Result<FileFacts, Unreadable>;
}

/// Why nothing is known of a file.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not accepted: why, in words for whoever has sent it.
    #[error("{0}")]
    Refused(String),
    /// Our fault.
    #[error("the process that reads files cannot be started")]
    Failed(#[source] std::io::Error),
}

/// Bounds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// Bytes of one file.
    pub max_bytes: usize,
    /// Files of one owner.
    pub max_per_owner: u32,
    /// Files in the messages of one conversation.
    pub max_per_conversation: u32,
    /// Characters of the text of a file that models get to read.
    pub text_chars: usize,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { max_bytes: 20 * 1024 * 1024, max_per_owner: 1_000, max_per_conversation: 5, text_chars: 100_000 }
    }
}

/// What files stand on.
pub struct FileDeps {
    /// Who reads them.
    pub reader: Arc<dyn FileReader>,
    /// Bounds.
    pub limits: FileLimits,
}

/// Without a reader, no file is accepted.
struct NoReader;

#[async_trait]
impl FileReader for NoReader {
    async fn read(&self, _bytes: Bytes, _name: &str, _most_chars: usize) -> std::result::Result<FileFacts, Unreadable> {
        Err(Unreadable::Refused("this server accepts no files".to_owned()))
    }
}

impl Default for FileDeps {
    fn default() -> Self {
        Self { reader: Arc::new(NoReader), limits: FileLimits::default() }
    }
}

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
    fn seat(self: &Arc<Self>, owner: &UserId) -> Option<UploadSeat> {
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

impl Service {
    /// The same with files.
    #[must_use]
    pub fn with_files(mut self, files: FileDeps) -> Self {
        self.files = files;
        self
    }

    /// Bounds of files.
    #[must_use]
    pub fn file_limits(&self) -> FileLimits {
        self.files.limits
    }

    /// To be had before the bytes of a file are taken in.
    pub async fn begin_upload(&self, principal: &Principal) -> Result<UploadSeat> {
        self.begin_upload_of(&principal.user_id).await
    }

    /// The same, for files that come with something else.
    pub(super) async fn begin_upload_of(&self, owner: &UserId) -> Result<UploadSeat> {
        let mut seat = self.uploads.seat(owner).ok_or(Error::TooManyUploads)?;
        let turn = tokio::time::timeout(UPLOAD_TURN, Arc::clone(&self.uploads.all).acquire_owned()).await;
        seat.permit = Some(turn.map_err(|_| Error::TooManyUploads)?.map_err(|_| Error::Ending)?);
        Ok(seat)
    }

    /// Stores a file, if it is of a type that is accepted. The database hears of it piece by piece.
    pub async fn store_file(&self, principal: &Principal, _seat: UploadSeat, name: &str, bytes: Bytes) -> Result<StoredFile> {
        let limits = self.files.limits;
        if bytes.len() > limits.max_bytes {
            return Err(Error::FileTooLarge(limits.max_bytes));
        }
        let sha256 = json::hash_bytes(&bytes);
        let refused = |why| Error::UnusableFile { detail: why, errors: Vec::new() };
        self.keep_file(&principal.user_id, shown_name(name), sha256, bytes, refused).await
    }

    /// Reads a file and stores it; `refused` says how it is refused, if it is not accepted.
    pub(super) async fn keep_file(
        &self,
        owner: &UserId,
        name: String,
        sha256: String,
        bytes: Bytes,
        refused: impl FnOnce(String) -> Error + Send,
    ) -> Result<StoredFile> {
        let limits = self.files.limits;
        let facts = match self.files.reader.read(bytes.clone(), &name, limits.text_chars).await {
            Ok(facts) => facts,
            Err(Unreadable::Refused(why)) => return Err(refused(why)),
            Err(Unreadable::Failed(error)) => return Err(Error::NoReader(error)),
        };
        let id = FileId::generate(self.ids.as_ref());
        let new = NewFile {
            id: id.clone(),
            owner: owner.clone(),
            name,
            media_type: facts.media_type,
            size: bytes.len() as u64,
            sha256,
            text: facts.text,
        };
        if !self.store.begin_file(&new, limits.max_per_owner).await? {
            let most = limits.max_per_owner;
            return Err(Error::Conflict(format!("you have {most} files already; delete some that you no longer need")));
        }
        for (number, piece) in (0_u32..).zip(bytes.chunks(FILE_CHUNK)) {
            self.store.add_file_chunk(&id, number, piece).await?;
        }
        self.store.finish_file(owner, &id).await?.ok_or(Error::NotFound("file"))
    }

    /// A file, without its bytes.
    pub async fn file(&self, principal: &Principal, id: &FileId) -> Result<StoredFile> {
        self.store.file(&principal.user_id, id).await?.ok_or(Error::NotFound("file"))
    }

    /// A page of files, newest first.
    pub async fn files(&self, principal: &Principal, page: &PageRequest<FileCursor>) -> Result<Page<StoredFile>> {
        Ok(self.store.files(&principal.user_id, page).await?)
    }

    /// The bytes of a file from piece `number` on, one piece at a time; `None` after the last.
    pub async fn file_piece(&self, owner: &UserId, id: &FileId, number: u32) -> Result<Option<Vec<u8>>> {
        Ok(self.store.file_chunk(owner, id, number).await?)
    }

    /// Deletes a file. Messages keep their references; models read that the file is gone.
    pub async fn delete_file(&self, principal: &Principal, id: &FileId) -> Result<()> {
        if self.store.delete_file(&principal.user_id, id).await? { Ok(()) } else { Err(Error::NotFound("file")) }
    }

    /// Says in the parts of a message what the uploaded files are that they refer to. Whether these are there, and the conversation's own
    /// limit of files, are looked at when the message is stored: a file may go meanwhile, and a request that is repeated is answered as
    /// before.
    pub(super) async fn attach(&self, owner: &UserId, parts: &mut [Part], field: &str) -> Result<()> {
        for (index, part) in parts.iter_mut().enumerate() {
            let (Part::Image(place) | Part::File(place)) = &mut *part else { continue };
            let Some(id) = place.file_id.clone() else { continue };
            let Some(file) = self.store.file(owner, &FileId::from_stored(id)).await? else { continue };
            place.name = Some(shown_name(place.name.as_deref().unwrap_or(&file.name)));
            place.media_type.clone_from(&file.media_type);
            (place.text_chars, place.text_bytes) = (file.text_chars, file.text_bytes);
            match (&*part, file.is_picture()) {
                (Part::Image(_), false) => {
                    let kind = file.media_type;
                    let words = format!("is no picture, but {kind}; send it as a part of type \"file\"");
                    return Err(Error::file(&format!("/{field}/{index}/file_id"), words));
                }
                (Part::File(place), true) => *part = Part::Image(place.clone()),
                (_, _) => {}
            }
        }
        Ok(())
    }

    /// How a message is refused whose file is not there; `places` are the files of its parts.
    pub(super) fn no_file(places: &[Option<String>], file_id: &str, field: &str) -> Error {
        let index = places.iter().position(|place| place.as_deref() == Some(file_id)).unwrap_or_default();
        let words = "there is no such file; upload it with POST /api/v1/files";
        Error::file(&format!("/{field}/{index}/file_id"), words)
    }

    /// How a message is refused with which its conversation would have too many files.
    pub(super) fn too_many_files(files: u32, most: u32, field: &str) -> Error {
        let words = format!("the conversation would have {files} uploaded files; it may have {most}: go on in a new one");
        Error::field(&format!("/{field}"), words)
    }
}

/// A name as it may be shown and stored: the last part of a path, without characters that control what is shown.
pub(super) fn shown_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    // Marks that turn the direction of writing make `gpj.exe` look like a picture.
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}');
    let clean: String = last.chars().filter(|c| !c.is_control() && !turns(*c)).collect();
    let clean = text::prefix_chars(clean.trim(), MAX_FILE_NAME);
    if clean.is_empty() { "file".to_owned() } else { text::storable(clean).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_last_part_of_a_path_without_control_characters() {
        for (name, shown) in [
            ("a.pdf", "a.pdf"),
            ("../../etc/passwd", "passwd"),
            (r"C:\\a\\b.docx", "b.docx"),
            ("a\r\nb: c", "ab: c"),
            (" \u{7} ", "file"),
            ("", "file"),
            ("größe.txt", "größe.txt"),
            ("cv\u{202e}gpj.exe", "cvgpj.exe"),
        ] {
            assert_eq!(shown_name(name), shown);
        }
        assert_eq!(shown_name(&"é".repeat(300)).chars().count(), MAX_FILE_NAME);
    }

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
