//! The content of new messages, checked and converted to domain values.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::agent::AgentProfile;
use crate::domain::agent::agent_record::RunLimits;
use crate::domain::agent::prompt::PromptPolicy;
use crate::domain::conversation::AgentChoice;
use crate::domain::conversation::file::{MAX_FILE_NAME, content_url, is_media_type, whole_picture};
use crate::domain::conversation::message::{FilePart, Part, TextPart};
use crate::domain::ids::{ConversationId, FileId, MessageId, PartId, RunId, UserId};
use crate::domain::model::ModelOptions;
use crate::domain::run::OnBusy;
use crate::domain::run::plan::Strategy;
use crate::domain::tool::client_tool::ClientTool;
use crate::domain::trace::TraceId;
use crate::service::conversations::inline_files::inline_file;
use crate::service::{Error, Result, Service};
use crate::support::text;

const MAX_PARTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Text(String),
    Parts(Vec<NewPart>),
}

impl Content {
    /// Returns whether the content has no file, and no text but white space.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Parts(parts) => parts.iter().all(|part| matches!(part, NewPart::Text { text } if text.trim().is_empty())),
        }
    }
}

/// A part of a new message.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = PartBody)]
pub enum NewPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture: `url` with `media_type`, or `file_id`.
    Image {
        /// The media type, such as `image/png`. Required with `url`.
        media_type: Option<String>,
        /// An `https:` or `data:` URL.
        url: Option<String>,
        /// The id of an uploaded picture.
        file_id: Option<FileId>,
        /// The name to display.
        name: Option<String>,
    },
    /// A file: `url` with `media_type`, or `file_id`.
    File {
        /// The media type, such as `application/pdf`. Required with `url`.
        media_type: Option<String>,
        /// An `https:` URL, or a `data:` URL, whose content becomes an uploaded file.
        url: Option<String>,
        /// The id of an uploaded file.
        file_id: Option<FileId>,
        /// The name to display.
        name: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct StartRun {
    pub content: Content,
    /// The JSON name of the field that holds the content, for error messages.
    pub content_field: &'static str,
    /// A new conversation if absent.
    pub conversation_id: Option<ConversationId>,
    /// The agent by name or id. Defaults to the conversation's stored agent, or else to the default agent.
    pub agent: Option<String>,
    /// The model as `provider/name`. Defaults to the conversation's stored model, or else to the agent's model.
    pub model: Option<String>,
    pub options: Option<ModelOptions>,
    pub limits: Option<RunLimits>,
    /// The tools that the client executes. A message that joins a run adds none.
    pub tools: Vec<ClientTool>,
    pub on_busy: OnBusy,
    /// Whether a missing conversation is created.
    pub create: bool,
    /// The agent and the model that the conversation stores; absent if the caller has not read them.
    pub stored_choice: Option<AgentChoice>,
    /// The message that this one replaces, together with all later messages.
    pub edits: Option<MessageId>,
    /// Changes that the client of another protocol asks for.
    pub setup: RunSetup,
    pub trace: TraceId,
}

impl StartRun {
    /// Returns a request with the defaults of the conversation and its agent.
    pub fn new(content: Content, content_field: &'static str, trace: TraceId) -> Self {
        Self {
            content,
            content_field,
            conversation_id: None,
            agent: None,
            model: None,
            options: None,
            limits: None,
            tools: Vec::new(),
            on_busy: OnBusy::default(),
            create: false,
            stored_choice: None,
            edits: None,
            setup: RunSetup::default(),
            trace,
        }
    }
}

/// Changes of the agent for one run, which only requests of other protocols can contain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSetup {
    /// Whether the model answers without the agent's prompt and without tools of the server.
    pub plain: bool,
    /// Instructions after those of the agent.
    pub instructions: String,
    /// Whether the model may make one call per answer only.
    pub one_call: bool,
    /// The limit of calls of the server's tools until the client sends results of its own tools.
    pub max_server_calls: Option<u32>,
    /// Fields of the request that later responses of its protocol need.
    pub protocol: Option<Value>,
    /// The id of the run, derived from the client's name of it. A new id if absent.
    pub run_id: Option<RunId>,
    /// The id of the message's first part, derived from the client's name of the message: an edited message keeps it. A new id if
    /// absent.
    pub first_part: Option<PartId>,
}

