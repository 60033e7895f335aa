//! Helpers that send a request and read the whole answer.

use std::sync::Arc;
use std::time::Duration;

use capstan::domain::conversation::message::{FilePart, Message, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
use capstan::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId};
use capstan::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelOptions, ModelRequest, Usage};
use capstan::domain::tool::{ReplayClass, ToolCallState, ToolDefinition};
use capstan::provider::{ClientOptions, ModelClient, Quirks, SetupError, StreamLimits, openai};
use capstan::support::ids::{IdSource, SequentialIds};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use support::wait::within;
use support::wire::{Answer, Wire};

/// The events of an answer before its end, and the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub events: Vec<ModelEvent>,
    pub end: Result<ModelFinish, ModelError>,
}

impl Outcome {
    pub fn text(&self) -> String {
        self.events.iter().filter_map(|event| if let ModelEvent::Text(text) = event { Some(text.as_str()) } else { None }).collect()
    }

    pub fn reasoning(&self) -> String {
        let thoughts = self.events.iter().filter_map(|event| match event {
            ModelEvent::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        thoughts.collect()
    }

    /// Returns id, name and arguments of each call, in the order of their first events.
    pub fn calls(&self) -> Vec<(String, String, String)> {
        let mut calls: Vec<(usize, (String, String, String))> = Vec::new();
        for event in &self.events {
            match event {
                ModelEvent::ToolCallStarted { index, provider_call_id, name } => {
                    assert!(calls.iter().all(|(known, _)| known != index), "index {index} begins twice");
                    calls.push((*index, (provider_call_id.clone(), name.clone(), String::new())));
                }
                ModelEvent::ToolCallArguments { index, delta } => {
                    let call = calls.iter_mut().find(|(known, _)| known == index).expect("arguments of a call that has begun");
                    call.1.2.push_str(delta);
                }
                _ => {}
            }
        }
        calls.into_iter().map(|(_, call)| call).collect()
    }

    pub fn usage(&self) -> Option<Usage> {
        self.events.iter().rev().find_map(|event| if let ModelEvent::Usage(usage) = event { Some(*usage) } else { None })
    }

    pub fn error(&self) -> ModelErrorKind {
        self.end.as_ref().expect_err("a failure").kind
    }

    pub fn finish(&self) -> ModelFinish {
        *self.end.as_ref().expect("an answer")
    }
}

/// Returns a request with two tools.
pub fn question() -> ModelRequest {
    request(vec![message(&SequentialIds::default(), Role::User, |id| vec![text_part(id(), "hi")])])
}

pub fn request(messages: Vec<Message>) -> ModelRequest {
    let tools = ["get_weather", "get_time"].map(|name| {
        let parameters = json!({"type": "object", "properties": {}});
        Arc::new(ToolDefinition::new(name, format!("does {name}"), parameters, ReplayClass::Read))
    });
    ModelRequest {
        model: "gpt-x".to_owned(),
        system: "be brief".to_owned(),
        messages,
        tools: tools.to_vec(),
        ..ModelRequest::default()
    }
}

/// A request of this model without tools.
pub fn plain(model: &str, options: ModelOptions) -> ModelRequest {
    ModelRequest { model: model.to_owned(), tools: Vec::new(), options, ..question() }
}

pub fn text_part(id: PartId, text: &str) -> Part {
    Part::Text(TextPart { id, text: text.to_owned() })
}

pub fn file(id: PartId, media_type: &str, url: Option<&str>, name: Option<&str>) -> FilePart {
    FilePart {
        id,
        media_type: media_type.to_owned(),
        url: url.map(str::to_owned),
        file_id: None,
        size: None,
        text_chars: None,
        text_bytes: None,
        text_limit: None,
        text: None,
        name: name.map(str::to_owned),
    }
}

/// Returns a file whose text replaces it in a request.
pub fn text_file(id: PartId, words: &str) -> Part {
    let text = Some(format!("[file a.txt, text/plain]\n{words}"));
    Part::File(FilePart { text, ..file(id, "text/plain", None, Some("a.txt")) })
}

/// The id that Capstan gave to a call.
pub fn call_id(part: &Part) -> String {
    match part {
        Part::ToolCall(call) => call.call_id.as_str().to_owned(),
        _ => panic!("no call"),
    }
}

pub fn message(ids: &dyn IdSource, role: Role, parts: impl FnOnce(&dyn Fn() -> PartId) -> Vec<Part>) -> Message {
    Message {
        created_at: "2026-01-01T00:00:00.000Z".to_owned(),
        ..Message::new(
            MessageId::generate(ids),
            (RunId::generate(ids), ConversationId::generate(ids)),
            role,
            parts(&|| PartId::generate(ids)),
        )
    }
}

/// Returns a call and its result part.
pub fn call(ids: &dyn IdSource, provider_call_id: Option<&str>, arguments: Value, answer: &str) -> (Part, Part) {
    let call_id = CallId::generate(ids);
    let call = Part::ToolCall(ToolCallPart {
        id: PartId::generate(ids),
        call_id: call_id.clone(),
        name: "get_time".to_owned(),
        arguments,
        provider_call_id: provider_call_id.map(str::to_owned),
        raw: None,
        undoes: None,
    });
    let result = Part::ToolResult(ToolResultPart {
        id: PartId::generate(ids),
        call_id,
        name: "get_time".to_owned(),
        content: vec![ToolContent::text(answer)],
        is_error: false,
        state: ToolCallState::Done,
        undoable: false,
    });
    (call, result)
}

/// Returns limits that a busy machine does not reach.
pub fn limits() -> StreamLimits {
    StreamLimits { after_finish: Duration::from_secs(10), ..StreamLimits::default() }
}

pub fn options(wire: &Wire) -> ClientOptions {
    ClientOptions { limits: limits(), api_key: Some("sk-canary-0123456789".into()), ..ClientOptions::new(&wire.base_url) }
}

/// Sends the request and reads the answer to its end.
pub async fn ask(options: ClientOptions, request: ModelRequest) -> Outcome {
    ask_through(chat(options).expect("usable options").as_ref(), request).await
}

/// Returns a client for chat completions without quirks.
pub fn chat(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    openai::client(options, Quirks::default())
}

/// Sends the request through this client and reads the answer to its end.
pub async fn ask_through(client: &dyn ModelClient, request: ModelRequest) -> Outcome {
    within("the whole answer", Duration::from_secs(20), async {
        let mut stream = match client.stream(request).await {
            Ok(stream) => stream,
            Err(error) => return Outcome { events: Vec::new(), end: Err(error) },
        };
        let mut events = Vec::new();
        loop {
            let end = match stream.next().await {
                Some(Ok(ModelEvent::Finished(finish))) => Ok(finish),
                Some(Ok(event)) => {
                    events.push(event);
                    continue;
                }
                Some(Err(error)) => Err(error),
                None => panic!("the stream ended without an end after {events:?}"),
            };
            assert!(stream.next().await.is_none(), "an event follows the end");
            return Outcome { events, end };
        }
    })
    .await
}

/// Returns the outcome of one answer to the usual request.
pub async fn outcome(answer: Answer) -> Outcome {
    let wire = Wire::play(vec![answer]).await;
    ask(options(&wire), question()).await
}

/// Returns the outcome of a stream.
pub async fn outcome_of(body: impl AsRef<[u8]>) -> Outcome {
    outcome(Answer::stream(body)).await
}

/// Returns an event with a delta of the first choice.
pub fn delta(delta: Value) -> String {
    event(&json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
}

/// Returns the event with the finish reason.
pub fn finish(reason: &str) -> String {
    event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

/// Returns the event with the usage.
pub fn usage(prompt: i64, completion: i64) -> String {
    event(&json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}))
}

pub fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

pub const DONE: &str = "data: [DONE]\n\n";
