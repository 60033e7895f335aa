//! A model at the wire: the OpenAI chat-completions dialect, scripted by what is in the request.
//!
//! It plays on when the server under test is killed and comes back: the round is found by counting the answers since the scripted
//! message, and nothing else that an answer depends on is kept, but how often a round was asked for that fails at first. It refuses any history that a strict provider would refuse, and
//! notes when a client hangs up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::script::{Act, Script};

/// The mock and its notes. Stops when dropped.
pub struct ModelMock {
    /// For `OPENAI_BASE_URL`.
    pub base_url: String,
    notes: Arc<Notes>,
    _tasks: JoinSet<()>,
}

/// One request as the mock saw it.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Counts from 1.
    pub number: usize,
    /// The script's name.
    pub id: String,
    /// Which answer of the script, from 0.
    pub round: usize,
    /// The request.
    pub request: Value,
    /// When it came.
    pub asked: Instant,
    /// When the whole answer was on its way.
    pub answered: Option<Instant>,
    /// Whether the whole answer was taken by the client.
    pub finished: bool,
    /// When the client hung up before the end.
    pub hung_up: Option<Instant>,
    /// When each chunk of text was sent, so far.
    pub sent: Vec<Instant>,
}

impl Exchange {
    fn finish(&mut self) {
        self.finished = true;
        self.answered = Some(Instant::now());
    }
}

struct Notes {
    exchanges: Mutex<Vec<Exchange>>,
    violations: Mutex<Vec<String>>,
    released: watch::Sender<HashSet<String>>,
    changed: watch::Sender<u64>,
}

impl ModelMock {
    /// Listens on a free port of the loopback.
    pub async fn start() -> Self {
        let notes = Arc::new(Notes {
            exchanges: Mutex::default(),
            violations: Mutex::default(),
            released: watch::Sender::new(HashSet::new()),
            changed: watch::Sender::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/models", get(async || axum::Json(json!({"object": "list", "data": [{"id": "mock", "object": "model"}]}))))
            .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
            .with_state(Arc::clone(&notes));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Providers do not hold small pieces back either. Here each answer of several would take 40 ms more.
            let prompt = listener.tap_io(|socket| socket.set_nodelay(true).unwrap());
            let _ = axum::serve(prompt, app).await;
        });
        Self { base_url, notes, _tasks: tasks }
    }

    /// Lets everything pass that `[[hold]]`s under this name, now and later.
    pub fn release(&self, id: &str) {
        self.notes.released.send_modify(|released| {
            released.insert(id.to_owned());
        });
    }

    /// The requests under this name, oldest first.
    pub fn exchanges(&self, id: &str) -> Vec<Exchange> {
        self.notes.exchanges.lock().unwrap().iter().filter(|exchange| exchange.id == id).cloned().collect()
    }

    /// How many requests came in all.
    pub fn total(&self) -> usize {
        self.notes.exchanges.lock().unwrap().len()
    }

    /// Waits until the requests under this name satisfy `test`, and returns them.
    pub async fn wait_for(&self, what: &str, id: &str, test: impl Fn(&[Exchange]) -> bool) -> Vec<Exchange> {
        let mut changed = self.notes.changed.subscribe();
        let waiting = async {
            loop {
                changed.borrow_and_update();
                let exchanges = self.exchanges(id);
                if test(&exchanges) {
                    return exchanges;
                }
                changed.changed().await.unwrap();
            }
        };
        super::wait::within(what, Duration::from_secs(30), waiting).await
    }

    /// Panics if any request had a history that a strict provider refuses.
    pub fn assert_history_was_sendable(&self) {
        let violations = self.notes.violations.lock().unwrap();
        assert!(violations.is_empty(), "histories that a provider refuses: {violations:#?}");
    }
}

impl Notes {
    /// How often a round was asked for.
    fn asked(&self, id: &str, round: usize) -> usize {
        self.exchanges.lock().unwrap().iter().filter(|exchange| exchange.id == id && exchange.round == round).count()
    }

    fn change(&self, number: usize, edit: impl FnOnce(&mut Exchange)) {
        let mut exchanges = self.exchanges.lock().unwrap();
        edit(&mut exchanges[number - 1]);
        drop(exchanges);
        self.changed.send_modify(|count| *count += 1);
    }
}

