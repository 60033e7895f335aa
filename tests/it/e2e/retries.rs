//! Retries of runs and of tool calls: each creates one new run, despite double clicks and crashes, without an unwanted effect.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

async fn ended(server: &Server, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

fn id(run: &Value) -> &str {
    run["id"].as_str().unwrap()
}

/// Returns the newest message with results, and the id of its last call.
async fn result(server: &Server, run: &Value) -> (String, String) {
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let results: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").collect();
    let [message] = results.as_slice() else { panic!("one message with results: {messages:#?}") };
    let part = message["parts"].as_array().unwrap().last().unwrap();
    let texts: Vec<&str> = part["content"].as_array().unwrap().iter().filter_map(|piece| piece["text"].as_str()).collect();
    (part["call_id"].as_str().unwrap().to_owned(), texts.join("\n"))
}

fn detail(answer: &(reqwest::StatusCode, Value)) -> (u16, &str) {
    (answer.0.as_u16(), answer.1["detail"].as_str().unwrap_or_default())
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_answered_once_more(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let first = ended(&server, r#"[[id:again]][[call:ledger__append {"text":"x"}]][[next]][[say:bye]]"#).await;
    let (conversation, path) = (first["conversation_id"].as_str().unwrap().to_owned(), format!("/runs/{}/retry", id(&first)));
    server.set_key(&bob);
    assert_eq!(server.post_json(&path, &json!({})).await.0, 404, "another user's run");
    server.set_key(&ann);

    // Two clicks without a key: one of them wins. With a key both get the same run.
    let empty = json!({});
    let (one, other) = tokio::join!(server.post_json(&path, &empty), server.post_json(&path, &empty));
    let (won, lost) = if one.0 == 202 { (one, other) } else { (other, one) };
    assert_eq!((won.0.as_u16(), lost.0.as_u16()), (202, 409), "{} {}", won.1, lost.1);
    assert!(detail(&lost).1.contains("newest run"), "{}", lost.1);
    let second = server.finished(id(&won.1)).await;
    assert_eq!((&second["status"], &second["model"]), (&json!("completed"), &first["model"]));
    assert_eq!(site.ledger.count("append", "x"), 2, "the tools run again");
    let path = format!("/runs/{}/retry", id(&second));
    let keyed = || server.post(&path, &empty).header("idempotency-key", "twice").send();
    let (one, other) = tokio::join!(keyed(), keyed());
    let (one, other) = (one.unwrap().json::<Value>().await.unwrap(), other.unwrap().json::<Value>().await.unwrap());
    assert_eq!(one["id"], other["id"]);
    let third = server.finished(id(&one)).await;

    let messages = server.messages(&conversation).await;
    let shown: Vec<(&str, &str)> =
        messages.iter().map(|message| (message["role"].as_str().unwrap(), message["run_id"].as_str().unwrap())).collect();
    let newest = id(&third);
    assert_eq!(shown, [("user", id(&first)), ("assistant", newest), ("tool", newest), ("assistant", newest)]);
    let queued = server.run_events_json(newest).await.remove(0);
    assert_eq!((&queued["type"], queued["data"]["supersedes"].as_array().unwrap().len()), (&json!("run.queued"), 3));
    assert_eq!(server.get_json(&format!("/runs/{}", id(&first))).await["status"], "completed");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_is_made_again_with_other_arguments(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
    let script = r#"[[id:edited]][[call:ledger__append {"text":"kept"}]][[call:ledger__append {"txt":"x"}]][[next]][[say:bye]]"#;
    let first = ended(&server, script).await;
    let (call, said) = result(&server, &first).await;
    assert!(said.contains("required property"), "{said}");
    let path = format!("/runs/{}/tool-calls/{call}/retry", id(&first));
    let refused = server.post_json(&path, &json!({"arguments": {"text": 7}})).await;
    assert_eq!(detail(&refused).0, 400, "{}", refused.1);
    for other in ["call_01980000000070008000000000000003", "x"] {
        let path = format!("/runs/{}/tool-calls/{other}/retry", id(&first));
        assert_eq!(server.post_json(&path, &json!({})).await.0, 404);
    }

    // The server is killed before the new run makes its call, and again during the call.
    server.kill9().await;
    let mut dying = site.start_with(&[("CAPSTAN_FAILPOINTS", "C04=kill")]).await;
    let answer = dying.post(&path, &json!({"arguments": {"text": "mended"}})).send().await;
    dying.ended(Duration::from_secs(30)).await;
    let server = site.start().await;
    let second = match answer {
        Ok(answer) => answer.json::<Value>().await.ok(),
        Err(_) => None,
    };
    let second = match second {
        Some(run) => id(&run).to_owned(),
        // The answer was lost, but the log has the run.
        None => {
            let path = format!("/conversations/{}/events?limit=100", first["conversation_id"].as_str().unwrap());
            let events = server.get_json(&path).await["data"].as_array().unwrap().clone();
            let queued = events.iter().rfind(|event| event["type"] == "run.queued").unwrap();
            queued["run_id"].as_str().unwrap().to_owned()
        }
    };
    assert_ne!(second, id(&first));
    let second = server.finished(&second).await;
    assert_eq!(second["status"], "completed", "{second}");
    let (_, said) = result(&server, &second).await;
    assert!(said.contains("recorded mended") && said.contains("changed"), "{said}");
    assert_eq!(
        (site.ledger.count("append", "kept"), site.ledger.count("append", "mended")),
        (1, 1),
        "the other call's result is kept"
    );
    let late = server.post_json(&path, &json!({"arguments": {"text": "again"}})).await;
    assert_eq!(detail(&late).0, 409, "{}", late.1);
    let (call, _) = result(&server, &second).await;
    let done = server.post_json(&format!("/runs/{}/tool-calls/{call}/retry", id(&second)), &json!({})).await;
    assert!(detail(&done).0 == 409 && detail(&done).1.contains("the call is done"), "{}", done.1);
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_never_written_to_its_end_wants_arguments() {
    let (_model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = ended(&server, r#"[[id:half]][[wrote:ledger__append {"text":"ha]][[next]][[say:bye]]"#).await;
    let (call, _) = result(&server, &run).await;
    let path = format!("/runs/{}/tool-calls/{call}/retry", id(&run));
    for body in [json!({}), json!({"confirm": true})] {
        let refused = server.post_json(&path, &body).await;
        assert!(detail(&refused).0 == 409 && detail(&refused).1.contains("\"arguments\""), "{}", refused.1);
    }
    let (status, again) = server.post_json(&path, &json!({"arguments": {"text": "whole"}})).await;
    assert_eq!(status.as_u16(), 202, "{again}");
    assert_eq!(server.finished(id(&again)).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "whole"), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn unknown_outcome_asks_before_a_retry(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, mut server) = Site::start_with_failpoint(kind, "C13=kill").await;
    let input = r#"[[id:unknown]][[call:ledger__append {"text":"rent"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await;
    server.ended(Duration::from_secs(30)).await;
    let server = site.start().await;
    let first = server.finished(id(&run)).await;
    let (call, _) = result(&server, &first).await;
    let path = format!("/runs/{}/tool-calls/{call}/retry", id(&first));
    let refused = server.post_json(&path, &json!({})).await;
    assert!(detail(&refused).0 == 409 && detail(&refused).1.contains("confirm"), "{}", refused.1);
    assert_eq!(site.ledger.count("append", "rent"), 1);
    let (status, second) = server.post_json(&path, &json!({"confirm": true})).await;
    assert_eq!(status, 202, "{second}");
    assert_eq!(server.finished(id(&second)).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "rent"), 2);
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_made_again_asks_again(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    entry["capstan"]["approval"] = json!({"append": "ask"});
    let site = site.mcp(json!({"mcpServers": {"ledger": entry}}));
    let server = site.start().await;
    let waits = async |run: &str| {
        let path = format!("/runs/{run}");
        wait::until("the run to wait", Duration::from_secs(30), || async {
            (server.get_json(&path).await["status"] == "waiting").then_some(())
        })
        .await;
        let open = server.get_json("/approvals?status=pending").await;
        format!("/approvals/{}", open["data"][0]["id"].as_str().unwrap())
    };
    let input = r#"[[id:asks]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await;
    let approval = waits(id(&run)).await;
    let early = server.post_json(&format!("/runs/{}/retry", id(&run)), &json!({})).await;
    assert!(detail(&early).0 == 409 && detail(&early).1.contains("answer its questions"), "{}", early.1);
    assert_eq!(server.post_json(&approval, &json!({"decision": "deny"})).await.0, 200);
    let first = server.finished(id(&run)).await;
    let (call, _) = result(&server, &first).await;
    let (status, second) = server.post_json(&format!("/runs/{}/tool-calls/{call}/retry", id(&first)), &json!({})).await;
    assert_eq!(status, 202, "{second}");
    let approval = waits(id(&second)).await;
    assert_eq!(site.ledger.count("append", "one"), 0, "a retry is no approval");
    assert_eq!(server.post_json(&approval, &json!({"decision": "allow"})).await.0, 200);
    assert_eq!(server.finished(id(&second)).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "one"), 1);
    site.assert_sound(&model).await;
}

/// Returns a site whose `pay` supports reconciliation, needs an approval each time, and has a limit.
async fn asked_each_time(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::scripted(kind, model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    entry["capstan"]["approval"] = json!({"pay": "always_ask"});
    entry["capstan"]["timeout"] = json!("3s");
    site.mcp(json!({"mcpServers": {"ledger": entry}}))
}

async fn allow(server: &Server, run: &str) {
    let (_, approval) = approval_of(server, run).await;
    let (status, said) = server.post_json(&approval, &json!({"decision": "allow"})).await;
    assert_eq!(status, 200, "{said}");
}

/// Waits until a run asks for an approval. Returns the approval and its path.
async fn approval_of(server: &Server, run: &str) -> (Value, String) {
    super::approvals::waits(server, run).await;
    let mut open = server.get_json("/approvals?status=pending").await;
    let open = open["data"][0].take();
    let path = format!("/approvals/{}", open["id"].as_str().unwrap());
    (open, path)
}

/// Returns how often `pay` ran and how often it was reconciled.
fn paid(site: &Site) -> (usize, usize) {
    let count = |tool: &str| site.ledger.entries().iter().filter(|entry| entry.tool == tool).count();
    (count("pay"), count("paid"))
}

/// A retry is no approval for a reconcilable call, and neither is the server's answer.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn unapproved_call_is_not_made_by_a_retry(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::serve(async |model| asked_each_time(kind, model).await).await;
    let input = r#"[[id:never]][[call:ledger__pay {"text":"rent"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await;
    super::approvals::waits(&server, id(&run)).await;
    assert_eq!(server.post_json(&format!("/runs/{}/cancel", id(&run)), &json!({})).await.0, 202);
    let first = server.finished(id(&run)).await;
    assert_eq!(first["status"], "cancelled");
    let (call, _) = result(&server, &first).await;
    let (status, second) = server.post_json(&format!("/runs/{}/tool-calls/{call}/retry", id(&first)), &json!({})).await;
    assert_eq!(status, 202, "{second}");
    super::approvals::waits(&server, id(&second)).await;
    assert_eq!(paid(&site), (0, 0), "the call never began and was not allowed");
    allow(&server, id(&second)).await;
    assert_eq!(server.finished(id(&second)).await["status"], "completed");
    assert_eq!(paid(&site), (1, 0));
    site.assert_sound(&model).await;
}

/// The user allows the call first. Then its server is asked for the outcome, and the call runs if it had not happened.
#[rstest]
#[case("late", "unknown", (1, 0), (1, 1), "paid late")]
#[case("declined", "failed", (0, 0), (1, 1), "recorded declined")]
#[tokio::test(flavor = "multi_thread")]
async fn reconcilable_call_is_checked_and_made_once(
    #[case] text: &str,
    #[case] state: &str,
    #[case] before: (usize, usize),
    #[case] after: (usize, usize),
    #[case] said: &str,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let (_model, site, server) = Site::serve(async |model| asked_each_time(kind, model).await).await;
    let input = format!(r#"[[id:asked]][[call:ledger__pay {{"text":"{text}"}}]][[next]][[say:bye]]"#);
    let run = server.start_run(&json!({"input": input})).await;
    allow(&server, id(&run)).await;
    let first = server.finished(id(&run)).await;
    let (call, _) = result(&server, &first).await;
    let rows = site.database.rows("SELECT state FROM tool_calls").await;
    assert_eq!((rows[0][0].as_deref(), paid(&site)), (Some(state), before));

    let (status, second) = server.post_json(&format!("/runs/{}/tool-calls/{call}/retry", id(&first)), &json!({})).await;
    assert_eq!(status, 202, "{second}");
    let (asked, _) = approval_of(&server, id(&second)).await;
    assert_eq!((paid(&site), &asked["arguments"]), (before, &json!({"text": text})), "a retry is no approval");
    allow(&server, id(&second)).await;
    let second = server.finished(id(&second)).await;
    assert_eq!((&second["status"], paid(&site)), (&json!("completed"), after));
    let (_, told) = result(&server, &second).await;
    assert_eq!(told, said);
    let question = site.ledger.entries().into_iter().find(|entry| entry.tool == "paid").unwrap();
    assert_eq!(question.arguments["key"], call.as_str(), "reconciliation names the first run's call");
    let undoable = "SELECT CAST(count(*) AS text) FROM tool_calls WHERE started_at IS NULL";
    assert_eq!(site.database.count(undoable).await, 0, "both calls began");
    audit::assert_sound(&site.database).await;
}

/// A user who confirms a repeated effect gets one without reconciliation.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_call_is_made_again_without_asking_its_server() {
    let (_model, site, server) = Site::serve(async |model| asked_each_time(Kind::Sqlite, model).await).await;
    let input = r#"[[id:sure]][[call:ledger__pay {"text":"declined"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await;
    allow(&server, id(&run)).await;
    let first = server.finished(id(&run)).await;
    let (call, _) = result(&server, &first).await;
    let again = json!({"confirm": true});
    let (status, second) = server.post_json(&format!("/runs/{}/tool-calls/{call}/retry", id(&first)), &again).await;
    assert_eq!(status, 202, "{second}");
    allow(&server, id(&second)).await;
    let second = server.finished(id(&second)).await;
    assert_eq!((&second["status"], paid(&site)), (&json!("completed"), (1, 0)));
    let (made, _) = result(&server, &second).await;
    assert_eq!(site.ledger.entries()[0].meta["capstan/key"], made.as_str(), "under its own key");
    audit::assert_sound(&site.database).await;
}

/// A duplicate call that the loop refused did not run itself, but the same call may have run before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_twin_of_a_call_that_was_made_wants_a_word() {
    let (_model, site, server) = Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.short_leases()).await;
    let twice = r#"[[id:twin]][[call:ledger__append {"text":"x"}]][[call:ledger__append {"text":"x"}]][[next]][[say:bye]]"#;
    let run = ended(&server, twice).await;
    let (call, said) = result(&server, &run).await;
    let path = format!("/runs/{}/tool-calls/{call}/retry", id(&run));
    let refused = server.post_json(&path, &json!({})).await;
    assert!(detail(&refused).0 == 409 && detail(&refused).1.contains("confirm"), "{said}: {}", refused.1);
    assert_eq!(site.ledger.count("append", "x"), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_waited_for_or_streamed(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, _site, server) = Site::start_scripted(kind).await;
    let first = ended(&server, r#"[[id:waited]][[call:ledger__append {"txt":"x"}]][[next]][[say:bye]]"#).await;
    let (call, _) = result(&server, &first).await;

    let path = format!("/runs/{}/tool-calls/{call}/retry", id(&first));
    let again = json!({"arguments": {"text": "x"}});
    let request = || server.post(&path, &again).header("prefer", "wait=30").header("idempotency-key", "waits");
    let answer = request().send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["preference-applied"]), (200, &"wait=30".parse().unwrap()));
    let second: Value = answer.json().await.unwrap();
    assert_eq!(second["status"], "completed");
    let answer = request().send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["idempotent-replayed"]), (200, &"true".parse().unwrap()));
    assert_eq!(answer.json::<Value>().await.unwrap()["id"], second["id"]);

    let path = format!("/runs/{}/retry", id(&second));
    let request = || server.post(&path, &json!({})).header("accept", "application/x-ndjson").header("idempotency-key", "streams");
    let mut runs = Vec::new();
    for _ in 0..2 {
        let answer = request().send().await.unwrap();
        assert_eq!(answer.status(), 200);
        runs.push(answer.headers()["content-location"].to_str().unwrap().rsplit('/').next().unwrap().to_owned());
        let text = answer.text().await.unwrap();
        assert!(text.contains("run.queued") && text.contains("run.completed"), "from the first event to the last: {text}");
    }
    assert_eq!(runs[0], runs[1], "the same run, complete again");
    assert_ne!(runs[0], id(&second));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_rewound_past_is_not_made_again(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, server) = Site::start_scripted(kind).await;
    let first = ended(&server, r#"[[id:rewound]][[call:ledger__append {"txt":"x"}]][[next]][[say:bye]]"#).await;
    let (call, _) = result(&server, &first).await;
    let conversation = first["conversation_id"].as_str().unwrap();
    let message = server.messages(conversation).await.remove(0);
    let body = json!({"to_message_id": message["id"]});
    let rewound = server.post_json(&format!("/conversations/{conversation}/rewind"), &body).await;
    assert!(rewound.0.is_success(), "{}", rewound.1);

    let path = format!("/runs/{}/tool-calls/{call}/retry", id(&first));
    let refused = server.post_json(&path, &json!({"arguments": {"text": "x"}})).await;
    assert_eq!(detail(&refused).0, 409, "{}", refused.1);
    assert!(detail(&refused).1.contains("rewound"), "{}", refused.1);
    assert_eq!(site.ledger.count("append", "x"), 0);
    // The message itself can still be answered.
    let again = server.post_json(&format!("/runs/{}/retry", id(&first)), &json!({})).await;
    assert_eq!(again.0, 202, "{}", again.1);
    assert_eq!(server.finished(id(&again.1)).await["status"], "completed");
}
