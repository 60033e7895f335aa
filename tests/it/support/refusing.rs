//! A provider that refuses requests by what they hold, in the words of real providers.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Response, Uri};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::dialects::{Dialect, Says};

/// A refusal of a request: the status and the error.
pub type Refusal = (u16, Value);

/// Judges a request by its path and its body.
pub type Judge = Arc<dyn Fn(Dialect, &str, &Value) -> Option<Refusal> + Send + Sync>;

/// A request, and whether it was refused.
#[derive(Debug, Clone)]
pub struct JudgedRequest {
    pub body: Value,
    pub refused: bool,
}

/// The provider. Stops when dropped.
pub struct RefusingProvider {
    /// Ends with `/v1`.
    pub base_url: String,
    asked: Arc<Mutex<Vec<JudgedRequest>>>,
    _tasks: JoinSet<()>,
}

struct Shared {
    /// The list of models.
    models: Value,
    dialect: Dialect,
    judge: Judge,
    asked: Arc<Mutex<Vec<JudgedRequest>>>,
}

impl RefusingProvider {
    pub async fn start(dialect: Dialect, judge: Judge) -> Self {
        Self::start_with(dialect, judge, &["acme-1"]).await
    }

    /// Starts one that lists these models.
    pub async fn start_with(dialect: Dialect, judge: Judge, models: &[&str]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base_url = format!("http://{}/v1", listener.local_addr().expect("a bound socket"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let named = |key: &str| models.iter().map(|name| json!({ key: name })).collect::<Vec<_>>();
        let models = json!({"data": named("id"), "models": named("name")});
        let shared = Arc::new(Shared { models, dialect, judge, asked: Arc::clone(&asked) });
        let app = Router::new().fallback(answer).with_state(shared);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            axum::serve(listener, app).await.expect("the provider serves");
        });
        Self { base_url, asked, _tasks: tasks }
    }

    /// Returns the requests to models so far.
    pub fn asked(&self) -> Vec<JudgedRequest> {
        self.asked.lock().expect("no test panics with the lock").clone()
    }

    /// Returns the refused requests so far.
    pub fn refused(&self) -> usize {
        self.asked().iter().filter(|judged| judged.refused).count()
    }
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, body: Bytes) -> Response<Body> {
    let path = uri.path().to_owned();
    let reply = |status: u16, kind: &str, body: String| {
        Response::builder().status(status).header("content-type", kind).body(Body::from(body)).expect("a response")
    };
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return reply(200, "application/json", shared.models.to_string());
    };
    if path.ends_with("/api/show") {
        return reply(404, "application/json", "{}".to_owned());
    }
    let refusal = (shared.judge)(shared.dialect, &path, &body);
    let is_streamed = streams(&path, &body);
    shared.asked.lock().expect("no test panics with the lock").push(JudgedRequest { body, refused: refusal.is_some() });
    match refusal {
        Some((status, error)) => reply(status, "application/json", error.to_string()),
        None if is_streamed => {
            let kind = if shared.dialect == Dialect::Ollama { "application/x-ndjson" } else { "text/event-stream" };
            reply(200, kind, shared.dialect.body(Says { text: "Hello.", ..Says::default() }))
        }
        None => reply(200, "application/json", whole(shared.dialect).to_string()),
    }
}

/// Returns whether a request asks for a stream.
pub fn streams(path: &str, body: &Value) -> bool {
    body["stream"] == true || path.ends_with(":streamGenerateContent")
}

fn whole(dialect: Dialect) -> Value {
    let text = "Hello.";
    match dialect {
        Dialect::Openai | Dialect::Openrouter => {
            json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 11, "completion_tokens": 7}})
        }
        Dialect::Responses => json!({"id": "resp_1", "object": "response", "status": "completed", "output": [
            {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "annotations": [], "text": text}]}],
            "usage": {"input_tokens": 11, "output_tokens": 7}}),
        Dialect::Anthropic => json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "acme-1",
            "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": {"input_tokens": 11, "output_tokens": 7}}),
        Dialect::Gemini => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7}})
        }
        Dialect::Ollama => json!({"message": {"role": "assistant", "content": text}, "done": true, "done_reason": "stop",
            "prompt_eval_count": 11, "eval_count": 7}),
    }
}

