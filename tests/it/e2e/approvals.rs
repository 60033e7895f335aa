//! Approvals: the tool runs exactly once or not at all through crashes and restarts, and each answer says why.

use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::SseStream;
use support::wait;
use support::ws::WsClient;

pub(super) const INPUT: &str = r#"[[id:approvals]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#;

pub(super) async fn site(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::scripted(kind, model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    entry["capstan"]["approval"] = json!({"append": "ask", "append_keyed": "always_ask"});
    entry["capstan"]["preview"] = json!({"append": "Append $arguments.text to the ledger"});
    site.mcp(json!({"mcpServers": {"ledger": entry}}))
}

pub(super) async fn waits(server: &Server, run: &str) {
    let path = format!("/runs/{run}");
    wait::until("the run to wait", Duration::from_secs(30), || async {
        let run = server.get_json(&path).await;
        (run["status"] == "waiting").then(|| assert_eq!(run["reason"], "approval"))
    })
    .await;
}

/// Starts a run that waits for an approval. Returns its id and the approval's path.
pub(super) async fn waiting(server: &Server, input: &str) -> (String, String) {
    let run = server.start_run(&json!({"input": input})).await;
    let run = run["id"].as_str().unwrap().to_owned();
    waits(server, &run).await;
    let path = approval_of(server, &run).await;
    (run, path)
}

async fn approval_of(server: &Server, run: &str) -> String {
    let events = server.run_events_json(run).await;
    let waits = events.iter().rfind(|event| event["type"] == "run.waiting").unwrap();
    let is_asked = |event: &Value| event["type"] == "approval.requested" && event["data"]["id"] == waits["data"]["id"];
    assert!(events.iter().any(is_asked), "{events:#?}");
    format!("/approvals/{}", waits["data"]["id"].as_str().unwrap())
}

/// The first call took effect and its reply was lost. The repeated call has the same key, however long the approval takes and
/// in any process.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn repeated_call_keeps_its_key_while_approval_is_pending(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, mut server) = Site::serve(async |model| site(kind, model).await).await;
    let call = r#"[[call:ledger__append_keyed {"text":"lost"}]]"#;
    let (run, first) = waiting(&server, &format!("[[id:key]]{call}[[next]]{call}[[next]][[say:bye]]")).await;
    assert_eq!(server.post_json(&first, &json!({"decision": "allow"})).await.0, StatusCode::OK);
    let second = wait::until("the second question", Duration::from_secs(30), || async {
        let open = server.get_json("/approvals?status=pending").await;
        let id = open["data"].as_array().unwrap().first()?["id"].as_str().unwrap().to_owned();
        Some(format!("/approvals/{id}"))
    });
    let second = second.await;
    assert_ne!(first, second);
    waits(&server, &run).await;
    server.kill9().await;
    server = site.start().await;
    assert_eq!(server.post_json(&second, &json!({"decision": "allow"})).await.0, StatusCode::OK);
    assert_eq!(server.finished(&run).await["status"], "completed");
    let keys: Vec<Value> = site.ledger.entries().iter().map(|entry| entry.arguments["key"].clone()).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1] && keys[0].is_string(), "{keys:?}");
    audit::assert_sound(&site.database).await;
}

