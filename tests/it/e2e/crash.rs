//! The process is killed at every boundary between two persisted steps, and the run ends as if nothing had happened, except
//! for what nobody can know.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::audit;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::{Server, Site};
use crate::support::sse::{Frame, Next, SseStream, kinds, stored};

/// Two rounds of tools, one of them in parallel, of every class; then an answer in text.
const SCRIPT: &str = r#"[[id:crash]][[text:3,2]][[call:ledger__append {"text":"one"}]]
[[call:ledger__append_keyed {"text":"two","key":"from the model"}]][[call:ledger__lookup {"text":"three"}]]
[[next]][[call:ledger__append {"text":"four"}]][[next]][[text:12,4]]"#;

/// A tool call as it stood in the database.
#[derive(Debug, Clone)]
struct Call {
    state: String,
    tool: String,
    text: String,
}

async fn calls(site: &Site) -> HashMap<String, Call> {
    let rows = site.database.rows("SELECT id, state, name, arguments FROM tool_calls").await;
    let call = |row: Vec<Option<String>>| {
        let arguments: Value = serde_json::from_str(row[3].as_deref().unwrap()).unwrap();
        let tool = row[2].as_deref().unwrap().trim_start_matches("ledger__").to_owned();
        let text = arguments["text"].as_str().unwrap().to_owned();
        (row[0].clone().unwrap(), Call { state: row[1].clone().unwrap(), tool, text })
    };
    rows.into_iter().map(call).collect()
}

/// What a client has got so far, and how it comes back for the rest.
struct Client {
    frames: Vec<Frame>,
}

impl Client {
    async fn post(server: &Server) -> Result<SseStream, reqwest::Error> {
        let request = server.post("/runs", &json!({"input": SCRIPT})).header("accept", "text/event-stream");
        request.header("idempotency-key", "the-one").send().await.map(SseStream::new)
    }

    async fn read(&mut self, mut stream: SseStream) {
        while let Next::Frame(frame) = stream.next().await {
            self.frames.push(frame);
        }
    }

    fn run(&self) -> Option<String> {
        self.frames.first().map(|frame| frame.json()["run_id"].as_str().unwrap().to_owned())
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn killed(
    #[values(
        "C01", "C02", "C04", "C05", "C06", "C07", "C08", "C09", "C10@1", "C10@3", "C10@4", "C13@1", "C13@3", "C13@4", "C14", "C15",
        "C22", "C23"
    )]
    point: &str,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let (name, at) = point.split_once('@').unwrap_or((point, "1"));
    let mut client = Client { frames: Vec::new() };

    let mut first = site.start_with(&[("CAPSTAN_FAILPOINTS", &format!("{name}=kill@{at}"))]).await;
    if let Ok(stream) = Client::post(&first).await {
        client.read(stream).await;
    }
    let status = first.ended(Duration::from_secs(10)).await;
    assert_eq!(status.code(), None, "the process was to die by a signal at {point}, not to end with {status}");
    assert!(!kinds(&client.frames).contains(&"stream.end".to_owned()) || name == "C23", "the run ended before {point}");

    // How things stood at death.
    let before = calls(&site).await;
    let executed_before = site.ledger.entries();
    let asked_before = model.total();
    let answers_before = site.database.count("SELECT CAST(count(*) AS text) FROM messages WHERE role = 'assistant'").await;
    let streaming = "SELECT CAST(count(*) AS text) FROM run_steps WHERE kind = 'model' AND status = 'started'";
    let model_step_open = site.database.count(streaming).await > 0;

    let second = site.start().await;
    match client.run() {
        None => client.read(Client::post(&second).await.unwrap()).await,
        Some(run) => {
            let last = stored(&client.frames).last().unwrap().id.clone();
            // Nothing more comes if everything had been seen before the death.
            if let Some(stream) = second.run_events_after(&run, last.as_deref()).await {
                client.read(stream).await;
            }
        }
    }
    let run = client.run().unwrap();
    let ended = second.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");

    // The client that lived through it has what the log has.
    let seen = stored(&client.frames);
    let log = stored(&second.run_events(&run).await.all().await);
    assert_eq!(seen, log);
    assert_eq!(log.iter().map(Frame::json).collect::<Vec<_>>(), second.run_events_json(&run).await);
    let runs = second.post_json("/runs", &json!({"input": "[[id:after]]"})).await;
    assert_eq!(runs.0, 202, "the server is well: {}", runs.1);
    second.finished(runs.1["run"]["id"].as_str().unwrap()).await;
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM runs").await, 2, "one run by the key, and the one after");

