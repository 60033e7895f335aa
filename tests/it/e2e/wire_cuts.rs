//! Streams of other protocols that are cut after any chunk, and read again in the way of their protocol: by another process, after a
//! kill, and a day later.
//!
//! One kill meets a run at each chunk of each protocol. A client with a cursor gets the chunks after it. A client without one gets
//! the whole response again.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::{RequestBuilder, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::resume::cut_at_every_event;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::{Frame, Next, SseStream, stored};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// OpenAI Responses: the cursor is `starting_after`.
    Responses,
    /// AG-UI: the cursor is `Last-Event-ID`. `HttpAgent` has none.
    AgUi,
    /// The AI SDK, without a cursor.
    AiSdk,
    /// Chat completions, without a cursor. Its client has no second response.
    Chat,
}

const WIRES: [Wire; 4] = [Wire::Responses, Wire::AgUi, Wire::AiSdk, Wire::Chat];

/// The model calls of a run: pieces of a script, with the text that shows a client that a piece has arrived.
const MODEL_CALLS: [&[(&str, &str)]; 2] = [
    &[("[[reason:2,1]]", "think1"), ("[[say:Look.]]", "Look.")],
    &[("[[reason:1,1]]", "think0"), ("[[say:One ]]", "One "), ("[[say:two ]]", "two "), ("[[say:three.]]", "three.")],
];

/// Where the server is killed: in this model call, after so many of its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    model_call: usize,
    pieces: usize,
}

/// The cut whose run is looked at in more detail.
const MIDDLE: Cut = Cut { model_call: 1, pieces: 3 };

impl Cut {
    fn all() -> impl Iterator<Item = Self> {
        let calls = MODEL_CALLS.iter().enumerate();
        calls.flat_map(|(model_call, pieces)| (0..=pieces.len()).map(move |pieces| Self { model_call, pieces }))
    }

    /// Returns the last text that a client gets before the cut.
    fn last_text(self) -> Option<&'static str> {
        self.pieces.checked_sub(1).map(|last| MODEL_CALLS[self.model_call][last].1)
    }
}

impl Wire {
    fn has_cursor(self) -> bool {
        matches!(self, Self::Responses | Self::AgUi)
    }

