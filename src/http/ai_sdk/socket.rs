//! `GET /api/chat`: the chats of a page over one WebSocket, for `WebSocketChatTransport` of the AI SDK 7.
//!
//! A frame of the client is a request with a name. Its response is the same stream of chunks as over HTTP, numbered from 0.

use std::collections::BTreeMap;
use std::pin::Pin;

use axum::response::Response;
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_stream::{StreamExt as _, StreamMap};

use super::request::ChatBody;
use super::routes;
use super::translator::{UiMessageTranslator, Version};
use crate::domain::event::StoredEvent;
use crate::domain::problem::ProblemCode;
use crate::domain::trace::TraceId;
use crate::http::api_router::{ApiRouter, routes};
use crate::http::clients::body::null_is_absent;
use crate::http::clients::stream::{ChunkTranslator as _, event_of};
use crate::http::clients::thread::Thread;
use crate::http::options::App;
use crate::http::streams::ws::{self, Close, Handshake, SocketProtocol};
use crate::http::wire::auth;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{Access, Error, Reader, StoreError};
use crate::support::number;

/// Limit of the name of a request in bytes, because each frame of its response repeats it.
const MAX_REQUEST_ID: usize = 255;

pub(in crate::http) fn socket_routes() -> ApiRouter {
    ApiRouter::new().routes(routes!(connect))
}

/// Opens a WebSocket for the chats of a page
#[utoipa::path(
    get, path = "/api/chat", tag = "ai-sdk", operation_id = "ai_sdk_connect",
    responses((status = 101, description = "The WebSocket is open")),
)]
async fn connect(handshake: Handshake) -> HttpResult<Response> {
    ws::open::<ChatSocket>(handshake).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FrameKind {
    Send,
    Resume,
    Abort,
}

/// A frame of the client: the fields of all kinds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChatFrame {
    #[serde(rename = "type")]
    kind: FrameKind,
    request_id: String,
    /// The client's name of the chat.
    #[serde(default)]
    id: String,
    trigger: Option<Value>,
    message_id: Option<Value>,
    messages: Option<Value>,
    /// The headers that the same request would have over HTTP.
    #[serde(default, deserialize_with = "null_is_absent")]
    headers: BTreeMap<String, String>,
    /// The body fields that the client's application adds.
    #[serde(default, deserialize_with = "null_is_absent")]
    body: Map<String, Value>,
}

impl ChatFrame {
    fn read(text: &str) -> Option<Self> {
        number::check_text(text.as_bytes()).ok()?;
        serde_json::from_str(text).ok().filter(|frame: &Self| frame.request_id.len() <= MAX_REQUEST_ID)
    }

    /// Returns the body that the same request would have over HTTP.
    fn chat_body(self) -> HttpResult<ChatBody> {
        let mut body = self.body;
        body.insert("id".to_owned(), Value::from(self.id));
        let fields = [("trigger", self.trigger), ("messageId", self.message_id), ("messages", self.messages)];
        body.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        serde_json::from_value(Value::Object(body))
            .map_err(|error| Error::invalid(format!("the frame is not a chat request: {error}")).into())
    }
}

type ChatResponses = StreamMap<String, Pin<Box<dyn Stream<Item = Result<Vec<String>, StoreError>> + Send>>>;

/// Returns the API key in the headers of a frame.
fn key(frame: &str) -> Option<String> {
    let headers = ChatFrame::read(frame)?.headers;
    let authorization = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    authorization.and_then(|(_, value)| auth::bearer_key(value)).map(str::to_owned)
}

struct ChatSocket {
    app: App,
    access: Access,
    trace: TraceId,
    /// The responses by the names of their requests.
    responses: ChatResponses,
}

impl SocketProtocol for ChatSocket {
    // A frame contains the whole history of a chat, unless the application leaves it out.
    const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

    const FIRST_FRAME_KEY: Option<fn(&str) -> Option<String>> = Some(key);

    fn new(app: App, access: Access, trace: TraceId) -> Self {
        Self { app, access, trace, responses: StreamMap::new() }
    }

    async fn request(&mut self, text: &str) -> Result<Vec<String>, Close> {
        let Some(frame) = ChatFrame::read(text) else { return Err(Close::BadFrame) };
        let name = frame.request_id.clone();
        if frame.kind == FrameKind::Abort {
            // The client stops reading, as if it closed an HTTP response. The run continues.
            self.responses.remove(&name);
            return Ok(Vec::new());
        }
        let line = match self.begin(frame).await {
            Ok(true) => json!({ "type": "start", "requestId": name }),
            Ok(false) => json!({ "type": "no-active", "requestId": name }),
            Err(Problem(problem)) => {
                if problem.status >= 500 {
                    tracing::error!(code = problem.code, "a chat request failed");
                }
                failed(&name, &problem.detail)
            }
        };
        Ok(vec![line.to_string()])
    }