/// The most bytes of [`RunSetup::protocol`], which is stored with the run.
const MAX_PROTOCOL_BYTES: usize = 1024 * 1024;

impl RunSetup {
    /// Fails if a part is longer than a run may store. `most` is the limit of a message, in characters; 0 for none.
    pub(in crate::service) fn check(&self, most: usize) -> Result<()> {
        if most > 0 {
            storable_text("/instructions", &self.instructions, most)?;
        }
        self.protocol.as_ref().map_or(Ok(()), check_protocol_size)
    }

    pub(in crate::service) fn apply(&self, profile: &mut AgentProfile) {
        if self.plain {
            (profile.tools, profile.builtin_tools) = (Some(Vec::new()), Some(Vec::new()));
            (profile.prompt, profile.strategy) = (PromptPolicy::default(), Strategy::Loop);
            profile.system_prompt.clear();
            profile.context_providers.clear();
        }
        if !self.instructions.is_empty() {
            let parts = [profile.system_prompt.as_str(), self.instructions.as_str()];
            profile.system_prompt = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
        }
        if self.one_call {
            profile.max_parallel_calls = 1;
        }
        profile.max_server_calls = self.max_server_calls;
        profile.protocol.clone_from(&self.protocol);
    }
}

/// Fails if a run cannot store these fields of a request.
pub fn check_protocol_size(protocol: &Value) -> Result<()> {
    match protocol.to_string().len() {
        0..=MAX_PROTOCOL_BYTES => Ok(()),
        bytes => {
            let reason = format!("has fields of {bytes} bytes beside the messages; at most {MAX_PROTOCOL_BYTES} are accepted");
            Err(Error::field("", reason))
        }
    }
}

impl Service {
    /// Returns the parts of a new message: not empty, within the limits, storable, and with the owner's files only.
    pub(in crate::service) async fn parts(
        &self,
        owner: &UserId,
        content: &Content,
        field: &str,
        max_chars: u64,
    ) -> Result<Vec<Part>> {
        let mut parts = self.parts_alone(content, field, max_chars)?;
        self.bound_files(parts.iter(), &BTreeSet::new(), &format!("/{field}"))?;
        // The type of a picture is detected from its bytes. Only other files need a process that reads them, and so a permit.
        let _permit = match parts.iter().any(|part| inline_file(part).is_some()) {
            true => Some(self.begin_upload(owner).await?),
            false => None,
        };
        self.keep_inline(owner, &mut parts, &format!("/{field}")).await?;
        self.attach(owner, &mut parts, field).await?;
        Ok(parts)
    }

    fn parts_alone(&self, content: &Content, field: &str, limit: u64) -> Result<Vec<Part>> {
        if content.is_blank() {
            return Err(Error::field(&format!("/{field}"), "must not be empty"));
        }
        let parts = match content {
            Content::Text(text) => vec![self.text_part(text)],
            Content::Parts(parts) if parts.len() > MAX_PARTS => {
                return Err(Error::field(
                    &format!("/{field}"),
                    format!("has {} parts; at most {MAX_PARTS} are accepted", parts.len()),
                ));
            }
            Content::Parts(parts) => {
                let mut created = Vec::with_capacity(parts.len());
                for (index, part) in parts.iter().enumerate() {
                    created.push(self.part(part, &format!("/{field}/{index}"))?);
                }
                created
            }
        };
        let texts = parts.iter().filter_map(|part| if let Part::Text(part) = part { Some(part.text.as_str()) } else { None });
        let chars: u64 = texts.map(|text| text.chars().count() as u64).sum();
        if chars > limit {
            return Err(Error::field(&format!("/{field}"), format!("has {chars} characters; at most {limit} are accepted")));
        }
        Ok(parts)
    }

    fn text_part(&self, text: &str) -> Part {
        Part::Text(TextPart { id: PartId::generate(self.ids.as_ref()), text: text::storable(text).into_owned() })
    }

