//! Runs for clients that send all earlier messages with each request.
//!
//! Such a request begins a conversation with these messages, or adds them to the conversation that it names. Owns the check of these
//! messages. Must not know any protocol.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::domain::access::principal::Principal;
use crate::domain::agent::TitlePolicy;
use crate::domain::conversation::content::ToolContent;
use crate::domain::conversation::message::{Message, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart};
use crate::domain::ids::{CallId, ConversationId, InputId, MessageId, PartId, RunId};
use crate::domain::tool::ToolCallState;
use crate::service::idempotency_outcome::RequestKey;
use crate::service::questions::tool_results::tool_content;
use crate::service::runs::message_content::{Content, StartRun};
use crate::service::runs::{PreparedRun, StartedRun};
use crate::service::{Error, Result, Service};
use crate::store::Transcript;
use crate::support::text;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentMessage {
    User(Content),
    Assistant {
        text: String,
        reasoning: String,
        calls: Vec<SentCall>,
    },
    /// Results of calls of earlier messages.
    Results(Vec<SentResult>),
}

/// A call with the id by which the client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentCall {
    pub id: String,
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentResult {
    pub call_id: String,
    pub content: Content,
    pub is_error: bool,
}

/// The messages of a request. The last one starts the run: it is a message of the user, or holds results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentTranscript {
    pub messages: Vec<SentMessage>,
    /// The questions of earlier runs that are among the messages, if the client knows their ids.
    pub questions: Vec<InputId>,
    /// Whether the conversation is hidden, and deleted early.
    pub hidden: bool,
    /// The JSON name of the field that holds the messages, for error messages.
    pub field: &'static str,
}

impl Service {
    /// Accepts the messages of a request in a new conversation, or at the end of the one that `request` names. `request` has no
    /// content.
    ///
    /// Ends the runs that wait for results or answers which the messages contain: the client has repeated their history, and goes
    /// on in the new run.
    pub async fn start_transcript(
        &self,
        principal: &Principal,
        mut request: StartRun,
        sent: SentTranscript,
        key: Option<RequestKey>,
    ) -> Result<StartedRun> {
        let field = sent.field;
        let mut sent_messages = without_blank(&sent.messages);
        let question;
        // Some clients send a question as instructions alone. Models answer only messages.
        if sent_messages.is_empty() && !request.setup.instructions.is_empty() {
            question = SentMessage::User(Content::Text(std::mem::take(&mut request.setup.instructions)));
            sent_messages.push((0, &question));
        }
        let most = self.limits.copies.messages;
        if sent.messages.len() > usize::try_from(most).unwrap_or(usize::MAX) {
            let reason = format!("has {} messages; at most {most} are accepted (limits.copy_messages)", sent.messages.len());
            return Err(Error::field(&format!("/{field}"), reason));
        }
        let mut profile = self.profile(principal, &request).await?;
        if sent.hidden {
            // No list shows the title.
            profile.title = TitlePolicy::None;
        }
        let run_id = RunId::generate(self.ids.as_ref());
        let create = request.conversation_id.is_none();
        let conversation_id = request.conversation_id.clone().unwrap_or_else(|| ConversationId::generate(self.ids.as_ref()));
        let admission = profile.admission.and(self.limits.admission());
        let mut messages = Vec::with_capacity(sent.messages.len());
        let mut calls = HashMap::new();
        for (at, message) in sent_messages {
            let at = format!("{field}/{at}");
            let (role, parts) = self.sent_parts(principal, message, &at, admission.max_message_chars, &mut calls).await?;
            let id = MessageId::generate(self.ids.as_ref());
            let stored = Message::new(id, (run_id.clone(), conversation_id.clone()), role, parts);
            messages.push(Message { created_at: self.clock.now().to_rfc3339(), ..stored });
        }
        // After an answer of the model, the model goes on.
        let may_be_last =
            |last: &Message| last.role != Role::Assistant || last.tool_calls().next().is_none() && !last.text().is_empty();
        let Some(last) = messages.pop().filter(may_be_last) else {
            return Err(Error::field(&format!("/{field}"), "must end with a message, or with the result of a tool call"));
        };
        let transcript = Transcript { role: last.role, earlier: messages, hidden: sent.hidden };
        let request = StartRun { conversation_id: Some(conversation_id), create, content_field: field, ..request };
        let prepared = PreparedRun { profile, parts: last.parts, run_id, transcript: Some(transcript) };
        let started = self.accept(principal, request, prepared, key).await?;
        self.end_answered_runs(principal, &sent).await;
        Ok(started)
    }

    /// Returns the principal's messages with these ids and, for each tool call, the messages of its run from the call on, in no
    /// order. Leaves out those that do not exist. `field` is the JSON pointer of the ids, for error messages.
    pub async fn referenced_messages(
        &self,
        principal: &Principal,
        (messages, calls): (&[MessageId], &[CallId]),
        field: &str,
    ) -> Result<Vec<Message>> {
        let (count, limits) = (messages.len() + calls.len(), &self.limits.copies);
        if count > usize::try_from(limits.messages).unwrap_or(usize::MAX) {
            let most = limits.messages;
            return Err(Error::field(
                field,
                format!("refers to {count} items; at most {most} are accepted (limits.copy_messages)"),
            ));
        }
        let found = self.store.referenced_messages(&principal.user_id, messages, calls, limits.bytes).await?;
        found.ok_or_else(|| {
            let most = limits.bytes;
            Error::field(field, format!("refers to messages of more than {most} bytes, which is the limit (limits.copy_bytes)"))
        })
    }

