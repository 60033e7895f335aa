//! Notes in place of images, documents, audio and videos that a model does not accept, or that its provider could not read.
//!
//! A refused part stays in the history, so every later request of the conversation would be refused, too. The stored history never
//! changes: a note replaces the part in the request. Owns these notes. Must not know the forms of the dialects.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::limitation::Limitation;
use crate::domain::conversation::{BinaryContent, FilePart, Part, ToolContent};
use crate::domain::model::{ModelError, ModelRequest};
use crate::provider::errors::refusals::{Meaning, PartKind, PartRefusal};
use crate::provider::request::shared_parts::Source;
use crate::support::json;

/// The number of base64 bytes that are decoded for the size of an image. A photograph has up to 64 KiB of metadata before it. Divisible by
/// four.
const IMAGE_HEADER: usize = 128 * 1024;

/// The parts of requests that are left out.
#[derive(Debug, Default)]
pub(super) struct Exclusions<'l> {
    kinds: Vec<PartKind>,
    /// Hashes of the contents that the provider could not read.
    broken: HashSet<&'l str>,
    /// The maximum number of images; the newest stay.
    max_images: Option<usize>,
    /// The maximum number of bytes of an image as base64.
    max_image_bytes: Option<usize>,
    /// The longest side of an image, in pixels.
    max_image_edge: Option<usize>,
}

/// A part of a request that is not text.
#[derive(Debug, Clone, Copy)]
struct MediaPart<'a> {
    kind: PartKind,
    media_type: &'a str,
    /// Base64, or a URL.
    content: &'a str,
    is_of_tool: bool,
}

impl MediaPart<'_> {
    fn is(&self, kind: PartKind) -> bool {
        if kind == PartKind::ToolImage { self.is_of_tool && self.kind == PartKind::Image } else { self.kind == kind }
    }
}

#[derive(Debug, Clone, Copy)]
enum Reason {
    Unsupported(PartKind),
    Broken,
    TooMany(usize),
    TooLarge(usize),
    TooLong(usize),
}

impl Reason {
    /// Returns the note that replaces the part in a request.
    fn note(self, kind: PartKind, name: &str) -> String {
        let [label, ..] = kind.words();
        match self {
            Self::Unsupported(refused) => format!("[{label} {name}: the model does not accept {}]", refused.words()[1]),
            Self::Broken => format!("[{label} {name}: the model's provider could not read it]"),
            Self::TooMany(most) => format!("[{label} {name}: left out, the model accepts at most {most} images]"),
            Self::TooLarge(most) => {
                format!("[{label} {name}: left out, its base64 form exceeds the provider's limit of {most} bytes]")
            }
            Self::TooLong(most) => {
                format!("[{label} {name}: left out, a side is longer than the provider's limit of {most} pixels]")
            }
        }
    }
}

fn shown_file(file: &FilePart, is_image: bool) -> Option<MediaPart<'_>> {
    let (media_type, content) = match Source::of(file) {
        Source::Inline { media_type, data } => (media_type, data),
        Source::Remote(url) => (file.media_type.as_str(), url),
        Source::Unusable => return None,
    };
    let kind = match media_type.split('/').next() {
        _ if is_image => PartKind::Image,
        Some("image") => PartKind::Image,
        Some("audio") => PartKind::Audio,
        Some("video") => PartKind::Video,
        Some(_) | None => PartKind::Document,
    };
    Some(MediaPart { kind, media_type, content, is_of_tool: false })
}

/// Returns an image of a tool result, if the request contains its bytes.
fn shown_binary(binary: &BinaryContent) -> Option<MediaPart<'_>> {
    let content = binary.data.as_deref()?;
    Some(MediaPart { kind: PartKind::Image, media_type: &binary.media_type, content, is_of_tool: true })
}