async fn complete(State(notes): State<Arc<Notes>>, headers: HeaderMap, body: Bytes) -> Response {
    // Reading the request is no part of what it took to make it.
    let asked = Instant::now();
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return refuse(&notes, &format!("the body is no JSON: {error}")),
    };
    if !headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
        return refuse(&notes, "the content type is not JSON");
    }
    if let Err(problem) = check_history(&request) {
        return refuse(&notes, &format!("{problem}: {}", request["messages"]));
    }
    let (script, round) = find_script(&request);
    let number = {
        let mut exchanges = notes.exchanges.lock().unwrap();
        let number = exchanges.len() + 1;
        let id = script.id.clone();
        let exchange = Exchange {
            number,
            id,
            round,
            request: request.clone(),
            asked,
            answered: None,
            finished: false,
            hung_up: None,
            sent: Vec::new(),
        };
        exchanges.push(exchange);
        number
    };
    notes.changed.send_modify(|count| *count += 1);
    let tools = request["tools"].as_array().map_or(&[][..], Vec::as_slice);
    let choosing = matches!(tools, [tool] if tool["function"]["name"] == "select_categories");
    let acts = script.acts(round, notes.asked(&script.id, round), choosing);
    let acts = match acts.first() {
        None => vec![Act::Say("done".to_owned())],
        Some(Act::Mute(times)) if notes.asked(&script.id, round) <= *times => Vec::new(),
        Some(_) => acts,
    };
    let failure = match acts.first() {
        Some(Act::Status(status)) => Some(*status),
        Some(Act::Flaky(times, status)) if notes.asked(&script.id, round) <= *times => Some(*status),
        Some(_) | None => None,
    };
    if let Some(status) = failure {
        let status = StatusCode::from_u16(status).unwrap();
        return (status, axum::Json(json!({"error": {"message": "as scripted", "type": "server_error"}}))).into_response();
    }
    let frames = Frames { number, usage: request["stream_options"]["include_usage"] == true };
    if request["stream"] != true {
        let whole = frames.whole(&acts, &request);
        notes.change(number, Exchange::finish);
        return axum::Json(whole).into_response();
    }
    let beats = frames.beats(&acts, &request);
    let guard = HangUp { notes: Arc::clone(&notes), number, finished: false };
    let playing = Playing { beats: beats.into(), guard, id: script.id, notes };
    let body = Body::from_stream(stream::unfold(playing, Playing::next));
    ([("content-type", "text/event-stream"), ("cache-control", "no-cache")], body).into_response()
}

fn refuse(notes: &Notes, problem: &str) -> Response {
    notes.violations.lock().unwrap().push(problem.to_owned());
    (StatusCode::BAD_REQUEST, axum::Json(json!({"error": {"message": problem, "type": "invalid_request_error"}}))).into_response()
}

/// Returns the text of a message in any form.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// The newest script, and how many answers were given since. A message without a script gets `done`.
fn find_script(request: &Value) -> (Script, usize) {
    let messages = request["messages"].as_array().unwrap();
    if let Some(script) = messages.last().and_then(|message| Script::of_plan(&text_of(message))) {
        return (script, 0);
    }
    let scripted = messages.iter().rposition(|message| message["role"] == "user" && Script::is_in(&text_of(message)));
    let Some(at) = scripted else { return (Script::default(), 0) };
    let round = messages[at..].iter().filter(|message| message["role"] == "assistant").count();
    (Script::parse(&text_of(&messages[at])), round)
}

