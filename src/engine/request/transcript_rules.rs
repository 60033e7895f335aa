//! Rules for transcripts that all providers share.

use std::collections::HashSet;

use crate::domain::conversation::{Message, Part, Role};
use crate::domain::ids::CallId;

/// The longest tool name that all providers accept, in characters.
pub const MAX_NAME: usize = 64;

pub fn is_sendable_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The first rule that a history breaks. A provider would refuse the history. `at` counts messages from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    #[error("the history contains no message")]
    Nothing,
    /// The first message is not a user message, two messages in a row have one role, results have no calls, or an answer is last.
    #[error("the role of message {at} is out of order")]
    OutOfTurn { at: usize },
    #[error("message {at} is empty")]
    Empty { at: usize },
    /// A part does not fit the role, arguments are no object, or a tool name is invalid.
    #[error("message {at} contains a part that is not allowed there")]
    Misplaced { at: usize },
    #[error("the calls of message {at} are not answered in order")]
    Unanswered { at: usize },
    #[error("call {call_id} occurs in the history twice")]
    RepeatedCall { call_id: CallId },
}

/// Checks a history; returns the first broken rule.
pub fn check_sendable(messages: &[Message]) -> Result<(), Unsendable> {
    let Some(last) = messages.last() else { return Err(Unsendable::Nothing) };
    let mut seen = HashSet::new();
    let mut echoed = HashSet::new();
    let mut before: Option<&Message> = None;
    for (at, message) in messages.iter().enumerate() {
        check_parts(at, message)?;
        let expected: Vec<&CallId> =
            before.map(|message| message.tool_calls().map(|call| &call.call_id).collect()).unwrap_or_default();
        if !expected.is_empty() && message.role != Role::Tool {
            return Err(Unsendable::Unanswered { at: at - 1 });
        }
        match (message.role, before.map(|message| message.role)) {
            (Role::User, Some(Role::User))
            | (Role::Assistant, None | Some(Role::Assistant))
            | (Role::Tool, None | Some(Role::User | Role::Tool)) => return Err(Unsendable::OutOfTurn { at }),
            (Role::Tool, Some(Role::Assistant)) => {
                if expected.is_empty() {
                    return Err(Unsendable::OutOfTurn { at });
                }
                if !message.tool_results().map(|result| &result.call_id).eq(expected) {
                    return Err(Unsendable::Unanswered { at: at - 1 });
                }
            }
            (Role::User, None | Some(Role::Assistant | Role::Tool)) | (Role::Assistant, Some(Role::User | Role::Tool)) => {}
        }
        for call in message.tool_calls() {
            let is_echoed = call.provider_call_id.as_deref().is_some_and(|id| !echoed.insert(id));
            if !seen.insert(&call.call_id) || is_echoed {
                return Err(Unsendable::RepeatedCall { call_id: call.call_id.clone() });
            }
        }
        before = Some(message);
    }
    if last.role == Role::Assistant {
        let at = messages.len() - 1;
        let is_open = last.tool_calls().next().is_some();
        return Err(if is_open { Unsendable::Unanswered { at } } else { Unsendable::OutOfTurn { at } });
    }
    Ok(())
}

fn check_parts(at: usize, message: &Message) -> Result<(), Unsendable> {
    let mut says_something = false;
    for part in &message.parts {
        let (belongs, says) = match (part, message.role) {
            (Part::Text(text), Role::User | Role::Assistant) => (!text.text.trim().is_empty(), true),
            (Part::Reasoning(_), Role::Assistant) => (true, false),
            (Part::ToolCall(call), Role::Assistant) => (call.arguments.is_object() && is_sendable_name(&call.name), true),
            (Part::ToolResult(result), Role::Tool) => (!result.content.is_empty(), true),
            (Part::Image(_) | Part::File(_), Role::User) => (true, true),
            _ => (false, false),
        };
        if !belongs {
            return Err(Unsendable::Misplaced { at });
        }
        says_something |= says;
    }
    if says_something { Ok(()) } else { Err(Unsendable::Empty { at }) }
}