/// Lists the parts of a request that a provider may refuse, oldest first.
fn media_parts(request: &ModelRequest) -> Vec<MediaPart<'_>> {
    let mut all = Vec::new();
    for part in request.messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::Image(file) => all.extend(shown_file(file, true)),
            Part::File(file) => all.extend(shown_file(file, false)),
            Part::ToolResult(result) => all.extend(result.content.iter().filter_map(|content| match content {
                ToolContent::Image(binary) => shown_binary(binary),
                // A note replaces each file before a request is built.
                ToolContent::Text { .. } | ToolContent::File(_) => None,
            })),
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => {}
        }
    }
    all
}

pub(in crate::provider) fn may_be_refused(request: &ModelRequest) -> bool {
    !media_parts(request).is_empty()
}

fn leave_out(file: &mut FilePart, kind: PartKind, reason: Reason) {
    let note = reason.note(kind, &name_of(file.name.as_deref(), &file.media_type));
    // A text with several lines has the content of a document or image, and stays after the note. One line is only a note.
    let words = file.text.take().filter(|text| text.contains('\n'));
    file.text = Some(words.map_or_else(|| note.clone(), |words| format!("{note}\n{words}")));
    file.url = None;
}

/// Returns the longer side of an image in base64, in pixels, unless its header is unreadable.
fn longer_side(content: &str) -> Option<usize> {
    let header = content.get(..content.len().min(IMAGE_HEADER))?;
    let size = imagesize::blob_size(&STANDARD.decode(header).ok()?).ok()?;
    Some(size.width.max(size.height))
}

fn name_of(name: Option<&str>, media_type: &str) -> String {
    name.map_or_else(|| format!("({media_type})"), str::to_owned)
}

impl<'l> Exclusions<'l> {
    pub(super) fn of(limitations: &'l [Limitation]) -> Self {
        let mut exclusions = Self::default();
        for limitation in limitations {
            if let Limitation::NoParts(kind) = limitation {
                exclusions.kinds.push(*kind);
            } else if let Limitation::UnreadablePart(hash) = limitation {
                exclusions.broken.insert(hash);
            } else if let Limitation::MaxImages(most) = limitation {
                exclusions.max_images = Some(exclusions.max_images.map_or(*most, |known| known.min(*most)));
            } else if let Limitation::MaxImageBytes(most) = limitation {
                exclusions.max_image_bytes = Some(*most);
            } else if let Limitation::MaxImageEdge(most) = limitation {
                exclusions.max_image_edge = Some(*most);
            }
        }
        exclusions
    }

    /// Returns the kind and the reason for exclusion of each media part, in the order of the request.
    fn part_exclusions(&self, request: &ModelRequest) -> Vec<(PartKind, Option<Reason>)> {
        let judge = |part: MediaPart<'_>| {
            let unsupported = self.kinds.iter().find(|kind| part.is(**kind)).map(|kind| Reason::Unsupported(*kind));
            let is_broken = || !self.broken.is_empty() && self.broken.contains(hash(&part).as_str());
            let is_image = part.kind == PartKind::Image && !part.content.starts_with("http");
            let exceeded = self.max_image_bytes.filter(|most| is_image && part.content.len() > *most);
            let too_large = exceeded.map(Reason::TooLarge);
            let exceeded =
                self.max_image_edge.filter(|most| is_image && longer_side(part.content).is_some_and(|side| side > *most));
            let too_long = exceeded.map(Reason::TooLong);
            (part.kind, unsupported.or(too_large).or(too_long).or_else(|| is_broken().then_some(Reason::Broken)))
        };
        let mut reasons: Vec<_> = media_parts(request).into_iter().map(judge).collect();
        if let Some(most) = self.max_images {
            let images = reasons.iter_mut().rev().filter(|(kind, reason)| *kind == PartKind::Image && reason.is_none());
            images.skip(most).for_each(|(_, reason)| *reason = Some(Reason::TooMany(most)));
        }
        reasons
    }

    /// Replaces the excluded parts by notes.
    pub(super) fn apply(&self, request: &mut Cow<'_, ModelRequest>) {
        let reasons = self.part_exclusions(request);
        if reasons.iter().all(|(_, reason)| reason.is_none()) {
            return;
        }
        let mut reasons = reasons.into_iter();
        for part in request.to_mut().messages.iter_mut().flat_map(|message| &mut message.parts) {
            match part {
                Part::Image(file) | Part::File(file) => {
                    if Source::of(file) == Source::Unusable {
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
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => {}
            }
        }
    }
}

fn hash(part: &MediaPart<'_>) -> String {
    json::hash_bytes(part.content.as_bytes())
}

/// Returns the limitations that leave the refused parts out of `request`; none if it has no such part. `body` is the request as sent.
pub(super) fn limitations(
    request: &ModelRequest,
    refusal: PartRefusal,
    error: &ModelError,
    body: Option<&Value>,
) -> Vec<Limitation> {
    let may_be_meant = |part: &MediaPart<'_>| {
        part.is(refusal.part) && (refusal.meaning != Meaning::Unreachable || part.content.starts_with("http"))
    };
    let parts: Vec<MediaPart<'_>> = media_parts(request).into_iter().filter(may_be_meant).collect();
    if parts.is_empty() {
        return Vec::new();
    }
    match refusal.meaning {
        Meaning::Unsupported => vec![Limitation::NoParts(refusal.part)],
        Meaning::TooMany => {
            let most = largest_number_below(&error.message, parts.len()).unwrap_or(parts.len() / 2);
            vec![Limitation::MaxImages(most)]
        }
        Meaning::Broken | Meaning::Unreachable => {
            refused_among(&parts, error, body).into_iter().map(|part| Limitation::UnreadablePart(hash(part))).collect()
        }
    }
}

