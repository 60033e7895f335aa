//! Leaves out of requests the parts that a provider has refused.
//!
//! A refused part stays in the history, so every later request of the conversation would be refused, too. The stored history never
//! changes: a note replaces the part in the request. A client remembers the refusals of a model for a day, in this process; after a
//! restart it learns them again by one refused request.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::domain::conversation::message::{BinaryContent, FilePart, Part, ToolContent};
use crate::domain::model::{Adaptation, ModelError, ModelRequest};
use crate::provider::errors::refusals::{Meaning, PartKind, Refusal};
use crate::provider::request::compose::{Source, file_text};
use crate::support::json;

/// The time that a refusal is remembered: servers get other models under the same name.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3_600);

/// The most models whose refusals are remembered, and the most unreadable parts of one model. The oldest are forgotten.
const MODELS: usize = 256;
const BROKEN_PARTS: usize = 512;

/// The most repetitions of one request without refused parts. The last one leaves out all parts of the refused kind.
pub(in crate::provider) const MAX_REPEATS: usize = 4;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::provider) struct Exclusions {
    kinds: Vec<PartKind>,
    /// Hashes of the contents that the provider could not read.
    broken: VecDeque<String>,
    /// The most images that the model takes; the newest stay.
    most_images: Option<usize>,
}

/// A part of a request that is not text.
#[derive(Debug, Clone, Copy)]
struct Shown<'a> {
    kind: PartKind,
    media_type: &'a str,
    /// Base64, or a URL.
    content: &'a str,
    is_of_tool: bool,
}

impl Shown<'_> {
    fn is(&self, kind: PartKind) -> bool {
        if kind == PartKind::ToolImage { self.is_of_tool && self.kind == PartKind::Image } else { self.kind == kind }
    }
}

#[derive(Debug, Clone, Copy)]
enum Reason {
    Unsupported(PartKind),
    Broken,
    TooMany(usize),
}

/// Returns the word for a part in notes, its plural there, and the change of requests without such parts.
fn words(kind: PartKind) -> [&'static str; 3] {
    match kind {
        PartKind::Image => ["image", "images", "images_left_out"],
        PartKind::Document => ["file", "documents", "documents_left_out"],
        PartKind::Audio => ["audio", "audio", "audio_left_out"],
        PartKind::Video => ["video", "videos", "videos_left_out"],
        PartKind::ToolImage => ["image", "images in tool results", "tool_images_left_out"],
    }
}

impl Reason {
    /// Returns the note that replaces the part in a request.
    fn note(self, kind: PartKind, name: &str) -> String {
        let [what, ..] = words(kind);
        match self {
            Self::Unsupported(refused) => format!("[{what} {name}: the model does not accept {}]", words(refused)[1]),
            Self::Broken => format!("[{what} {name}: the model's provider could not read it]"),
            Self::TooMany(most) => format!("[{what} {name}: left out, the model accepts at most {most} images]"),
        }
    }
}

fn shown_file(file: &FilePart, is_image: bool) -> Option<Shown<'_>> {
    let (media_type, content) = match Source::of(file) {
        Source::Inline { media_type, data } => (media_type, data),
        Source::Remote(url) => (file.media_type.as_str(), url),
        Source::Nowhere => return None,
    };
    let kind = match media_type.split('/').next() {
        _ if is_image => PartKind::Image,
        Some("image") => PartKind::Image,
        Some("audio") => PartKind::Audio,
        Some("video") => PartKind::Video,
        Some(_) | None => PartKind::Document,
    };
    Some(Shown { kind, media_type, content, is_of_tool: false })
}

/// Returns an image of a tool result, unless the request has no bytes of it.
fn shown_binary(binary: &BinaryContent) -> Option<Shown<'_>> {
    let content = binary.data.as_deref()?;
    Some(Shown { kind: PartKind::Image, media_type: &binary.media_type, content, is_of_tool: true })
}

/// Lists the parts of a request that a provider may refuse, the oldest first.
fn shown(request: &ModelRequest) -> Vec<Shown<'_>> {
    let mut all = Vec::new();
    for part in request.messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::Image(file) => all.extend(shown_file(file, true)),
            Part::File(file) => all.extend(shown_file(file, false)),
            Part::ToolResult(result) => all.extend(result.content.iter().filter_map(|content| match content {
                ToolContent::Image(binary) => shown_binary(binary),
                // In a request a note replaces each file.
                ToolContent::Text { .. } | ToolContent::File(_) => None,
            })),
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
        }
    }
    all
}

pub(in crate::provider) fn may_be_refused(request: &ModelRequest) -> bool {
    !shown(request).is_empty()
}

