//! Tools that the client of a run executes: requested, answered once, and not lost with the server.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::SseStream;
use support::wait;

const INPUT: &str =
    r#"[[id:client]][[call:ledger__append {"text":"one"}]][[call:look {"at":"door"}]][[call:point {}]][[next]][[say:bye]]"#;

fn tools() -> Value {
    json!([
        {"name": "look", "description": "Looks at something.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
        {"name": "point"},
    ])
}

/// Returns a run that waits for its client, and the calls that it requested.
async fn waiting(server: &Server, conversation: Option<&str>) -> (String, Vec<Value>) {
    let (status, started) = match conversation {
        None => server.post_json("/runs", &json!({"input": INPUT, "tools": tools()})).await,
        Some(id) => server.post_json(&format!("/conversations/{id}/messages"), &json!({"content": INPUT, "tools": tools()})).await,
    };
    assert_eq!(status, 202, "{started}");
    let run = started["run"]["id"].as_str().unwrap().to_owned();
    waits(server, &run).await;
    let events = server.run_events_json(&run).await;
    let calls = events.iter().filter(|event| event["type"] == "tool.requested").map(|event| event["data"].clone());
    (run, calls.collect())
}

async fn waits(server: &Server, run: &str) {
    let path = format!("/runs/{run}");
    wait::until("the run to wait for its client", Duration::from_secs(30), || async {
        let run = server.get_json(&path).await;
        (run["status"] == "waiting").then(|| assert_eq!(run["reason"], "client_tool"))
    })
    .await;
}

fn result(call: &Value, content: &Value) -> Value {
    json!({"call_id": call["call_id"], "content": content})
}

// The server is killed between the request of a call and its result.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn client_result_outlives_killed_server(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::start_scripted(kind).await;
    let (run, calls) = waiting(&server, None).await;
    let [look, point] = calls.as_slice() else { panic!("two calls: {calls:#?}") };
    assert_eq!((&look["name"], &look["arguments"], &point["name"]), (&json!("look"), &json!({"at": "door"}), &json!("point")));
    assert!(look["expires_at"].is_string(), "a week by default: {look}");
    assert_eq!(site.ledger.count("append", "one"), 1, "the server's call ran meanwhile");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0);
    let explained = server.get_json(&format!("/runs/{run}/explain")).await;
    assert!(explained["summary"].as_str().unwrap().contains("tool-results"), "{explained}");
    let conversation = explained["run"]["conversation_id"].as_str().unwrap().to_owned();
    server.kill9().await;

    let server = site.start().await;
    waits(&server, &run).await;
    let stream = server.get(&format!("/conversations/{conversation}/events")).header("accept", "text/event-stream");
    let mut stream = SseStream::new(stream.send().await.unwrap());
    let snapshot = stream.until_kind("stream.snapshot").await.pop().unwrap().json();
    assert_eq!(snapshot["data"]["pending_calls"], json!([look, point]));
    assert_eq!(server.get_json("/input-requests").await["data"], json!([]));

    let path = format!("/runs/{run}/tool-results");
    // Unknown, and of the server: nothing of the request is stored.
    let events = server.run_events_json(&run).await;
    let of_server = events.iter().find(|event| event["type"] == "tool.completed").unwrap();
    for other in ["call_01980000000070008000000000000001", of_server["data"]["call_id"].as_str().unwrap()] {
        let results = json!({"results": [result(look, &json!("a door")), {"call_id": other, "content": "x"}]});
        let (status, refused) = server.post_json(&path, &results).await;
        assert_eq!((status.as_u16(), &refused["code"]), (404, &json!("not_found")), "{refused}");
    }
    let first = json!({"results": [result(look, &json!([{"type": "text", "text": "a door"}]))]});
    let post = || server.post(&path, &first).header("idempotency-key", "first");
    assert_eq!(post().send().await.unwrap().status(), 202);
    let again = post().send().await.unwrap();
    assert_eq!(again.status(), 202);
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let both = json!({"results": [result(point, &json!("there")), result(look, &json!("a window"))]});
    let (status, refused) = server.post_json(&path, &both).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("already_answered")), "{refused}");
    waits(&server, &run).await;

    let failed = json!({"results": [{"call_id": point["call_id"], "content": "no finger", "is_error": true}]});
    assert_eq!(server.post_json(&path, &failed).await.0, 202);
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let (status, refused) = server.post_json(&path, &failed).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("already_answered")));
    let completed = server.run_events_json(&run).await.into_iter().filter(|event| event["type"] == "tool.completed");
    let outcomes: Vec<Value> = completed
        .map(|event| json!([event["data"]["name"], event["data"]["state"], event["data"]["content"][0]["text"]]))
        .collect();
    assert_eq!(outcomes[1..], [json!(["look", "done", "a door"]), json!(["point", "failed", "no finger"])]);
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_call_ends_with_cancel_expiry_or_steer() {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_AGENT__ASK_EXPIRES_MS", "1500")).await;
    // No result arrives in time.
    let (run, calls) = waiting(&server, None).await;
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let late = json!({"results": [result(&calls[0], &json!("late"))]});
    let (status, refused) = server.post_json(&format!("/runs/{run}/tool-results"), &late).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("conflict")), "{refused}");

    let site = site.env("CAPSTAN_AGENT__ASK_EXPIRES_MS", "600000");
    drop(server);
    let server = site.start().await;
    let (run, _) = waiting(&server, None).await;
    assert_eq!(server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await.0, 202);
    assert_eq!(server.finished(&run).await["status"], "cancelled");

    // A message joins the waiting run; its answer comes after the results.
    let conversation = server.post_json("/conversations", &json!({})).await.1["id"].as_str().unwrap().to_owned();
    let (run, calls) = waiting(&server, Some(&conversation)).await;
    let joined = server.send(&conversation, "hurry", "steer").await;
    assert_eq!(joined["run"]["id"], json!(run));
    let results: Vec<Value> = calls.iter().map(|call| result(call, &json!("done"))).collect();
    assert_eq!(server.post_json(&format!("/runs/{run}/tool-results"), &json!({"results": results})).await.0, 202);
    assert_eq!(server.finished(&run).await["status"], "completed");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_tool_beyond_limit_or_with_taken_name_is_refused() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.env("CAPSTAN_LIMITS__MAX_CLIENT_TOOLS", "2").env("CAPSTAN_LIMITS__CLIENT_TOOL_BYTES", "100");
    let site = site.env("CAPSTAN_LIMITS__CLIENT_RESULT_BYTES", "100");
    let server = site.start().await;
    let named = |name: &str| json!({"name": name});
    for (tools, pointer, word) in [
        (json!([named("a"), named("b"), named("c")]), "/tools", "limits.max_client_tools"),
        (json!([{"name": "a", "description": "x".repeat(101)}]), "/tools/0", "limits.client_tool_bytes"),
        (json!([named("a"), named("a")]), "/tools/1/name", "earlier tool"),
        (json!([named("a b")]), "/tools/0/name", "cannot be the name"),
        (json!([named("ledger__append")]), "/tools/0/name", "tool of this server"),
        (json!([{"name": "a", "parameters": {"type": "array"}}]), "/tools/0/parameters", "object"),
    ] {
        let (status, refused) = server.post_json("/runs", &json!({"input": "hello", "tools": tools})).await;
        assert_eq!((status.as_u16(), &refused["errors"][0]["pointer"]), (400, &json!(pointer)), "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains(word), "{refused}");
    }
    assert_eq!(server.get_json("/runs").await["data"], json!([]), "a refused request starts no run");
    let (run, calls) = waiting(&server, None).await;
    let path = format!("/runs/{run}/tool-results");
    let large = json!({"results": [result(&calls[0], &json!("x".repeat(101)))]});
    let (status, refused) = server.post_json(&path, &large).await;
    assert_eq!((status.as_u16(), &refused["errors"][0]["pointer"]), (400, &json!("/results/0/content")), "{refused}");
    assert_eq!(server.post_json(&path, &json!({"results": []})).await.0, 400);
    server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert_eq!(server.finished(&run).await["status"], "cancelled");
    site.assert_sound(&model).await;
}
