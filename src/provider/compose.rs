//! What several dialects need to write a request.

use std::borrow::Cow;

use serde_json::Value;

use super::catalog::models;
use super::project::Source;
use crate::domain::ids::PartId;
use crate::domain::message::{FilePart, Message, Part, Role, TextPart};
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};

/// The arguments as the model wrote them: a text that was no JSON object goes back as an object that quotes it, because
/// providers refuse a history with broken arguments.
pub(super) fn arguments_text(arguments: &Value) -> String {
    if arguments.is_object() { arguments.to_string() } else { serde_json::json!({ "_raw": arguments }).to_string() }
}

/// The position of the first message of the turn that the model is in: the one after the last message of the user.
pub(super) fn turn_begins(messages: &[Message]) -> usize {
    messages.iter().rposition(|message| message.role == Role::User).map_or(0, |at| at + 1)
}

/// The words of a file of text that is at hand: every model reads those.
pub(super) fn file_text(file: &FilePart) -> Option<String> {
    if !file.media_type.starts_with("text/") && file.media_type != "application/json" {
        return None;
    }
    let name = file.name.as_deref().unwrap_or("without a name");
    Some(format!("[file {name}, {}]\n{}", file.media_type, Source::of(file).text()?))
}

/// Whether a model takes a system prompt as such.
pub(super) fn takes_system(model: &str) -> bool {
    models::model(model).system_role != Some(false)
}

/// The request as a model can take it that knows no system prompt: the first message of the user begins with it.
pub(super) fn for_model(request: &ModelRequest) -> Cow<'_, ModelRequest> {
    if request.system.is_empty() || takes_system(&request.model) {
        return Cow::Borrowed(request);
    }
    let mut told = request.clone();
    let Some(first) = told.messages.iter_mut().find(|message| message.role == Role::User) else { return Cow::Borrowed(request) };
    let system = std::mem::take(&mut told.system);
    match first.parts.iter_mut().find_map(|part| if let Part::Text(text) = part { Some(text) } else { None }) {
        Some(part) => part.text = format!("{system}\n\n{}", part.text),
        // Ids of parts are no provider's business.
        None => first.parts.insert(0, Part::Text(TextPart { id: PartId::from_stored(first.id.as_str().to_owned()), text: system })),
    }
    Cow::Owned(told)
}

/// What cannot be said on a wire and must not be left out.
pub(super) fn cannot_say(what: &str, way_out: &str) -> ModelError {
    ModelError::new(ModelErrorKind::InvalidRequest, &format!("{what}; {way_out}"))
}
