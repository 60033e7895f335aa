//! Provider fields that go back with a message unchanged: Gemini's signatures outside of calls, Copilot's encrypted reasoning.
//!
//! Protocol: <https://ai.google.dev/gemini-api/docs/thought-signatures>.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::wire::Delta;
use crate::domain::conversation::ReasoningPart;
use crate::domain::model::ModelEvent;
use crate::provider::stream::AnswerAssembler;
use crate::provider::stream::lenient::Text;

/// The field of a reasoning block that contains the provider fields of the message.
const FIELD: &str = "message";

#[derive(Debug, Default)]
pub(super) struct ProviderFields(Map<String, Value>);

impl ProviderFields {
    /// Adds the provider fields of a delta. A later one replaces an earlier one of the same name.
    pub(super) fn take(&mut self, delta: &Delta<'_>) {
        let objects = [("extra_content", &delta.extra_content), ("provider_specific_fields", &delta.provider_specific_fields)];
        for (name, value) in objects {
            if let Some(value) = value.as_deref().filter(|value| is_signed(value, 0)) {
                self.0.insert(name.to_owned(), value.clone());
            }
        }
        let texts = [
            ("thought_signature", &delta.thought_signature),
            ("thinking_signature", &delta.thinking_signature),
            ("reasoning_opaque", &delta.reasoning_opaque),
        ];
        for (name, Text(text)) in texts.into_iter().filter(|(_, Text(text))| !text.is_empty()) {
            self.0.insert(name.to_owned(), Value::from(text.as_ref()));
        }
    }

    /// Emits the provider fields at the end of the answer.
    pub(super) fn emit(&mut self, answer: &mut AnswerAssembler) {
        if !self.0.is_empty() {
            answer.emit(ModelEvent::ReasoningBlock(json!({ FIELD: std::mem::take(&mut self.0) })));
        }
    }
}

/// Returns the provider fields that go back with a message, from its reasoning.
pub(super) fn of<'a>(reasoning: impl Iterator<Item = &'a ReasoningPart>) -> BTreeMap<&'a str, &'a Value> {
    let fields = reasoning.filter_map(|part| part.raw.as_ref()?.get(FIELD)?.as_object()).flatten();
    fields.map(|(name, value)| (name.as_str(), value)).collect()
}

/// Returns whether the provider (`google`, `vertex`) marks the content as reasoning.
pub(super) fn is_thought(extra_content: &Value) -> bool {
    let mut makers = extra_content.as_object().into_iter().flat_map(|makers| makers.values());
    makers.any(|fields| fields.get("thought") == Some(&Value::Bool(true)))
}

/// Returns whether an object has a signature, or one of its fields does.
fn is_signed(value: &Value, depth: u8) -> bool {
    let is_nothing = |value: &Value| value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty);
    value.as_object().into_iter().flatten().any(|(name, value)| {
        let names_one = matches!(name.as_str(), "thought_signature" | "thought_signatures");
        (names_one && !is_nothing(value)) || (depth == 0 && is_signed(value, 1))
    })
}
