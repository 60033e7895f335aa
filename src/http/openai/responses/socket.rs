//! `GET /v1/responses`: responses over one WebSocket, as the SDKs of OpenAI connect.
//!
//! A frame of the client is `response.create` with the body of `POST /v1/responses`. The server sends the events of the same
//! stream, one in a frame. Requests with the same `stream_id` are answered one after another, others at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::StreamMap;

use crate::domain::ids::RunId;
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::trace::TraceId;
use crate::http::clients::stream::{ChunkTranslator as _, event_of};
use crate::http::openai::client_disconnect::DisconnectGuard;
use crate::http::openai::error::error;
use crate::http::openai::events::{Flow, Translator as _};
use crate::http::openai::responses::create::{Begun, begin};
use crate::http::openai::responses::request::CreateRequest;
use crate::http::openai::responses::translate::ResponseTranslator;
use crate::http::options::App;
use crate::http::streams::ws::{self, Close, Handshake, SocketProtocol};
use crate::http::wire::extract::parse;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{Access, Error, Reader, StoreError};
use crate::support::locks::lock;

/// Limit of requests that wait for the end of earlier responses. Each may contain a whole history.
const MAX_WAITING: usize = 8;

/// Limit of the name of a stream in bytes, as at OpenAI.
const MAX_STREAM_ID: usize = 256;

/// Opens a WebSocket for responses
///
/// Send `{"type":"response.create", ...}` with the fields of `POST /v1/responses`. The server sends the events of the response's
/// stream, one JSON object in a frame. Requests with the same `stream_id` are answered one after another, others at the same time.
/// A request that fails gets `{"type":"error","status":400,"error":{...}}`, and the connection stays open. A disconnect cancels
/// only runs with `store: false`. `generate: false` and `response.steer` are refused.
#[utoipa::path(
    get, path = "/v1/responses", tag = "responses", operation_id = "openai_connect_responses",
    responses((status = 101, description = "The WebSocket is open")),
)]
pub(in crate::http) async fn connect(handshake: Handshake) -> HttpResult<Response> {
    ws::open::<ResponseSocket>(handshake).await
}

/// The fields of a client's frame that a request over HTTP does not have.
#[derive(Debug, Deserialize)]
struct FrameHead {
    #[serde(rename = "type")]
    kind: String,
    /// The client's name of the stream in which the response is sent.
    stream_id: Option<String>,
    /// False for a request that only prepares the next one.
    generate: Option<bool>,
}

impl FrameHead {
    /// Returns the body of the same request over HTTP. `text` is the whole frame.
    fn body(&self, text: &str) -> HttpResult<CreateRequest> {
        if self.kind != "response.create" {
            return Err(Error::field("/type", "must be response.create").into());
        }
        if self.generate == Some(false) {
            return Err(Error::field("/generate", "cannot be false: requests are not prepared in advance").into());
        }
        parse(text.as_bytes())
    }
}

struct WaitingRequest {
    body: HttpResult<CreateRequest>,
    /// Counts the request among those that wait, until it begins.
    _turn: OwnedSemaphorePermit,
}

/// The lines of one stream of the socket. Its requests are answered one after another.
type Lines = BoxStream<'static, Result<Vec<String>, StoreError>>;

struct ResponseSocket {
    app: App,
    access: Access,
    /// The trace id of the handshake.
    trace: TraceId,
    /// The queues of the streams with open requests, by their names.
    requests: BTreeMap<Option<String>, mpsc::UnboundedSender<WaitingRequest>>,
    streams: StreamMap<Option<String>, Lines>,
    turns: Arc<Semaphore>,
    guards: Arc<Guards>,
}

impl SocketProtocol for ResponseSocket {
    // A frame may contain a whole history.
    const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

    const FIRST_FRAME_KEY: Option<fn(&str) -> Option<String>> = None;

    fn new(app: App, access: Access, trace: TraceId) -> Self {
        let turns = Arc::new(Semaphore::new(MAX_WAITING));
        let (requests, streams, guards) = (BTreeMap::new(), StreamMap::new(), Arc::default());
        Self { app, access, trace, requests, streams, turns, guards }
    }

    async fn request(&mut self, text: &str) -> Result<Vec<String>, Close> {
        let head = parse::<FrameHead>(text.as_bytes());
        if head.as_ref().is_ok_and(|head| head.kind == "response.steer") {
            return Ok(vec![refused_steering(text)]);
        }
        let (body, stream_id) = read_request(head, text);
        let Err(refusal) = self.accept(body, stream_id.clone()) else { return Ok(Vec::new()) };
        let (problem, code) = *refusal;
        Ok(vec![error_event(&problem, code, stream_id.as_deref())])
    }