fn detail(answer: &(StatusCode, Value)) -> &str {
    answer.1["detail"].as_str().unwrap()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_outlives_restarts_and_is_used_once(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::serve(async |model| site(kind, model).await).await;
    let (run, path) = waiting(&server, INPUT).await;
    for _ in 0..3 {
        server.kill9().await;
        server = site.start().await;
        waits(&server, &run).await;
    }
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0, "a waiting run holds no lease");
    assert_eq!(site.ledger.count("append", "one"), 0);

    let asked = server.get_json(&path).await;
    assert_eq!(
        (&asked["status"], &asked["name"], &asked["tool"], &asked["server"], &asked["arguments"]),
        (&json!("pending"), &json!("ledger__append"), &json!("append"), &json!("ledger"), &json!({"text": "one"}))
    );
    assert_eq!(asked["preview"], "Append \"one\" to the ledger", "the preview is shown before the call");
    assert_eq!((&asked["scopes"], &asked["destructive"]), (&json!(["once", "conversation", "always"]), &json!(false)));
    assert!(asked["expires_at"].is_string(), "a week by default: {asked}");
    assert_eq!(server.get_json("/approvals?status=pending").await["data"], json!([asked]));
    assert_eq!(server.get_json("/input-requests").await["data"], json!([]), "an approval is not in the list of other questions");
    let explained = server.get_json(&format!("/runs/{run}/explain")).await;
    let summary = explained["summary"].as_str().unwrap();
    assert!(
        summary.contains("a human to approve a tool call") && summary.contains(&format!("POST /api/v1{path} answers")),
        "{summary}"
    );
    let conversation = explained["run"]["conversation_id"].as_str().unwrap();
    let stream = server.get(&format!("/conversations/{conversation}/events")).header("accept", "text/event-stream");
    let mut stream = SseStream::new(stream.send().await.unwrap());
    let snapshot = stream.until_kind("stream.snapshot").await.pop().unwrap().json();
    assert_eq!(snapshot["data"]["pending_approvals"][0]["id"], asked["id"]);
    assert_eq!(server.post_json(&format!("/runs/{run}/resume"), &json!({})).await.0, 409, "resume does not bypass the approval");

    // The server is killed between the decision and the `started` event of the call.
    server.kill9().await;
    let mut dying = site.start_with(&[("CAPSTAN_FAILPOINTS", "C04=kill")]).await;
    let answer = json!({"decision": "allow", "arguments_hash": asked["arguments_hash"]});
    let (one, other) = tokio::join!(dying.post(&path, &answer).send(), dying.post(&path, &answer).send());
    let statuses: Vec<u16> = [one, other].into_iter().flatten().map(|answer| answer.status().as_u16()).collect();
    assert!(statuses.iter().filter(|status| **status == 200).count() <= 1, "{statuses:?}");
    dying.ended(Duration::from_secs(30)).await;
    let server = site.start().await;
    assert_eq!(server.finished(&run).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "one"), 1);
    let late = server.post_json(&path, &answer).await;
    assert_eq!((late.0.as_u16(), detail(&late).contains("it was answered")), (409, true), "{}", late.1);
    let resolved = server.run_events_json(&run).await.into_iter().filter(|event| event["type"] == "approval.resolved");
    let [resolved] = resolved.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((&resolved["data"]["status"], &resolved["data"]["scope"]), (&json!("allowed"), &json!("once")));
    assert_eq!(server.get_json(&path).await["status"], "allowed");
    site.assert_sound(&model).await;
}

