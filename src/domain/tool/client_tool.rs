//! Client tools: a run's request brings them, and its client executes their calls.
//!
//! Owns their values and the check of their names. Must not know how a result reaches the run.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::domain::conversation::ToolContent;
use crate::domain::ids::CallId;
use crate::domain::run::InputAnswer;
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::support::json;

/// A tool that the client of a run executes.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    /// The name that models see: 1 to 64 letters, digits, `_` and `-`. No tool of the server may have it.
    pub name: String,
    /// The description for the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments, always an object schema. If absent, the arguments are any object.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
}

impl ClientTool {
    /// Returns the tool as runs and models see it.
    pub fn definition(&self) -> ToolDefinition {
        let parameters = self.parameters.clone().unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
        let definition_hash = json::hash(&json!([self.description, parameters]));
        let definition = ToolDefinition::new(&self.name, self.description.as_str(), parameters, ReplayClass::Unsafe);
        ToolDefinition { definition_hash, by_client: true, ..definition }
    }
}

/// A tool call that waits for the result of its client.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientCall {
    /// The id of the call, which its result names.
    pub call_id: CallId,
    /// The name of the client tool.
    pub name: String,
    /// The arguments, which the server does not check against the tool's schema.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// When the call expires, RFC 3339. The run then continues with an error as its result.
    pub expires_at: Option<String>,
}

const RESULT: &str = "result";
const ERROR: &str = "error";

/// Returns the result of a client as the answer that the store keeps.
pub fn client_answer(content: &[ToolContent], is_error: bool) -> InputAnswer {
    let choice = if is_error { ERROR } else { RESULT };
    InputAnswer { content: serde_json::to_value(content).ok(), ..InputAnswer::new(choice, None) }
}

/// Returns the content of a stored result, and whether it is an error.
pub fn client_result(answer: &InputAnswer) -> (Vec<ToolContent>, bool) {
    let content = answer.content.clone().and_then(|content| serde_json::from_value(content).ok());
    (content.unwrap_or_default(), answer.choice == ERROR)
}