    async fn next(&mut self) -> Result<Vec<String>, StoreError> {
        match self.streams.next().await {
            Some((_, lines)) => lines,
            None => std::future::pending().await,
        }
    }
}

impl ResponseSocket {
    /// Adds a request to the queue of its stream. An error about its body waits in the queue as well, because clients take an error
    /// for the end of the current response. Returns the problem and OpenAI's error code if the queue cannot take the request.
    fn accept(
        &mut self,
        body: HttpResult<CreateRequest>,
        stream_id: Option<String>,
    ) -> Result<(), Box<(ProblemBody, &'static str)>> {
        if stream_id.as_deref().is_some_and(|name| !is_stream_name(name)) {
            let detail = format!("`stream_id` must have 1 to {MAX_STREAM_ID} letters, digits, underscores, hyphens or periods");
            return Err(Box::new((ProblemCode::InvalidRequest.body(detail), "invalid_stream_id")));
        }
        let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() else {
            let detail = format!("at most {MAX_WAITING} requests of a connection wait for the end of earlier responses");
            return Err(Box::new((ProblemCode::TooManyRequests.body(detail), ProblemCode::TooManyRequests.as_str())));
        };
        self.requests.retain(|_, requests| !requests.is_closed());
        let most = self.app.options.limits.ws_max_subscriptions;
        // A suspended response with a guard still occupies its stream.
        let mut streams = self.guards.streams();
        streams.extend(self.requests.keys().cloned());
        if streams.len() >= most && !streams.contains(&stream_id) {
            let detail =
                format!("a connection answers at most {most} streams at the same time (limits.max_subscriptions_per_websocket)");
            return Err(Box::new((ProblemCode::TooManyRequests.body(detail), "websocket_stream_limit_reached")));
        }
        let requests = self.requests.entry(stream_id.clone()).or_insert_with(|| {
            let (requests, waiting) = mpsc::unbounded_channel();
            let responses = ResponseSequence {
                app: self.app.clone(),
                access: self.access.clone(),
                trace: self.trace.clone(),
                stream_id: stream_id.clone(),
                waiting,
                current: None,
                guards: Arc::clone(&self.guards),
            };
            let lines = stream::unfold(responses, |mut responses| async move {
                let lines = responses.next().await?;
                Some((lines, responses))
            });
            self.streams.insert(stream_id, lines.boxed());
            requests
        });
        // The receiver exists, because closed queues are removed above.
        let _ = requests.send(WaitingRequest { body, _turn: turn });
        Ok(())
    }
}

fn read_request(head: HttpResult<FrameHead>, text: &str) -> (HttpResult<CreateRequest>, Option<String>) {
    match head {
        Ok(head) => (head.body(text), head.stream_id),
        Err(problem) => (Err(problem), None),
    }
}

