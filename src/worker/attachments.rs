//! Uploaded files in requests: where a message refers to one, a model gets its bytes or its text. Only the request holds them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::ids::{FileId, UserId};
use crate::domain::message::{BinaryContent, FilePart, Part, TextLimit, ToolContent};
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::store::{AttachedFile, FileStore, StoreResult, WorkerStore, patiently};

/// The most bytes of files in one request: about what providers take. The newest files come first. A file that is referred to again is
/// sent once.
const MOST_BYTES: u64 = 24 * 1024 * 1024;

/// Bytes of files in all requests that are being sent at this moment; others wait. A request holds each byte about four times: as it
/// is remembered, in the part, and in the body, all of them a third longer than the file.
const ALL_BYTES: u32 = 96 * 1024 * 1024;

/// The same of one owner, whose requests wait for each other before they stand in anybody's way.
const OWNER_BYTES: u32 = ALL_BYTES / 3;

/// Files beyond this many bytes are encoded where nobody waits for the thread.
const LARGE: usize = 1024 * 1024;

/// Bytes of files that are remembered, as they are sent.
const REMEMBERED: usize = 64 * 1024 * 1024;

/// How long files are waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// The media type of PDF documents.
const PDF: &str = "application/pdf";

/// A request with its files, and the room in memory that it takes until it is sent.
pub struct Expanded {
    /// The request.
    pub request: ModelRequest,
    _room: Option<Room>,
}

/// An owner's room, and everybody's.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// Puts files into requests.
pub struct Attachments {
    room: Arc<Semaphore>,
    owners: Mutex<HashMap<UserId, Weak<Semaphore>>>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    urls: VecDeque<(FileId, Arc<str>)>,
    bytes: usize,
}

impl Cache {
    fn get(&mut self, id: &FileId) -> Option<Arc<str>> {
        let at = self.urls.iter().position(|(known, _)| known == id)?;
        let found = self.urls.remove(at)?;
        let url = Arc::clone(&found.1);
        self.urls.push_back(found);
        Some(url)
    }

    /// Those that were not used for the longest time make room.
    fn put(&mut self, id: FileId, url: Arc<str>) {
        self.bytes += url.len();
        self.urls.push_back((id, url));
        while self.bytes > REMEMBERED {
            let Some((_, oldest)) = self.urls.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }
}

impl Default for Attachments {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(ALL_BYTES as usize)), owners: Mutex::default(), cache: Mutex::default() }
    }
}

/// A reference to a stored file in a request.
enum Reference<'r> {
    /// A part of a message.
    Part(&'r mut FilePart),
    /// A picture in the result of a tool. Other files in results are notes, beside which their text stands.
    Picture(&'r mut ToolContent),
}

/// The references to files in a request, the newest first.
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
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
        }
    }
    found
}

/// Cuts the texts that are in their own URLs to what the request has room for.
fn cut_inline(request: &mut ModelRequest) {
    for part in request.messages.iter_mut().flat_map(|message| &mut message.parts) {
        let Part::File(file) = part else { continue };
        let (None, Some(_)) = (&file.file_id, file.text_limit) else { continue };
        let url = file.url.take();
        let data = url.as_deref().and_then(|url| url.split_once(";base64,")).map(|(_, data)| data);
        let bytes = data.and_then(|data| STANDARD.decode(data).ok());
        file.text = bytes
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .map(|text| shown_text(file, &text, Rest::None, text.len() as u64));
    }
}

/// Has the pictures named that stand in the request itself, for a model that sees none: its provider would refuse the request for
/// them.
fn name_pictures(request: &mut ModelRequest) {
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
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Image(_) | Part::File(_) => {}
        }
    }
}

