//! Answers of the API about runs: waits, crashes, and whether resuming can help.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait::until;
use support::wire::{Answer, Wire};

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
    let (model, _site, server) =
        Site::serve(async |model| Site::scripted(kind, model).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[500, 500]")).await;
    let waiting = async |path: &str, body: Value| {
        let answer = server.post(path, &body).header("prefer", "wait=30").send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, answer) = waiting("/runs", json!({"input": "[[id:a]][[flaky:2,503]][[say:yes]]"})).await;
    let run = &answer["run"];
    assert_eq!((status, &run["status"]), (200, &json!("completed")), "{run}");
    assert_eq!(model.exchanges("a").len(), 3);
    let messages = format!("/conversations/{}/messages", run["conversation_id"].as_str().unwrap());
    let (status, answer) = waiting(&messages, json!({"content": "[[id:b]][[flaky:1,503]][[say:yes]]"})).await;
    let run = &answer["run"];
    assert_eq!((status, &run["status"]), (200, &json!("completed")), "{run}");
    let (status, run) = waiting(&format!("/runs/{}/retry", id(run)), json!({})).await;
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
async fn ended_run_has_its_answer_as_output(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, _site, server) = Site::start_scripted(kind).await;
    let finished = async |body: Value| {
        let answer = server.post("/runs", &body).header("prefer", "wait=30").send().await.unwrap();
        answer.json::<Value>().await.unwrap()["run"].clone()
    };
    let script = "[[id:a]][[call:ledger__append {\"text\":\"a\"}]][[next]][[say:All ]][[say:done.]]";
    let run = finished(json!({"input": script})).await;
    assert_eq!((&run["output"]["text"], &run["output"]["structured"]), (&json!("All done."), &Value::Null), "{run}");
    assert_eq!((&run["output"]["parts"][0]["type"], run["output"]["parts"].as_array().unwrap().len()), (&json!("text"), 1));
    assert_eq!(server.get_json(&format!("/runs/{}", id(&run))).await, run);
    let events = server.run_events_json(id(&run)).await;
    let completed = events.iter().find(|event| event["type"] == "run.completed").unwrap();
    assert_eq!(completed["data"]["output"], run["output"]);
    let schema = json!({"name": "sum", "schema": {"type": "object"}});
    let run = finished(json!({"input": "[[id:b]][[say:{\"b\":2,\"a\":1}]]", "options": {"output_schema": schema}})).await;
    assert_eq!(run["output"]["structured"].to_string(), "{\"b\":2,\"a\":1}", "{run}");
    let run = finished(json!({"input": "[[id:c]][[flaky:1,401]]"})).await;
    assert_eq!((&run["status"], &run["output"]), (&json!("failed"), &Value::Null), "{run}");
    let listed = server.get_json("/runs").await;
    assert!(listed["data"].as_array().unwrap().iter().all(|run| run.get("output").is_none()), "{listed}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn explain_counts_real_crashes_only(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
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
    let (_model, _site, server) =
        Site::serve(async |model| Site::scripted(kind, model).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]")).await;
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

/// One rule for `Prefer` and `Accept` wherever a run goes on, and one shape for the answer to a message.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn resume_and_retry_wait_for_their_run(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, _site, server) =
        Site::serve(async |model| Site::scripted(kind, model).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[]")).await;
    let sent = json!({"input": "[[id:a]][[flaky:1,503]][[say:yes]]"});
    let (status, accepted) = server.post_json("/runs", &sent).await;
    assert_eq!(status, 202);
    let failed = server.finished(id(&accepted["run"])).await;
    assert_eq!(failed["status"], "failed", "{failed}");
    let resume =
        server.post(&format!("/runs/{}/resume", id(&failed)), &json!({})).header("prefer", "wait=30").send().await.unwrap();
    assert_eq!((resume.status().as_u16(), &resume.headers()["preference-applied"]), (200, &"wait=30".parse().unwrap()));
    let resumed: Value = resume.json().await.unwrap();
    assert_eq!(resumed["status"], "completed", "{resumed}");
    let accept = server.post(&format!("/runs/{}/retry", id(&resumed)), &json!({})).header("accept", "text/event-stream");
    let streamed = accept.send().await.unwrap().text().await.unwrap();
    assert!(streamed.contains("run.completed"), "{streamed}");
    let waited = server.post("/runs", &json!({"input": "[[id:b]][[say:yes]]"})).header("prefer", "wait=30").send().await.unwrap();
    assert_eq!(waited.status(), 200);
    let waited: Value = waited.json().await.unwrap();
    let keys = |answer: &Value| answer.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&waited), keys(&accepted), "one shape, waited for or not");
    assert_eq!(waited["run"]["status"], "completed", "{waited}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn retry_names_another_model(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::start_scripted(kind).await;
    let run = server.say(None, "[[id:a]][[say:yes]]").await;
    let path = format!("/runs/{}/retry", id(&run));
    let (status, refused) = server.post_json(&path, &json!({"model": "nobody/gpt"})).await;
    assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("unknown_model")), "{refused}");
    let answer = server.post(&path, &json!({"model": "openai/another"})).header("prefer", "wait=30").send().await.unwrap();
    let retried: Value = answer.json().await.unwrap();
    assert_eq!((&retried["status"], &retried["model"]), (&json!("completed"), &json!("openai/another")), "{retried}");
    let models: Vec<Value> = model.exchanges("a").iter().map(|exchange| exchange.request["model"].clone()).collect();
    assert_eq!(models, ["mock", "another"]);
}