    async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        match self.responses.next().await {
            Some((_, lines)) => lines,
            None => std::future::pending().await,
        }
    }
}

impl ChatSocket {
    /// Executes a request, and follows its run. Returns false if there is nothing to resume.
    async fn begin(&mut self, frame: ChatFrame) -> HttpResult<bool> {
        let most = self.app.options.limits.ws_max_subscriptions;
        if self.responses.len() >= most {
            return Err(Problem::new(ProblemCode::TooManyRequests, format!("a socket has at most {most} open responses")));
        }
        let thread = Thread::new(&self.app, self.access.clone(), self.trace.clone(), ("id", &frame.id))?;
        let name = frame.request_id.clone();
        let found = match frame.kind {
            FrameKind::Send => Some(routes::stream_of(&thread, &frame.chat_body()?, None).await?),
            FrameKind::Resume | FrameKind::Abort => routes::active_stream(&thread).await?,
        };
        let Some(found) = found else { return Ok(false) };
        let (reader, translator) = found.translated(Version::Seven);
        let response = ChatResponse { name: name.clone(), reader, translator, sequence: 0, over: false };
        self.responses.insert(name, Box::pin(response.into_stream()));
        Ok(true)
    }
}

struct ChatResponse {
    name: String,
    reader: Reader,
    translator: UiMessageTranslator,
    sequence: u64,
    over: bool,
}

impl ChatResponse {
    fn into_stream(self) -> impl Stream<Item = Result<Vec<String>, StoreError>> + Send {
        stream::unfold(self, |mut response| async move {
            if response.over {
                return None;
            }
            let lines = response.next().await;
            Some((lines, response))
        })
    }

    async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        let mut lines = Vec::new();
        let Some(items) = self.reader.next().await? else {
            // A reader stops without a last item only when the server shuts down, which also closes the socket.
            self.over = true;
            return Ok(lines);
        };
        for item in items {
            match event_of(item) {
                Ok(event) => self.event(&event, &mut lines),
                Err(problem) => self.fail(&problem.detail, &mut lines),
            }
            if self.over {
                break;
            }
        }
        Ok(lines)
    }

    fn event(&mut self, event: &StoredEvent, lines: &mut Vec<String>) {
        for chunk in self.translator.translate(event) {
            let frame = json!({ "type": "chunk", "requestId": self.name, "sequence": self.sequence, "chunk": chunk });
            lines.push(frame.to_string());
            self.sequence += 1;
        }
        if self.translator.is_over() {
            lines.push(json!({ "type": "end", "requestId": self.name }).to_string());
            self.over = true;
        }
    }

    fn fail(&mut self, reason: &str, lines: &mut Vec<String>) {
        lines.push(failed(&self.name, reason).to_string());
        self.over = true;
    }
}

fn failed(name: &str, reason: &str) -> Value {
    json!({ "type": "error", "requestId": name, "errorText": reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_becomes_the_body_of_the_same_request() {
        let text = r#"{"type":"send","requestId":"r","id":"chat","trigger":"regenerate-message","messages":[],"headers":{},
            "body":{"id":"other","agent":"helper","tools":[{"name":"look"}]},"metadata":null}"#;
        let body = ChatFrame::read(text).unwrap().chat_body().unwrap();
        assert_eq!((body.id.as_str(), body.agent.as_deref(), body.tools().len()), ("chat", Some("helper"), 1));
        assert_eq!(body.trigger, super::super::request::Trigger::RegenerateMessage);
        let long = format!(r#"{{"type":"abort","requestId":"{}"}}"#, "r".repeat(MAX_REQUEST_ID + 1));
        for bad in ["", "[]", r#"{"type":"send"}"#, r#"{"type":"other","requestId":"r"}"#, &long] {
            assert!(ChatFrame::read(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn first_frame_may_contain_the_key() {
        let frame = |headers: &str| format!(r#"{{"type":"resume","requestId":"r","id":"chat","headers":{headers},"body":{{}}}}"#);
        assert_eq!(key(&frame(r#"{"authorization":"Bearer cap_1"}"#)).as_deref(), Some("cap_1"));
        assert_eq!(key(&frame(r#"{"Authorization":"Basic x"}"#)), None);
        assert_eq!(key(&frame("{}")), None);
    }
}
