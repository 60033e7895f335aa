//! A run asks its user about a call of unknown outcome and waits for the answer through crashes and restarts.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::SseStream;
use support::wait;
use support::ws::WsClient;

const INPUT: &str = r#"[[id:asking]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#;

/// Returns a run that waits for an answer because its server was killed during a call, and the next server.
async fn waiting(site: &Site) -> (Server, String) {
    let mut first = site.start_with(&[("CAPSTAN_FAILPOINTS", "C13=kill")]).await;
    let run = first.start_run(&json!({"input": INPUT})).await;
    first.ended(Duration::from_secs(20)).await;
    let server = site.start().await;
    let run = run["id"].as_str().unwrap().to_owned();
    waits(&server, &run).await;
    (server, run)
}

async fn waits(server: &Server, run: &str) {
    let path = format!("/runs/{run}");
    wait::until("the run to wait", Duration::from_secs(30), || async {
        let run = server.get_json(&path).await;
        (run["status"] == "waiting").then(|| assert_eq!(run["reason"], "input"))
    })
    .await;
}

async fn site(kind: Kind, model: &ModelMock) -> Site {
    Site::scripted(kind, model).await.short_leases().env("CAPSTAN_AGENT__ON_UNKNOWN", "ask")
}

async fn question(server: &Server, run: &str) -> Value {
    let events = server.run_events_json(run).await;
    let asked: Vec<&Value> = events.iter().filter(|event| event["type"] == "input.requested").collect();
    let [asked] = asked.as_slice() else { panic!("asked once: {events:#?}") };
    let waits = events.iter().rfind(|event| event["type"] == "run.waiting").unwrap();
    assert_eq!(waits["data"], json!({"reason": "input", "id": asked["data"]["id"]}));
    asked["data"].clone()
}