/// The server is killed after the `started` event of an approved call: before the call is sent, or after its result arrives and
/// before it is stored. The decision is used up and the outcome is unknown, so the call does not run again.
#[rstest]
#[case::before_it_is_sent("C10", 0)]
#[case::when_it_is_answered("C13", 1)]
#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_call_that_dies_with_its_server_is_not_made_again(
    #[case] point: &str,
    #[case] executed: usize,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let (model, site, mut server) = Site::serve(async |model| site(kind, model).await).await;
    let (run, path) = waiting(&server, INPUT).await;
    server.kill9().await;
    let mut dying = site.start_with(&[("CAPSTAN_FAILPOINTS", format!("{point}=kill").as_str())]).await;
    let answer = json!({"decision": "allow"});
    // The server may be killed before it confirms the decision.
    let heard = dying.post(&path, &answer).send().await;
    assert!(heard.is_err() || heard.is_ok_and(|answer| answer.status() == StatusCode::OK));
    let status = dying.ended(Duration::from_secs(30)).await;
    assert_eq!(status.code(), None, "the server must die by a signal, not exit with {status}");
    // A tool acts on the request even if the sender is gone.
    site.ledger.no_server_left().await;
    assert_eq!(site.ledger.count("append", "one"), executed);
    let calls = "SELECT name, state FROM tool_calls";
    let started = [Some("ledger__append".to_owned()), Some("started".to_owned())];
    assert_eq!(site.database.rows(calls).await, [started], "the server was killed during the call");

    let server = site.start().await;
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(site.ledger.count("append", "one"), executed, "the call never runs twice");
    let events = server.run_events_json(&run).await;
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((of("approval.resolved"), of("tool.started"), of("tool.outcome_unknown"), of("tool.completed")), (1, 1, 1, 0));
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let told = messages.iter().find(|message| message["role"] == "tool").unwrap()["parts"][0].clone();
    assert_eq!(told["state"], "unknown", "the model is told that the outcome is unknown: {told}");
    assert_eq!(server.get_json(&path).await["status"], "allowed");
    let late = server.post_json(&path, &answer).await;
    assert_eq!((late.0.as_u16(), detail(&late).contains("it was answered")), (409, true), "{}", late.1);
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_stands_beside_the_call() {
    let model = ModelMock::start().await;
    let site = site(Kind::Sqlite, &model).await.env("CAPSTAN_AGENT__APPROVAL__RATIONALE", "true");
    let server = site.start().await;
    let input = r#"[[id:why]][[say:The list lacks it.]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#;
    let (run, path) = waiting(&server, input).await;
    let asked = server.get_json(&path).await;
    assert_eq!(asked["rationale"], "The list lacks it.", "{asked}");
    let events = server.run_events_json(&run).await;
    let requested = events.iter().find(|event| event["type"] == "approval.requested").unwrap();
    assert_eq!(requested["data"]["rationale"], asked["rationale"]);
    let told = model.exchanges("why")[0].request["messages"][0]["content"].as_str().unwrap().to_owned();
    assert!(told.contains("ledger__append") && told.contains("why it is needed"), "{told}");

    // A model that writes no text gives no reason.
    server.post_json(&path, &json!({"decision": "deny"})).await;
    server.finished(&run).await;
    let (_, path) = waiting(&server, INPUT).await;
    assert_eq!(server.get_json(&path).await.get("rationale"), None);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn refused_answer_leaves_the_run_waiting(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = site(kind, &model).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let (run, path) = waiting(&server, INPUT).await;

    server.set_key(&bob);
    assert_eq!(server.post_json(&path, &json!({"decision": "allow"})).await.0, 404, "another user");
    assert_eq!(server.get_json("/approvals").await["data"], json!([]));
    let mut theirs = WsClient::connect(&server.url, Some(&bob)).await;
    let id = path.rsplit('/').next().unwrap();
    let foreign = theirs.call("approval.resolve", json!({"id": id, "decision": "allow"})).await;
    assert_eq!(foreign["error"]["status"], 404);

    server.set_key(&ann);
    let other = server.post_json(&path, &json!({"decision": "allow", "arguments_hash": "of other arguments"})).await;
    assert_eq!((other.0.as_u16(), detail(&other).contains("differ from arguments_hash")), (409, true), "{}", other.1);
    for (body, pointer) in [
        (json!({"decision": "perhaps"}), "/decision"),
        (json!({"decision": "allow", "arguments": {"text": 7}}), "/arguments"),
        (json!({"decision": "allow", "arguments": ["one"]}), "/arguments"),
        (json!({"decision": "deny", "scope": "always"}), "/decision"),
        (json!({"decision": "allow", "scope": "sometimes"}), "/scope"),
    ] {
        let refused = server.post_json(&path, &body).await;
        assert_eq!((refused.0.as_u16(), &refused.1["errors"][0]["pointer"]), (400, &json!(pointer)), "{}", refused.1);
    }
    // Text in the chat is no approval: it waits behind the run.
    let conversation = server.get_json(&format!("/runs/{run}")).await["conversation_id"].as_str().unwrap().to_owned();
    let words = server.send(&conversation, "[[say:yes]] I approve it", "queue").await;
    assert_eq!(server.get_json(&format!("/runs/{run}")).await["status"], "waiting");
    assert_eq!(site.ledger.entries().len(), 0);

    let edited = json!({"decision": "allow", "arguments": {"text": "two"}, "reason": "rather this"});
    let mut mine = WsClient::connect(&server.url, Some(&ann)).await;
    let mut params = edited.clone();
    (params["id"], params["idempotency_key"]) = (json!(id), json!("the-key"));
    let answered = mine.call("approval.resolve", params).await;
    assert_eq!(answered["result"]["approval"]["edited_arguments"], json!({"text": "two"}), "{answered}");
    let replayed = server.post(&path, &edited).header("idempotency-key", "the-key").send().await.unwrap();
    assert_eq!((replayed.status().as_u16(), replayed.headers()["idempotent-replayed"].to_str().unwrap()), (200, "true"));
    assert_eq!(server.finished(&run).await["status"], "completed");
    assert_eq!((site.ledger.count("append", "one"), site.ledger.count("append", "two")), (0, 1));
    server.finished(words["run"]["id"].as_str().unwrap()).await;
    let started = server.run_events_json(&run).await.into_iter().find(|event| event["type"] == "tool.started").unwrap();
    assert_eq!(started["data"]["arguments"], json!({"text": "two"}), "the shown arguments are executed");
    let record = server.get_json(&format!("/runs/{run}/tool-calls/{}", started["data"]["call_id"].as_str().unwrap())).await;
    assert_eq!((&record["arguments"], &record["edited"]), (&json!({"text": "two"}), &json!(true)), "{record}");
    audit::assert_sound(&site.database).await;
}

/// Two clients allow at the same moment, and one denies.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn of_two_answers_at_once_one_is_taken(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, server) = Site::serve(async |model| site(kind, model).await).await;
    for round in 0..10 {
        let input = format!(r#"[[id:twice-{round}]][[call:ledger__append {{"text":"{round}"}}]][[next]][[say:bye]]"#);
        let (run, path) = waiting(&server, &input).await;
        let mut socket = WsClient::connect(&server.url, None).await;
        let id = path.rsplit('/').next().unwrap();
        let (allow, second) = (json!({"decision": "allow"}), if round % 2 == 0 { "allow" } else { "deny" });
        let over_http = server.post_json(&path, &allow);
        let over_socket = socket.call("approval.resolve", json!({"id": id, "decision": second}));
        let (over_http, over_socket) = tokio::join!(over_http, over_socket);
        let taken = [over_http.0 == 200, over_socket["error"].is_null()];
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 1, "{over_http:?} {over_socket}");
        let refused = if taken[0] { &over_socket["error"] } else { &over_http.1 };
        assert_eq!(
            (&refused["status"], refused["detail"].as_str().unwrap().contains("it was answered")),
            (&json!(409), true),
            "{refused}"
        );
        assert_eq!(server.finished(&run).await["status"], "completed");
        let is_made = taken[0] || second == "allow";
        assert_eq!(site.ledger.count("append", &round.to_string()), usize::from(is_made), "{over_http:?} {over_socket}");
    }
    audit::assert_sound(&site.database).await;
}

