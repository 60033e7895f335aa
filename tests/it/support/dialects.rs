//! The wires that the server speaks with providers, seen from their side: answers as they write them, and what they refuse to be
//! sent.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::wire::{Answer, Asked, Step};

/// One of the wires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Chat completions.
    Openai,
    /// The same, with the reasoning of many providers.
    Openrouter,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Gemini's `generateContent`.
    Gemini,
    /// Ollama's own.
    Ollama,
}

/// The answer of the model: reasoning with a signature, then text, then at most one call with its id, name and arguments.
#[derive(Debug, Clone, Copy, Default)]
pub struct Says<'a> {
    /// Empty for none.
    pub signature: &'a str,
    /// The words, which are sent in two pieces.
    pub text: &'a str,
    /// The call.
    pub call: Option<(&'a str, &'a str, &'a Value)>,
}

impl Dialect {
    /// A model that thinks, as runs name it.
    pub fn model(self) -> &'static str {
        match self {
            Self::Openai => "openai/gpt-5-mini",
            Self::Openrouter => "openrouter/anthropic/claude-sonnet-4.5",
            Self::Responses => "openai-responses/gpt-5-mini",
            Self::Anthropic => "anthropic/claude-sonnet-4-5",
            Self::Gemini => "gemini/gemini-3-pro-preview",
            Self::Ollama => "ollama/qwen3:4b",
        }
    }

    /// The usual variables that say where its provider is, at a scripted one whose URL ends with `/v1`, and with which key.
    pub fn environment(self, base_url: &str) -> Vec<(&'static str, String)> {
        let host = base_url.trim_end_matches("/v1").to_owned();
        match self {
            Self::Openai | Self::Responses => vec![("OPENAI_API_KEY", self.key()), ("OPENAI_BASE_URL", base_url.to_owned())],
            Self::Openrouter => vec![("OPENROUTER_API_KEY", self.key()), ("OPENROUTER_BASE_URL", base_url.to_owned())],
            Self::Anthropic => vec![("ANTHROPIC_API_KEY", self.key()), ("ANTHROPIC_BASE_URL", host)],
            Self::Gemini => vec![("GEMINI_API_KEY", self.key()), ("GEMINI_BASE_URL", host)],
            Self::Ollama => vec![("OLLAMA_HOST", host)],
        }
    }

    /// A key that is found wherever it should not be.
    pub fn key(self) -> String {
        match self {
            Self::Openai | Self::Responses => "sk-canary-openai-0123456789".to_owned(),
            Self::Openrouter => "sk-canary-openrouter-0123456789".to_owned(),
            Self::Anthropic => "sk-canary-anthropic-0123456789".to_owned(),
            Self::Gemini => "sk-canary-gemini-0123456789".to_owned(),
            Self::Ollama => String::new(),
        }
    }

    /// Where the key stands in a request, and what the path is.
    pub fn head(self) -> (Option<String>, &'static str) {
        let bearer = Some(format!("authorization: Bearer {}\r\n", self.key()));
        match self {
            Self::Openai | Self::Openrouter => (bearer, "POST /v1/chat/completions HTTP"),
            Self::Responses => (bearer, "POST /v1/responses HTTP"),
            Self::Anthropic => (Some(format!("x-api-key: {}\r\n", self.key())), "POST /v1/messages HTTP"),
            Self::Gemini => (
                Some(format!("x-goog-api-key: {}\r\n", self.key())),
                "POST /v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse HTTP",
            ),
            Self::Ollama => (None, "POST /api/chat HTTP"),
        }
    }

    /// Whether it signs its reasoning.
    pub fn signs(self) -> bool {
        !matches!(self, Self::Openai | Self::Ollama)
    }

    /// A streamed answer, cut into chunks that end where nothing ends.
    pub fn answer(self, says: Says<'_>) -> Answer {
        let body = self.body(says);
        let steps = body.as_bytes().chunks(97).map(|piece| Step::Send(piece.to_vec())).collect();
        let kind = if self == Self::Ollama { "application/x-ndjson" } else { "text/event-stream" };
        Answer::new(200, &[("content-type", kind)], steps)
    }

    /// The bytes of a streamed answer.
    pub fn body(self, says: Says<'_>) -> String {
        match self {
            Self::Openai | Self::Openrouter => chat(self, says),
            Self::Responses => responses(says),
            Self::Anthropic => anthropic(says),
            Self::Gemini => gemini(says),
            Self::Ollama => ollama(says),
        }
    }

    /// The names of the tools that a request offers, in their order.
    pub fn offered(self, request: &Value) -> Vec<String> {
        let (list, name) = match self {
            Self::Openai | Self::Openrouter | Self::Ollama => ("/tools", "/function/name"),
            Self::Responses | Self::Anthropic => ("/tools", "/name"),
            Self::Gemini => ("/tools/0/functionDeclarations", "/name"),
        };
        let tools = request.pointer(list).and_then(Value::as_array).cloned().unwrap_or_default();
        tools.iter().map(|tool| tool.pointer(name).unwrap().as_str().unwrap().to_owned()).collect()
    }

    /// The calls and the results of a request's history, in their order: `call NAME ARGUMENTS` and `result TEXT`. Panics on a
    /// history that the provider refuses.
    pub fn history(self, asked: &Asked) -> Vec<String> {
        let request = asked.json();
        match self {
            Self::Openai | Self::Openrouter | Self::Ollama => chat_history(&request, self == Self::Ollama),
            Self::Responses => responses_history(&request),
            Self::Anthropic => anthropic_history(&request),
            Self::Gemini => gemini_history(&request),
        }
    }
}

fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap())
}

/// Text in two pieces, cut at a character.
fn halves(text: &str) -> [&str; 2] {
    let at = text.char_indices().map(|(at, _)| at).nth(text.chars().count() / 2).unwrap_or(0);
    let (first, second) = text.split_at(at);
    [first, second]
}

fn chat(dialect: Dialect, says: Says<'_>) -> String {
    let chunk = |choices: Value, usage: Value| {
        let id = "chatcmpl-1";
        format!("data: {}\n\n", json!({"id": id, "object": "chat.completion.chunk", "choices": choices, "usage": usage}))
    };
    let delta = |delta: Value| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null);
    let mut body = delta(json!({"role": "assistant", "content": ""}));
    if !says.signature.is_empty() && dialect == Dialect::Openrouter {
        let part = |field: &str, value: &str| json!([{"type": "reasoning.text", field: value, "format": "anthropic-claude-v1", "index": 0}]);
        body += &delta(json!({"content": "", "reasoning": "Let me see.", "reasoning_details": part("text", "Let me see.")}));
        body += &delta(json!({"content": "", "reasoning_details": part("signature", says.signature)}));
    }
    for half in halves(says.text) {
        body += &delta(json!({"content": half}));
    }
    if let Some((id, name, arguments)) = says.call {
        let begin = json!({"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        body += &delta(json!({ "tool_calls": [begin] }));
        for half in halves(&arguments.to_string()) {
            body += &delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": half}}]}));
        }
    }
    let reason = if says.call.is_some() { "tool_calls" } else { "stop" };
    body += &chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null);
    body += &chunk(json!([]), json!({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}));
    body + "data: [DONE]\n\n"
}

