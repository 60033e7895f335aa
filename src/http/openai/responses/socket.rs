//! `GET /v1/responses`: responses over one WebSocket, as the SDKs of OpenAI connect.
//!
//! A frame of the client is `response.create` with the body of `POST /v1/responses`. The server sends the events of the same stream, one
//! in a frame. Requests are answered one after another, also those with another `stream_id`, which their events return.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::trace::TraceId;
use crate::http::clients::stream::event_of;
use crate::http::openai::error::error;
use crate::http::openai::events::{DisconnectGuard, Flow, Translator as _};
use crate::http::openai::responses::create::{Begun, begin};
use crate::http::openai::responses::request::CreateRequest;
use crate::http::openai::responses::translate::ResponseTranslator;
use crate::http::options::App;
use crate::http::streams::ws::{self, Close, SocketProtocol};
use crate::http::wire::extract::parse;
use crate::http::wire::problem::{Answer, Problem};
use crate::http::wire::request::Trace;
use crate::service::{Access, Error, Reader, StoreError};

/// Limit of requests that wait for the end of earlier responses. Each may contain a whole history.
const MAX_WAITING: usize = 8;

/// Opens a WebSocket for responses
///
/// Send `{"type":"response.create", ...}` with the fields of `POST /v1/responses`. The server sends the events of the response's stream,
/// one JSON object in a frame, and then answers the next request. A request that fails gets
/// `{"type":"error","status":400,"error":{...}}`, and the connection stays open. A disconnect cancels nothing, unless `store` is false.
/// `generate: false` and `response.steer` are refused.
#[utoipa::path(
    get, path = "/v1/responses", tag = "responses", operation_id = "openai_connect_responses",
    responses((status = 101, description = "The WebSocket is open")),
)]
pub(in crate::http) async fn connect(
    state: State<App>,
    trace: Trace,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    ws::open::<ResponseSocket>(state, trace, uri, headers, upgrade).await
}

/// The fields of a client's frame beside those of a request over HTTP.
#[derive(Debug, Deserialize)]
struct FrameHead {
    #[serde(rename = "type")]
    kind: String,
    /// Names the response among those of the socket.
    stream_id: Option<String>,
    /// False for a request that only prepares the next one.
    generate: Option<bool>,
}

impl FrameHead {
    /// Returns the body of the same request over HTTP. `text` is the whole frame.
    fn body(&self, text: &str) -> Answer<CreateRequest> {
        if self.kind != "response.create" {
            return Err(Error::field("/type", "must be response.create").into());
        }
        if self.generate == Some(false) {
            return Err(Error::field("/generate", "cannot be false: requests are not prepared in advance").into());
        }
        parse(text.as_bytes())
    }
}

/// A request that waits for its turn.
struct WaitingRequest {
    stream_id: Option<String>,
    body: Answer<CreateRequest>,
}

impl WaitingRequest {
    fn new(head: Answer<FrameHead>, text: &str) -> Self {
        match head {
            Ok(head) => Self { body: head.body(text), stream_id: head.stream_id },
            Err(problem) => Self { body: Err(problem), stream_id: None },
        }
    }
}

/// The responses of one socket.
struct ResponseSocket {
    requests: mpsc::Sender<WaitingRequest>,
    lines: BoxStream<'static, Result<Vec<String>, StoreError>>,
}

impl SocketProtocol for ResponseSocket {
    // A frame may contain a whole history.
    const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

    const FIRST_FRAME_KEY: Option<fn(&str) -> Option<String>> = None;

    fn new(app: App, access: Access, trace: TraceId) -> Self {
        let (requests, waiting) = mpsc::channel(MAX_WAITING);
        let responses = ResponseSequence { app, access, trace, waiting, current: None, guard: None };
        let lines = stream::unfold(responses, |mut responses| async move {
            let lines = responses.next().await?;
            Some((lines, responses))
        });
        Self { requests, lines: lines.boxed() }
    }

    async fn request(&mut self, text: &str) -> Result<Vec<String>, Close> {
        let head = parse::<FrameHead>(text.as_bytes());
        if head.as_ref().is_ok_and(|head| head.kind == "response.steer") {
            return Ok(vec![refused_steering(text)]);
        }
        // Errors wait as well: clients take an error for the end of the response under way.
        let Err(refused) = self.requests.try_send(WaitingRequest::new(head, text)) else { return Ok(Vec::new()) };
        let detail = format!("at most {MAX_WAITING} requests of a connection wait for the end of earlier responses");
        Ok(vec![error_event(&ProblemCode::TooManyRequests.body(detail), refused.into_inner().stream_id)])
    }

    async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        match self.lines.next().await {
            Some(lines) => lines,
            None => std::future::pending().await,
        }
    }
}

/// Returns the refusal of a frame that steers a response, in the protocol's own form, which does not end the response.
fn refused_steering(text: &str) -> String {
    let frame: Value = parse(text.as_bytes()).unwrap_or_default();
    let message = "responses cannot be steered; send the input with response.create after the end of the response";
    json!({
        "type": "response.steer.failed",
        "sequence_number": 0,
        "steer": { "input": frame["input"], "previous_response_id": frame["previous_response_id"] },
        "error": { "type": "invalid_request_error", "code": "steering_not_supported", "message": message },
    })
    .to_string()
}