    /// Cancels the runs that wait for results or answers among the messages. After an error they wait until their questions expire.
    async fn end_answered_runs(&self, principal: &Principal, sent: &SentTranscript) {
        let results = sent.messages.iter().flat_map(|message| match message {
            SentMessage::Results(results) => results.as_slice(),
            SentMessage::User(_) | SentMessage::Assistant { .. } => &[],
        });
        let calls: Vec<CallId> = results.filter_map(|result| result.call_id.parse().ok()).collect();
        if calls.is_empty() && sent.questions.is_empty() {
            return;
        }
        let ended = async {
            let mut runs = self.store.runs_waiting_for(&principal.user_id, &calls).await?;
            runs.extend(self.store.runs_asking(&principal.user_id, &sent.questions).await?);
            for run in runs {
                self.cancel_run(principal, &run, None).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = ended.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "a run still waits for answers that another run has");
        }
    }

    /// Returns the role and the parts of a message. `calls` holds the calls without a result, by the ids of the client.
    pub(in crate::service) async fn sent_parts(
        &self,
        principal: &Principal,
        message: &SentMessage,
        at: &str,
        most: u64,
        calls: &mut HashMap<String, (CallId, String)>,
    ) -> Result<(Role, Vec<Part>)> {
        let part_id = || PartId::generate(self.ids.as_ref());
        match message {
            SentMessage::User(content) => {
                Ok((Role::User, self.parts(&principal.user_id, content, &format!("{at}/content"), most).await?))
            }
            SentMessage::Assistant { text, reasoning, calls: sent_calls } => {
                let mut parts = Vec::new();
                if !reasoning.is_empty() {
                    let text = text::storable(reasoning).into_owned();
                    parts.push(Part::Reasoning(ReasoningPart { id: part_id(), text, raw: None }));
                }
                if !text.is_empty() {
                    parts.push(Part::Text(TextPart { id: part_id(), text: text::storable(text).into_owned() }));
                }
                for (place, call) in sent_calls.iter().enumerate() {
                    let call_id = CallId::generate(self.ids.as_ref());
                    let known = (call_id.clone(), call.name.clone());
                    if calls.insert(call.id.clone(), known).is_some() {
                        return Err(Error::field(&format!("/{at}/tool_calls/{place}/id"), "is also the id of another call"));
                    }
                    let name = text::storable(text::prefix_chars(&call.name, 200)).into_owned();
                    let id_of_client = text::storable(text::prefix_chars(&call.id, 200)).into_owned();
                    let part = ToolCallPart::new(part_id(), call_id, name, arguments(&call.arguments));
                    parts.push(Part::ToolCall(ToolCallPart { provider_call_id: Some(id_of_client), ..part }));
                }
                Ok((Role::Assistant, parts))
            }
            SentMessage::Results(results) => {
                let mut parts = Vec::with_capacity(results.len());
                for result in results {
                    let Some((call_id, name)) = calls.remove(&result.call_id) else {
                        let call_id_start = text::prefix_chars(&result.call_id, 100);
                        let reason = format!("{call_id_start:?} is not the id of an earlier call without a result");
                        return Err(Error::field(&format!("/{at}/tool_call_id"), reason));
                    };
                    let content = self.result_content(principal, &result.content, &format!("{at}/content")).await?;
                    let (is_error, undoable) = (result.is_error, false);
                    let state = if is_error { ToolCallState::Failed } else { ToolCallState::Done };
                    parts.push(Part::ToolResult(ToolResultPart {
                        id: part_id(),
                        call_id,
                        name,
                        content,
                        is_error,
                        state,
                        undoable,
                    }));
                }
                Ok((Role::Tool, parts))
            }
        }
    }

    pub(in crate::service) async fn result_content(
        &self,
        principal: &Principal,
        content: &Content,
        field: &str,
    ) -> Result<Vec<ToolContent>> {
        match content {
            Content::Text(text) => Ok(vec![ToolContent::text(text::storable(text))]),
            Content::Parts(_) if content.is_blank() => Ok(Vec::new()),
            Content::Parts(_) => {
                let parts = self.parts(&principal.user_id, content, field, u64::MAX).await?;
                Ok(parts.into_iter().filter_map(tool_content).collect())
            }
        }
    }
}

/// Returns the messages with their numbers, without those of the user that have no text or file. A blank last message stays if another
/// one has content, so that the request is refused.
fn without_blank(messages: &[SentMessage]) -> Vec<(usize, &SentMessage)> {
    let is_blank = |message: &SentMessage| matches!(message, SentMessage::User(content) if content.is_blank());
    let last = messages.len().checked_sub(1).filter(|_| !messages.iter().all(is_blank));
    messages.iter().enumerate().filter(|(at, message)| Some(*at) == last || !is_blank(message)).collect()
}

/// Returns arguments as a message stores them: an object, or any other text as `_raw`.
fn arguments(written: &str) -> Value {
    match serde_json::from_str(text::storable(written).as_ref()) {
        Ok(Value::Object(arguments)) => Value::Object(arguments),
        Ok(_) | Err(_) if written.trim().is_empty() => json!({}),
        Ok(_) | Err(_) => json!({ "_raw": text::storable(written) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_messages_are_left_out_except_the_last() {
        let user = |text: &str| SentMessage::User(Content::Text(text.to_owned()));
        let kept = |texts: &[&str]| {
            let messages: Vec<SentMessage> = texts.iter().map(|text| user(text)).collect();
            without_blank(&messages).into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["a", " ", "b"]), [0, 2]);
        assert_eq!(kept(&["a", ""]), [0, 1]);
        assert_eq!((kept(&["", "\n"]), kept(&[])), (Vec::new(), Vec::new()));
    }
}