fn responses(says: Says<'_>) -> String {
    let mut output = Vec::new();
    let mut events = vec![json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}})];
    let mut item = |item: Value, between: Vec<Value>| {
        let index = output.len();
        let mut open = item.clone();
        open["status"] = json!("in_progress");
        events.push(json!({"type": "response.output_item.added", "output_index": index, "item": open}));
        for mut event in between {
            event["output_index"] = json!(index);
            event["item_id"] = item["id"].clone();
            events.push(event);
        }
        events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
        output.push(item);
    };
    if !says.signature.is_empty() {
        let summary = json!([{"type": "summary_text", "text": "Let me see."}]);
        let delta = json!({"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "Let me see."});
        item(json!({"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": says.signature}), vec![delta]);
    }
    if !says.text.is_empty() {
        let content = json!([{"type": "output_text", "annotations": [], "text": says.text}]);
        let deltas = halves(says.text).map(|half| json!({"type": "response.output_text.delta", "content_index": 0, "delta": half}));
        let message = json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": content});
        item(message, deltas.to_vec());
    }
    if let Some((id, name, arguments)) = says.call {
        let arguments = arguments.to_string();
        let deltas = halves(&arguments).map(|half| json!({"type": "response.function_call_arguments.delta", "delta": half}));
        let call = json!({"id": format!("fc_{id}"), "type": "function_call", "status": "completed", "call_id": id, "name": name,
            "arguments": arguments});
        item(call, deltas.to_vec());
    }
    let usage = json!({"input_tokens": 11, "output_tokens": 7, "total_tokens": 18});
    let response = json!({"id": "resp_1", "status": "completed", "output": output, "usage": usage});
    events.push(json!({"type": "response.completed", "response": response}));
    events.iter().map(event).collect()
}

fn anthropic(says: Says<'_>) -> String {
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [],
        "stop_reason": null, "usage": {"input_tokens": 11, "output_tokens": 1}});
    let mut body = event(&json!({"type": "message_start", "message": message}));
    let mut blocks = 0;
    let mut block = |start: Value, deltas: &[Value]| {
        body += &event(&json!({"type": "content_block_start", "index": blocks, "content_block": start}));
        for delta in deltas {
            body += &event(&json!({"type": "content_block_delta", "index": blocks, "delta": delta}));
        }
        body += &event(&json!({"type": "content_block_stop", "index": blocks}));
        blocks += 1;
    };
    if !says.signature.is_empty() {
        let thought = json!({"type": "thinking_delta", "thinking": "Let me see."});
        let signature = json!({"type": "signature_delta", "signature": says.signature});
        block(json!({"type": "thinking", "thinking": "", "signature": ""}), &[thought, signature]);
    }
    if !says.text.is_empty() {
        let deltas = halves(says.text).map(|half| json!({"type": "text_delta", "text": half}));
        block(json!({"type": "text", "text": ""}), &deltas);
    }
    if let Some((id, name, arguments)) = says.call {
        let deltas = halves(&arguments.to_string()).map(|half| json!({"type": "input_json_delta", "partial_json": half}));
        block(json!({"type": "tool_use", "id": id, "name": name, "input": {}}), &deltas);
    }
    let reason = if says.call.is_some() { "tool_use" } else { "end_turn" };
    body += &event(&json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}));
    body + &event(&json!({"type": "message_stop"}))
}

