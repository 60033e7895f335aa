//! Imports: documents that become conversations.
//!
//! A document is a transcript of the caller and is trusted, because nothing of it is executed. Content that no transcript of this
//! server could contain is refused, so that every model request made from it can be sent.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap, HashSet};
use utoipa::ToSchema;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::content::tool_binary;
use crate::domain::conversation::file::{FileOrigin, media_type, shown_name};
use crate::domain::conversation::message::{BinaryContent, FilePart, Message, MessageStatus, Part, Role, ToolContent};
use crate::domain::conversation::{AgentChoice, Conversation};
use crate::domain::ids::{CallId, ConversationId, FileId, MessageId, RunId, UserId};
use crate::domain::model::Source;
use crate::domain::run::FinishReason;
use crate::service::conversations::{cleaned_tags, layer, one_line};
use crate::service::idempotency_outcome::{Replay, RequestKey};
use crate::service::runs::agent_and_model::{imported_choice, is_short};
use crate::service::runs::message_content::picture;
use crate::service::runs::transcript::SentMessage;
use crate::service::{Error, Result, Service};
use crate::store::{CopiedDocument, CopiedEnd, CopiedTurn, CopyLimits, CopySource};
use crate::support::clock::UnixMillis;
use crate::support::suggestion::nearest;
use crate::support::text;

/// Limit of the name of a tool or a model in a document, and of a time, in characters.
const MAX_NAME_CHARS: usize = 200;

/// The format of documents. There is only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
pub enum DocumentFormat {
    #[serde(rename = "capstan.conversation")]
    Conversation,
}

/// A document in the format that `GET /conversations/{id}/export` writes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ImportBody)]
pub struct Document {
    #[expect(dead_code, reason = "there is one; any other is refused")]
    format: DocumentFormat,
    /// The version of the format: 1.
    #[schema(minimum = 1, maximum = 1)]
    version: u32,
    /// When the document was written. Not stored.
    #[expect(dead_code, reason = "it is part of the document")]
    exported_at: Option<String>,
    /// The conversation of the document.
    conversation: ImportedConversation,
    /// The messages of the conversation.
    messages: Vec<Message>,
}

/// The fields of a document's conversation that an import keeps. Other fields are accepted and ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ImportedConversation {
    /// The title, at most 255 characters.
    #[serde(default)]
    title: String,
    /// The tags of the conversation.
    #[serde(default)]
    #[schema(max_items = 20)]
    tags: Vec<String>,
    /// The conversation's part of the system prompt, at most 10,000 characters.
    system_prompt: Option<String>,
    /// The user's wishes for every answer, at most 10,000 characters.
    instructions: Option<String>,
    /// The agent for messages that name none. It need not exist here: then the next message must name another agent.
    agent: Option<String>,
    /// The model for messages that name none. It need not be available here: then the next message must name another model.
    model: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl ImportedConversation {
    /// Refuses a misspelt field. Any other unknown field may be an exported field that imports ignore.
    fn check_rest(&self) -> Result<()> {
        for key in self.rest.keys() {
            if let Some(near) = nearest(key, ["title", "tags", "system_prompt", "instructions", "agent", "model"]) {
                let reason = format!("is not known; did you mean {near:?}?");
                return Err(Error::field(&format!("/conversation/{key}"), reason));
            }
        }
        Ok(())
    }
}

/// A conversation that a client creates from messages.
#[derive(Debug)]
pub struct SentConversation {
    pub messages: Vec<SentMessage>,
    /// The conversation's part of the system prompt, at most 10,000 characters.
    pub system_prompt: Option<String>,
    pub metadata: Map<String, Value>,
    /// The JSON name of the field that holds the messages, for error messages.
    pub field: &'static str,
}

impl Service {
    pub fn copy_limits(&self) -> CopyLimits {
        self.limits.copies
    }

