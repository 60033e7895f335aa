//! The document of the protocols of other products. Their names and forms are those of the products, and their responses are
//! described by status and media type.

use serde_json::{Map, Value, json};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, OpenApi};

use super::operations::{add_idempotency_key, make_body_optional, operations, share_repeated};
use super::schemas::{self, members};
use super::{with_references, without_paths};
use crate::domain::ids::FileId;
use crate::domain::problem::ProblemBody;
use crate::http::protocols;

const DESCRIPTION: &str = "The protocols of other products on the same log. `/openapi.json` describes the native API.";

const TAGS: [(&str, &str); 10] = [
    ("models", "OpenAI: agents and models."),
    ("chat", "OpenAI: chat completions."),
    ("embeddings", "OpenAI: embeddings."),
    ("responses", "OpenAI: responses, over HTTP and a WebSocket."),
    ("conversations", "OpenAI: conversations and their items."),
    ("files", "OpenAI: files."),
    ("ai-sdk", "AI SDK: chats."),
    ("ag-ui", "AG-UI: runs and threads."),
    ("copilotkit", "CopilotKit: the routes of its runtime."),
    ("mcp", "MCP: the agents as tools."),
];

/// The operations that take an `Idempotency-Key`.
const REPLAYED: [&str; 8] = [
    "openai_create_chat_completion",
    "openai_create_response",
    "openai_create_conversation",
    "openai_create_conversation_items",
    "ai_sdk_send",
    "ag_ui_run",
    "copilotkit_run",
    "mcp_send",
];

/// The forms of errors by the beginning of a path.
const ERRORS: [(&str, &str); 3] = [("/v1/", "OpenAiError"), ("/api/chat", "AiSdkError"), ("/mcp", "McpError")];
/// The form of other errors.
const PROBLEM: &str = "Problem";

pub(super) fn document() -> Value {
    let routes = protocols::routes().merge(protocols::sockets());
    let mut document = serde_json::to_value(routes.document(base())).unwrap_or_default();
    for (path, item) in members(&mut document, "/paths").into_iter().flatten() {
        let error = ERRORS.iter().find(|(beginning, _)| path.starts_with(beginning)).map_or(PROBLEM, |(_, name)| name);
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            if let Some(responses) = members(operation, "/responses") {
                responses.values_mut().for_each(omit_schema_of_streams);
                responses.insert("default".to_owned(), json!({ "$ref": format!("#/components/responses/{error}") }));
            }
        }
    }
    for (_, operation) in operations(&mut document) {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
        if REPLAYED.contains(&id) {
            add_idempotency_key(operation);
        }
        make_body_optional(operation);
    }
    share_repeated(&mut document);
    if let Some(components) = members(&mut document, "/components") {
        components.insert("responses".to_owned(), errors());
    }
    schemas::complete(&mut document);
    document
}

/// Omits the schema of a response that is a stream: it would be the schema of each event, whose form is that of the product.
fn omit_schema_of_streams(response: &mut Value) {
    if let Some(stream) = members(response, "/content/text~1event-stream") {
        stream.shift_remove("schema");
    }
}

fn errors() -> Value {
    let text = json!({ "type": "string" });
    let open_ai = json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": text, "type": text, "code": text, "param": { "type": ["string", "null"] },
            },
        } },
    });
    let mcp = json!({
        "type": "object",
        "required": ["jsonrpc", "error"],
        "properties": { "jsonrpc": { "const": "2.0" }, "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": { "code": { "type": "integer" }, "message": text },
        } },
    });
    let problem = json!({ "$ref": "#/components/schemas/ProblemBody" });
    let response = |description: &str, media_type: &str, schema: Value| json!({ "description": description, "content": { media_type: { "schema": schema } } });
    json!({
        "OpenAiError": response("An error of OpenAI", "application/json", open_ai),
        "AiSdkError": response("An error as one sentence", "text/plain", text),
        "McpError": response("An error of JSON-RPC", "application/json", mcp),
        PROBLEM: response("A problem", "application/problem+json", problem),
    })
}

fn base() -> OpenApi {
    let info =
        InfoBuilder::new().title("Capstan: other protocols").version(env!("CARGO_PKG_VERSION")).description(Some(DESCRIPTION));
    let components = ComponentsBuilder::new()
        // Only parameters refer to `FileId`.
        .schemas_from_iter(with_references::<FileId>())
        .schemas_from_iter(with_references::<ProblemBody>());
    without_paths(info, &TAGS, components)
}