    check_tools(&site, &before, executed_before.len(), &log).await;
    check_text(&model, &log, asked_before, answers_before, model_step_open);
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}

/// Every call has run exactly once, or at most once where nobody can know, and never again after its answer was stored.
async fn check_tools(site: &Site, before: &HashMap<String, Call>, executed_before: usize, log: &[Frame]) {
    let after = calls(site).await;
    assert_eq!(after.len(), 4, "{after:#?}");
    let entries = site.ledger.entries();
    let unknown: HashSet<String> = log
        .iter()
        .filter(|frame| frame.kind() == "tool.outcome_unknown")
        .map(|frame| frame.json()["data"]["call_id"].as_str().unwrap().to_owned())
        .collect();
    for (id, call) in &after {
        let count = |entries: &[crate::support::ledger::Entry]| {
            entries.iter().filter(|entry| entry.tool == call.tool && entry.arguments["text"] == call.text.as_str()).count()
        };
        let total = count(&entries);
        let state_before = before.get(id).map_or("planned", |call| call.state.as_str());
        match (state_before, call.tool.as_str()) {
            ("done", _) => {
                assert_eq!(call.state, "done");
                assert_eq!(total, count(&entries[..executed_before]), "a finished call ran again: {call:?}");
            }
            ("started", "append") => {
                assert_eq!(call.state, "unknown", "{call:?}");
                assert!(total <= 1, "an unsafe call ran {total} times: {call:?}");
                assert_eq!(total, count(&entries[..executed_before]), "an unsafe call ran after the crash: {call:?}");
            }
            (_, "append") => {
                assert_eq!((call.state.as_str(), total), ("done", 1), "{call:?}");
            }
            (_, _) => {
                assert_eq!(call.state, "done", "{call:?}");
                assert!((1..=2).contains(&total), "{call:?} ran {total} times");
            }
        }
        assert_eq!(unknown.contains(id), call.state == "unknown", "{call:?}");
    }
    let keys: HashSet<String> =
        entries.iter().filter(|entry| entry.tool == "append_keyed").map(|entry| entry.arguments["key"].to_string()).collect();
    assert_eq!(keys.len(), 1, "a keyed call runs again with the same key: {keys:?}");
    assert!(!keys.contains("\"from the model\""), "the key is ours, not the model's");
}

/// What the dead attempt showed is void, the answer is of one piece, and no stored answer was asked for again.
fn check_text(model: &ModelMock, log: &[Frame], asked_before: usize, answers_before: i64, model_step_open: bool) {
    let resets: Vec<Value> = log.iter().filter(|frame| frame.kind() == "step.reset").map(Frame::json).collect();
    assert_eq!(resets.len(), usize::from(model_step_open), "{resets:?}");
    assert!(resets.iter().all(|reset| reset["data"]["reason"] == "crash"), "{resets:?}");
    let last = log.iter().rev().find(|frame| frame.kind() == "message.completed").unwrap().json();
    let parts = last["data"]["message"]["parts"].as_array().unwrap();
    let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    let tokens: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(tokens.len(), 12, "{text}");
    let (of_request, _) = tokens[0].split_once('t').unwrap();
    let expected: Vec<String> = (0..12).map(|index| format!("{of_request}t{index}")).collect();
    assert_eq!(tokens, expected, "text of two attempts in one answer");
    let again = model.exchanges("crash").into_iter().filter(|exchange| exchange.number > asked_before);
    for exchange in again {
        assert!(exchange.round >= usize::try_from(answers_before).unwrap(), "an answer that was stored was asked for again");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_worker_is_given_up(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let mut server = site.start_with(&[("CAPSTAN_FAILPOINTS", "C06=kill@1")]).await;
    let run = server.start_run(&json!({"input": "[[id:poison]][[text:1,0]]"})).await;
    let run = run["id"].as_str().unwrap();
    server.ended(Duration::from_secs(10)).await;
    for _ in 0..2 {
        // The run is claimed as soon as the server runs, so it may die before it is seen ready.
        let mut server = site.spawn(&[("CAPSTAN_FAILPOINTS", "C06=kill@1")]);
        server.ended(Duration::from_secs(30)).await;
    }
    let server = site.start().await;
    let ended = server.finished(run).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("poison")), "{ended}");
    assert_eq!(model.total(), 3);
    // The conversation stays usable.
    let conversation = ended["conversation_id"].as_str().unwrap();
    let next = server.send(conversation, "[[id:next]][[text:2,0]]", "queue").await;
    assert_eq!(server.finished(next["run"]["id"].as_str().unwrap()).await["status"], "completed");
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}
