//! Stores binary content of tool results, such as an image, as a file of the run's owner, before the engine decides about the
//! outcome.
//!
//! So results, events and messages contain only small references. Content that cannot be stored in time stays in the outcome, so that no
//! result is lost. A file whose outcome was never committed is removed with other unused files. Pictures that a model made are stored in
//! the same way. Must not know what the engine decides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::documents::{FileDeps, FileKind, ReadFileError};
use crate::domain::conversation::file::{decoded, default_name, is_text_type, other_text, utf8_text};
use crate::domain::conversation::{BinaryContent, FileOrigin, FilePurpose, FileText, ToolContent};
use crate::domain::ids::{FileId, UserId};
use crate::domain::tool::ToolOutcome;
use crate::store::{NewFile, StoredOutcome, WorkerStore, retry_while_unavailable, store_file};
use crate::support::ids::SharedIds;
use crate::support::json;
use crate::support::text::prefix_chars;
use crate::worker::WorkerDeps;

/// How long to wait for an unavailable database.
const STORE_LIMIT: Duration = Duration::from_secs(20);

/// The time limit for all content of one call.
const STORE_ALL_LIMIT: Duration = Duration::from_secs(45);

/// The maximum number of files of one result. Each file needs a row, a note in each request to a model, and perhaps a process that
/// reads it.
const MAX_FILES: usize = 32;

pub struct ContentStore {
    store: Arc<dyn WorkerStore>,
    ids: SharedIds,
    files: FileDeps,
}

/// The bytes and files that one result may still store.
struct ResultQuota {
    bytes: usize,
    files: usize,
}

impl ContentStore {
    pub fn new(deps: &WorkerDeps) -> Self {
        Self { store: Arc::clone(&deps.store), ids: Arc::clone(&deps.ids), files: deps.files.clone() }
    }

    /// Replaces inline content by references. Content beyond a limit becomes a note with the reason: the call does not fail. A run that is
    /// stopped does not wait: the result stays unchanged.
    pub async fn store_content(&self, owner: &UserId, outcome: &mut ToolOutcome, stop: &CancellationToken) {
        let carries_bytes = |content: &ToolContent| content.binary().is_some_and(|binary| binary.data.is_some());
        if !outcome.content.iter().any(carries_bytes) {
            return;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            stored = timeout(STORE_ALL_LIMIT, self.references(owner, outcome.content.clone())) => match stored {
                Ok(content) => outcome.content = content,
                Err(_elapsed) => tracing::warn!("binary content of a tool result was not stored within {} s", STORE_ALL_LIMIT.as_secs()),
            },
        }
    }

    /// Stores a picture that a model made. Returns a note if it cannot be stored.
    pub async fn store_picture(&self, owner: &UserId, picture: BinaryContent) -> Result<BinaryContent, String> {
        let mut quota = ResultQuota { bytes: self.files.limits.max_bytes_per_call, files: 1 };
        let described = picture.described("picture");
        match timeout(STORE_ALL_LIMIT, self.store_one(owner, picture, "picture", None, &mut quota)).await {
            Ok(Ok(stored)) if stored.file_id.is_some() => Ok(stored),
            Ok(Err(note)) => Err(note),
            Ok(Ok(_)) | Err(_) => Err(format!("[{described}: not kept, the database did not answer in time]")),
        }
    }

    async fn references(&self, owner: &UserId, content: Vec<ToolContent>) -> Vec<ToolContent> {
        let mut quota = ResultQuota { bytes: self.files.limits.max_bytes_per_call, files: MAX_FILES };
        let mut references = Vec::with_capacity(content.len());
        for piece in content {
            match piece {
                ToolContent::Image(binary) if binary.data.is_some() => {
                    references.push(match self.store_one(owner, binary, "picture", None, &mut quota).await {
                        Ok(stored) => ToolContent::Image(stored),
                        Err(note) => ToolContent::text(note),
                    });
                }
                ToolContent::File(binary) if binary.data.is_some() => {
                    references.extend(self.store_with_text(owner, binary, &mut quota).await);
                }
                piece @ (ToolContent::Text { .. } | ToolContent::Image(_) | ToolContent::File(_)) => references.push(piece),
            }
        }
        references
    }

    /// Stores a file, and returns its reference followed by its text.
    async fn store_with_text(&self, owner: &UserId, mut binary: BinaryContent, quota: &mut ResultQuota) -> Vec<ToolContent> {
        let Some(bytes) = binary.data.as_deref().and_then(decoded).map(Bytes::from) else { return Vec::new() };
        let name = binary.name.clone().unwrap_or_else(|| default_name(&binary.media_type));
        let is_refused = quota.files == 0 || bytes.len() > self.files.limits.max_bytes.min(quota.bytes);
        let (text, note) = match is_refused {
            true => (None, None),
            false => self.text(&bytes, &name, &mut binary.media_type).await,
        };
        let first = match self.store_one(owner, binary, "file", text, quota).await {
            Ok(stored) => ToolContent::File(stored),
            Err(note) => ToolContent::text(note),
        };
        std::iter::once(first).chain(note.map(ToolContent::text)).collect()
    }