/// Returns the audit row of the run's only call.
async fn audited(server: &Server, run: &str) -> Value {
    let found = server.get_json(&format!("/audit?run_id={run}")).await["data"].as_array().unwrap().clone();
    let [record] = found.as_slice() else { panic!("one call: {found:#?}") };
    record.clone()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_decides_what_becomes_of_the_call(
    #[values(("happened", "done", 1), ("did_not_happen", "done", 2), ("skip", "unknown", 1))] case: (&str, &str, usize),
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let (choice, state, executions) = case;
    let model = ModelMock::start().await;
    let site = site(kind, &model).await;
    let (mut server, run) = waiting(&site).await;
    let asked = question(&server, &run).await;
    assert_eq!((&asked["kind"], &asked["question"]["arguments"]), (&json!("unknown_outcome"), &json!({"text": "one"})));

    // The run holds no lease, shows its question, and outlives another kill of its server.
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0);
    let explained = server.get_json(&format!("/runs/{run}/explain")).await;
    let id = asked["id"].as_str().unwrap();
    assert_eq!((&explained["moving"], &explained["questions"][0]["id"]), (&json!(false), &json!(id)));
    assert!(explained["summary"].as_str().unwrap().contains(id), "{explained}");
    server.kill9().await;
    let server = site.start().await;
    assert_eq!(server.get_json(&format!("/runs/{run}")).await["reason"], "input");
    let conversation = explained["run"]["conversation_id"].as_str().unwrap();
    let stream = server.get(&format!("/conversations/{conversation}/events")).header("accept", "text/event-stream");
    let mut stream = SseStream::new(stream.send().await.unwrap());
    let snapshot = stream.until_kind("stream.snapshot").await.pop().unwrap().json();
    let pending = &snapshot["data"]["pending_inputs"];
    assert_eq!(
        (&pending[0]["id"], &pending[0]["question"], pending.as_array().unwrap().len()),
        (&asked["id"], &asked["question"], 1)
    );

    let path = format!("/input-requests/{id}");
    let shown = server.get_json(&path).await;
    assert_eq!((&shown["state"], &shown["question"], &shown["run_id"]), (&json!("pending"), &asked["question"], &json!(run)));
    assert!(shown["expires_at"].is_string(), "a week by default: {shown}");
    let listed = server.get_json("/input-requests?status=pending&limit=1").await;
    assert_eq!((&listed["data"], &listed["next_cursor"]), (&json!([shown]), &Value::Null));
    assert_eq!(server.get_json("/input-requests?status=answered").await["data"], json!([]));
    assert_eq!(server.get("/input-requests?status=open").send().await.unwrap().status(), 400);
    let refused = server.post_json(&path, &json!({"choice": "perhaps"})).await;
    assert_eq!((refused.0.as_u16(), &refused.1["errors"][0]["pointer"]), (400, &json!("/choice")), "{}", refused.1);
    let resumed = server.post_json(&format!("/runs/{run}/resume"), &json!({})).await;
    assert_eq!(resumed.0, 409, "{}", resumed.1);
    let answer = json!({"choice": choice, "text": "I looked"});
    let post = || server.post(&path, &answer).header("idempotency-key", "the-answer");
    let answered = post().send().await.unwrap();
    assert_eq!(answered.status(), 200);
    let answered: Value = answered.json().await.unwrap();
    assert_eq!((&answered["state"], &answered["answer"]), (&json!("answered"), &answer));

    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(site.ledger.count("append", "one"), executions);
    assert_eq!(site.database.rows("SELECT state FROM tool_calls").await[0][0].as_deref(), Some(state));
    let again = post().send().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.json::<Value>().await.unwrap(), answered);
    let second = server.post_json(&path, &answer).await;
    assert_eq!((second.0.as_u16(), &second.1["code"]), (409, &json!("conflict")));
    let outcome = if state == "done" { "success" } else { state };
    let audited = audited(&server, &run).await;
    assert_eq!((&audited["outcome"], &audited["decided_by"]), (&json!(outcome), &audited["owner_id"]), "{audited}");
    assert!(audited["duration_ms"].as_u64().unwrap() > 0, "the call ran: {audited}");
    let resolved = server.run_events_json(&run).await.into_iter().filter(|event| event["type"] == "input.resolved");
    let [resolved] = resolved.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((&resolved["data"]["state"], &resolved["data"]["answer"]), (&json!("answered"), &answer));
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_comes_over_a_socket_and_from_its_owner_only() {
    let model = ModelMock::start().await;
    let site = site(Kind::Sqlite, &model).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut first = site.start_with(&[("CAPSTAN_FAILPOINTS", "C13=kill")]).await;
    first.set_key(&ann);
    let run = first.start_run(&json!({"input": INPUT})).await;
    first.ended(Duration::from_secs(20)).await;
    let mut server = site.start().await;
    server.set_key(&ann);
    let run = run["id"].as_str().unwrap();
    waits(&server, run).await;
    let id = question(&server, run).await["id"].clone();

    let params = json!({"id": id, "choice": "happened", "idempotency_key": "k"});
    let mut theirs = WsClient::connect(&server.url, Some(&bob)).await;
    let foreign = theirs.call("input.resolve", params.clone()).await;
    let missing = json!({"id": "input_01980000000070008000000000000009", "choice": "happened"});
    let missing = theirs.call("input.resolve", missing).await;
    assert_eq!(foreign["error"]["status"], 404);
    assert_eq!(foreign["error"]["detail"], missing["error"]["detail"]);
    server.set_key(&bob);
    assert_eq!(server.get_json("/input-requests").await["data"], json!([]), "another user");
    assert_eq!(server.get(&format!("/input-requests/{}", id.as_str().unwrap())).send().await.unwrap().status(), 404);
    let foreign = server.post_json(&format!("/input-requests/{}", id.as_str().unwrap()), &json!({"choice": "happened"})).await;
    assert_eq!(foreign.0, 404);

    let mut mine = WsClient::connect(&server.url, Some(&ann)).await;
    let answered = mine.call("input.resolve", params.clone()).await;
    assert_eq!(answered["result"]["input_request"]["state"], "answered", "{answered}");
    server.set_key(&ann);
    assert_eq!(server.finished(run).await["status"], "completed");
    let again = mine.call("input.resolve", params).await;
    assert_eq!(again["result"]["replayed"], true);
    let second = mine.call("input.resolve", json!({"id": id, "choice": "skip"})).await;
    assert_eq!(second["error"]["status"], 409);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn unanswered_question_ends_in_time(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = site(kind, &model).await.env("CAPSTAN_AGENT__ASK_EXPIRES_MS", "1500");
    let mut first = site.start_with(&[("CAPSTAN_FAILPOINTS", "C13=kill")]).await;
    let run = first.start_run(&json!({"input": INPUT})).await;
    first.ended(Duration::from_secs(20)).await;
    let server = site.start().await;
    let run = run["id"].as_str().unwrap();
    assert_eq!(server.finished(run).await["status"], "completed");
    let id = question(&server, run).await["id"].as_str().unwrap().to_owned();
    let resolved = server.run_events_json(run).await.into_iter().find(|event| event["type"] == "input.resolved").unwrap();
    assert_eq!(resolved["data"], json!({"id": id, "state": "expired"}));
    let kept = server.get_json(&format!("/input-requests/{id}")).await;
    assert_eq!((&kept["state"], kept["expires_at"].is_string(), &kept["answer"]), (&json!("expired"), true, &Value::Null));
    let late = server.post_json(&format!("/input-requests/{id}"), &json!({"choice": "happened"})).await;
    assert_eq!((late.0.as_u16(), late.1["detail"].as_str().unwrap().contains("it has expired")), (409, true), "{}", late.1);
    assert_eq!(site.ledger.count("append", "one"), 1, "a call of unknown outcome is not repeated");
    let audited = audited(&server, run).await;
    assert_eq!((&audited["outcome"], audited.get("decided_by")), (&json!("unknown"), None), "{audited}");
    assert!(audited["duration_ms"].as_u64().unwrap() > 1_000, "the duration includes the wait of 1.5 s: {audited}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cancelling_the_run_closes_its_question(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = site(kind, &model).await;
    let (server, run) = waiting(&site).await;
    let id = question(&server, &run).await["id"].as_str().unwrap().to_owned();
    let cancelled = server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert_eq!(cancelled.0, 202);
    assert_eq!(server.finished(&run).await["status"], "cancelled");
    let late = server.post_json(&format!("/input-requests/{id}"), &json!({"choice": "happened"})).await;
    assert_eq!((late.0.as_u16(), late.1["detail"].as_str().unwrap().contains("cancelled")), (409, true), "{}", late.1);
    let events = server.run_events_json(&run).await;
    let closed = events.iter().find(|event| event["type"] == "input.resolved").unwrap();
    assert_eq!(closed["data"], json!({"id": id, "state": "cancelled"}));
    assert_eq!(site.ledger.count("append", "one"), 1);
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_asks_its_user(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) =
        Site::serve(async |model| Site::scripted(kind, model).await.short_leases().env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#))
            .await;
    let input = r#"[[id:ask]][[call:ask_user {"question":"Which one?","choices":["red","blue"]}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await["id"].as_str().unwrap().to_owned();
    waits(&server, &run).await;
    server.kill9().await;
    let server = site.start().await;
    waits(&server, &run).await;
    let asked = question(&server, &run).await;
    assert_eq!((&asked["kind"], &asked["question"]["text"]), (&json!("question"), &json!("Which one?")));
    let path = format!("/input-requests/{}", asked["id"].as_str().unwrap());
    for (body, pointer) in [(json!({}), "/text"), (json!({"choice": "green"}), "/choice")] {
        let refused = server.post_json(&path, &body).await;
        assert_eq!((refused.0.as_u16(), &refused.1["errors"][0]["pointer"]), (400, &json!(pointer)), "{}", refused.1);
    }
    let answered = server.post_json(&path, &json!({"text": "neither of them"})).await;
    assert_eq!(answered.0, 200, "{}", answered.1);
    let ended = server.finished(&run).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let told = messages.iter().find(|message| message["role"] == "tool").unwrap()["parts"][0].clone();
    assert_eq!((&told["state"], &told["content"][0]["text"]), (&json!("done"), &json!("neither of them")));
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_has_its_user_fill_a_form_in(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(kind, model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#)).await;
    let seats = json!({"type": "integer", "minimum": 1});
    let form = json!({"type": "object", "properties": {"day": {"type": "string"}, "seats": seats}, "required": ["day"]});
    let input = format!("[[id:form]][[call:ask_user {}]][[next]][[say:bye]]", json!({"question": "When?", "form": form}));
    let run = server.start_run(&json!({"input": input})).await["id"].as_str().unwrap().to_owned();
    waits(&server, &run).await;
    let asked = question(&server, &run).await;
    assert_eq!((&asked["kind"], &asked["question"]["form"]), (&json!("question"), &form));
    let path = format!("/input-requests/{}", asked["id"].as_str().unwrap());
    for content in [json!({}), json!({"day": "Monday", "seats": 0}), json!({"day": {"nested": 1}}), json!("Monday")] {
        let refused = server.post_json(&path, &json!({"action": "accept", "content": content})).await;
        assert_eq!((refused.0.as_u16(), &refused.1["errors"][0]["pointer"]), (400, &json!("/content")), "{}", refused.1);
    }
    let filled = json!({"day": "Monday", "seats": 2});
    let answered = server.post_json(&path, &json!({"action": "accept", "content": filled})).await;
    assert_eq!(answered.0, 200, "{}", answered.1);
    let ended = server.finished(&run).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let told = messages.iter().find(|message| message["role"] == "tool").unwrap()["parts"][0].clone();
    let read: Value = serde_json::from_str(told["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&told["state"], read), (&json!("done"), filled));
    site.assert_sound(&model).await;
}
