//! Writes messages as contents, and knows the form in which signatures are kept between an answer and the next request.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Value, json};

use super::models::Traits;
use crate::domain::ids::CallId;
use crate::domain::message::{FilePart, Message, Part, Role, SentContent, ToolCallPart, ToolResultPart};
use crate::provider::project::{Source, not_sent};
use crate::support::text;

/// Stands for the signature of a call that another model made, which new models want to have all the same:
/// <https://ai.google.dev/gemini-api/docs/thought-signatures#faqs>.
const FOREIGN: &str = "skip_thought_signature_validator";

/// Where a signature stood that was not that of a call. It goes back to the same part, so the length of its text is kept:
/// what is shown as one text may have come in several parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On a thought with so many bytes.
    Thought { bytes: usize },
    /// On a text with so many bytes.
    Text { bytes: usize },
}

impl Place {
    /// The block that keeps a signature in its place.
    pub(super) fn sign(self, signature: &str) -> Value {
        match self {
            Self::Thought { bytes } => json!({ "thoughtSignature": signature, "on": "thought", "bytes": bytes }),
            Self::Text { bytes } => json!({ "thoughtSignature": signature, "on": "text", "bytes": bytes }),
        }
    }

    fn of(raw: &Value) -> Option<(Self, &str)> {
        let signature = raw.get("thoughtSignature")?.as_str()?;
        let bytes = raw.get("bytes").and_then(Value::as_u64).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        let is_thought = raw.get("on").and_then(Value::as_str) == Some("thought");
        Some((if is_thought { Self::Thought { bytes } } else { Self::Text { bytes } }, signature))
    }
}

#[derive(Serialize)]
pub(super) struct Content<'a> {
    pub(super) role: &'static str,
    pub(super) parts: Vec<WirePart<'a>>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WirePart<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    inline_data: Option<InlineData<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_data: Option<FileData<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_response: Option<FunctionResponse<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InlineData<'a> {
    mime_type: &'a str,
    data: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileData<'a> {
    mime_type: &'a str,
    file_uri: &'a str,
}

#[derive(Serialize)]
struct FunctionCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: Cow<'a, str>,
    args: Cow<'a, Value>,
}

#[derive(Serialize)]
struct FunctionResponse<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: Cow<'a, str>,
    response: Value,
}

impl<'a> WirePart<'a> {
    pub(super) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }
}

/// The name of a tool on the wire, which must begin with a letter or an underscore and have 64 characters at most.
pub(super) fn wire_name(name: &str) -> Cow<'_, str> {
    if name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("_{}", text::prefix(name, 63)))
}

/// The contents of a request.
pub(super) fn contents<'a>(messages: &'a [Message], traits: Traits) -> Vec<Content<'a>> {
    let mut ids = Ids::default();
    // Calls before the last words of the user are not looked at.
    let turn = messages.iter().rposition(|message| message.role == Role::User).unwrap_or(0);
    let content = |(at, message): (usize, &'a Message)| {
        let (role, parts) = match message.role {
            Role::User => ("user", message.parts.iter().filter_map(said).collect()),
            Role::Assistant => ("model", answered(message, traits.wants_signatures && at > turn, &mut ids)),
            Role::Tool => ("user", results(message, &ids)),
        };
        (!parts.is_empty()).then_some(Content { role, parts })
    };
    messages.iter().enumerate().filter_map(content).collect()
}

fn said(part: &Part) -> Option<WirePart<'_>> {
    match part {
        Part::Text(text) => (!text.text.is_empty()).then(|| WirePart::text(text.text.as_str())),
        Part::Image(image) => Some(file("image", image)),
        Part::File(document) => Some(file("file", document)),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => None,
    }
}

fn file<'a>(what: &str, file: &'a FilePart) -> WirePart<'a> {
    match Source::of(file) {
        Source::Inline { media_type, data } => {
            WirePart { inline_data: Some(InlineData { mime_type: media_type, data }), ..WirePart::default() }
        }
        Source::Remote(url) => {
            WirePart { file_data: Some(FileData { mime_type: &file.media_type, file_uri: url }), ..WirePart::default() }
        }
        Source::Nowhere => WirePart::text(not_sent(what, file)),
    }
}