/// Refuses look-around in the schemas of tools.
pub fn refuse_look_around(dialect: Dialect, body: &Value) -> Option<Refusal> {
    if !body.to_string().contains("(?!") {
        return None;
    }
    let at = dialect.offered(body).iter().position(|name| name.contains("strict")).unwrap_or_default();
    let error = json!({"message": "Invalid schema for function: regex look-around is not supported.", "type": "invalid_request_error",
        "param": format!("tools[{at}].function.parameters"), "code": "invalid_function_parameters"});
    Some((400, json!({ "error": error })))
}

/// Refuses one ability after another, until nothing but a plain message is left.
pub fn refuse_everything(dialect: Dialect, path: &str, body: &Value) -> Option<Refusal> {
    let tools = dialect.offered(body);
    let text = body.to_string();
    let refuse =
        |status: u16, message: String| Some((status, json!({"error": {"message": message, "type": "invalid_request_error"}})));
    let typed = |message: &str, param: &str, code: &str| {
        Some((400, json!({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}})))
    };
    if tools.len() > 128 {
        let message = format!(
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length {} instead.",
            tools.len()
        );
        return typed(&message, "tools", "array_above_max_length");
    }
    if let Some(refusal) = refuse_look_around(dialect, body) {
        return Some(refusal);
    }
    if !tools.is_empty() {
        return refuse(400, "registry.example/acme-1 does not support tools".to_owned());
    }
    if text.contains("iVBORw0KGgo") {
        return refuse(400, "acme-1 is not a multimodal model".to_owned());
    }
    let has_system = body["messages"]
        .as_array()
        .is_some_and(|messages| messages.first().is_some_and(|first| first["role"] == "system" || first["role"] == "developer"))
        || ["system", "instructions", "systemInstruction"].iter().any(|name| body.get(*name).is_some());
    if has_system {
        return refuse(500, "System role not supported".to_owned());
    }
    for (field, message) in [
        (
            "/temperature",
            "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.",
        ),
        (
            "/generationConfig/temperature",
            "Invalid JSON payload received. Unknown name \"temperature\" at 'generation_config': Cannot find field.",
        ),
        ("/options/temperature", "'temperature' is not supported"),
        ("/reasoning/summary", "Your organization must be verified to generate reasoning summaries."),
        ("/parallel_tool_calls", "Unsupported parameter: 'parallel_tool_calls' is not supported with this model."),
        ("/max_output_tokens", "Unsupported parameter: 'max_output_tokens' is not supported with this model."),
        ("/generationConfig/maxOutputTokens", "Unknown name \"maxOutputTokens\" at 'generation_config': Cannot find field."),
        ("/options/num_predict", "'num_predict' is not supported"),
    ] {
        if body.pointer(field).is_some() {
            return match field {
                "/reasoning/summary" => typed(message, "reasoning.summary", "unsupported_value"),
                _ => refuse(400, message.to_owned()),
            };
        }
    }
    match dialect {
        Dialect::Anthropic if body["max_tokens"].as_u64().is_some_and(|most| most > 4_096) => {
            let message = format!(
                "max_tokens: {} > 4096, which is the maximum allowed number of output tokens for acme-1",
                body["max_tokens"]
            );
            return refuse(400, message);
        }
        Dialect::Openai if body.get("max_tokens").is_some() => {
            let message =
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
            return typed(message, "max_tokens", "unsupported_parameter");
        }
        _ => {}
    }
    if streams(path, body) {
        return typed("Your organization must be verified to stream this model.", "stream", "unsupported_value");
    }
    None
}