    fn part(&self, part: &NewPart, pointer: &str) -> Result<Part> {
        match part {
            NewPart::Text { text } => Ok(self.text_part(text)),
            NewPart::Image { media_type, url, file_id, name } => {
                let file = self.file_part(media_type.as_ref(), url.as_ref(), file_id.as_ref(), name.as_deref(), pointer)?;
                Ok(Part::Image(picture(file, pointer)?))
            }
            NewPart::File { media_type, url, file_id, name } => {
                let file = self.file_part(media_type.as_ref(), url.as_ref(), file_id.as_ref(), name.as_deref(), pointer)?;
                Ok(Part::File(file))
            }
        }
    }

    pub(in crate::service) fn file_part(
        &self,
        media_type: Option<&String>,
        url: Option<&String>,
        file_id: Option<&FileId>,
        name: Option<&str>,
        pointer: &str,
    ) -> Result<FilePart> {
        let id = PartId::generate(self.ids.as_ref());
        let name = name.map(|name| text::storable(text::prefix_chars(name, MAX_FILE_NAME)).into_owned());
        let (media_type, url) = match (url, file_id, media_type) {
            (Some(url), None, Some(media_type)) => (media_type, url),
            // The type of an uploaded file is detected from its bytes. Messages contain the path of its bytes as `url`, so that
            // clients may send it back, with the path of the server before it.
            (url, Some(file), _) if url.is_none_or(|url| url.starts_with('/') && url.ends_with(&content_url(file))) => {
                let file_id = Some(file.as_str().to_owned());
                return Ok(FilePart { file_id, name, ..FilePart::of(id, "") });
            }
            (Some(_), None, None) => {
                return Err(Error::field(pointer, "missing field `media_type`: a url needs the media type of its content"));
            }
            (Some(_), Some(_), _) => return Err(Error::field(pointer, "has both url and file_id; send one of them")),
            (None, _, _) => {
                return Err(Error::field(pointer, "missing field `url`: send a url, or the file_id of an uploaded file"));
            }
        };
        if !(url.starts_with("https://") || url.starts_with("data:")) {
            return Err(Error::field(&format!("{pointer}/url"), "must be an https: or data: URL"));
        }
        if !is_media_type(media_type) {
            return Err(Error::field(&format!("{pointer}/media_type"), "must be a media type such as image/png"));
        }
        let url = Some(text::storable(url).into_owned());
        Ok(FilePart { url, name, ..FilePart::of(id, media_type) })
    }
}

/// Returns a storable text, if it is not too long.
pub(in crate::service) fn storable_text(pointer: &str, text: &str, most: usize) -> Result<String> {
    let chars = text.chars().count();
    if chars > most {
        return Err(Error::field(pointer, format!("has {chars} characters; at most {most} are accepted")));
    }
    Ok(text::storable(text).into_owned())
}

/// Checks a picture as far as possible: a provider would refuse a damaged one in every later request of the conversation. The type
/// of a `data:` URL is detected from its bytes, as for an upload.
pub(in crate::service) fn picture(mut part: FilePart, pointer: &str) -> Result<FilePart> {
    let Some(url) = &part.url else { return Ok(part) };
    if !part.media_type.starts_with("image/") {
        let words = format!("{} is not a picture; send it as a part of type \"file\"", part.media_type);
        return Err(Error::field(&format!("{pointer}/media_type"), words));
    }
    if !url.starts_with("data:") {
        return Ok(part);
    }
    let Some((kind, data)) = url.split_once(";base64,").and_then(|(_, data)| whole_picture(data)) else {
        let words = "must contain a complete PNG, JPEG, GIF or WebP picture in base64, as in data:image/png;base64,iVBORw0KGgo...";
        return Err(Error::field(&format!("{pointer}/url"), words));
    };
    (part.media_type, part.url) = (kind.to_owned(), Some(format!("data:{kind};base64,{data}")));
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_over_the_limit_are_refused() {
        let setup = RunSetup { instructions: "é".repeat(10), ..RunSetup::default() };
        assert!(setup.check(10).is_ok() && setup.check(0).is_ok());
        let problem = setup.check(9).unwrap_err().problem();
        assert_eq!((problem.status, problem.errors[0].pointer.as_str()), (400, "/instructions"));
        let large = RunSetup { protocol: Some(Value::String("x".repeat(MAX_PROTOCOL_BYTES))), ..RunSetup::default() };
        assert_eq!(large.check(0).unwrap_err().problem().status, 400);
    }
}