impl Attachments {
    /// The request with what its messages refer to. A file that is gone becomes a note; what a model cannot see, its text. Whether it
    /// sees pictures is `sees`, `None` if nobody knows.
    ///
    /// # Errors
    /// If the files cannot be read in time.
    pub async fn expand(&self, store: &dyn WorkerStore, request: ModelRequest, sees: Option<bool>) -> Result<Expanded, ModelError> {
        let unread = || ModelError::new(ModelErrorKind::Unavailable, "the files of the conversation cannot be read at the moment");
        match tokio::time::timeout(PATIENCE, self.fill(store, request, sees)).await {
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

    async fn fill(&self, store: &dyn WorkerStore, mut request: ModelRequest, sees: Option<bool>) -> StoreResult<Expanded> {
        if sees == Some(false) {
            name_pictures(&mut request);
        }
        cut_inline(&mut request);
        // Of a file that is referred to again, the newest reference counts, which is the first here.
        let mut wanted: Vec<(FileId, Option<TextLimit>)> = Vec::new();
        for (reference, id) in references(&mut request) {
            if wanted.iter().all(|(known, _)| *known != id) {
                let limit = match reference {
                    Reference::Part(part) => part.text_limit,
                    Reference::Picture(_) => None,
                };
                wanted.push((id, limit));
            }
        }
        let ids: Vec<FileId> = wanted.iter().map(|(id, _)| id.clone()).collect();
        let Some(owner) = request.owner.clone().filter(|_| !ids.is_empty()) else { return Ok(Expanded { request, _room: None }) };
        let files = store.records();
        // A moment in which the store does not answer is no failure of the model, of which its agent may forgive none.
        let found = patiently(PATIENCE, || files.attached_files(&owner, &ids)).await?;
        let found: HashMap<FileId, AttachedFile> = found.into_iter().map(|file| (file.file.id.clone(), file)).collect();
        let (mut native, mut bytes) = (HashMap::new(), 0_u64);
        for (id, limit) in &wanted {
            // Where there is room for some of its text only, there is none for its pages.
            let Some(AttachedFile { file, .. }) = found.get(id).filter(|_| limit.is_none()) else { continue };
            // Whoever sees pictures gets to see pages, too, if its wire carries documents. Of a model that nobody knows, pictures
            // are tried.
            let goes = match file.media_type.as_str() {
                PDF => sees == Some(true),
                _ => file.is_picture() && sees != Some(false),
            };
            if goes && bytes + file.size <= MOST_BYTES {
                bytes += file.size;
                native.insert(id.clone(), None);
            }
        }
        let room = self.room(&owner, bytes).await;
        for (id, url) in &mut native {
            if let Some(AttachedFile { file, .. }) = found.get(id) {
                *url = self.data_url(files, &owner, id, &file.media_type).await?;
            }
        }
        let mut sent = HashSet::new();
        for (reference, id) in references(&mut request) {
            let attached = found.get(&id);
            let is_again = !sent.insert(id.clone());
            let url = native.get(&id).and_then(Option::as_ref).filter(|_| !is_again);
            match reference {
                Reference::Part(part) => {
                    part.text = Some(if is_again { again(part, attached) } else { words(part, attached, url.is_some()) });
                    part.url = url.map(|url| url.to_string());
                }
                Reference::Picture(content) => show_picture(content, attached, url.map(AsRef::as_ref), is_again),
            }
        }
        Ok(Expanded { request, _room: room })
    }

    /// Waits for room for so many bytes.
    async fn room(&self, owner: &UserId, bytes: u64) -> Option<Room> {
        let bytes = u32::try_from(bytes).unwrap_or(OWNER_BYTES).min(OWNER_BYTES);
        if bytes == 0 {
            return None;
        }
        let own = self.room_of(owner).acquire_many_owned(bytes).await.ok()?;
        Some((own, Arc::clone(&self.room).acquire_many_owned(bytes).await.ok()?))
    }

    fn room_of(&self, owner: &UserId) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = owners.get(owner).and_then(Weak::upgrade) {
            return room;
        }
        owners.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Semaphore::new(OWNER_BYTES as usize));
        owners.insert(owner.clone(), Arc::downgrade(&room));
        room
    }

    /// `None` if the file has gone meanwhile.
    async fn data_url(
        &self,
        files: &dyn FileStore,
        owner: &UserId,
        id: &FileId,
        media_type: &str,
    ) -> StoreResult<Option<Arc<str>>> {
        if let Some(known) = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            return Ok(Some(known));
        }
        let mut bytes = Vec::new();
        for number in 0.. {
            let Some(piece) = patiently(PATIENCE, || files.file_chunk(owner, id, number)).await? else { break };
            bytes.extend_from_slice(&piece);
        }
        let size = bytes.len();
        if size == 0 {
            return Ok(None);
        }
        let begin = format!("data:{media_type};base64,");
        let encode = move || -> Arc<str> {
            let mut url = begin;
            STANDARD.encode_string(&bytes, &mut url);
            url.into()
        };
        let url = if size > LARGE { tokio::task::spawn_blocking(encode).await.ok() } else { Some(encode()) };
        let Some(url) = url else { return Ok(None) };
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).put(id.clone(), Arc::clone(&url));
        Ok(Some(url))
    }
}

/// Puts the bytes of a picture into the result of a tool, or replaces the picture by a note.
fn show_picture(content: &mut ToolContent, attached: Option<&AttachedFile>, url: Option<&str>, is_again: bool) {
    let ToolContent::Image(picture) = content else { return };
    let data = url.and_then(|url| url.split_once(";base64,")).map(|(_, data)| data.to_owned());
    if data.is_some() {
        picture.data = data;
        return;
    }
    let described = picture.described("picture");
    *content = ToolContent::text(match attached {
        None => format!("[{described}: it has been deleted since]"),
        Some(_) if is_again => format!("[{described}: the same as in a later message]"),
        Some(_) => format!("[{described}: not sent, because the model cannot see pictures or the request is full]"),
    });
}

/// What a model reads where a newer message has the same file.
fn again(part: &FilePart, attached: Option<&AttachedFile>) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    match attached {
        Some(_) => format!("[file {name}, {kind}: the same as in a later message]"),
        None => words(part, None, false),
    }
}