    /// Returns the text of a file, and the note with this text for a model. Sets the media type of a document from its bytes,
    /// because the tool may declare a wrong one.
    async fn text(&self, bytes: &Bytes, name: &str, media_type: &mut String) -> (Option<FileText>, Option<String>) {
        let most = self.files.limits.text_chars;
        let (text, encoding) = if FileKind::of(bytes).needs_reader() {
            let why = match self.files.reader.read(bytes.clone(), name, most).await {
                Ok(facts) => {
                    media_type.clone_from(&facts.media_type);
                    match facts.text {
                        Some(text) => Ok(text),
                        None => Err(format!("[no text was found in {name}]")),
                    }
                }
                Err(ReadFileError::Refused(why)) => Err(format!("[the text of {name} cannot be read: {why}]")),
                Err(ReadFileError::Failed(error)) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "the process that reads files cannot be started");
                    Err(format!("[the text of {name} cannot be read: the server cannot read documents now]"))
                }
            };
            match why {
                Ok(text) => (text, ""),
                Err(note) => return (None, Some(note)),
            }
        } else if let Some(text) = utf8_text(bytes) {
            (shortened(text, most), "")
        } else if is_text_type(media_type) {
            let (text, encoding) = other_text(bytes);
            let encoding = if encoding == "UTF-16" { ", read as UTF-16" } else { ", which is not UTF-8, read as Latin-1" };
            (shortened(&text, most), encoding)
        } else {
            return (None, None);
        };
        let cut = if text.is_cut { "\n[cut: the file has more text]" } else { "" };
        let note = format!("[text of {name}{encoding}]\n{}{cut}", text.words);
        (Some(text), Some(note))
    }

    /// Stores one file, or returns a note with the reason why it is not stored.
    async fn store_one(
        &self,
        owner: &UserId,
        binary: BinaryContent,
        kind: &str,
        text: Option<FileText>,
        quota: &mut ResultQuota,
    ) -> Result<BinaryContent, String> {
        let described = binary.described(kind);
        let bytes = binary.data.as_deref().and_then(decoded).unwrap_or_default();
        let limits = &self.files.limits;
        if bytes.len() > limits.max_bytes {
            return Err(format!("[{described}: not stored, one file may have {} bytes]", limits.max_bytes));
        }
        if bytes.len() > quota.bytes {
            return Err(format!(
                "[{described}: not stored, the files of one call may have {} bytes together]",
                limits.max_bytes_per_call
            ));
        }
        if quota.files == 0 {
            return Err(format!("[{described}: not stored, one call may return {MAX_FILES} files]"));
        }
        let name = binary.name.clone().unwrap_or_else(|| default_name(&binary.media_type));
        let (sha256, most) = (json::hash_bytes(&bytes), limits.max_content_per_owner);
        let stored = retry_while_unavailable(STORE_LIMIT, || async {
            // Each attempt has its own id, because the outcome of the previous one is unknown.
            let new = NewFile {
                id: FileId::generate(self.ids.as_ref()),
                owner: owner.clone(),
                origin: FileOrigin::Content,
                purpose: FilePurpose::default(),
                name: name.clone(),
                media_type: binary.media_type.clone(),
                size: bytes.len() as u64,
                sha256: sha256.clone(),
                text: text.clone(),
            };
            store_file(self.store.records(), &new, &bytes, most).await
        });
        match stored.await {
            Ok(StoredOutcome::Stored(file)) => {
                (quota.bytes, quota.files) = (quota.bytes - bytes.len(), quota.files - 1);
                Ok(BinaryContent::stored(&file))
            }
            Ok(StoredOutcome::Full) => {
                tracing::warn!(
                    limit = most,
                    "binary content of a tool result is not stored: its user has reached limits.max_content_files_per_owner"
                );
                Err(format!("[{described}: not stored, the user has reached the limit of {most} files of this kind]"))
            }
            Ok(StoredOutcome::Gone) => Err(format!("[{described}: it was deleted while it was being stored]")),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "binary content of a tool result cannot be stored as a file"
                );
                Ok(binary)
            }
        }
    }
}

fn shortened(text: &str, most_chars: usize) -> FileText {
    let words = prefix_chars(text, most_chars).to_owned();
    FileText { is_cut: words.len() < text.len(), words }
}