fn leave_out(file: &mut FilePart, kind: PartKind, reason: Reason) {
    let note = reason.note(kind, &name_of(file.name.as_deref(), &file.media_type));
    // The text of a document, or of an image, is worth more than a note alone.
    let words = file.text.take().filter(|text| text.contains('\n')).or_else(|| file_text(file));
    file.text = Some(words.map_or_else(|| note.clone(), |words| format!("{note}\n{words}")));
    file.url = None;
}

fn name_of(name: Option<&str>, media_type: &str) -> String {
    name.map_or_else(|| format!("({media_type})"), str::to_owned)
}

impl Exclusions {
    /// Decides about each shown part of a request, in their order.
    fn judge(&self, request: &ModelRequest) -> Vec<(PartKind, Option<Reason>)> {
        let judge = |part: Shown<'_>| {
            let unsupported = self.kinds.iter().find(|kind| part.is(**kind)).map(|kind| Reason::Unsupported(*kind));
            let is_broken = || !self.broken.is_empty() && self.broken.contains(&hash(&part));
            (part.kind, unsupported.or_else(|| is_broken().then_some(Reason::Broken)))
        };
        let mut reasons: Vec<_> = shown(request).into_iter().map(judge).collect();
        if let Some(most) = self.most_images {
            let images = reasons.iter_mut().rev().filter(|(kind, reason)| *kind == PartKind::Image && reason.is_none());
            images.skip(most).for_each(|(_, reason)| *reason = Some(Reason::TooMany(most)));
        }
        reasons
    }

    /// Replaces the excluded parts by notes. Returns whether there were any.
    fn apply(&self, request: &mut Cow<'_, ModelRequest>) -> bool {
        let reasons = self.judge(request);
        if reasons.iter().all(|(_, reason)| reason.is_none()) {
            return false;
        }
        let mut reasons = reasons.into_iter();
        for part in request.to_mut().messages.iter_mut().flat_map(|message| &mut message.parts) {
            match part {
                Part::Image(file) | Part::File(file) => {
                    if Source::of(file) == Source::Nowhere {
                        continue;
                    }
                    if let Some((kind, Some(reason))) = reasons.next() {
                        leave_out(file, kind, reason);
                    }
                }
                Part::ToolResult(result) => {
                    for content in &mut result.content {
                        let ToolContent::Image(binary) = content else { continue };
                        if shown_binary(binary).is_none() {
                            continue;
                        }
                        if let Some((kind, Some(reason))) = reasons.next() {
                            let name = name_of(binary.name.as_deref(), &binary.media_type);
                            *content = ToolContent::text(reason.note(kind, &name));
                        }
                    }
                }
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
            }
        }
        true
    }

    fn add(&mut self, other: Self) {
        for kind in other.kinds {
            if !self.kinds.contains(&kind) {
                self.kinds.push(kind);
            }
        }
        self.broken.extend(other.broken);
        self.broken.drain(..self.broken.len().saturating_sub(BROKEN_PARTS));
        self.most_images = match (self.most_images, other.most_images) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

fn hash(part: &Shown<'_>) -> String {
    json::hash_bytes(part.content.as_bytes())
}

pub(in crate::provider) struct Change {
    exclusions: Exclusions,
    pub(in crate::provider) adaptation: Adaptation,
}

/// Leaves the refused parts out of a request, which was sent as `body`. Returns `None` if the request holds no such part.
pub(in crate::provider) fn adapt(
    request: &mut Cow<'_, ModelRequest>,
    refusal: Refusal,
    error: &ModelError,
    body: Option<&Value>,
) -> Option<Change> {
    let (exclusions, change) = {
        let may_be_meant = |part: &Shown<'_>| {
            part.is(refusal.part) && (refusal.meaning != Meaning::Unreachable || part.content.starts_with("http"))
        };
        let parts: Vec<Shown<'_>> = shown(request).into_iter().filter(may_be_meant).collect();
        if parts.is_empty() {
            return None;
        }
        match refusal.meaning {
            Meaning::Unsupported => (Exclusions { kinds: vec![refusal.part], ..Exclusions::default() }, words(refusal.part)[2]),
            Meaning::TooMany => {
                let most = most_named(&error.message, parts.len()).unwrap_or(parts.len() / 2);
                (Exclusions { most_images: Some(most), ..Exclusions::default() }, "images_limited")
            }
            Meaning::Broken | Meaning::Unreachable => {
                let refused = refused_among(&parts, error, body);
                let broken = refused.iter().map(|part| hash(part)).collect();
                (Exclusions { broken, ..Exclusions::default() }, "parts_left_out")
            }
        }
    };
    if !exclusions.apply(request) {
        return None;
    }
    let adaptation = Adaptation { change: change.to_owned(), reason: error.message.clone() };
    Some(Change { exclusions, adaptation })
}