    /// Creates a conversation of the principal with the messages of a document. Nothing is executed, and all ids are new.
    pub async fn import_conversation(
        &self,
        principal: &Principal,
        document: Document,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        if document.version != 1 {
            return Err(Error::field("/version", "is not supported; this server supports 1"));
        }
        document.conversation.check_rest()?;
        let Document { conversation, messages, .. } = document;
        let ImportedConversation { title, tags, system_prompt, instructions, agent, model, rest: _ } = conversation;
        let choice = imported_choice(AgentChoice { agent, model })?;
        let document = CopiedDocument {
            title: one_line("/conversation/title", &title)?,
            tags: cleaned_tags("/conversation/tags", tags)?,
            system_prompt: layer("/conversation/system_prompt", system_prompt)?.filter(|text| !text.is_empty()),
            instructions: layer("/conversation/instructions", instructions)?.filter(|text| !text.is_empty()),
            metadata: Map::new(),
            turns: self.group_by_run(principal, &choice, messages, "/messages").await?,
            choice,
        };
        self.copy(principal, None, CopySource::Document(document), key).await
    }

    /// Creates a conversation of the principal with the messages of a client. Nothing is executed.
    pub async fn create_from_messages(
        &self,
        principal: &Principal,
        sent: SentConversation,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        let SentConversation { messages, system_prompt, metadata, field } = sent;
        // The id is a placeholder, because the copy gets its own id.
        let conversation = ConversationId::generate(self.ids.as_ref());
        let document = CopiedDocument {
            system_prompt: layer(&format!("/{field}"), system_prompt)?.filter(|text| !text.is_empty()),
            metadata,
            turns: self.sent_turns(principal, &AgentChoice::default(), &conversation, &messages, field).await?,
            ..CopiedDocument::default()
        };
        self.copy(principal, None, CopySource::Document(document), key).await
    }

    /// Groups the messages of a client into runs. A message of the user that follows one of another role begins a run.
    pub(in crate::service) async fn sent_turns(
        &self,
        principal: &Principal,
        choice: &AgentChoice,
        conversation: &ConversationId,
        messages: &[SentMessage],
        field: &str,
    ) -> Result<Vec<CopiedTurn>> {
        let (most, created_at) = (self.limits.admission().max_message_chars, self.clock.now().to_rfc3339());
        let mut run = RunId::generate(self.ids.as_ref());
        let (mut imported, mut calls): (Vec<Message>, _) = (Vec::with_capacity(messages.len()), HashMap::new());
        for (at, message) in messages.iter().enumerate() {
            let (role, parts) = self.sent_parts(principal, message, &format!("{field}/{at}"), most, &mut calls).await?;
            if role == Role::User && imported.last().is_some_and(|last| last.role != Role::User) {
                run = RunId::generate(self.ids.as_ref());
            }
            let id = MessageId::generate(self.ids.as_ref());
            let message = Message::new(id, (run.clone(), conversation.clone()), role, parts);
            imported.push(Message { created_at: created_at.clone(), ..message });
        }
        self.group_by_run(principal, choice, imported, &format!("/{field}")).await
    }

    /// Groups the messages by run, in the order in which the runs begin.
    async fn group_by_run(
        &self,
        principal: &Principal,
        choice: &AgentChoice,
        mut messages: Vec<Message>,
        pointer: &str,
    ) -> Result<Vec<CopiedTurn>> {
        let most = self.limits.copies.messages;
        if messages.len() > usize::try_from(most).unwrap_or(usize::MAX) {
            return Err(Error::field(pointer, format!("has {} messages; at most {most} are accepted", messages.len())));
        }
        let mut known_ids = ImportedIds::default();
        for (at, message) in messages.iter_mut().enumerate() {
            self.check(message, &format!("{pointer}/{at}"), &mut known_ids)?;
        }
        let content = self.describe_files(&principal.user_id, &known_ids.files, &mut messages).await?;
        self.bound_files(messages.iter().flat_map(|message| &message.parts), &content, pointer)?;
        for (at, message) in messages.iter_mut().enumerate() {
            self.keep_inline(&principal.user_id, &mut message.parts, &format!("{pointer}/{at}/parts")).await?;
        }

        let profile = self.imported_profile(principal, choice).await?;
        let (agent, agent_version, model) = (profile.name.clone(), profile.version, profile.model.clone());
        let profile = serde_json::to_string(&profile).map_err(|_| Error::field("", "the server's agent cannot be serialized"))?;
        let mut turns: Vec<CopiedTurn> = Vec::new();
        let mut places: HashMap<RunId, usize> = HashMap::new();
        for (place, message) in (1..).zip(messages) {
            let at = *places.entry(message.run_id.clone()).or_insert(turns.len());
            if at == turns.len() {
                turns.push(CopiedTurn {
                    begins: place,
                    profile: profile.clone(),
                    agent: agent.clone(),
                    agent_version,
                    model: model.clone(),
                    end: CopiedEnd::Cancelled,
                    messages: Vec::new(),
                });
            }
            let Some(turn) = turns.get_mut(at) else { continue };
            turn.end = end_after(&message);
            if let Some(model) = &message.model {
                turn.model.clone_from(model);
            }
            turn.messages.push((place, message));
        }
        Ok(turns)
    }

