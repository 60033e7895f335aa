//! Shares: read-only copies of conversations for everyone who has a link.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::conversation::message::{Message, Part, Role};
use crate::domain::ids::{ConversationId, RunId, ShareId};
use crate::domain::tool::ToolCallState;
use crate::support::clock::UnixMillis;

/// A share as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub id: ShareId,
    pub conversation_id: ConversationId,
    /// The title of the conversation when it was shared.
    pub title: String,
    pub message_count: u32,
    pub created_at: UnixMillis,
    pub expires_at: UnixMillis,
}

/// A conversation as it was when it was shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SharedConversation {
    /// The title.
    pub title: String,
    /// When the conversation was shared, RFC 3339.
    pub created_at: String,
    /// When the share expires, RFC 3339.
    pub expires_at: String,
    /// The messages, in order.
    pub messages: Vec<SharedMessage>,
}

/// A message of a shared conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedMessage {
    /// The author: `user` or `assistant`.
    pub role: Role,
    /// When the message was stored, RFC 3339.
    pub created_at: String,
    /// The parts, in order.
    pub parts: Vec<SharedPart>,
}

/// A piece of a shared message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SharedPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A tool that the assistant called.
    Tool {
        /// The tool's name.
        name: String,
    },
}

/// Collects what a share shows: the texts of users and assistants, and the names of the tools that were called.
///
/// The code lists every shared field, so that a new kind of part or field is never shared by accident.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The rank of each run, by the position of its first message.
    runs: HashMap<RunId, usize>,
    /// The messages, each with the rank of its run.
    messages: Vec<(usize, SharedMessage)>,
}

impl Snapshot {
    /// Adds the next message of the conversation by position. Internal messages are left out.
    pub fn add(&mut self, message: Message) {
        let Message { role, parts, internal, created_at, run_id, .. } = message;
        let next = self.runs.len();
        let run = *self.runs.entry(run_id).or_insert(next);
        if internal {
            return;
        }
        match role {
            Role::User | Role::Assistant => {
                let parts = parts.into_iter().filter_map(shown_text).collect();
                self.messages.push((run, SharedMessage { role, created_at, parts }));
            }
            // A call that was denied or stopped has the same part in the answer as an executed call. Only its result differs.
            Role::Tool => {
                let mut answers = self.messages.iter_mut().filter(|(of, message)| *of == run && message.role == Role::Assistant);
                let Some((_, answer)) = answers.next_back() else { return };
                answer.parts.extend(parts.into_iter().filter_map(called_tool));
            }
        }
    }

    /// Returns the messages that show something, run by run: a message that waited for an earlier run comes after that run's
    /// answer.
    pub fn into_messages(mut self) -> Vec<SharedMessage> {
        self.messages.sort_by_key(|(run, _)| *run);
        self.messages.into_iter().map(|(_, message)| message).filter(|message| !message.parts.is_empty()).collect()
    }
}

fn shown_text(part: Part) -> Option<SharedPart> {
    match part {
        Part::Text(part) if part.text.trim().is_empty() => None,
        Part::Text(part) => Some(SharedPart::Text { text: part.text }),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => None,
    }
}

fn called_tool(part: Part) -> Option<SharedPart> {
    let Part::ToolResult(result) = part else { return None };
    match result.state {
        ToolCallState::Done | ToolCallState::Failed | ToolCallState::Unknown => Some(SharedPart::Tool { name: result.name }),
        ToolCallState::Denied
        | ToolCallState::Cancelled
        | ToolCallState::Planned
        | ToolCallState::AwaitingApproval
        | ToolCallState::Started => None,
    }
}