/// Checks the rules of strict providers: roles alternate, and every call is answered once, directly after it and in order.
fn check_history(request: &Value) -> Result<(), String> {
    let messages = request["messages"].as_array().ok_or("no messages")?;
    let offered: Vec<&str> =
        request["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    for name in &offered {
        let legal = name.len() <= 64 && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if !legal {
            return Err(format!("the tool name {name} is not legal"));
        }
    }
    if offered.iter().collect::<HashSet<_>>().len() != offered.len() {
        return Err("two tools have one name".to_owned());
    }
    let mut open: Vec<String> = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    let mut spoken = false;
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().ok_or(format!("message {index} has no role"))?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().ok_or(format!("message {index} has no tool_call_id"))?;
            if open.first().map(String::as_str) != Some(id) {
                return Err(format!("message {index} answers {id}, which is not the next open call"));
            }
            if text_of(message).is_empty() && !message["content"].is_string() {
                return Err(format!("message {index} has no content"));
            }
            open.remove(0);
            continue;
        }
        if !open.is_empty() {
            return Err(format!("message {index} comes before the calls {open:?} are answered"));
        }
        match role {
            "system" | "developer" if index == 0 => {}
            "user" => {
                spoken = true;
                if text_of(message).is_empty() {
                    return Err(format!("message {index} is empty"));
                }
            }
            "assistant" if spoken => {
                let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
                if calls.is_empty() && text_of(message).is_empty() {
                    return Err(format!("message {index} is empty"));
                }
                for call in calls {
                    let id = call["id"].as_str().unwrap_or_default().to_owned();
                    if id.is_empty() || !seen.insert(id.clone()) {
                        return Err(format!("message {index} has the call id {id:?} twice or empty"));
                    }
                    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
                    if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                        return Err(format!("message {index} has arguments that are no object: {arguments}"));
                    }
                    open.push(id);
                }
            }
            other => return Err(format!("message {index} must not be of role {other}")),
        }
    }
    if !open.is_empty() {
        return Err(format!("the calls {open:?} are not answered"));
    }
    match messages.last().and_then(|message| message["role"].as_str()) {
        Some("user" | "tool") => Ok(()),
        other => Err(format!("the last message is of role {other:?}")),
    }
}

enum Beat {
    Send(String),
    Text(String),
    Pause(Duration),
    Hold,
    Cut,
}

struct Frames {
    number: usize,
    usage: bool,
}

impl Frames {
    /// Tokens name their request, so that text of two attempts can be told apart, and their number in it.
    fn token(&self, index: usize) -> String {
        format!("r{}t{index} ", self.number)
    }

    fn call_id(&self, index: usize) -> String {
        format!("call_{}_{index}", self.number)
    }

    fn chunk(&self, request: &Value, choices: Value, usage: Value) -> String {
        let body = json!({
            "id": format!("chatcmpl-{}", self.number), "object": "chat.completion.chunk", "created": 1_700_000_000,
            "model": request["model"], "choices": choices, "usage": usage,
        });
        format!("data: {body}\n\n")
    }

    fn delta(&self, request: &Value, delta: Value) -> String {
        self.chunk(request, json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null)
    }

    fn beats(&self, acts: &[Act], request: &Value) -> Vec<Beat> {
        let mut beats = vec![Beat::Send(self.delta(request, json!({"role": "assistant", "content": ""})))];
        let mut calls: Vec<(String, String)> = Vec::new();
        let mut said = 0;
        for act in acts {
            match act {
                Act::Text(count, pause) => {
                    for _ in 0..*count {
                        beats.push(Beat::Text(self.delta(request, json!({"content": self.token(said)}))));
                        said += 1;
                        if *pause > 0 {
                            beats.push(Beat::Pause(Duration::from_millis(*pause)));
                        }
                    }
                }
                Act::Say(words) => beats.push(Beat::Text(self.delta(request, json!({"content": words})))),
                Act::Reason(count, pause) => {
                    for index in 0..*count {
                        beats.push(Beat::Text(self.delta(request, json!({"reasoning_content": format!("think{index} ")}))));
                        beats.push(Beat::Pause(Duration::from_millis(*pause)));
                    }
                }
                Act::Cite(url) => {
                    let source = json!({"type": "url_citation", "url_citation": {"url": url, "title": "A page"}});
                    beats.push(Beat::Send(self.delta(request, json!({"annotations": [source]}))));
                }
                Act::Call { name, arguments } => calls.push((name.clone(), arguments.clone())),
                Act::Hold => beats.push(Beat::Hold),
                Act::Cut => beats.push(Beat::Cut),
                Act::End | Act::Status(_) | Act::Flaky(..) | Act::Mute(_) | Act::Or => {}
            }
        }
        beats.extend(self.call_beats(&calls, request));
        if acts.contains(&Act::End) {
            return beats;
        }
        let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
        let last = json!([{"index": 0, "delta": {}, "finish_reason": reason}]);
        beats.push(Beat::Send(self.chunk(request, last, Value::Null)));
        if self.usage {
            beats.push(Beat::Send(self.chunk(request, json!([]), usage(said))));
        }
        beats.push(Beat::Send("data: [DONE]\n\n".to_owned()));
        beats
    }

