//! An answer with its tool calls, with which a new run begins.

use std::sync::Arc;

use crate::domain::conversation::message::Message;
use crate::domain::ids::{CallId, MessageId};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};

#[derive(Debug, Clone, PartialEq)]
pub struct CallBatch {
    /// The message of the earlier run that `message` copies or replaces.
    pub original: MessageId,
    /// The message. In [`ResumeKind::Call`] and [`ResumeKind::Undo`] it belongs to the new run, with new ids.
    pub message: Message,
    /// Its calls, by position. In [`ResumeKind::Call`] and [`ResumeKind::Undo`] they are the first step of the new run.
    pub calls: Vec<ToolCall>,
    pub tools: Vec<Arc<ToolDefinition>>,
    /// Another call of the run with the same tool and arguments that may have been executed.
    pub twin: Option<CallId>,
}

impl CallBatch {
    /// Returns the answer `message` with the call `id`, of a run with all these calls.
    pub fn from_parts(message: Message, mut calls: Vec<ToolCall>, tools: Vec<Arc<ToolDefinition>>, id: &CallId) -> Self {
        let original = message.id.clone();
        let twin = calls.iter().find(|call| call.id == *id).and_then(|call| {
            let is_same =
                |other: &&ToolCall| other.id != call.id && other.name == call.name && other.arguments_hash == call.arguments_hash;
            calls.iter().filter(is_same).find(|other| may_have_been_made(other)).map(|other| other.id.clone())
        });
        calls.retain(|call| call.message_id == original);
        Self { original, message, calls, tools, twin }
    }
}

fn may_have_been_made(call: &ToolCall) -> bool {
    match call.state {
        ToolCallState::Started | ToolCallState::Done | ToolCallState::Failed | ToolCallState::Unknown => true,
        ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Denied | ToolCallState::Cancelled => {
            call.key.is_some()
        }
    }
}