fn answered<'a>(message: &'a Message, signs: bool, ids: &mut Ids<'a>) -> Vec<WirePart<'a>> {
    let mut wire: Vec<WirePart<'a>> = Vec::with_capacity(message.parts.len());
    let mut needs_signature = signs;
    for part in &message.parts {
        match part {
            Part::Text(text) => wire.extend((!text.text.is_empty()).then(|| WirePart::text(text.text.as_str()))),
            // Thoughts without a signature say nothing to the model that had them.
            Part::Reasoning(reasoning) => match reasoning.raw.as_ref().and_then(Place::of) {
                Some((Place::Thought { bytes }, signature)) => {
                    let signed = tail(&reasoning.text, bytes).1;
                    wire.push(WirePart { thought: true, thought_signature: Some(signature), ..WirePart::text(signed) });
                }
                Some((Place::Text { bytes }, signature)) => sign_text(&mut wire, bytes, signature),
                None => {}
            },
            Part::ToolCall(call) => {
                let own = call.raw.as_ref().and_then(|raw| raw.get("thoughtSignature")?.as_str());
                // The first of parallel calls has the signature for all of them.
                let signature = own.or((std::mem::take(&mut needs_signature)).then_some(FOREIGN));
                let function_call = FunctionCall { id: ids.mint(call), name: wire_name(&call.name), args: arguments(call) };
                needs_signature = false;
                wire.push(WirePart { function_call: Some(function_call), thought_signature: signature, ..WirePart::default() });
            }
            Part::ToolResult(_) | Part::Image(_) | Part::File(_) => {}
        }
    }
    wire
}

/// Puts a signature on the end of the text before it, or on an empty part if that is where it stood.
fn sign_text<'a>(wire: &mut Vec<WirePart<'a>>, bytes: usize, signature: &'a str) {
    let whole = match wire.last_mut() {
        Some(WirePart { text: Some(Cow::Borrowed(text)), thought_signature: None, .. }) if bytes > 0 => *text,
        Some(_) | None => {
            wire.push(WirePart { thought_signature: Some(signature), ..WirePart::text("") });
            return;
        }
    };
    wire.pop();
    let (before, signed) = tail(whole, bytes);
    wire.extend((!before.is_empty()).then(|| WirePart::text(before)));
    wire.push(WirePart { thought_signature: Some(signature), ..WirePart::text(signed) });
}

/// The last bytes of a text, and what is before them; all of it if it is not longer or would break within a character.
fn tail(text: &str, bytes: usize) -> (&str, &str) {
    text.len().checked_sub(bytes).and_then(|at| text.split_at_checked(at)).unwrap_or(("", text))
}

fn arguments(call: &ToolCallPart) -> Cow<'_, Value> {
    if call.arguments.is_object() { Cow::Borrowed(&call.arguments) } else { Cow::Owned(json!({ "_raw": call.arguments })) }
}

/// The results first, each for its call; then the pictures that they hold.
fn results<'a>(message: &'a Message, ids: &Ids<'a>) -> Vec<WirePart<'a>> {
    let (mut wire, mut pictures) = (Vec::with_capacity(message.parts.len()), Vec::new());
    for part in &message.parts {
        let Part::ToolResult(result) = part else { continue };
        let response = json!({ if result.is_error { "error" } else { "output" }: output(result) });
        let function_response = FunctionResponse { id: ids.of(&result.call_id), name: wire_name(&result.name), response };
        wire.push(WirePart { function_response: Some(function_response), ..WirePart::default() });
        pictures.extend(result.content.iter().filter_map(|content| match content.as_sent() {
            SentContent::Text(_) => None,
            SentContent::Image { media_type, data } => {
                Some(WirePart { inline_data: Some(InlineData { mime_type: media_type, data }), ..WirePart::default() })
            }
        }));
    }
    wire.extend(pictures);
    wire
}

fn output(result: &ToolResultPart) -> String {
    let lines: Vec<Cow<'_, str>> = result
        .content
        .iter()
        .map(|content| match content.as_sent() {
            SentContent::Text(text) => text,
            SentContent::Image { .. } => Cow::Borrowed("[image, see below]"),
        })
        .collect();
    if lines.iter().all(|line| line.is_empty()) { "(no output)".to_owned() } else { lines.join("\n") }
}

/// The ids of calls, where the provider gave some: what has none is told apart by its name and its place.
#[derive(Default)]
struct Ids<'a> {
    used: HashSet<&'a str>,
    sent: HashMap<&'a CallId, &'a str>,
}

impl<'a> Ids<'a> {
    fn mint(&mut self, call: &'a ToolCallPart) -> Option<&'a str> {
        let id = call.provider_call_id.as_deref().filter(|id| !id.is_empty() && self.used.insert(id))?;
        self.sent.insert(&call.call_id, id);
        Some(id)
    }

    fn of(&self, call: &CallId) -> Option<&'a str> {
        self.sent.get(call).copied()
    }
}
