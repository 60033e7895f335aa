//! Answers of the API about runs: waits, crashes, and whether resuming can help.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::database::Kind;
use crate::support::dialects::{Dialect, Says};
use crate::support::model::ModelMock;
use crate::support::server::{Server, Site};
use crate::support::wait::until;
use crate::support::wire::{Answer, Wire};

fn id(run: &Value) -> &str {
    run["id"].as_str().unwrap()
}

async fn crashes(server: &Server, run: &str) -> Value {
    server.get_json(&format!("/runs/{run}/explain")).await["crashes"].clone()
}

async fn waits(server: &Server, run: &str) -> Value {
    until("the run waits", Duration::from_secs(20), async || {
        let run = server.get_json(&format!("/runs/{run}")).await;
        (run["status"] == "waiting").then_some(run)
    })
    .await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn request_that_waits_for_a_run_waits_through_backoff(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[500, 500]");
    let server = site.start().await;
    let waiting = async |path: &str, body: Value| {
        let answer = server.post(path, &body).header("prefer", "wait=30").send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, run) = waiting("/runs", json!({"input": "[[id:a]][[flaky:2,503]][[say:yes]]"})).await;
    assert_eq!((status, &run["status"]), (200, &json!("completed")), "{run}");
    assert_eq!(model.exchanges("a").len(), 3);
    let messages = format!("/conversations/{}/messages", run["conversation_id"].as_str().unwrap());
    let (status, run) = waiting(&messages, json!({"content": "[[id:b]][[flaky:1,503]][[say:yes]]"})).await;
    assert_eq!((status, &run["status"]), (200, &json!("completed")), "{run}");
    let (status, run) = waiting(&format!("/runs/{}/retry", id(&run)), json!({})).await;
    assert_eq!((status, &run["status"]), (200, &json!("completed")), "{run}");
    // The run waits already when the request arrives.
    let run = server.start_run(&json!({"input": "[[id:c]][[flaky:2,503]][[say:yes]]"})).await;
    let seen = waits(&server, id(&run)).await;
    assert_eq!(seen["reason"], "backoff");
    let answer = server.get(&format!("/runs/{}", id(&run))).header("prefer", "wait=30").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json::<Value>().await.unwrap()["status"], "completed");
    assert_eq!(crashes(&server, id(&run)).await, 0, "a waiting run counts no crash");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn explain_counts_real_crashes_only(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let mut server = site.start().await;
    // Completed, failed and resumed runs.
    let done = server.start_run(&json!({"input": "[[id:a]][[say:yes]]"})).await;
    assert_eq!(server.finished(id(&done)).await["status"], "completed");
    assert_eq!(crashes(&server, id(&done)).await, 0);
    let broken = server.start_run(&json!({"input": "[[id:b]][[flaky:1,401]][[say:yes]]"})).await;
    assert_eq!(server.finished(id(&broken)).await["status"], "failed");
    let (_, resumed) = server.post_json(&format!("/runs/{}/resume", id(&broken)), &json!({})).await;
    assert_eq!(server.finished(id(&resumed)).await["status"], "completed");
    assert_eq!((crashes(&server, id(&broken)).await, crashes(&server, id(&resumed)).await), (json!(0), json!(0)));
    // A run with an allowed call, and a run cancelled under way.
    let held = server.start_run(&json!({"input": "[[id:c]][[text:2,0]][[hold]]"})).await;
    model.wait_for("the run", "c", |seen| !seen.is_empty()).await;
    assert_eq!(crashes(&server, id(&held)).await, 0);
    server.post_json(&format!("/runs/{}/cancel", id(&held)), &json!({})).await;
    assert_eq!(server.finished(id(&held)).await["status"], "cancelled");
    assert_eq!(crashes(&server, id(&held)).await, 0);
    // One crash.
    let killed = server.start_run(&json!({"input": "[[id:d]][[text:2,0]][[hold]][[say:yes]]"})).await;
    model.wait_for("the run", "d", |seen| !seen.is_empty()).await;
    server.kill9().await;
    let server = site.start().await;
    model.release("d");
    assert_eq!(server.finished(id(&killed)).await["status"], "completed");
    assert_eq!(crashes(&server, id(&killed)).await, 1);
}

/// If the error says that a run can be resumed, resuming completes it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn retryable_error_of_a_run_is_helped_by_resume(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]");
    let server = site.start().await;
    let failing = |id: &str| format!("[[id:{id}]][[call:calculate {{\"expression\":\"1/\"}}]][[next]][[say:yes]]");
    let cases = [
        ("max_rounds", json!({"max_rounds": 1, "on_limit": "fail"}), {
            let call = |n: u32| format!("[[call:calculate {{\"expression\":\"{n}\"}}]][[next]]");
            format!("[[id:max_rounds]]{}{}[[say:yes]]", call(1), call(2))
        }),
        ("tool_failed", json!({"tool_error": "fail_run"}), failing("tool_failed")),
        ("provider_overloaded", json!({}), "[[id:provider_overloaded]][[flaky:1,503]][[say:yes]]".to_owned()),
    ];
    for (code, profile, script) in cases {
        let name = code.replace('_', "-");
        let (status, made) = server.post_json("/agents", &json!({"name": name, "profile": profile})).await;
        assert_eq!(status, 201, "{made}");
        let run = server.start_run(&json!({"input": script, "agent": name})).await;
        let run = server.finished(id(&run)).await;
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!(code)), "{run}");
        assert_eq!(run["error"]["retryable"], true, "{run}");
        let mut run = run;
        // With one round at a time the run needs more than one.
        while run["status"] == "failed" {
            let (status, next) = server.post_json(&format!("/runs/{}/resume", id(&run)), &json!({})).await;
            assert_eq!(status, 202, "{next}");
            run = server.finished(id(&next)).await;
            assert!(run["status"] == "completed" || run["error"]["code"] == "max_rounds", "{run}");
        }
        assert_eq!(run["status"], "completed", "{run}");
    }
    let run = server.start_run(&json!({"input": "[[id:auth]][[status:401]]"})).await;
    let run = server.finished(id(&run)).await;
    assert_eq!((&run["error"]["code"], &run["error"]["retryable"]), (&json!("provider_auth"), &json!(false)), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_answer_is_retryable_and_resume_helps() {
    let blocked = Answer::json(400, r#"{"error":{"message":"blocked","type":"invalid_request_error","code":"content_filter"}}"#);
    let answers = Dialect::Openai.answer(Says { text: "This is fine.", ..Says::default() });
    let wire = Wire::play(vec![blocked, answers]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", Dialect::Openai.model());
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "hello"})).await;
    let run = server.finished(id(&run)).await;
    assert_eq!((&run["error"]["code"], &run["error"]["retryable"]), (&json!("content_filter"), &json!(true)), "{run}");
    let (_, next) = server.post_json(&format!("/runs/{}/resume", id(&run)), &json!({})).await;
    assert_eq!(server.finished(id(&next)).await["status"], "completed");
}

