//! Elicitation: questions of MCP servers in the middle of a call.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::mcp::entry;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;
use support::ws::WsClient;

/// A site whose only server asks, if it may.
pub(super) struct Asking {
    pub(super) site: Site,
    pub(super) model: ModelMock,
    pub(super) folder: tempfile::TempDir,
}

pub(super) async fn asking(kind: Kind, habits: &[&str], capstan: Value) -> Asking {
    let model = ModelMock::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");
    let mut args = vec![script.to_owned(), folder.path().display().to_string(), "elicits".to_owned()];
    args.extend(habits.iter().map(|habit| (*habit).to_owned()));
    let site = Site::scripted(kind, &model).await.short_leases();
    let site = site.mcp(json!({"mcpServers": {"s": {"command": "python3", "args": args, "capstan": capstan}}}));
    Asking { site, model, folder }
}

pub(super) fn script(call: &str) -> Value {
    json!({"input": format!("[[id:asks]][[call:{call}]][[next]][[say:bye]]")})
}

/// Returns the next open question.
pub(super) async fn asked(server: &Server) -> Value {
    wait::until("a question", Duration::from_secs(30), || async {
        let open = server.get_json("/input-requests?status=pending").await;
        open["data"].as_array().unwrap().first().cloned()
    })
    .await
}

pub(super) fn path(question: &Value) -> String {
    format!("/input-requests/{}", question["id"].as_str().unwrap())
}