/// What a model reads of a file that its wire does not carry.
fn words(part: &FilePart, attached: Option<&AttachedFile>, is_native: bool) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    let Some(AttachedFile { file, text }) = attached else { return format!("[file {name}, {kind}: it has been deleted since]") };
    match text {
        Some(text) => shown_text(part, text, if file.text_cut { Rest::NotKept } else { Rest::None }, file.size),
        None if is_native => format!("[file {name}, {kind}: this model cannot see it]"),
        None if file.is_picture() => not_sent(part),
        None => format!("[file {name}, {kind}: no text was found in it]"),
    }
}

/// What a model reads of a picture that it is not shown.
fn not_sent(part: &FilePart) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    format!("[picture {name}, {kind}: not sent, because the model cannot see pictures or the request is full]")
}

/// Whether a file has more text than is kept of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// No.
    None,
    /// Yes.
    NotKept,
}

/// The text of a file of so many bytes, or as much of it as the request has room for.
fn shown_text(part: &FilePart, text: &str, rest: Rest, size: u64) -> String {
    let (name, kind) = (part.shown_name(), &part.media_type);
    let left = part.text_limit.map_or(text, |limit| limit.cut(text));
    let is_cut = rest == Rest::NotKept || left.len() < text.len();
    let chars = if is_cut { left.chars().count() } else { 0 };
    let cut = match is_cut {
        true => format!("\n[cut: only the first {chars} characters of the text of {name}, which has {size} bytes]"),
        false => String::new(),
    };
    format!("[file {name}, {kind}]\n{left}{cut}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::ids::{ConversationId, MessageId, PartId, RunId};
    use crate::domain::message::{Message, Role, TextPart};
    use crate::domain::model::ModelOptions;

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
        /// What a budget takes a file for is what is sent of it.
        #[test]
        fn no_file_is_longer_than_its_budget_takes_it_for(
            text in any::<String>(),
            name in prop::option::of("\\PC{0,255}"),
            limit in prop::option::of((0..40_usize, 0..90_usize)),
            (size, is_cut) in (any::<u64>(), any::<bool>()),
        ) {
            let part = part(name, limit);
            let shown = shown_text(&part, &text, if is_cut { Rest::NotKept } else { Rest::None }, size);
            let (chars, bytes) = limit.unwrap_or((usize::MAX, usize::MAX));
            prop_assert!(shown.len() <= part.words_around() + text.len().min(bytes));
            prop_assert!(shown.chars().count() <= part.words_around() + text.chars().count().min(chars));
            let is_whole = text.len() <= bytes && text.chars().count() <= chars;
            prop_assert_eq!(shown.ends_with(" bytes]"), is_cut || !is_whole || text.ends_with(" bytes]"));
        }
    }

    #[test]
    fn a_text_in_a_url_is_cut_between_characters() {
        let url = format!("data:text/plain;base64,{}", STANDARD.encode("\u{65e5}\u{672c}\u{8a9e}"));
        let inline = |limit| FilePart { url: Some(url.clone()), ..part(Some("a.txt".to_owned()), limit) };
        let cut = |limit| {
            let words = TextPart { id: PartId::from_stored("part_2".to_owned()), text: String::new() };
            let message = Message::of_request(
                MessageId::from_stored("msg_1".to_owned()),
                (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned())),
                Role::User,
                words,
            );
            let messages = vec![Message { parts: vec![Part::File(inline(limit))], ..message }];
            let mut request = ModelRequest {
                owner: None,
                model: "a/b".to_owned(),
                system: String::new(),
                messages,
                tools: Vec::new(),
                options: ModelOptions::default(),
                window: None,
            };
            cut_inline(&mut request);
            let Part::File(file) = request.messages.remove(0).parts.remove(0) else { panic!("it stays a file") };
            (file.url.is_some(), file.text)
        };
        assert_eq!(cut(None), (true, None), "it fits");
        let said = "[file a.txt, text/plain]\n\u{65e5}\n[cut: only the first 1 characters of the text of a.txt, which has 9 bytes]";
        assert_eq!(cut(Some((2, 5))), (false, Some(said.to_owned())));
    }

    #[test]
    fn what_is_not_used_for_long_is_forgotten_first() {
        let id = |n: u32| FileId::from_stored(format!("file_{n}"));
        let third: Arc<str> = "x".repeat(REMEMBERED / 3).into();
        let mut cache = Cache::default();
        for n in 0..3 {
            cache.put(id(n), Arc::clone(&third));
        }
        assert!(cache.get(&id(0)).is_some());
        cache.put(id(3), Arc::clone(&third));
        assert!(cache.get(&id(1)).is_none(), "it was not used since");
        assert!(cache.get(&id(0)).is_some() && cache.get(&id(3)).is_some());
        cache.put(id(4), "x".repeat(REMEMBERED + 1).into());
        assert!(cache.get(&id(4)).is_none() && cache.bytes == 0, "nothing is larger than all of it");
    }
}
