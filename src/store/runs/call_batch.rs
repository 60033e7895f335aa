//! An answer with its calls, as a new run begins with it.

use std::sync::Arc;

use crate::domain::conversation::message::Message;
use crate::domain::ids::{CallId, MessageId};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};

/// An answer of a model with the calls that it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct CallBatch {
    /// Which message of the run it is, or takes the place of.
    pub original: MessageId,
    /// The message. In [`GoOn::Call`] and [`GoOn::Undo`] it belongs to the new run, and its ids are new.
    pub message: Message,
    /// Its calls, by their position. In [`GoOn::Call`] and [`GoOn::Undo`] they are the first step of the new run.
    pub calls: Vec<ToolCall>,
    pub tools: Vec<Arc<ToolDefinition>>,
    /// Of a call that was looked for: another one of its run, of the same tool with the same arguments, that may have been made.
    pub twin: Option<CallId>,
}

impl CallBatch {
    /// The answer `message`, which holds the call `id`, of a run with all these calls.
    pub fn found(message: Message, mut calls: Vec<ToolCall>, tools: Vec<Arc<ToolDefinition>>, id: &CallId) -> Self {
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
