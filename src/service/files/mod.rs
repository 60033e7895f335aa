//! Files that users upload, for their messages to refer to.
//!
//! Owns the limits of uploads. Must not know how a file is read.

pub(super) mod uploads;

use bytes::Bytes;

use crate::documents::ReadFileError;
use crate::domain::access::principal::Principal;
use crate::domain::conversation::file::{FileFacts, FileLimits, FileOrigin, FilePurpose, StoredFile, shown_name};
use crate::domain::conversation::message::Part;
use crate::domain::ids::{FileId, UserId};
use crate::service::files::uploads::UploadPermit;
use crate::service::{Error, FileCursor, Page, PageRequest, Result, Service};
use crate::store::{FileFilter, NewFile, StoredOutcome, store_file};
use crate::support::json;

impl Service {
    pub fn file_limits(&self) -> FileLimits {
        self.files.limits
    }

    /// Waits for a permit, which an upload needs before the bytes of a file are read.
    pub async fn begin_upload(&self, owner: &UserId) -> Result<UploadPermit> {
        self.uploads.permit(owner).await
    }

    /// Stores a file, if its type is accepted. Its bytes are stored in chunks.
    pub async fn store_file(
        &self,
        principal: &Principal,
        _permit: UploadPermit,
        name: &str,
        purpose: FilePurpose,
        bytes: Bytes,
    ) -> Result<StoredFile> {
        let limits = self.files.limits;
        if bytes.len() > limits.max_bytes {
            return Err(Error::FileTooLarge(limits.max_bytes));
        }
        let sha256 = json::hash_bytes(&bytes);
        let refused = |why| Error::UnusableFile { detail: why, errors: Vec::new() };
        self.keep_file(&principal.user_id, purpose, shown_name(name), sha256, bytes, refused).await
    }

    /// Reads and stores a file. `refused` creates the error for a type that is not accepted.
    pub(in crate::service) async fn keep_file(
        &self,
        owner: &UserId,
        purpose: FilePurpose,
        name: String,
        sha256: String,
        bytes: Bytes,
        refused: impl FnOnce(String) -> Error + Send,
    ) -> Result<StoredFile> {
        let facts = match self.files.reader.read(bytes.clone(), &name, self.files.limits.text_chars).await {
            Ok(facts) => facts,
            Err(ReadFileError::Refused(why)) => return Err(refused(why)),
            Err(ReadFileError::Failed(error)) => return Err(Error::NoReader(error)),
        };
        self.store_known(owner, (FileOrigin::Upload, purpose), name, sha256, &bytes, facts).await
    }

    pub(in crate::service) async fn store_known(
        &self,
        owner: &UserId,
        (origin, purpose): (FileOrigin, FilePurpose),
        name: String,
        sha256: String,
        bytes: &[u8],
        facts: FileFacts,
    ) -> Result<StoredFile> {
        let new = NewFile {
            id: FileId::generate(self.ids.as_ref()),
            owner: owner.clone(),
            origin,
            purpose,
            name,
            media_type: facts.media_type,
            size: bytes.len() as u64,
            sha256,
            text: facts.text,
        };
        let most = self.files.limits.per_owner(origin);
        match store_file(self.store.records(), &new, bytes, most).await? {
            StoredOutcome::Stored(file) => Ok(file),
            StoredOutcome::Full => {
                let which = match origin {
                    FileOrigin::Upload => "files",
                    FileOrigin::Content => "files from messages and tool results",
                };
                Err(Error::Conflict(format!("you have {most} {which} already; delete some that you no longer need")))
            }
            StoredOutcome::Gone => Err(Error::NotFound("file")),
        }
    }

    pub async fn file(&self, principal: &Principal, id: &FileId) -> Result<StoredFile> {
        self.store.file(&principal.user_id, id).await?.ok_or(Error::NotFound("file"))
    }

    pub async fn files(
        &self,
        principal: &Principal,
        filter: FileFilter,
        page: &PageRequest<FileCursor>,
    ) -> Result<Page<StoredFile>> {
        Ok(self.store.files(&principal.user_id, filter, page).await?)
    }

    /// Returns one chunk of a file's bytes; `None` after the last.
    pub async fn file_piece(&self, owner: &UserId, id: &FileId, number: u32) -> Result<Option<Vec<u8>>> {
        Ok(self.store.file_chunk(owner, id, number).await?)
    }

    /// Deletes a file. Messages keep their references; models read that the file is gone.
    pub async fn delete_file(&self, principal: &Principal, id: &FileId) -> Result<()> {
        if self.store.delete_file(&principal.user_id, id).await? { Ok(()) } else { Err(Error::NotFound("file")) }
    }

    /// Copies the facts of uploaded files into the parts of a message. Missing files and the conversation's limit are checked when
    /// the message is stored, because a file may be deleted meanwhile, and because a repeated request gets its earlier response.
    pub(in crate::service) async fn attach(&self, owner: &UserId, parts: &mut [Part], field: &str) -> Result<()> {
        for (index, part) in parts.iter_mut().enumerate() {
            let (Part::Image(place) | Part::File(place)) = &mut *part else { continue };
            let Some(id) = place.file_id.clone() else { continue };
            let Some(file) = self.store.file(owner, &FileId::from_stored(id)).await? else { continue };
            place.name = Some(shown_name(place.name.as_deref().unwrap_or(&file.name)));
            place.describe(&file);
            match (&*part, file.is_picture()) {
                (Part::Image(_), false) => {
                    let kind = file.media_type;
                    let words = format!("is not a picture, but {kind}; send it as a part of type \"file\"");
                    return Err(Error::file(&format!("/{field}/{index}/file_id"), words));
                }
                (Part::File(place), true) => *part = Part::Image(place.clone()),
                (_, _) => {}
            }
        }
        Ok(())
    }

    /// Returns the error for a message with a missing file. `places` contains the files of its parts.
    pub(in crate::service) fn no_file(places: &[Option<String>], file_id: &str, field: &str) -> Error {
        let index = places.iter().position(|place| place.as_deref() == Some(file_id)).unwrap_or_default();
        let words = "the file does not exist; upload it with POST /api/v1/files";
        Error::file(&format!("/{field}/{index}/file_id"), words)
    }

    pub(in crate::service) fn too_many_files(files: u32, most: u32, field: &str) -> Error {
        let words =
            format!("the conversation would have {files} uploaded files, and the limit is {most}: continue in a new conversation");
        Error::field(&format!("/{field}"), words)
    }
}