/// Returns the largest number in a text below the count: `120 + 0 > 100`.
fn most_named(text: &str, count: usize) -> Option<usize> {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<usize>().ok());
    numbers.filter(|number| (1..count).contains(number)).max()
}

/// Returns the parts that an error is about: by path in the body, by URL, or by media type; all, if it names none.
fn refused_among<'p, 'a>(parts: &'p [Shown<'a>], error: &ModelError, body: Option<&Value>) -> Vec<&'p Shown<'a>> {
    let fields = error.details.as_deref().map(|details| details.fields.as_slice()).unwrap_or_default();
    let texts = fields.iter().map(String::as_str).chain([error.message.as_str()]);
    if let Some(body) = body
        && let Some(found) = texts.clone().flat_map(str::split_whitespace).find_map(|word| at_place(parts, word, body))
    {
        return found;
    }
    let narrowed = |is: &dyn Fn(&Shown<'a>) -> bool| {
        let found: Vec<_> = parts.iter().filter(|part| is(part)).collect();
        (!found.is_empty()).then_some(found)
    };
    let is_named = |part: &Shown<'_>| {
        let bare = part.content.split('?').next().unwrap_or_default();
        bare.starts_with("http") && texts.clone().any(|text| text.contains(bare))
    };
    let has_type = |part: &Shown<'_>| error.message.contains(part.media_type);
    narrowed(&is_named).or_else(|| narrowed(&has_type)).unwrap_or_else(|| parts.iter().collect())
}

const LISTS: [&str; 3] = ["messages", "input", "contents"];

/// Returns the parts at a path such as `messages.4.content.1.image.source.base64.data`, `messages[1].content[0].image_url` or
/// `contents[0].parts[1]`. Steps that the body does not have are names of types.
fn at_place<'p, 'a>(parts: &'p [Shown<'a>], word: &str, body: &Value) -> Option<Vec<&'p Shown<'a>>> {
    let mut steps = word.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|step| !step.is_empty());
    let list = steps.find(|step| LISTS.contains(step))?;
    let mut at = body.get(list)?;
    let mut passed = Vec::new();
    for step in steps {
        let next = match (at, step.parse::<usize>()) {
            (Value::Array(items), Ok(index)) => Some(items.get(index)?),
            (Value::Object(fields), _) => fields.get(step),
            _ => None,
        };
        if let Some(next) = next {
            at = next;
            passed.push(next);
        }
    }
    // A path may lead beside the content, such as to its media type.
    passed.iter().rev().find_map(|place| {
        let found: Vec<_> = parts.iter().filter(|part| holds(place, part.content)).collect();
        (!found.is_empty()).then_some(found)
    })
}

fn holds(place: &Value, content: &str) -> bool {
    match place {
        Value::String(text) => text.ends_with(content),
        Value::Array(items) => items.iter().any(|item| holds(item, content)),
        Value::Object(fields) => fields.values().any(|value| holds(value, content)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[derive(Default)]
pub(in crate::provider) struct Learned {
    models: Mutex<BTreeMap<String, (Instant, Exclusions)>>,
}

impl Learned {
    /// Returns a request without the parts that its model is known to refuse.
    pub(in crate::provider) fn apply<'r>(&self, request: &'r ModelRequest) -> Cow<'r, ModelRequest> {
        let known = {
            let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
            models.get(&request.model).filter(|(until, _)| Instant::now() < *until).map(|(_, known)| known.clone())
        };
        let mut request = Cow::Borrowed(request);
        if let Some(known) = known {
            known.apply(&mut request);
        }
        request
    }

    /// Remembers changes after which a request was accepted. Returns them for the log of the run.
    pub(in crate::provider) fn remember(&self, model: &str, changes: Vec<Change>) -> Vec<Adaptation> {
        if changes.is_empty() {
            return Vec::new();
        }
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        models.retain(|_, (until, _)| now < *until);
        if models.len() >= MODELS
            && let Some(oldest) = models.iter().min_by_key(|(_, (until, _))| *until).map(|(model, _)| model.clone())
        {
            models.remove(&oldest);
        }
        let (until, known) = models.entry(model.to_owned()).or_insert_with(|| (now, Exclusions::default()));
        *until = now + REMEMBERED_FOR;
        let remembered = changes.into_iter().map(|Change { exclusions, adaptation }| {
            known.add(exclusions);
            adaptation
        });
        remembered.collect()
    }
}
