//! Adds uploaded files to requests: the content replaces a message's reference to a file. Must not know dialects.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::conversation::{BinaryContent, FilePart, Part, TextLimit, ToolContent};
use crate::domain::ids::{FileId, UserId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::store::{AttachedFile, RecordStore, StoreResult, WorkerStore, retry_while_unavailable};
use crate::support::locks::lock;

/// The maximum bytes of files in one request, about as much as providers accept. The newest files have precedence, and each file is
/// sent once.
const MAX_REQUEST_BYTES: u64 = 24 * 1024 * 1024;

/// The maximum bytes of files in all requests that are being sent; others wait. Each byte uses about four bytes of memory, because
/// its base64 text is in the cache, the part and the body.
const MAX_PROCESS_BYTES: u32 = 96 * 1024 * 1024;

/// The same limit per owner, so that one owner cannot block the others.
const MAX_OWNER_BYTES: u32 = MAX_PROCESS_BYTES / 3;

/// Files larger than this are encoded on a blocking thread.
const BLOCKING_ENCODE_BYTES: usize = 1024 * 1024;

/// The capacity of the cache of encoded files, in bytes.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// The time limit for reading the files of one request.
const READ_LIMIT: Duration = Duration::from_secs(20);

const PDF: &str = "application/pdf";

/// A request with its files, and the memory permits that it holds until it is sent.
pub struct RequestWithFiles {
    pub request: ModelRequest,
    _memory: Option<MemoryPermits>,
}

/// The memory permits of an owner and of the process.
type MemoryPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

pub struct Attachments {
    memory: Arc<Semaphore>,
    owners: Mutex<HashMap<UserId, Weak<Semaphore>>>,
    /// Data URLs by file.
    cache: Cache<FileId, Arc<str>>,
}

impl Default for Attachments {
    fn default() -> Self {
        let size = |_: &FileId, url: &Arc<str>| u32::try_from(url.len()).unwrap_or(u32::MAX);
        let cache = Cache::builder().max_capacity(CACHE_BYTES).weigher(size).eviction_policy(EvictionPolicy::lru()).build();
        Self { memory: Arc::new(Semaphore::new(MAX_PROCESS_BYTES as usize)), owners: Mutex::default(), cache }
    }
}

/// A reference to a stored file in a request.
enum Reference<'r> {
    Part(&'r mut FilePart),
    /// An image in the result of a tool. Other files in results are notes with their text.
    Picture(&'r mut ToolContent),
}

/// Returns the references to files in a request, newest first.
fn references(request: &mut ModelRequest) -> Vec<(Reference<'_>, FileId)> {
    let mut found = Vec::new();
    let id = |file_id: &Option<String>| file_id.clone().map(FileId::from_stored);
    for part in request.messages.iter_mut().rev().flat_map(|message| &mut message.parts) {
        match part {
            Part::Image(file) | Part::File(file) => {
                if let Some(id) = id(&file.file_id) {
                    found.push((Reference::Part(file), id));
                }
            }
            Part::ToolResult(result) => {
                for content in &mut result.content {
                    if let ToolContent::Image(BinaryContent { file_id, data: None, .. }) = content
                        && let Some(id) = id(file_id)
                    {
                        found.push((Reference::Picture(content), id));
                    }
                }
            }
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => {}
        }
    }
    found
}

/// Replaces images in tool results, and inline images, by notes. Used for a model without vision, whose provider would refuse the
/// request.
fn name_images(request: &mut ModelRequest) {
    for part in request.messages.iter_mut().flat_map(|message| &mut message.parts) {
        match part {
            Part::ToolResult(result) => {
                for content in &mut result.content {
                    if let ToolContent::Image(picture) = content {
                        *content = ToolContent::text(picture.note("picture"));
                    }
                }
            }
            Part::Image(picture) if picture.file_id.is_none() => {
                picture.url = None;
                picture.text = Some(not_sent(picture));
            }
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
        }
    }
}

impl Attachments {
    /// Replaces references by content. A deleted file becomes a note; a file that the model cannot process becomes its text. `has_vision` is
    /// whether the model has vision, if known. Fails if the files cannot be read in time.
    pub async fn add_files(
        &self,
        store: &dyn WorkerStore,
        request: ModelRequest,
        has_vision: Option<bool>,
    ) -> Result<RequestWithFiles, ModelError> {
        let unread = || ModelError::new(ModelErrorKind::Unavailable, "the files of the conversation cannot be read now");
        match tokio::time::timeout(READ_LIMIT, self.read_and_replace(store, request, has_vision)).await {
            Ok(Ok(expanded)) => Ok(expanded),
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the files of a conversation cannot be read");
                Err(unread())
            }
            Err(_elapsed) => {
                tracing::warn!("reading the files of a conversation took too long");
                Err(unread())
            }
        }
    }

    async fn read_and_replace(
        &self,
        store: &dyn WorkerStore,
        mut request: ModelRequest,
        has_vision: Option<bool>,
    ) -> StoreResult<RequestWithFiles> {
        if has_vision == Some(false) {
            name_images(&mut request);
        }
        // The newest reference to a file decides about its text limit. `references` returns it first.
        let mut unique: Vec<(FileId, Option<TextLimit>)> = Vec::new();
        for (reference, id) in references(&mut request) {
            if unique.iter().all(|(known, _)| *known != id) {
                let limit = match reference {
                    Reference::Part(part) => part.text_limit,
                    Reference::Picture(_) => None,
                };
                unique.push((id, limit));
            }
        }
        let ids: Vec<FileId> = unique.iter().map(|(id, _)| id.clone()).collect();
        let Some(owner) = request.owner.clone().filter(|_| !ids.is_empty()) else {
            return Ok(RequestWithFiles { request, _memory: None });
        };
        let files = store.records();
        // Retried, because an unavailable store is no failure of the model, and an agent may have no retries for model failures.
        let found = retry_while_unavailable(READ_LIMIT, || files.attached_files(&owner, &ids)).await?;
        let found: HashMap<FileId, AttachedFile> = found.into_iter().map(|file| (file.file.id.clone(), file)).collect();
        let (mut native_urls, mut bytes) = (HashMap::new(), 0_u64);
        for (id, limit) in &unique {
            // If the text of a file is cut to fit the request, the file itself does not fit either.
            let Some(AttachedFile { file, .. }) = found.get(id).filter(|_| limit.is_none()) else { continue };
            // A model with vision also gets PDF pages, if its dialect supports documents. If vision is unknown, images are tried.
            let fits_dialect = match file.media_type.as_str() {
                PDF => has_vision == Some(true),
                _ => file.is_picture() && has_vision != Some(false),
            };
            if fits_dialect && bytes + file.size <= MAX_REQUEST_BYTES {
                bytes += file.size;
                native_urls.insert(id.clone(), None);
            }
        }
        let memory = self.reserve_memory(&owner, bytes).await;
        for (id, url) in &mut native_urls {
            if let Some(AttachedFile { file, .. }) = found.get(id) {
                *url = self.data_url(files, &owner, id, &file.media_type).await?;
            }
        }
        let mut sent = HashSet::new();
        for (reference, id) in references(&mut request) {
            let attached = found.get(&id);
            let is_repeated = !sent.insert(id.clone());
            let url = native_urls.get(&id).and_then(Option::as_ref).filter(|_| !is_repeated);
            match reference {
                Reference::Part(part) => {
                    part.text =
                        Some(if is_repeated { repeated_note(part, attached) } else { file_text(part, attached, url.is_some()) });
                    part.url = url.map(|url| url.to_string());
                }
                Reference::Picture(content) => show_image(content, attached, url.map(AsRef::as_ref), is_repeated),
            }
        }
        Ok(RequestWithFiles { request, _memory: memory })
    }

    async fn reserve_memory(&self, owner: &UserId, bytes: u64) -> Option<MemoryPermits> {
        let bytes = u32::try_from(bytes).unwrap_or(MAX_OWNER_BYTES).min(MAX_OWNER_BYTES);
        if bytes == 0 {
            return None;
        }
        let own = self.owner_memory(owner).acquire_many_owned(bytes).await.ok()?;
        Some((own, Arc::clone(&self.memory).acquire_many_owned(bytes).await.ok()?))
    }

    fn owner_memory(&self, owner: &UserId) -> Arc<Semaphore> {
        let mut owners = lock(&self.owners);
        if let Some(memory) = owners.get(owner).and_then(Weak::upgrade) {
            return memory;
        }
        owners.retain(|_, memory| memory.strong_count() > 0);
        let memory = Arc::new(Semaphore::new(MAX_OWNER_BYTES as usize));
        owners.insert(owner.clone(), Arc::downgrade(&memory));
        memory
    }

    /// Returns `None` if the file was deleted meanwhile.
    async fn data_url(
        &self,
        files: &dyn RecordStore,
        owner: &UserId,
        id: &FileId,
        media_type: &str,
    ) -> StoreResult<Option<Arc<str>>> {
        if let Some(known) = self.cache.get(id) {
            return Ok(Some(known));
        }
        let mut bytes = Vec::new();
        for number in 0.. {
            let Some(piece) = retry_while_unavailable(READ_LIMIT, || files.file_chunk(owner, id, number)).await? else { break };
            bytes.extend_from_slice(&piece);
        }
        let size = bytes.len();
        if size == 0 {
            return Ok(None);
        }
        let prefix = format!("data:{media_type};base64,");
        let encode = move || -> Arc<str> {
            let mut url = prefix;
            STANDARD.encode_string(&bytes, &mut url);
            url.into()
        };
        let url = if size > BLOCKING_ENCODE_BYTES { tokio::task::spawn_blocking(encode).await.ok() } else { Some(encode()) };
        let Some(url) = url else { return Ok(None) };
        self.remember(id.clone(), &url);
        Ok(Some(url))
    }

    fn remember(&self, id: FileId, url: &Arc<str>) {
        self.cache.insert(id, Arc::clone(url));
        // Applies the limit now, which the cache otherwise does at intervals.
        self.cache.run_pending_tasks();
    }
}

/// Puts the bytes of an image into the result of a tool, or replaces the image by a note.
fn show_image(content: &mut ToolContent, attached: Option<&AttachedFile>, url: Option<&str>, is_repeated: bool) {
    let ToolContent::Image(picture) = content else { return };
    let data = url.and_then(|url| url.split_once(";base64,")).map(|(_, data)| data.to_owned());
    if data.is_some() {
        picture.data = data;
        return;
    }
    let described = picture.described("picture");
    *content = ToolContent::text(match attached {
        None => format!("[{described}: it has been deleted since]"),
        Some(_) if is_repeated => format!("[{described}: the same as in a later message]"),
        Some(_) => format!("[{described}: not sent, because the model accepts no images or the request is full]"),
    });
}

/// Returns the note for a file that a newer message also has.
fn repeated_note(part: &FilePart, attached: Option<&AttachedFile>) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    match attached {
        Some(_) => format!("[file {name}, {kind}: the same as in a later message]"),
        None => file_text(part, None, false),
    }
}