/// Returns the largest number below `count` in a text: 100 in `120 + 0 > 100` if there are 120 images.
pub(super) fn largest_number_below(text: &str, count: usize) -> Option<usize> {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<usize>().ok());
    numbers.filter(|number| (1..count).contains(number)).max()
}

/// Returns the parts that an error names by path, URL or media type; all parts if it names none.
fn refused_among<'p, 'a>(parts: &'p [MediaPart<'a>], error: &ModelError, body: Option<&Value>) -> Vec<&'p MediaPart<'a>> {
    let fields = error.details.as_deref().map(|details| details.fields.as_slice()).unwrap_or_default();
    let texts = fields.iter().map(String::as_str).chain([error.message.as_str()]);
    if let Some(body) = body
        && let Some(found) = texts.clone().flat_map(str::split_whitespace).find_map(|word| at_location(parts, word, body))
    {
        return found;
    }
    let narrowed = |is: &dyn Fn(&MediaPart<'a>) -> bool| {
        let found: Vec<_> = parts.iter().filter(|part| is(part)).collect();
        (!found.is_empty()).then_some(found)
    };
    let is_named = |part: &MediaPart<'_>| {
        let bare = part.content.split('?').next().unwrap_or_default();
        bare.starts_with("http") && texts.clone().any(|text| text.contains(bare))
    };
    let has_type = |part: &MediaPart<'_>| error.message.contains(part.media_type);
    narrowed(&is_named).or_else(|| narrowed(&has_type)).unwrap_or_else(|| parts.iter().collect())
}

const LISTS: [&str; 3] = ["messages", "input", "contents"];

/// Returns the parts at a path such as `messages.4.content.1.image.source.base64.data`, `messages[1].content[0].image_url` or
/// `contents[0].parts[1]`. Path steps that the body does not have are names of types.
fn at_location<'p, 'a>(parts: &'p [MediaPart<'a>], word: &str, body: &Value) -> Option<Vec<&'p MediaPart<'a>>> {
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
    // A path may end beside the content, such as at its media type.
    passed.iter().rev().find_map(|location| {
        let found: Vec<_> = parts.iter().filter(|part| holds(location, part.content)).collect();
        (!found.is_empty()).then_some(found)
    })
}

fn holds(location: &Value, content: &str) -> bool {
    location.as_str().is_some_and(|text| text.ends_with(content)) || json::children(location).any(|inner| holds(inner, content))
}
