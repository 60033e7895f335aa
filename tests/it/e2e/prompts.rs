//! The system prompt: its layers, and the answers of context providers.

use std::sync::{Arc, Mutex};

use axum::routing::post;
use axum::{Json, Router};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::approvals;
use support::database::Kind;
use support::model::{Exchange, ModelMock};
use support::server::{Server, Site};

fn system(seen: &Exchange) -> String {
    seen.request["messages"][0]["content"].as_str().unwrap().to_owned()
}

/// Returns the system prompt of a run's last request.
fn told(model: &ModelMock, id: &str) -> String {
    system(&model.exchanges(id).pop().unwrap())
}

async fn patch(server: &Server, conversation: &str, body: &Value, status: u16) -> Value {
    let answer = server.request(Method::PATCH, &format!("/conversations/{conversation}")).json(body).send().await.unwrap();
    assert_eq!(answer.status(), status);
    answer.json().await.unwrap()
}

async fn say(server: &Server, conversation: &str, agent: &str, input: &str) -> Value {
    let body = json!({"input": input, "conversation_id": conversation, "agent": agent});
    let run = server.start_run(&body).await;
    server.finished(run["id"].as_str().unwrap()).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_has_layers_of_its_own(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.env("CAPSTAN_AGENT__PROMPT__SERVER", "HOUSE");
    let site = site.env("CAPSTAN_AGENT__SYSTEM_PROMPT", "AGENT");
    let server = site.start().await;
    let (status, made) =
        server.post_json("/conversations", &json!({"system_prompt": " OWN ", "instructions": "Answer in French."})).await;
    assert_eq!((status.as_u16(), &made["system_prompt"]), (201, &json!("OWN")), "{made}");
    let id = made["id"].as_str().unwrap();

    say(&server, id, "default", "hello [[id:first]]").await;
    let system = told(&model, "first");
    let places =
        ["HOUSE", "AGENT", "<user_instructions>\nAnswer in French.\n</user_instructions>", "OWN"].map(|part| system.find(part));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{system}");
    // In this ancestor, a conversation's own prompt replaced all other layers.
    say(&server, id, "cms", "hello [[id:cms]]").await;
    let system = told(&model, "cms");
    assert!(!system.contains("AGENT") && system.contains("OWN"), "{system}");

    // A queued message has the layers, too, and so has a run that another worker takes over.
    let held = server.start_run(&json!({"input": "wait [[id:held]][[hold]][[say:done]]", "conversation_id": id})).await;
    model.wait_for("the first run", "held", |seen| !seen.is_empty()).await;
    let queued = server.send(id, "and then [[id:queued]]", "queue").await;
    model.release("held");
    server.finished(held["id"].as_str().unwrap()).await;
    server.finished(queued["run"]["id"].as_str().unwrap()).await;
    assert!(told(&model, "queued").contains("Answer in French."));

    let list = server.get_json("/conversations").await;
    assert!(list["data"][0].get("instructions").is_none(), "list entries are short: {list}");
    let changed = patch(&server, id, &json!({"instructions": "", "system_prompt": "NEW"}), 200).await;
    assert_eq!((changed.get("instructions"), &changed["system_prompt"]), (None, &json!("NEW")));
    say(&server, id, "default", "bye [[id:last]]").await;
    let system = told(&model, "last");
    assert!(system.contains("NEW") && !system.contains("French"), "{system}");
    assert_eq!(server.get_json(&format!("/conversations/{id}")).await["system_prompt"], "NEW");

    let long = patch(&server, id, &json!({"instructions": "\u{e9}".repeat(10_001)}), 400).await;
    assert_eq!(long["errors"][0]["pointer"], "/instructions", "{long}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_missing_is_named_and_why() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.mcp(json!({"mcpServers": {"mail": {"command": "/no/such/program"}}}));
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "hello [[id:one]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let system = told(&model, "one");
    assert!(system.contains("the tools of \"mail\": it cannot be reached"), "{system}");
    assert!(!system.contains("/no/such"), "no internal details: {system}");
}

type Asked = Arc<Mutex<Vec<Value>>>;

/// Starts one context provider with a new answer for each request, and one that never answers.
async fn providers() -> (String, Asked, JoinSet<()>) {
    let asked = Asked::default();
    let heard = Arc::clone(&asked);
    let knows = move |Json(question): Json<Value>| {
        let mut heard = heard.lock().unwrap();
        heard.push(question);
        let text = format!("The page shows invoice {}.", heard.len());
        async move { Json(json!({"text": text})) }
    };
    let router = Router::new().route("/page", post(knows)).route("/silent", post(async || std::future::pending::<String>().await));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (base, asked, serving)
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_context_provider_does_not_delay_turns() {
    let model = ModelMock::start().await;
    let (base, asked, _serving) = providers().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.env("CAPSTAN_CONTEXTS__PROVIDERS__PAGE__URL", &format!("{base}/page"));
    let site = site.env("CAPSTAN_CONTEXTS__PROVIDERS__SILENT__URL", &format!("{base}/silent"));
    let server = site.start().await;
    let agent = json!({"name": "clerk", "profile": {"context_providers": ["silent", "page"]}});
    let (status, made) = server.post_json("/agents", &agent).await;
    assert_eq!(status.as_u16(), 201, "{made}");
    // Two rounds of one run.
    let script = r#"what is open? [[id:one]][[call:calculate {"expression":"1"}]]"#;
    let run = server.start_run(&json!({"input": script, "agent": "clerk"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(run["status"], "completed", "{run}");
    for seen in model.exchanges("one") {
        let system = system(&seen);
        assert!(system.contains("<context source=\"page\">\nThe page shows invoice 1.\n</context>"), "{system}");
    }
    let questions = asked.lock().unwrap().clone();
    assert_eq!(questions.len(), 1, "once in a run: {questions:?}");
    assert_eq!((&questions[0]["run_id"], &questions[0]["input"]), (&run["id"], &json!(script)));
    let metrics = server.get("//metrics").send().await.unwrap().text().await.unwrap();
    for line in [r#"provider="page",outcome="ok"} 1"#, r#"provider="silent",outcome="failed"} 1"#] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

/// Each way in which a run is claimed again: an approval, a retry timer, and a server that was killed during a call.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn takeover_uses_the_same_context(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let (base, asked, _serving) = providers().await;
    let site = approvals::site(kind, &model).await.env("CAPSTAN_CONTEXTS__PROVIDERS__PAGE__URL", &format!("{base}/page"));
    let site = site.env("CAPSTAN_AGENT__CONTEXT_PROVIDERS", "[\"page\"]").env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[1]");
    let mut server = site.start().await;
    let script = r#"go on [[id:one]][[call:ledger__append {"text":"one"}]][[next]][[flaky:1,503]][[hold]][[say:bye]]"#;
    let (run, path) = approvals::waiting(&server, script).await;
    let kept = |test: &str| format!("SELECT CAST(count(*) AS text) FROM runs WHERE contexts {test}");
    assert_eq!(site.database.count(&kept("LIKE '%invoice 1.%'")).await, 1);
    server.kill9().await;
    server = site.start().await;
    let (status, answer) = server.post_json(&path, &json!({"decision": "allow"})).await;
    assert_eq!(status.as_u16(), 200, "{answer}");
    model.wait_for("the answer that is held", "one", |seen| seen.len() == 3).await;
    server.kill9().await;
    let server = site.start().await;
    model.wait_for("the same request of another server", "one", |seen| seen.len() == 4).await;
    model.release("one");
    assert_eq!(server.finished(&run).await["status"], "completed");
    let systems: Vec<String> = model.exchanges("one").iter().map(system).collect();
    assert!(systems.iter().all(|system| system.contains("invoice 1.") && *system == systems[0]), "{systems:#?}");
    assert_eq!(asked.lock().unwrap().len(), 1, "once in a run");
    assert_eq!(site.database.count(&kept("IS NOT NULL")).await, 0, "the stored answers are deleted");

    // The next run asks again.
    let conversation = server.get_json(&format!("/runs/{run}")).await["conversation_id"].as_str().unwrap().to_owned();
    say(&server, &conversation, "default", "and now? [[id:two]]").await;
    assert!(told(&model, "two").contains("invoice 2."));
    model.assert_history_was_sendable();
}