    fn check(&self, message: &mut Message, pointer: &str, known_ids: &mut ImportedIds) -> Result<()> {
        let short = |text: &str| is_short(text, MAX_NAME_CHARS);
        if message.model.as_deref().is_some_and(|model| !short(model)) {
            return Err(Error::field(&format!("{pointer}/model"), "is not a valid model name"));
        }
        let is_time = |text: &str| short(text) && UnixMillis::from_rfc3339(text).is_some();
        if !is_time(&message.created_at) {
            return Err(Error::field(&format!("{pointer}/created_at"), "is not an RFC 3339 time"));
        }
        let role = message.role;
        if let Some(feedback) = &mut message.feedback {
            let pointer = format!("{pointer}/feedback");
            if role != Role::Assistant || message.internal {
                return Err(Error::field(&pointer, "belongs to a message that no model wrote"));
            }
            if !is_time(&feedback.at) {
                return Err(Error::field(&format!("{pointer}/at"), "is not an RFC 3339 time"));
            }
            feedback.comment = self.comment(&format!("{pointer}/comment"), feedback.comment.take())?;
        }
        let is_sent = message.model.is_none();
        for (at, part) in message.parts.iter_mut().enumerate() {
            let pointer = format!("{pointer}/parts/{at}");
            match (part, role) {
                (Part::Text(_), Role::User | Role::Assistant) | (Part::Reasoning(_), Role::Assistant) => {}
                (Part::ToolCall(call), Role::Assistant) => {
                    call.name = tool_name(&call.name);
                    if !call.arguments.is_object() {
                        return Err(Error::field(&format!("{pointer}/arguments"), "must be an object"));
                    }
                    if known_ids.calls.insert(call.call_id.clone(), false).is_some() {
                        return Err(Error::field(&format!("{pointer}/call_id"), "is also the id of another call"));
                    }
                    // Providers accept each id only once. A call without a provider's id is sent with Capstan's id.
                    let is_new = |id: &String| is_sent || known_ids.echoed.insert(id.clone());
                    call.provider_call_id = call.provider_call_id.take().filter(|id| short(id)).filter(is_new);
                }
                (Part::ToolResult(result), Role::Tool) => {
                    result.name = tool_name(&result.name);
                    for content in &mut result.content {
                        checked_content(content, known_ids);
                    }
                    match known_ids.calls.get_mut(&result.call_id) {
                        Some(answered @ false) => *answered = true,
                        Some(true) => return Err(Error::field(&format!("{pointer}/call_id"), "has a result already")),
                        None => return Err(Error::field(&format!("{pointer}/call_id"), "is not the id of an earlier call")),
                    }
                }
                (Part::Image(file), Role::User | Role::Assistant) => {
                    *file = picture(self.checked_file(file, &pointer, known_ids)?, &pointer)?;
                }
                (Part::Source(part), Role::Assistant) => {
                    let word = |text: &Option<String>| text.clone().unwrap_or_default();
                    let known = Source::new(&word(&part.url), &word(&part.title), &word(&part.text));
                    let Some(Source { url, title, text }) = known else {
                        return Err(Error::field(
                            &format!("{pointer}/url"),
                            "is neither an http nor an https address, and there is no title",
                        ));
                    };
                    (part.url, part.title, part.text) = (url, title, text);
                }
                (Part::File(file), Role::User) => *file = self.checked_file(file, &pointer, known_ids)?,
                (_, role) => {
                    let words = format!("no message of the role {:?} has a part of this type", role.as_str());
                    return Err(Error::field(&format!("{pointer}/type"), words));
                }
            }
        }
        Ok(())
    }