fn is_stream_name(name: &str) -> bool {
    (1..=MAX_STREAM_ID).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
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

/// Returns the event of an error. Clients find the failed response by the `stream_id`.
fn error_event(problem: &ProblemBody, code: &str, stream_id: Option<&str>) -> String {
    let mut error = error(problem);
    if code != problem.code {
        error["code"] = code.into();
    }
    named(json!({ "type": "error", "status": problem.status, "error": error }), stream_id)
}

fn named(mut event: Value, stream_id: Option<&str>) -> String {
    if let Some(stream_id) = stream_id {
        event["stream_id"] = stream_id.into();
    }
    event.to_string()
}

/// Holds the guards of responses that are not stored. A dropped guard cancels its run.
#[derive(Default)]
struct Guards(Mutex<BTreeMap<RunId, (Option<String>, DisconnectGuard)>>);

impl Guards {
    /// Records that a stream follows a run. Drops the guard of the other run that the stream has followed, which cancels that run.
    fn follow(&self, stream_id: Option<&str>, run: &RunId, guard: Option<DisconnectGuard>) {
        let mut guards = lock(&self.0);
        let known = guards.remove(run).map(|(_, guard)| guard);
        guards.retain(|_, (stream, _)| stream.as_deref() != stream_id);
        if let Some(guard) = known.or(guard) {
            guards.insert(run.clone(), (stream_id.map(str::to_owned), guard));
        }
    }

    fn streams(&self) -> BTreeSet<Option<String>> {
        lock(&self.0).values().map(|(stream, _)| stream.clone()).collect()
    }

    /// Removes the guard of a run that has ended.
    fn end(&self, run: &RunId) {
        let guard = lock(&self.0).remove(run);
        if let Some((_, mut guard)) = guard {
            guard.settle(Flow::End);
        }
    }
}

/// Answers the requests of a stream one after another, and ends after the last one.
struct ResponseSequence {
    app: App,
    access: Access,
    trace: TraceId,
    stream_id: Option<String>,
    waiting: mpsc::UnboundedReceiver<WaitingRequest>,
    current: Option<CurrentResponse>,
    guards: Arc<Guards>,
}

struct CurrentResponse {
    run: RunId,
    reader: Reader,
    translator: ResponseTranslator,
}

impl ResponseSequence {
    /// Returns the next lines; `None` if no response is under way and no request waits. Closes the queue with the last lines, so that
    /// the stream no longer counts.
    async fn next(&mut self) -> Option<Result<Vec<String>, StoreError>> {
        let lines = self.next_lines().await;
        if self.current.is_none() && self.waiting.is_empty() {
            self.waiting.close();
        }
        lines
    }

    async fn next_lines(&mut self) -> Option<Result<Vec<String>, StoreError>> {
        let stream_id = self.stream_id.clone();
        let Some(CurrentResponse { run, reader, translator }) = &mut self.current else {
            let WaitingRequest { body, _turn: turn } = self.waiting.try_recv().ok()?;
            drop(turn);
            let failed = self.begin(body).await.err();
            let event = failed.map(|Problem(problem)| error_event(&problem, &problem.code, stream_id.as_deref()));
            return Some(Ok(event.into_iter().collect()));
        };
        let items = match reader.next().await {
            // A reader stops without a last item only when the server shuts down, which also closes the socket.
            Ok(items) => items?,
            Err(error) => return Some(Err(error)),
        };
        let (mut lines, mut is_over) = (Vec::new(), false);
        for item in items {
            match event_of(item) {
                Ok(event) => {
                    lines.extend(translator.translate(&event).into_iter().map(|event| named(event, stream_id.as_deref())));
                    is_over = translator.is_over();
                }
                Err(problem) => {
                    lines.push(error_event(&problem, &problem.code, stream_id.as_deref()));
                    is_over = true;
                }
            }
            if is_over {
                break;
            }
        }
        if is_over {
            if translator.flow() != Flow::Suspended {
                self.guards.end(run);
            }
            self.current = None;
        }
        Some(Ok(lines))
    }

    async fn begin(&mut self, body: HttpResult<CreateRequest>) -> HttpResult<()> {
        let begun = begin(&self.app, self.access.principal(), &body?, self.trace.clone(), None).await?;
        let Begun { facts, reader, guard } = begun;
        let run = facts.run.clone();
        self.guards.follow(self.stream_id.as_deref(), &run, guard);
        self.current = Some(CurrentResponse { run, reader, translator: ResponseTranslator::new(facts, None) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(frame: &Value) -> (HttpResult<CreateRequest>, Option<String>) {
        let text = frame.to_string();
        read_request(parse(text.as_bytes()), &text)
    }

    fn refusal(frame: &Value) -> Value {
        let (body, stream_id) = read(frame);
        let problem = body.unwrap_err().0;
        serde_json::from_str(&error_event(&problem, &problem.code, stream_id.as_deref())).unwrap()
    }

    #[test]
    fn frame_is_the_body_of_the_same_request() {
        let frame = json!({ "type": "response.create", "model": "helper", "input": "hi", "temperature": 0.5, "generate": true });
        let (body, stream_id) = read(&frame);
        assert_eq!((body.unwrap().model(), stream_id), ("helper", None));
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
    fn stream_has_a_name_of_the_protocol() {
        let (longest, longer) = ("x".repeat(MAX_STREAM_ID), "x".repeat(MAX_STREAM_ID + 1));
        assert!(["main", "a.b-c_1", &longest].into_iter().all(is_stream_name));
        assert!(!["", "a b", "é", &longer].into_iter().any(is_stream_name));
    }

    #[test]
    fn refused_steering_returns_its_input() {
        let frame = json!({ "type": "response.steer", "previous_response_id": "resp_1", "input": "faster" });
        let event: Value = serde_json::from_str(&refused_steering(&frame.to_string())).unwrap();
        assert_eq!((&event["type"], &event["error"]["code"]), (&json!("response.steer.failed"), &json!("steering_not_supported")));
        assert_eq!(event["steer"], json!({ "previous_response_id": "resp_1", "input": "faster" }));
    }
}
