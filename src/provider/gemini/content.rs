//! Writes messages as Gemini contents. Owns the stored representation of signatures between an answer and the next request.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use super::models::Traits;
use crate::domain::conversation::{FilePart, Message, Part, Role, SentContent};
use crate::provider::request::shared_parts::{CallIds, Source, arguments_object, not_sent, result_text, tool_results};
use crate::support::text;

/// Replaces the signature of a call that another model made. New models require one:
/// <https://ai.google.dev/gemini-api/docs/thought-signatures#faqs>.
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";

/// The text or reasoning to which a signature belongs, if it belongs to no call. One text may have arrived in several parts, so the
/// length of the signed part is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignatureScope {
    pub(super) is_thought: bool,
    pub(super) bytes: usize,
}

impl SignatureScope {
    pub(super) fn with_signature(self, signature: &str) -> Value {
        let on = if self.is_thought { "thought" } else { "text" };
        json!({ "thoughtSignature": signature, "on": on, "bytes": self.bytes })
    }

    fn of(raw: &Value) -> Option<(Self, &str)> {
        let signature = raw.get("thoughtSignature")?.as_str()?;
        let bytes = raw.get("bytes").and_then(Value::as_u64).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        let is_thought = raw.get("on").and_then(Value::as_str) == Some("thought");
        Some((Self { is_thought, bytes }, signature))
    }
}

#[derive(Serialize)]
pub(super) struct Content<'a> {
    pub(super) role: &'static str,
    pub(super) parts: Vec<WirePart<'a>>,
}

#[serde_with::skip_serializing_none]
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WirePart<'a> {
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    thought: bool,
    inline_data: Option<InlineData<'a>>,
    file_data: Option<FileData<'a>>,
    function_call: Option<FunctionCall<'a>>,
    function_response: Option<FunctionResponse<'a>>,
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

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct FunctionCall<'a> {
    id: Option<&'a str>,
    name: Cow<'a, str>,
    args: Cow<'a, Value>,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct FunctionResponse<'a> {
    id: Option<&'a str>,
    name: Cow<'a, str>,
    response: Value,
}

impl<'a> WirePart<'a> {
    pub(super) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }
}

/// Returns a tool's name in this dialect: it begins with a letter or an underscore, and has at most 64 characters.
pub(super) fn wire_name(name: &str) -> Cow<'_, str> {
    if name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("_{}", text::prefix(name, 63)))
}

pub(super) fn contents<'a>(messages: &'a [Message], traits: Traits) -> Vec<Content<'a>> {
    let mut ids = CallIds::default();
    // The provider checks signatures of calls only after the last user message.
    let turn = messages.iter().rposition(|message| message.role == Role::User).unwrap_or(0);
    let content = |(at, message): (usize, &'a Message)| {
        let (role, parts) = match message.role {
            Role::User => ("user", message.parts.iter().filter_map(model_part).collect()),
            Role::Assistant => ("model", answered(message, traits.wants_signatures && at > turn, &mut ids)),
            Role::Tool => ("user", results(message, &ids)),
        };
        (!parts.is_empty()).then_some(Content { role, parts })
    };
    messages.iter().enumerate().filter_map(content).collect()
}

fn model_part(part: &Part) -> Option<WirePart<'_>> {
    match part {
        Part::Text(text) => (!text.text.is_empty()).then(|| WirePart::text(text.text.as_str())),
        Part::Image(image) => Some(file("image", image)),
        Part::File(document) => Some(file("file", document)),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}

fn file<'a>(kind: &str, file: &'a FilePart) -> WirePart<'a> {
    match Source::of(file) {
        Source::Inline { media_type, data } => {
            WirePart { inline_data: Some(InlineData { mime_type: media_type, data }), ..WirePart::default() }
        }
        Source::Remote(url) => {
            WirePart { file_data: Some(FileData { mime_type: &file.media_type, file_uri: url }), ..WirePart::default() }
        }
        Source::Unusable => WirePart::text(not_sent(kind, file)),
    }
}

fn answered<'a>(message: &'a Message, signs: bool, ids: &mut CallIds<'a>) -> Vec<WirePart<'a>> {
    let mut wire: Vec<WirePart<'a>> = Vec::with_capacity(message.parts.len());
    let mut needs_signature = signs;
    for part in &message.parts {
        match part {
            Part::Text(text) => wire.extend((!text.text.is_empty()).then(|| WirePart::text(text.text.as_str()))),
            // The model cannot use reasoning without a signature.
            Part::Reasoning(reasoning) => match reasoning.raw.as_ref().and_then(SignatureScope::of) {
                Some((SignatureScope { is_thought: true, bytes }, signature)) => {
                    let signed = split_tail(&reasoning.text, bytes).1;
                    wire.push(WirePart { thought: true, thought_signature: Some(signature), ..WirePart::text(signed) });
                }
                Some((SignatureScope { is_thought: false, bytes }, signature)) => sign_text(&mut wire, bytes, signature),
                None => {}
            },
            Part::ToolCall(call) => {
                let own = call.raw.as_ref().and_then(|raw| raw.get("thoughtSignature")?.as_str());
                // The first of parallel calls carries the signature for all of them.
                let signature = own.or(needs_signature.then_some(FOREIGN_SIGNATURE));
                let function_call =
                    FunctionCall { id: ids.provider_id(call), name: wire_name(&call.name), args: arguments_object(call) };
                needs_signature = false;
                wire.push(WirePart { function_call: Some(function_call), thought_signature: signature, ..WirePart::default() });
            }
            Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
        }
    }
    wire
}

/// Adds a signature to the end of the preceding text, or to an empty part if it belongs to one.
fn sign_text<'a>(wire: &mut Vec<WirePart<'a>>, bytes: usize, signature: &'a str) {
    let whole = match wire.last_mut() {
        Some(WirePart { text: Some(Cow::Borrowed(text)), thought_signature: None, .. }) if bytes > 0 => *text,
        Some(_) | None => {
            wire.push(WirePart { thought_signature: Some(signature), ..WirePart::text("") });
            return;
        }
    };
    wire.pop();
    let (before, signed) = split_tail(whole, bytes);
    wire.extend((!before.is_empty()).then(|| WirePart::text(before)));
    wire.push(WirePart { thought_signature: Some(signature), ..WirePart::text(signed) });
}

/// Splits off the last bytes of a text; all of it if the text is not longer, or the split would be inside a character.
fn split_tail(text: &str, bytes: usize) -> (&str, &str) {
    text.len().checked_sub(bytes).and_then(|at| text.split_at_checked(at)).unwrap_or(("", text))
}

/// Writes the results, each for its call, followed by their images.
fn results<'a>(message: &'a Message, ids: &CallIds<'a>) -> Vec<WirePart<'a>> {
    let (mut wire, mut pictures) = (Vec::with_capacity(message.parts.len()), Vec::new());
    for result in tool_results(message) {
        let output = result_text(result, |_| "[image, see below]".to_owned());
        let response = json!({ if result.is_error { "error" } else { "output" }: output });
        let function_response = FunctionResponse { id: ids.provider_id_of_result(result), name: wire_name(&result.name), response };
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