/// Returns the text that a dialect sends if it does not send the file itself.
fn file_text(part: &FilePart, attached: Option<&AttachedFile>, is_native: bool) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    let Some(AttachedFile { file, text }) = attached else { return format!("[file {name}, {kind}: it has been deleted since]") };
    match text {
        Some(text) => shown_text(part, text, file.text_cut, file.size),
        None if is_native => format!("[file {name}, {kind}: this model does not accept it]"),
        None if file.is_picture() => not_sent(part),
        None => format!("[file {name}, {kind}: no text was found in it]"),
    }
}

/// Returns the note for an image that is not sent.
fn not_sent(part: &FilePart) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    format!("[picture {name}, {kind}: not sent, because the model accepts no images or the request is full]")
}

/// Returns the text of a file of `size` bytes, cut to the limit of the request. `has_more` is whether the file has text that is not stored.
fn shown_text(part: &FilePart, text: &str, has_more: bool, size: u64) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    let cut_text = part.text_limit.map_or(text, |limit| limit.cut(text));
    let is_cut = has_more || cut_text.len() < text.len();
    let chars = if is_cut { cut_text.chars().count() } else { 0 };
    let cut = match is_cut {
        true => format!("\n[cut: only the first {chars} characters of the text of {name}, which has {size} bytes]"),
        false => String::new(),
    };
    format!("[file {name}, {kind}]\n{cut_text}{cut}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::ids::PartId;

    fn part(name: Option<String>, limit: Option<(usize, usize)>) -> FilePart {
        FilePart {
            id: PartId::from_stored("part_1".to_owned()),
            media_type: "text/plain".to_owned(),
            url: None,
            file_id: None,
            size: None,
            name,
            text_chars: None,
            text_bytes: None,
            text_limit: limit.map(|(chars, bytes)| TextLimit { chars, bytes }),
            text: None,
        }
    }

    proptest! {
        /// The request sends as much of a file as the budget counted.
        #[test]
        fn no_file_is_longer_than_its_budget_takes_it_for(
            text in any::<String>(),
            name in prop::option::of("\\PC{0,255}"),
            limit in prop::option::of((0..40_usize, 0..90_usize)),
            (size, is_cut) in (any::<u64>(), any::<bool>()),
        ) {
            let part = part(name, limit);
            let shown = shown_text(&part, &text, is_cut, size);
            let (chars, bytes) = limit.unwrap_or((usize::MAX, usize::MAX));
            prop_assert!(shown.len() <= part.words_around() + text.len().min(bytes));
            prop_assert!(shown.chars().count() <= part.words_around() + text.chars().count().min(chars));
            let is_whole = text.len() <= bytes && text.chars().count() <= chars;
            prop_assert_eq!(shown.ends_with(" bytes]"), is_cut || !is_whole || text.ends_with(" bytes]"));
        }
    }

    #[test]
    fn text_of_a_file_is_cut_between_characters() {
        let part = part(Some("a.txt".to_owned()), Some((2, 5)));
        let cut = "[file a.txt, text/plain]\n\u{65e5}\n[cut: only the first 1 characters of the text of a.txt, which has 9 bytes]";
        assert_eq!(shown_text(&part, "\u{65e5}\u{672c}\u{8a9e}", false, 9), cut);
    }

    #[test]
    fn least_recently_used_attachment_is_evicted_first() {
        let id = |n: u32| FileId::from_stored(format!("file_{n}"));
        let all = usize::try_from(CACHE_BYTES).unwrap();
        let third: Arc<str> = "x".repeat(all / 3).into();
        let files = Attachments::default();
        for n in 0..3 {
            files.remember(id(n), &third);
        }
        assert!(files.cache.get(&id(0)).is_some());
        files.remember(id(3), &third);
        assert!(files.cache.get(&id(1)).is_none(), "it was not used since");
        assert!(files.cache.get(&id(0)).is_some() && files.cache.get(&id(3)).is_some());
        files.remember(id(4), &"x".repeat(all + 1).into());
        assert!(
            files.cache.get(&id(4)).is_none() && files.cache.weighted_size() <= CACHE_BYTES,
            "nothing is larger than all of it"
        );
    }
}