    /// Parallel calls, with their arguments in pieces that alternate between the calls.
    fn call_beats(&self, calls: &[(String, String)], request: &Value) -> Vec<Beat> {
        let mut beats = Vec::new();
        for (index, (name, _)) in calls.iter().enumerate() {
            let call =
                json!({"index": index, "id": self.call_id(index), "type": "function", "function": {"name": name, "arguments": ""}});
            beats.push(Beat::Send(self.delta(request, json!({"tool_calls": [call]}))));
        }
        let mut pieces: Vec<Vec<String>> = calls.iter().map(|(_, arguments)| in_pieces(arguments)).collect();
        while pieces.iter().any(|left| !left.is_empty()) {
            for (index, left) in pieces.iter_mut().enumerate() {
                if left.is_empty() {
                    continue;
                }
                let call = json!({"index": index, "function": {"arguments": left.remove(0)}});
                beats.push(Beat::Send(self.delta(request, json!({"tool_calls": [call]}))));
            }
        }
        beats
    }

    fn whole(&self, acts: &[Act], request: &Value) -> Value {
        let mut text = String::new();
        let mut calls = Vec::new();
        for act in acts {
            match act {
                Act::Text(count, _) => (0..*count).for_each(|index| text.push_str(&self.token(index))),
                Act::Say(words) => text.push_str(words),
                Act::Call { name, arguments } => calls.push(json!({
                    "id": self.call_id(calls.len()), "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })),
                Act::Reason(..)
                | Act::Cite(_)
                | Act::Hold
                | Act::Cut
                | Act::End
                | Act::Status(_)
                | Act::Flaky(..)
                | Act::Mute(_)
                | Act::Or => {}
            }
        }
        let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
        let mut message = json!({"role": "assistant", "content": text});
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        json!({
            "id": format!("chatcmpl-{}", self.number), "object": "chat.completion", "created": 1_700_000_000,
            "model": request["model"], "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": usage(10),
        })
    }
}

fn usage(output: usize) -> Value {
    json!({"prompt_tokens": 10, "completion_tokens": output, "total_tokens": 10 + output})
}

fn in_pieces(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(7).map(|piece| piece.iter().collect()).collect()
}

/// Notes a client that went away: the body is dropped before its end.
struct HangUp {
    notes: Arc<Notes>,
    number: usize,
    finished: bool,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if !self.finished {
            self.notes.change(self.number, |exchange| exchange.hung_up = Some(Instant::now()));
        }
    }
}

struct Playing {
    beats: std::collections::VecDeque<Beat>,
    guard: HangUp,
    id: String,
    notes: Arc<Notes>,
}

impl Playing {
    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Self)> {
        loop {
            match self.beats.pop_front() {
                Some(Beat::Send(frame)) => return Some((Ok(Bytes::from(frame)), self)),
                Some(Beat::Text(frame)) => {
                    self.notes.change(self.guard.number, |exchange| exchange.sent.push(Instant::now()));
                    return Some((Ok(Bytes::from(frame)), self));
                }
                Some(Beat::Pause(pause)) => tokio::time::sleep(pause).await,
                Some(Beat::Hold) => {
                    let mut released = self.notes.released.subscribe();
                    let _ = released.wait_for(|names| names.contains(&self.id)).await;
                }
                Some(Beat::Cut) => {
                    self.guard.finished = true;
                    return Some((Err(std::io::Error::other("cut as scripted")), self));
                }
                None => {
                    self.guard.finished = true;
                    self.notes.change(self.guard.number, Exchange::finish);
                    return None;
                }
            }
        }
    }
}