    fn checked_file(&self, file: &FilePart, pointer: &str, known_ids: &mut ImportedIds) -> Result<FilePart> {
        let id = file.file_id.as_deref().map(str::parse::<FileId>).transpose();
        let id = id.map_err(|error| Error::field(&format!("{pointer}/file_id"), error.to_string()))?;
        let checked = self.file_part(Some(&file.media_type), file.url.as_ref(), id.as_ref(), file.name.as_deref(), pointer)?;
        known_ids.files.extend(id);
        // The facts of a stored file are added later. For a missing file, only these facts are known.
        Ok(FilePart { media_type: file.media_type.chars().take(MAX_NAME_CHARS).collect(), ..checked })
    }

    /// Describes the owner's files, and returns those that do not count as uploads. Files of others look deleted.
    async fn describe_files(&self, owner: &UserId, files: &BTreeSet<FileId>, messages: &mut [Message]) -> Result<BTreeSet<String>> {
        let mut known = HashMap::new();
        for id in files {
            if let Some(file) = self.store.file(owner, id).await? {
                known.insert(id.as_str().to_owned(), file);
            }
        }
        for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
            match part {
                Part::Image(place) | Part::File(place) => {
                    if let Some(file) = place.file_id.as_ref().and_then(|id| known.get(id)) {
                        place.describe(file);
                    }
                }
                Part::ToolResult(result) => {
                    for content in &mut result.content {
                        let (ToolContent::Image(place) | ToolContent::File(place)) = &mut *content else { continue };
                        let Some(id) = &place.file_id else { continue };
                        match known.get(id) {
                            Some(file) => {
                                let stored = BinaryContent::stored(file);
                                let stored = BinaryContent { name: place.name.take().or(stored.name.clone()), ..stored };
                                *content = if file.is_picture() { ToolContent::Image(stored) } else { ToolContent::File(stored) };
                            }
                            None => {
                                let described = place.described("file");
                                *content = ToolContent::text(format!("[{described}: it was deleted]"));
                            }
                        }
                    }
                }
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => {}
            }
        }
        known.retain(|_, file| file.origin == FileOrigin::Content);
        Ok(known.into_keys().collect())
    }
}

/// Checks binary content of a result. Unreadable content becomes a note, because the rest of the result is still useful.
fn checked_content(content: &mut ToolContent, known_ids: &mut ImportedIds) {
    let (ToolContent::Image(binary) | ToolContent::File(binary)) = &mut *content else { return };
    let claimed = media_type(text::prefix_chars(&binary.media_type, MAX_NAME_CHARS));
    let name = binary.name.take().map(|name| shown_name(&name));
    let id = binary.file_id.as_deref().and_then(|id| id.parse::<FileId>().ok());
    *content = match (id, &binary.data) {
        (Some(id), _) => {
            let file_id = Some(id.as_str().to_owned());
            known_ids.files.insert(id);
            // The facts of a stored file are added later. For a missing file, only these facts are known.
            ToolContent::File(BinaryContent { media_type: claimed, file_id, size: binary.size, url: None, name, data: None })
        }
        (None, Some(data)) => tool_binary("file", &claimed, name.as_deref(), data),
        (None, None) => ToolContent::text(format!("[{}: it was deleted]", binary.described("file"))),
    };
}

#[derive(Default)]
struct ImportedIds {
    /// Calls, each with whether it has a result.
    calls: HashMap<CallId, bool>,
    /// The ids that providers assigned to calls.
    echoed: HashSet<String>,
    files: BTreeSet<FileId>,
}

/// Returns the name of a tool as a transcript may contain it. Models write any name, or none, and an export contains it unchanged:
/// without this, the server would refuse its own export.
fn tool_name(written: &str) -> String {
    let name: String = written.chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Returns how a run with this last message has ended. Calls without a result are never executed.
fn end_after(message: &Message) -> CopiedEnd {
    let is_answer = message.role == Role::Assistant && message.status == MessageStatus::Complete && !message.internal;
    if is_answer && message.tool_calls().next().is_none() {
        CopiedEnd::Completed(message.finish_reason.unwrap_or(FinishReason::Stop))
    } else {
        CopiedEnd::Cancelled
    }
}