    /// Returns the script of the model: reasoning, calls of a server tool and of a client tool, text and a source. The model waits at
    /// the cut until the test releases `id`.
    fn script(self, id: &str, cut: Cut) -> String {
        let pieces = |model_call: usize| {
            let mut pieces: Vec<&str> = MODEL_CALLS[model_call].iter().map(|(piece, _)| *piece).collect();
            if cut.model_call == model_call {
                pieces.insert(cut.pieces, "[[hold]]");
            }
            pieces.concat()
        };
        let client_call = if self == Self::Chat { "" } else { r#"[[call:look {"at":"door"}]]"# };
        format!(
            "[[id:{id}]]{}[[call:ledger__lookup {{\"text\":\"a\"}}]]{client_call}[[next]]{}[[cite:https://example.org/]]",
            pieces(0),
            pieces(1)
        )
    }

    /// Returns the request of the first response of the run `id`.
    fn first_request(self, id: &str, cut: Cut) -> Value {
        let script = self.script(id, cut);
        let schema = json!({"type": "object"});
        match self {
            Self::Responses => {
                let tool = json!({"type": "function", "name": "look", "parameters": schema});
                json!({"model": "default", "input": script, "stream": true, "tools": [tool]})
            }
            Self::AgUi => {
                let message = json!({"id": format!("{id}-m1"), "role": "user", "content": script});
                let tool = json!({"name": "look", "description": "Looks.", "parameters": schema});
                json!({"threadId": id, "runId": format!("{id}-one"), "messages": [message], "tools": [tool]})
            }
            Self::AiSdk => {
                let message = json!({"id": format!("{id}-m1"), "role": "user", "parts": [{"type": "text", "text": script}]});
                json!({"id": id, "messages": [message], "tools": [{"name": "look"}]})
            }
            Self::Chat => {
                json!({"model": "default", "messages": [{"role": "user", "content": script}], "stream": true, "store": true})
            }
        }
    }

    /// Returns the request that answers the call of the client tool in the first response.
    fn second_request(self, id: &str, first: &[Frame]) -> Value {
        let call = client_call(first);
        match self {
            Self::Responses => {
                let output = json!({"type": "function_call_output", "call_id": call, "output": "a door"});
                let previous = response_id(first);
                json!({"model": "default", "previous_response_id": previous, "input": [output], "stream": true})
            }
            Self::AgUi => {
                let result = json!({"id": format!("{id}-m2"), "role": "tool", "toolCallId": call, "content": "a door"});
                json!({"threadId": id, "runId": format!("{id}-two"), "messages": [result]})
            }
            Self::AiSdk | Self::Chat => {
                let result = json!({"type": "tool-look", "toolCallId": call, "state": "output-available", "output": "a door"});
                json!({"id": id, "messages": [{"id": message_id(first), "role": "assistant", "parts": [result]}]})
            }
        }
    }

    fn post(self, server: &Server, id: &str, body: &Value) -> RequestBuilder {
        match self {
            Self::Responses => server.post("//v1/responses", body),
            Self::AgUi => server.post("//ag-ui/default", body),
            Self::AiSdk => server.post("//api/chat?v=7", body),
            Self::Chat => server.post("//v1/chat/completions", body).header("idempotency-key", id),
        }
    }
}

fn response_id(chunks: &[Frame]) -> String {
    chunks[0].json()["response"]["id"].as_str().unwrap().to_owned()
}

fn message_id(chunks: &[Frame]) -> String {
    chunks[0].json()["messageId"].as_str().unwrap().to_owned()
}

/// Returns the id of the call of the client tool.
fn client_call(chunks: &[Frame]) -> String {
    let named = chunks.iter().filter(|chunk| chunk.data.contains("\"look\""));
    let ids = named.flat_map(|chunk| chunk.data.split('"').filter(|text| text.starts_with("call_") && text.len() == 37));
    ids.last().unwrap_or_else(|| panic!("no call of the client: {chunks:#?}")).to_owned()
}

/// One response: its request, and the chunks that its client has.
struct Response {
    request: Value,
    chunks: Vec<Frame>,
}

/// The responses of one run, over one wire.
struct Talk {
    wire: Wire,
    cut: Cut,
    /// Names the run's script, and its conversation where the client names it.
    id: String,
    responses: Vec<Response>,
}

impl Talk {
    /// Begins a run, answers its client tool if the cut comes later, and reads the last response up to the cut.
    async fn begin(wire: Wire, cut: Cut, model: &ModelMock, server: &Server) -> Self {
        let id = format!("{wire:?}-{}-{}", cut.model_call, cut.pieces);
        let mut talk = Self { wire, cut, id, responses: Vec::new() };
        let mut request = wire.first_request(&talk.id, cut);
        if cut.model_call == 1 && wire != Wire::Chat {
            let chunks = read(wire.post(server, &talk.id, &request)).await;
            let second = wire.second_request(&talk.id, &chunks);
            talk.responses.push(Response { request, chunks });
            request = second;
        }
        let mut stream = SseStream::new(wire.post(server, &talk.id, &request).send().await.unwrap());
        let mut chunks: Vec<Frame> = Vec::new();
        let is_cut = |chunks: &[Frame]| match (cut.last_text(), chunks.last()) {
            (Some(text), Some(last)) => last.data.contains(text),
            (None, last) => last.is_some(),
            (Some(_), None) => false,
        };
        while !is_cut(&chunks) {
            match stream.next().await {
                Next::Frame(chunk) => chunks.push(chunk),
                Next::End | Next::Broken => panic!("{} ended after {chunks:#?}", talk.id),
            }
        }
        model.wait_for("the model call of the cut", &talk.id, |exchanges| exchanges.len() > cut.model_call).await;
        talk.responses.push(Response { request, chunks });
        talk
    }

    /// Returns the request for the chunks of a response after `last`.
    fn resume(&self, server: &Server, response: &Response, last: Option<&Frame>) -> RequestBuilder {
        match self.wire {
            Wire::Responses => {
                let id = response_id(&response.chunks);
                let after = last.map(|last| format!("&starting_after={}", last.json()["sequence_number"]));
                server.get(&format!("//v1/responses/{id}?stream=true{}", after.unwrap_or_default()))
            }
            Wire::AgUi => {
                let post = self.wire.post(server, &self.id, &response.request);
                last.iter().fold(post, |post, last| post.header("last-event-id", last.id.as_ref().unwrap()))
            }
            Wire::AiSdk | Wire::Chat => self.wire.post(server, &self.id, &response.request),
        }
    }