/// Returns the final answer of the tool.
pub(super) async fn told(server: &Server, run: &Value) -> String {
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let results = messages.iter().find(|message| message["role"] == "tool").unwrap();
    results["parts"][0]["content"][0]["text"].as_str().unwrap().to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_form_is_filled_in_once(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Asking { site, model, folder: _folder } = asking(kind, &[], json!({"elicitation": true})).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let run = server.start_run(&script("s__form {}")).await;
    let question = asked(&server).await;
    let form = &question["question"]["elicitation"];
    assert_eq!((&question["kind"], &question["question"]["text"]), (&json!("elicitation"), &json!("Which colour?")));
    assert_eq!(
        (&form["server"], &form["requested_schema"]["properties"]["colour"]["enum"]),
        (&json!("s"), &json!(["red", "green"]))
    );
    assert_eq!(server.get_json(&format!("/runs/{}", run["id"].as_str().unwrap())).await["status"], "tool_loop");

    let path = path(&question);
    for wrong in [
        json!({"action": "perhaps"}),
        json!({"action": "accept"}),
        json!({"action": "accept", "content": {"colour": "blue"}}),
        json!({"action": "accept", "content": {"colour": "red", "count": 0}}),
        json!({"action": "accept", "content": {"colour": "red", "more": {"a": 1}}}),
        json!({"action": "decline", "content": {"colour": "red"}}),
    ] {
        let (status, refused) = server.post_json(&path, &wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong} {refused}");
    }
    server.set_key(&bob);
    assert_eq!(server.post_json(&path, &json!({"action": "cancel"})).await.0, StatusCode::NOT_FOUND);
    server.set_key(&ann);
    let answer = json!({"action": "accept", "content": {"colour": "green", "count": 7}});
    let (one, other) = tokio::join!(server.post_json(&path, &answer), server.post_json(&path, &answer));
    let mut statuses = [one.0.as_u16(), other.0.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{} {}", one.1, other.1);
    let result: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    assert_eq!(result, json!({"action": "accept", "content": {"colour": "green", "count": 7}}));
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let resolved = events.iter().find(|event| event["type"] == "input.resolved").unwrap();
    assert_eq!(resolved["data"]["answer"], json!({"choice": "accept"}), "the content of the form goes to the server only");
    assert!(!server.log_text().contains("\"green\""), "the log does not hold the content");

    // The other answers, and another dialect.
    let run = server.start_run(&script("s__form {}")).await;
    let question = asked(&server).await;
    let mut socket = WsClient::connect(&server.url, Some(&ann)).await;
    let declined = socket.call("input.resolve", json!({"id": question["id"], "action": "decline"})).await;
    assert_eq!(declined["result"]["input_request"]["state"], "answered", "{declined}");
    assert_eq!(told(&server, &run).await, r#"{"action": "decline"}"#);
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn unanswered_elicitation_ends_in_time(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    // The server's timeout of one second is suspended while a user is asked. Otherwise the call would time out.
    let Asking { site, model: _model, folder: _folder } = asking(kind, &[], json!({"elicitation": true, "timeout": "1s"})).await;
    let site = site.env("CAPSTAN_AGENT__ASK_EXPIRES_MS", "2500");
    let server = site.start().await;
    let run = server.start_run(&script("s__form {}")).await;
    let question = asked(&server).await;
    assert_eq!(told(&server, &run).await, r#"{"action": "cancel"}"#);
    assert_eq!(server.get_json(&path(&question)).await["state"], "expired");

    // The run is cancelled meanwhile.
    let run = server.start_run(&script("s__form {}")).await;
    let question = asked(&server).await;
    server.post_json(&format!("/runs/{}/cancel", run["id"].as_str().unwrap()), &json!({})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "cancelled");
    assert_eq!(server.get_json(&path(&question)).await["state"], "cancelled");

    audit::assert_sound(&site.database).await;
}

/// A question does not name its call, so the second call waits until the first one ends, however long that takes.
#[tokio::test(flavor = "multi_thread")]
async fn two_calls_at_once_are_both_asked() {
    let Asking { site, model, folder } = asking(Kind::Sqlite, &[], json!({"elicitation": true, "timeout": "1s"})).await;
    let server = site.start().await;
    let input = r#"[[id:asks]][[call:s__form {"text":"1"}]][[call:s__form {"text":"2"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({ "input": input })).await;
    let called = || std::fs::read_to_string(folder.path().join("log")).unwrap().matches("\"called\"").count();
    let first = asked(&server).await;
    // Longer than the server's timeout.
    let began = Instant::now();
    wait::until("the other call to be out of time, if its time ran", Duration::from_secs(10), || async {
        (began.elapsed() > Duration::from_millis(1_500)).then_some(())
    })
    .await;
    assert_eq!(server.get_json(&path(&first)).await["state"], "pending");
    assert_eq!(called(), 1);
    for colour in ["red", "green"] {
        let question = asked(&server).await;
        let answer = json!({"action": "accept", "content": {"colour": colour}});
        assert_eq!(server.post_json(&path(&question), &answer).await.0, StatusCode::OK);
    }
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let said: Vec<String> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .map(|part| part["content"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        said.len() == 2 && said.iter().any(|text| text.contains("red")) && said.iter().any(|text| text.contains("green")),
        "{said:?}"
    );
    assert_eq!(called(), 2);
    model.assert_history_was_sendable();
}

/// The session that asked is gone, so the answer cannot be delivered.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_process_dies_over_a_question(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Asking { site, model: _model, folder: _folder } = asking(kind, &[], json!({"elicitation": true})).await;
    let mut server = site.start().await;
    let run = server.start_run(&script("s__form {}")).await;
    let question = asked(&server).await;
    server.kill9().await;
    let server = site.start().await;
    let said = told(&server, &run).await;
    assert!(said.contains("may or may not") || said.contains("not known") || said.contains("may have taken effect"), "{said}");
    assert_eq!(server.get_json(&path(&question)).await["state"], "cancelled");
    let late = server.post_json(&path(&question), &json!({"action": "decline"})).await;
    assert_eq!(late.0, StatusCode::CONFLICT, "{}", late.1);
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_asks_so_often_and_for_so_much(#[values(Kind::Sqlite)] kind: Kind) {
    let Asking { site, model: _model, folder: _folder } = asking(kind, &[], json!({"elicitation": true})).await;
    let server = site.start().await;
    let run = server.start_run(&script("s__nag {}")).await;
    for _ in 0..5 {
        let question = asked(&server).await;
        assert_eq!(server.post_json(&path(&question), &json!({"action": "decline"})).await.0, StatusCode::OK);
    }
    let said = told(&server, &run).await;
    assert_eq!(said.matches("decline").count(), 7, "{said}");
    assert_eq!(server.get_json("/input-requests").await["data"].as_array().unwrap().len(), 5);

    for refused in ["http://example.org/", "javascript:alert(1)", "https://a:b@example.org/"] {
        let run = server.start_run(&script(&format!(r#"s__page {{"text":"{refused}"}}"#))).await;
        assert_eq!(told(&server, &run).await, r#"{"action": "decline"}"#, "{refused}");
    }
    let run = server.start_run(&script(r#"s__page {"text":"https://example.org/login"}"#)).await;
    let question = asked(&server).await;
    assert_eq!(question["question"]["elicitation"], json!({"server": "s", "url": "https://example.org/login"}));
    assert_eq!(server.post_json(&path(&question), &json!({"choice": "accept"})).await.0, StatusCode::OK);
    assert_eq!(told(&server, &run).await, r#"{"action": "accept"}"#);

    // Off by default.
    let Asking { site, model: _model, folder: _folder } = asking(kind, &[], json!({})).await;
    let server = site.start().await;
    let run = server.start_run(&script("s__form {}")).await;
    assert_eq!(told(&server, &run).await, r#"{"action": "decline"}"#);
    assert_eq!(server.get_json("/input-requests").await["data"], json!([]));
}

/// After an abandoned call, the next question could belong to either call, so the session is restarted. That restart counts as
/// no crash. A process that ends so often would be in a crash loop.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_call_that_was_cancelled_a_server_may_ask_again(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Asking { site, model: _model, folder: _folder } = asking(kind, &[], json!({"elicitation": true})).await;
    let server = site.start().await;
    for _ in 0..7 {
        let run = server.start_run(&script("s__form {}")).await;
        asked(&server).await;
        let id = run["id"].as_str().unwrap();
        assert!(server.post_json(&format!("/runs/{id}/cancel"), &json!({})).await.0.is_success());
        assert_eq!(server.finished(id).await["status"], "cancelled");
    }
    let run = server.start_run(&script("s__form {}")).await;
    let answer = json!({"action": "accept", "content": {"colour": "red"}});
    assert_eq!(server.post_json(&path(&asked(&server).await), &answer).await.0, StatusCode::OK);
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    assert_eq!(said, answer);
    audit::assert_sound(&site.database).await;
}

/// The second call of an answer waits for the first, which is abandoned.
#[tokio::test(flavor = "multi_thread")]
async fn call_behind_an_abandoned_question_may_ask() {
    let capstan = json!({"elicitation": true, "timeout": "2s", "max_timeout": "30s"});
    let Asking { site, model: _model, folder: _folder } = asking(Kind::Sqlite, &[], capstan).await;
    let server = site.start().await;
    let run = server.start_run(&script("s__hang {}]][[call:s__form {}")).await;
    let answer = json!({"action": "accept", "content": {"colour": "red"}});
    assert_eq!(server.post_json(&path(&asked(&server).await), &answer).await.0, StatusCode::OK);
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let results = messages.iter().find(|message| message["role"] == "tool").unwrap();
    assert_eq!(results["parts"][0]["is_error"], true, "{results:#}");
    let said: Value = serde_json::from_str(results["parts"][1]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(said, answer);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_session_is_called_again_with_the_answer(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Asking { site, model: _model, folder: _folder } = asking(kind, &["stateless"], json!({"elicitation": true})).await;
    let server = site.start().await;
    let run = server.start_run(&script("s__staged {}")).await;
    let question = asked(&server).await;
    let answer = json!({"action": "accept", "content": {"colour": "red"}});
    assert_eq!(server.post_json(&path(&question), &answer).await.0, StatusCode::OK);
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    assert_eq!(said, json!([{"colour": answer}, "opaque"]));
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_server_is_answered() {
    let model = ModelMock::start().await;
    let entry = json!({"command": "node", "args": [entry("server-everything")], "capstan": {"elicitation": true}});
    let site = Site::scripted(Kind::Sqlite, &model).await.mcp(json!({"mcpServers": {"everything": entry}}));
    let server = site.start().await;
    let run = server.start_run(&script("everything__trigger-elicitation-request {}")).await;
    let question = asked(&server).await;
    let schema = &question["question"]["elicitation"]["requested_schema"];
    assert!(schema["properties"]["name"].is_object(), "{question:#}");
    let answer = json!({"action": "accept", "content": {"name": "Ada Lovelace"}});
    let (status, answered) = server.post_json(&path(&question), &answer).await;
    assert_eq!(status, StatusCode::OK, "{answered}");
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    assert!(serde_json::to_string(&messages).unwrap().contains("Ada Lovelace"), "{messages:#?}");
}