/// A run that only undoes a call cannot be resumed, so its error is not retryable.
#[tokio::test(flavor = "multi_thread")]
async fn failed_undo_is_not_retryable_and_not_resumable() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let mut ledger = site.ledger.mcp_server();
    ledger["capstan"]["undo"] = json!({"append": {"tool": "fail", "arguments": {"text": "$arguments.text"}}});
    let site = site.mcp(json!({"mcpServers": {"ledger": ledger}}));
    let server = site.start().await;
    let script = r#"[[id:a]][[call:ledger__append {"text":"x"}]][[next]][[say:yes]]"#;
    let run = server.start_run(&json!({"input": script})).await;
    let run = server.finished(id(&run)).await;
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let result = messages.iter().find(|message| message["role"] == "tool").unwrap();
    let path = format!("/runs/{}/tool-calls/{}/undo", id(&run), result["parts"][0]["call_id"].as_str().unwrap());
    let (status, undoing) = server.post_json(&path, &json!({})).await;
    assert_eq!(status, 202, "{undoing}");
    let undone = server.finished(id(&undoing)).await;
    assert_eq!((&undone["error"]["code"], &undone["error"]["retryable"]), (&json!("tool_failed"), &json!(false)), "{undone}");
    assert_eq!(server.post_json(&format!("/runs/{}/resume", id(&undone)), &json!({})).await.0, 409);
}