    /// Reads the run to its end, after its server is gone.
    async fn finish(&mut self, server: &Server) {
        let cut = self.responses.last().unwrap();
        let chunks = match self.wire.has_cursor() {
            true => [cut.chunks.clone(), read(self.resume(server, cut, cut.chunks.last())).await].concat(),
            // The response begins again, without the text that the crash has made void.
            false => read(self.resume(server, cut, None)).await,
        };
        let count = |text: &str| chunks.iter().filter(|chunk| chunk.data.contains(text)).count();
        let (_, text) = MODEL_CALLS[self.cut.model_call][1];
        let begun = match self.wire {
            // If the client came back before the next claim, a chunk takes the void text back.
            Wire::AiSdk => text_of(chunks.iter()).matches(text).count(),
            _ => count(&format!(r#""delta":"{text}"#)) + count(&format!(r#""content":"{text}"#)),
        };
        let most = if self.wire.has_cursor() { 2 } else { 1 };
        assert!((1..=most).contains(&begun), "{}: {chunks:#?} after {:#?}", self.id, cut.chunks);
        self.responses.last_mut().unwrap().chunks = chunks;
        if self.responses.len() == 1 && self.wire != Wire::Chat {
            let request = self.wire.second_request(&self.id, &self.responses[0].chunks);
            let chunks = read(self.wire.post(server, &self.id, &request)).await;
            self.responses.push(Response { request, chunks });
        }
        let last = self.responses.last().unwrap();
        assert!(last.chunks.iter().any(|chunk| chunk.data.contains("three.")), "{}: {:#?}", self.id, last.chunks);
    }

    /// Asserts that each response is the same again, and after each of its chunks if the protocol has a cursor.
    async fn assert_same(&self, server: &Server) {
        for response in &self.responses {
            let Response { chunks, .. } = response;
            let again = read(self.resume(server, response, None)).await;
            // AG-UI and the AI SDK leave out a void step, unless the client has begun to show it.
            let leaves_out = matches!(self.wire, Wire::AgUi | Wire::AiSdk);
            let shown: Vec<Frame> = chunks.iter().filter(|chunk| !leaves_out || again.contains(chunk)).cloned().collect();
            assert_eq!(again, shown, "{}", self.id);
            if self.wire.has_cursor() {
                for (at, last) in chunks.iter().enumerate().filter(|(_, last)| last.data != "[DONE]") {
                    let rest = read(self.resume(server, response, Some(last))).await;
                    // Void steps after the chunk are left out as well.
                    let later = chunks[at + 1..].iter().filter(|chunk| rest.contains(chunk) || again.contains(chunk));
                    let later: Vec<Frame> = later.cloned().collect();
                    assert_eq!(rest, later, "{} after chunk {at}: {last:?}", self.id);
                }
            }
        }
    }

    fn text(&self) -> String {
        let chunks = self.responses.iter().flat_map(|response| &response.chunks);
        text_of(chunks)
    }
}

/// Returns the text in chunks of the AI SDK, without that of steps that were reset.
fn text_of<'f>(chunks: impl Iterator<Item = &'f Frame>) -> String {
    let (mut text, mut start) = (String::new(), 0);
    for chunk in chunks.filter(|chunk| chunk.data != "[DONE]").map(Frame::json) {
        match chunk["type"].as_str().unwrap() {
            "start-step" => start = text.len(),
            "reset-step" => text.truncate(start),
            "text-delta" => text.push_str(chunk["delta"].as_str().unwrap()),
            _ => {}
        }
    }
    text
}

async fn read(request: RequestBuilder) -> Vec<Frame> {
    SseStream::new(request.send().await.unwrap()).all().await
}

/// Returns the chunks of the response to this request over a WebSocket. Their numbers have no gap.
async fn over_socket(server: &Server, request: &Value) -> Vec<Value> {
    let url = format!("{}/api/chat", server.url.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    let mut frame = json!({"type": "send", "requestId": "again", "body": {"tools": request["tools"]}});
    (frame["id"], frame["messages"]) = (request["id"].clone(), request["messages"].clone());
    socket.send(Message::text(frame.to_string())).await.unwrap();
    let mut chunks = Vec::new();
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message.unwrap() else { continue };
        let frame: Value = serde_json::from_str(&text).unwrap();
        match frame["type"].as_str() {
            Some("start") => {}
            Some("chunk") => {
                assert_eq!(frame["sequence"], chunks.len(), "{frame}");
                chunks.push(frame["chunk"].clone());
            }
            Some("end") => return chunks,
            _ => panic!("{frame}"),
        }
    }
    panic!("the socket closed after {chunks:#?}")
}

/// Lets a day pass for all that a server does by age, and does it.
async fn pass_a_day(site: &Site) {
    for (table, column) in [("runs", "finished_at"), ("idempotency_keys", "created_at"), ("conversations", "updated_at")] {
        site.database.rows(&format!("UPDATE {table} SET {column} = {column} - {DAY_MS} RETURNING 'moved'")).await;
    }
    let (ok, output) = site.command(&["cleanup"]).await;
    assert!(ok, "{output}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cut_streams_of_all_protocols_go_on(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let mut first = site.start().await;
    let second = match kind {
        Kind::Sqlite => None,
        Kind::Postgres => Some(site.start().await),
    };
    let begun = Cut::all().flat_map(|cut| WIRES.map(|wire| Talk::begin(wire, cut, &model, &first)));
    let mut talks = join_all(begun).await;
    first.kill9().await;
    let server = match second {
        Some(second) => second,
        None => site.start().await,
    };
    // The page of the AI SDK is loaded again while the run is active.
    let chat = talks.iter().find(|talk| talk.wire == Wire::AiSdk && talk.cut == MIDDLE).unwrap().id.clone();
    let active = server.get(&format!("//api/chat/{chat}/stream?v=7")).send().await.unwrap();
    for talk in &talks {
        model.release(&talk.id);
    }
    join_all(talks.iter_mut().map(|talk| talk.finish(&server))).await;
    let [responses, ag_ui, ai_sdk, _] =
        WIRES.map(|wire| talks.iter().find(|talk| talk.wire == wire && talk.cut == MIDDLE).unwrap());
    let active = SseStream::new(active).all().await;
    assert_eq!(text_of(active.iter()), ai_sdk.text(), "{active:#?}");
    assert_eq!(message_id(&active), message_id(&ai_sdk.responses[1].chunks));
    for talk in talks.iter().filter(|talk| matches!(talk.wire, Wire::AgUi | Wire::AiSdk)) {
        let whole: String = talk.responses.iter().flat_map(|response| &response.chunks).map(|chunk| chunk.data.as_str()).collect();
        for part in ["ledger__lookup", "https://example.org/", "think0"] {
            assert!(whole.contains(part), "{} without {part}: {whole}", talk.id);
        }
        // A client of AG-UI has the result that it has sent, so only a join shows it.
        assert!(whole.contains("a door") || talk.wire == Wire::AgUi, "{}: {whole}", talk.id);
    }
    let audited = server.get_json("/audit?tool=ledger__lookup").await;
    let runs: BTreeSet<&str> = audited["data"].as_array().unwrap().iter().map(|row| row["run_id"].as_str().unwrap()).collect();
    assert_eq!(runs.len(), talks.len(), "the call of each run is in the audit list: {audited}");

    join_all(talks.iter().map(|talk| talk.assert_same(&server))).await;
    for response in &ai_sdk.responses {
        let chunks = read(ai_sdk.resume(&server, response, None)).await;
        let sent: Vec<Value> = chunks.iter().filter(|chunk| chunk.data != "[DONE]").map(Frame::json).collect();
        assert_eq!(over_socket(&server, &response.request).await, sent);
    }
    let run = response_id(&responses.responses[0].chunks).replace("resp_", "run_");
    let events = stored(&server.run_events(&run).await.all().await);
    let first_run = format!("{}-one", ag_ui.id);
    let joined = read(server.get(&format!("//ag-ui/default?runId={first_run}"))).await;
    let messages = server.get_json(&format!("//api/chat/{chat}/messages")).await;

    pass_a_day(&site).await;
    for talk in [responses, ag_ui] {
        talk.assert_same(&server).await;
    }
    assert_eq!(cut_at_every_event(&server, &run).await, events);
    for (at, last) in joined.iter().enumerate() {
        let offset = last.id.as_ref().unwrap();
        let rest = read(server.get(&format!("//ag-ui/default?runId={first_run}&offset={offset}"))).await;
        assert_eq!(rest, joined[at + 1..], "after chunk {at}");
    }
    // The page of the AI SDK reads its messages, and finds no stream.
    assert_eq!(server.get(&format!("//api/chat/{chat}/stream")).send().await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_eq!(server.get_json(&format!("//api/chat/{chat}/messages")).await, messages);
    site.assert_sound(&model).await;
}
