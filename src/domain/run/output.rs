//! The result of a run: its final message, without reasoning.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::{Message, Part, Role};

/// The result of a run that has ended.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunOutput {
    /// The text of the final message.
    pub text: String,
    /// The parts of the final message, without its reasoning.
    pub parts: Vec<Part>,
    /// The text as JSON, if the run has a schema for its answer.
    #[schema(value_type = Option<Value>)]
    pub structured: Option<Value>,
}

impl RunOutput {
    /// Returns the output of a run whose newest message is `last`; `None` if that is no answer. `is_json` is whether the run has a
    /// schema for its answer.
    pub fn of(last: &Message, is_json: bool) -> Option<Self> {
        if last.role != Role::Assistant || last.internal || last.tool_calls().next().is_some() {
            return None;
        }
        let text = last.text();
        let structured = if is_json { serde_json::from_str(&text).ok() } else { None };
        let parts = last.parts.iter().filter(|part| !matches!(part, Part::Reasoning(_))).cloned().collect();
        Some(Self { text, parts, structured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::{ReasoningPart, TextPart};
    use crate::domain::ids::{ConversationId, MessageId, PartId, RunId};

    fn message_of(role: Role, text: &str) -> Message {
        let of = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
        let id = || PartId::from_stored("part_1".to_owned());
        let thought = Part::Reasoning(ReasoningPart { id: id(), text: "Hm.".to_owned(), raw: None });
        let parts = vec![thought, Part::Text(TextPart { id: id(), text: text.to_owned() })];
        Message::new(MessageId::from_stored("msg_1".to_owned()), of, role, parts)
    }

    #[test]
    fn output_is_the_answer_without_reasoning() {
        let json = r#"{"b":20000000000000000001,"a":1}"#;
        let output = RunOutput::of(&message_of(Role::Assistant, json), true).unwrap();
        assert_eq!((output.text.as_str(), output.parts.len()), (json, 1));
        assert_eq!(output.structured.unwrap().to_string(), json, "numbers and order stay as written");
        assert_eq!(RunOutput::of(&message_of(Role::Assistant, json), false).unwrap().structured, None);
        assert_eq!(RunOutput::of(&message_of(Role::User, "Hi"), false), None);
    }
}
