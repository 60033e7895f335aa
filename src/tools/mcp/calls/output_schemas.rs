//! Output schemas of one server's tools, and the check of structured content against them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::Tool;
use serde_json::{Value, json};

use crate::tools::mcp::calls::content;
use crate::tools::schema::{ArgumentError, Validators};

#[derive(Default)]
pub struct Outputs {
    /// The output schemas, by the tool's name at the server.
    schemas: Mutex<HashMap<String, Arc<Value>>>,
    validators: Validators,
}

impl Outputs {
    pub fn replace(&self, tools: &[Tool]) {
        let schemas = tools.iter().filter_map(|tool| {
            let schema = Value::Object(tool.output_schema.as_ref()?.as_ref().clone());
            Some((tool.name.to_string(), Arc::new(schema)))
        });
        *self.schemas.lock().unwrap_or_else(PoisonError::into_inner) = schemas.collect();
    }

    /// Adds a note to a result whose structured content violates the schema. The model may still use the content.
    pub fn check(&self, tool: &str, result: &mut Value) {
        // An error need not be structured.
        let schema = self.schemas.lock().unwrap_or_else(PoisonError::into_inner).get(tool).cloned();
        let Some(schema) = schema.filter(|_| !content::is_error(result)) else { return };
        let reason = match result.get("structuredContent").filter(|structured| !structured.is_null()) {
            None => "it is missing".to_owned(),
            Some(structured) => match self.validators.check(&schema, structured) {
                // A broken schema proves no fault of the result.
                Ok(()) | Err(ArgumentError::BrokenSchema(_)) => return,
                Err(ArgumentError::Violations(reason)) => reason,
            },
        };
        tracing::warn!(tool, reason, "a tool's structured content violates its output schema");
        let words = format!("[note: the structured content of this result violates the tool's output schema: {reason}]");
        let note = json!({"type": "text", "text": words});
        // The note follows the structured content that it describes.
        let text = content::structured_beside(result);
        match result.get_mut("content").and_then(Value::as_array_mut) {
            Some(blocks) => blocks.extend(text.into_iter().chain([note])),
            None => result["content"] = text.into_iter().chain([note]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::ToolContent;

    /// M-16.
    #[test]
    fn an_answer_that_breaks_its_promise_is_flagged_and_still_shown() {
        let tools: Vec<Tool> = serde_json::from_value(json!([
            {"name": "typed", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}},
                "required": ["n"]}},
            {"name": "broken", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "properties": {"n": {"type": "none"}}}},
            {"name": "free", "inputSchema": {"type": "object"}},
        ]))
        .unwrap();
        let outputs = Outputs::default();
        outputs.replace(&tools);
        let seen = |tool: &str, mut result: Value| -> Vec<String> {
            outputs.check(tool, &mut result);
            content::from_result(&result).iter().filter_map(ToolContent::as_text).map(str::to_owned).collect()
        };
        let [wrong, note] = &seen("typed", json!({"content": [], "structuredContent": {"n": "one"}}))[..] else {
            panic!("two texts")
        };
        assert_eq!(wrong, r#"{"n":"one"}"#);
        assert!(note.contains("violates") && note.contains(r#"/n: "one" is not of type "integer""#), "{note}");
        let missing = seen("typed", json!({"content": [{"type": "text", "text": "one"}]}));
        assert!(missing.len() == 2 && missing[1].contains("it is missing"), "{missing:?}");
        for (tool, result) in [
            ("typed", json!({"content": [], "structuredContent": {"n": 1}})),
            ("typed", json!({"content": [{"type": "text", "text": "no"}], "isError": true})),
            ("broken", json!({"content": [], "structuredContent": {"n": 1}})),
            ("free", json!({"content": [], "structuredContent": {"n": 1}})),
            ("unknown", json!({"content": [], "structuredContent": {"n": 1}})),
        ] {
            assert_eq!(seen(tool, result.clone()).len(), 1, "{tool} {result}");
        }
    }
}