/// An approval that cannot be carried out is refused. Otherwise it would be used up.
#[tokio::test(flavor = "multi_thread")]
async fn a_yes_to_a_call_of_a_disabled_server_leaves_the_run_waiting() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    entry["capstan"]["approval"] = json!({"append": "ask"});
    let site = site.mcp(json!({"mcpServers": {}}));
    let server = site.start().await;
    let (status, kept) = server.post_json("/mcp-servers", &json!({"name": "ledger", "entry": entry})).await;
    assert_eq!(status, 201, "{kept}");
    let kept = format!("/mcp-servers/{}", kept["id"].as_str().unwrap());
    let switch = async |enabled: bool| {
        let etag = server.get(&kept).send().await.unwrap().headers()["etag"].clone();
        let changed = server.request(reqwest::Method::PATCH, &kept).header("if-match", etag).json(&json!({"enabled": enabled}));
        assert_eq!(changed.send().await.unwrap().status(), 200);
    };
    let (run, path) = waiting(&server, INPUT).await;
    switch(false).await;
    let refused = server.post_json(&path, &json!({"decision": "allow"})).await;
    assert_eq!((refused.0.as_u16(), detail(&refused).contains("deleted or disabled")), (409, true), "{}", refused.1);
    assert_eq!(server.get_json(&format!("/runs/{run}")).await["status"], "waiting");
    switch(true).await;
    assert_eq!(server.post_json(&path, &json!({"decision": "allow"})).await.0, 200);
    assert_eq!(server.finished(&run).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "one"), 1);
    // A denial needs no server.
    let (_, path) = waiting(&server, INPUT).await;
    switch(false).await;
    assert_eq!(server.post_json(&path, &json!({"decision": "deny"})).await.0, 200);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_and_a_no_make_no_call(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = site(kind, &model).await;
    let mut server = site.start_with(&[("CAPSTAN_AGENT__APPROVAL__EXPIRES_MS", "3000")]).await;
    let (run, path) = waiting(&server, INPUT).await;
    assert_eq!(server.finished(&run).await["status"], "completed");
    let late = server.post_json(&path, &json!({"decision": "allow"})).await;
    assert_eq!((late.0.as_u16(), detail(&late).contains("it has expired")), (409, true), "{}", late.1);
    assert_eq!(server.get_json(&path).await["status"], "expired");

    // From here on, answers have the full time limit.
    server.kill9().await;
    let server = site.start().await;
    let (run, path) = waiting(&server, INPUT).await;
    let denied = server.post_json(&path, &json!({"decision": "deny", "reason": "not today"})).await;
    assert_eq!((denied.0.as_u16(), &denied.1["status"]), (200, &json!("denied")), "{}", denied.1);
    let ended = server.finished(&run).await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let told = messages.iter().find(|message| message["role"] == "tool").unwrap()["parts"][0].clone();
    assert_eq!(told["state"], "denied");
    assert!(told["content"][0]["text"].as_str().unwrap().contains("not today"), "{told}");

    let (run, path) = waiting(&server, INPUT).await;
    assert_eq!(server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await.0, 202);
    assert_eq!(server.finished(&run).await["status"], "cancelled");
    let late = server.post_json(&path, &json!({"decision": "allow"})).await;
    assert_eq!((late.0.as_u16(), detail(&late).contains("it was cancelled")), (409, true), "{}", late.1);
    assert_eq!(site.ledger.entries().len(), 0);
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_hold_for_later_calls(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, server) = Site::serve(async |model| site(kind, model).await).await;
    let twice = r#"[[id:twice]][[call:ledger__append {"text":"one"}]][[call:ledger__append {"text":"two"}]][[next]][[say:bye]]"#;
    let (run, path) = waiting(&server, twice).await;
    let allowed = server.post_json(&path, &json!({"decision": "allow", "scope": "conversation"})).await;
    assert_eq!(allowed.0, 200, "{}", allowed.1);
    // A question that is already open still needs its answer. Later calls do not ask.
    let pending = wait::until("the other call to be asked about alone", Duration::from_secs(20), || async {
        let pending = server.get_json("/approvals?status=pending").await["data"].as_array().unwrap().clone();
        (pending.len() == 1 && site.ledger.entries().len() == 1).then(|| pending[0]["id"].as_str().unwrap().to_owned())
    })
    .await;
    assert_eq!(server.post_json(&format!("/approvals/{pending}"), &json!({"decision": "allow"})).await.0, 200);
    let ended = server.finished(&run).await;
    assert_eq!((&ended["status"], site.ledger.entries().len()), (&json!("completed"), 2));
    let again = server.send(ended["conversation_id"].as_str().unwrap(), INPUT, "queue").await;
    assert_eq!(server.finished(again["run"]["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!(site.ledger.entries().len(), 3);

    // Another conversation asks again. There the call is allowed permanently, and the grant is revoked.
    let (run, path) = waiting(&server, INPUT).await;
    server.post_json(&path, &json!({"decision": "allow", "scope": "always"})).await;
    server.finished(&run).await;
    let run = server.start_run(&json!({"input": INPUT})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!(site.ledger.entries().len(), 5);
    let grants = server.get_json("/tool-grants").await["data"].as_array().unwrap().clone();
    assert_eq!(grants.len(), 2, "{grants:?}");
    let for_good = grants.iter().find(|grant| grant["conversation_id"].is_null()).unwrap();
    let audit = server.get_json(&format!("/audit?run_id={}", run["id"].as_str().unwrap())).await["data"][0].clone();
    assert_eq!((&audit["grant_id"], &audit["decided_by"]), (&for_good["id"], &audit["owner_id"]), "{audit}");
    let path = format!("/tool-grants/{}", for_good["id"].as_str().unwrap());
    for status in [204, 404] {
        assert_eq!(server.request(reqwest::Method::DELETE, &path).send().await.unwrap().status(), status);
    }
    waiting(&server, INPUT).await;

    // Destructive calls, and calls that ask each time, can be allowed once only.
    for call in [r#"ledger__destroy {"text":"all"}"#, r#"ledger__append_keyed {"text":"keyed"}"#] {
        let (_, path) = waiting(&server, &format!("[[id:destroy]][[call:{call}]][[next]][[say:bye]]")).await;
        let refused = server.post_json(&path, &json!({"decision": "allow", "scope": "always"})).await;
        assert_eq!((refused.0.as_u16(), &refused.1["errors"][0]["pointer"]), (400, &json!("/scope")), "{}", refused.1);
        assert_eq!(server.get_json(&path).await["scopes"], json!(["once"]));
    }
}