/// Returns the event of an error. Clients find the response that it ends by the `stream_id` of their request.
fn error_event(problem: &ProblemBody, stream_id: Option<String>) -> String {
    let mut event = json!({ "type": "error", "status": problem.status, "error": error(problem) });
    if let Some(stream_id) = stream_id {
        event["stream_id"] = stream_id.into();
    }
    event.to_string()
}

/// Answers the requests of a socket one after another.
struct ResponseSequence {
    app: App,
    access: Access,
    /// The trace id of the handshake.
    trace: TraceId,
    waiting: mpsc::Receiver<WaitingRequest>,
    /// The response under way.
    current: Option<CurrentResponse>,
    /// Ends the run of a response that is not stored, unless a later request of this socket continues it.
    guard: Option<DisconnectGuard>,
}

struct CurrentResponse {
    stream_id: Option<String>,
    reader: Reader,
    translator: ResponseTranslator,
}

impl ResponseSequence {
    /// Returns the next lines; `None` after the end of the socket.
    async fn next(&mut self) -> Option<Result<Vec<String>, StoreError>> {
        let Some(CurrentResponse { stream_id, reader, translator }) = &mut self.current else {
            let WaitingRequest { stream_id, body } = self.waiting.recv().await?;
            let failed = self.begin(body, stream_id.clone()).await.err();
            return Some(Ok(failed.map(|Problem(problem)| error_event(&problem, stream_id)).into_iter().collect()));
        };
        let stream_id = stream_id.clone();
        let items = match reader.next().await {
            // A reader stops without a last item only when the server shuts down, which also closes the socket.
            Ok(items) => items?,
            Err(error) => return Some(Err(error)),
        };
        let (mut frames, mut failure, mut flow) = (String::new(), None, Flow::Continue);
        for item in items {
            flow = match event_of(item) {
                Ok(event) => translator.translate(&event, &mut frames),
                Err(problem) => {
                    failure = Some(error_event(&problem, stream_id.clone()));
                    Flow::End
                }
            };
            if flow != Flow::Continue {
                break;
            }
        }
        if flow != Flow::Continue {
            self.current = None;
        }
        if let Some(guard) = self.guard.as_mut().filter(|_| flow == Flow::End) {
            guard.settle(flow);
        }
        // The data of an event is one line.
        let lines = frames.lines().filter_map(|line| line.strip_prefix("data: "));
        let lines = lines.map(|event| match (&stream_id, event.strip_prefix('{')) {
            (Some(stream_id), Some(fields)) => format!("{{\"stream_id\":{},{fields}", json!(stream_id)),
            _ => event.to_owned(),
        });
        Some(Ok(lines.chain(failure).collect()))
    }

    async fn begin(&mut self, body: Answer<CreateRequest>, stream_id: Option<String>) -> Answer<()> {
        let begun = begin(&self.app, self.access.principal(), &body?, self.trace.clone(), None).await?;
        let Begun { facts, reader, guard } = begun;
        if !self.guard.as_ref().is_some_and(|guard| guard.is_for(&facts.run)) {
            self.guard = guard;
        }
        self.current = Some(CurrentResponse { stream_id, reader, translator: ResponseTranslator::new(facts, None) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(frame: &Value) -> WaitingRequest {
        let text = frame.to_string();
        WaitingRequest::new(parse(text.as_bytes()), &text)
    }

    fn refusal(frame: &Value) -> Value {
        let WaitingRequest { stream_id, body } = read(frame);
        serde_json::from_str(&error_event(&body.unwrap_err().0, stream_id)).unwrap()
    }

    #[test]
    fn frame_is_the_body_of_the_same_request() {
        let frame = json!({ "type": "response.create", "model": "helper", "input": "hi", "temperature": 0.5, "generate": true });
        let request = read(&frame);
        assert_eq!((request.body.unwrap().model(), request.stream_id), ("helper", None));
    }

    #[test]
    fn unsupported_frame_is_refused_by_field() {
        let create = |field: &str, value: Value| json!({ "type": "response.create", "input": "hi", field: value });
        for (frame, param) in [
            (json!({ "type": "session.update" }), json!("type")),
            (create("generate", json!(false)), json!("generate")),
            (create("input", json!(1)), json!("input")),
            (json!([]), Value::Null),
            (json!({}), Value::Null),
        ] {
            let event = refusal(&frame);
            assert_eq!(
                (&event["type"], &event["status"], &event["error"]["param"]),
                (&json!("error"), &json!(400), &param),
                "{frame}"
            );
            assert!(event.get("stream_id").is_none(), "{event}");
        }
        let event = refusal(&json!({ "type": "response.create", "stream_id": "main", "generate": false }));
        assert_eq!((&event["stream_id"], &event["error"]["param"]), (&json!("main"), &json!("generate")));
    }

    #[test]
    fn refused_steering_returns_its_input() {
        let frame = json!({ "type": "response.steer", "previous_response_id": "resp_1", "input": "faster" });
        let event: Value = serde_json::from_str(&refused_steering(&frame.to_string())).unwrap();
        assert_eq!((&event["type"], &event["error"]["code"]), (&json!("response.steer.failed"), &json!("steering_not_supported")));
        assert_eq!(event["steer"], json!({ "previous_response_id": "resp_1", "input": "faster" }));
    }
}