fn gemini(says: Says<'_>) -> String {
    let chunk = |value: Value| format!("data: {value}\n\n");
    let parts = |parts: Value| chunk(json!({"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0}]}));
    let mut body = String::new();
    if !says.signature.is_empty() {
        body += &parts(json!([{"text": "Let me see.", "thought": true}]));
    }
    for half in halves(says.text) {
        body += &parts(json!([{ "text": half }]));
    }
    let mut last = json!({"text": ""});
    if let Some((id, name, arguments)) = says.call {
        last = json!({"functionCall": {"id": id, "name": name, "args": arguments}});
    }
    if !says.signature.is_empty() {
        last["thoughtSignature"] = json!(says.signature);
    }
    body += &parts(json!([last]));
    let usage = json!({"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18});
    body + &chunk(json!({"candidates": [{"content": {"parts": [], "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": usage}))
}

fn ollama(says: Says<'_>) -> String {
    let line = |message: Value| format!("{}\n", json!({"model": "m", "message": message, "done": false}));
    let mut body: String = halves(says.text).iter().map(|half| line(json!({"role": "assistant", "content": half}))).collect();
    if let Some((_, name, arguments)) = says.call {
        let calls = json!([{"function": {"name": name, "arguments": arguments}}]);
        body += &line(json!({"role": "assistant", "content": "", "tool_calls": calls}));
    }
    let end = json!({"model": "m", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop",
        "prompt_eval_count": 11, "eval_count": 7});
    body + &format!("{end}\n")
}

fn text_of(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

fn chat_history(request: &Value, calls_without_ids: bool) -> Vec<String> {
    let mut said = Vec::new();
    let mut open: Vec<String> = Vec::new();
    for message in request["messages"].as_array().unwrap() {
        if message["role"] == "tool" {
            let answers = if calls_without_ids { &message["tool_name"] } else { &message["tool_call_id"] };
            assert_eq!(answers.as_str().map(str::to_owned), (!open.is_empty()).then(|| open.remove(0)), "{message}");
            said.push(format!("result {}", text_of(&message["content"])));
            continue;
        }
        assert!(open.is_empty(), "{open:?} are not answered before {message}");
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = &call["function"]["arguments"];
            let arguments: Value =
                if calls_without_ids { arguments.clone() } else { serde_json::from_str(arguments.as_str().unwrap()).unwrap() };
            open.push(if calls_without_ids { &call["function"]["name"] } else { &call["id"] }.as_str().unwrap().to_owned());
            said.push(format!("call {} {arguments}", call["function"]["name"].as_str().unwrap()));
        }
    }
    assert!(open.is_empty(), "{open:?} are not answered");
    said
}

fn responses_history(request: &Value) -> Vec<String> {
    assert_eq!(request["store"], false);
    let mut said = Vec::new();
    let mut open: HashSet<String> = HashSet::new();
    let input = request["input"].as_array().unwrap();
    for (at, item) in input.iter().enumerate() {
        match item["type"].as_str().unwrap_or("message") {
            "function_call" => {
                assert!(open.insert(item["call_id"].as_str().unwrap().to_owned()), "{item}");
                let arguments: Value = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
                said.push(format!("call {} {arguments}", item["name"].as_str().unwrap()));
            }
            "function_call_output" => {
                assert!(open.remove(item["call_id"].as_str().unwrap()), "{item}");
                said.push(format!("result {}", text_of(&item["output"])));
            }
            // Reasoning without the item that followed it is refused.
            "reasoning" => assert!(["message", "function_call"].contains(&input[at + 1]["type"].as_str().unwrap()), "{request}"),
            "message" => assert!(item["role"] == "assistant" || open.is_empty(), "{item}"),
            other => panic!("no such item: {other}"),
        }
    }
    assert!(open.is_empty(), "{open:?} are not answered");
    said
}

fn anthropic_history(request: &Value) -> Vec<String> {
    let mut said = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in request["messages"].as_array().unwrap().iter().enumerate() {
        assert_eq!(message["role"], if at % 2 == 0 { "user" } else { "assistant" }, "the sides take turns: {request}");
        for block in message["content"].as_array().unwrap() {
            match block["type"].as_str().unwrap() {
                "tool_use" => {
                    open.push(block["id"].as_str().unwrap());
                    said.push(format!("call {} {}", block["name"].as_str().unwrap(), block["input"]));
                }
                "tool_result" => {
                    let id = block["tool_use_id"].as_str().unwrap();
                    let place = open.iter().position(|one| *one == id);
                    open.remove(place.unwrap_or_else(|| panic!("{id} is the result of no call")));
                    said.push(format!("result {}", text_of(&block["content"])));
                }
                "thinking" => assert!(block["signature"].as_str().is_some_and(|signature| !signature.is_empty()), "{block}"),
                "text" => assert!(!block["text"].as_str().unwrap().is_empty() && (at % 2 == 1 || open.is_empty()), "{request}"),
                other => panic!("no such block: {other}"),
            }
        }
        assert!(at % 2 == 1 || open.is_empty(), "{open:?} are not answered");
    }
    said
}

fn gemini_history(request: &Value) -> Vec<String> {
    let mut said = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let contents = request["contents"].as_array().unwrap();
    let is_spoken = |content: &Value| content["role"] == "user" && content["parts"][0].get("functionResponse").is_none();
    let turn = contents.iter().rposition(is_spoken).unwrap();
    for (at, content) in contents.iter().enumerate() {
        let parts = content["parts"].as_array().unwrap();
        let calls: Vec<&Value> = parts.iter().filter(|part| part.get("functionCall").is_some()).collect();
        if let (Some(first), true) = (calls.first(), at > turn) {
            assert!(first["thoughtSignature"].is_string(), "a call of this turn without a signature: {request}");
        }
        for part in parts {
            if let Some(call) = part.get("functionCall") {
                open.push(call["name"].as_str().unwrap().to_owned());
                said.push(format!("call {} {}", call["name"].as_str().unwrap(), call["args"]));
            } else if let Some(response) = part.get("functionResponse") {
                assert!(!open.is_empty() && response["name"].as_str() == Some(&open.remove(0)), "{request}");
                let fields = response["response"].as_object().unwrap();
                said.push(format!("result {}", fields.values().filter_map(Value::as_str).collect::<String>()));
            } else {
                assert!(part["text"].is_string(), "{part}");
            }
        }
        assert!(content["role"] == "model" || open.is_empty(), "{open:?} are not answered");
    }
    said
}
