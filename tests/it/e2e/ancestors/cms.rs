//! The agent loop of a content management system: runs with and without tools, twenty rounds, retries, and each row of its
//! crash table.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::{run_of, said, shape};
use support::database::Kind;
use support::dialects::Dialect;
use support::ledger::Ledger;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;
use support::wire::{Answer, Wire};

#[tokio::test(flavor = "multi_thread")]
async fn without_tools_it_is_one_completion() {
    // No MCP server is configured. Built-in tools do not count.
    let (model, _site, server) = Site::serve(async |model| Site::new(Kind::Sqlite).await.with_model(model)).await;
    assert!(!server.get_json("/tools").await["data"].as_array().unwrap().is_empty());
    let run = run_of(&server, "cms", "hello [[id:one]][[say:Good morning.]]").await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")));
    let seen = model.exchanges("one");
    assert!(seen.len() == 1 && seen[0].request.get("tools").is_none(), "{:?}", seen[0].request);
    assert_eq!(seen[0].request["messages"][0]["role"], "system");
    let conversation = run["conversation_id"].as_str().unwrap();
    assert_eq!(server.get_json(&format!("/conversations/{conversation}")).await["status"], "idle");
    assert_eq!(shape(&server, conversation).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tools_it_goes_on_until_there_is_a_text() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let ledger = &site.ledger;
    let calls: String = (1..=3).map(|n| format!(r#"[[call:ledger__append {{"text":"{n}"}}]]"#)).collect();
    let script = format!(r#"write [[id:loop]]{calls}[[next]][[call:ledger__append {{"text":"4"}}]][[next]][[say:Written.]]"#);
    let run = run_of(&server, "cms", &script).await;
    assert_eq!(run["status"], "completed", "{run}");
    // Tool calls run one after the other, in the order of the answer.
    let texts: Vec<_> = ledger.entries().iter().map(|entry| entry.arguments["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts, ["1", "2", "3", "4"]);
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let turns: Vec<&str> =
        events.iter().filter_map(|event| event["type"].as_str()).filter(|kind| kind.starts_with("tool.")).collect();
    assert_eq!(turns, ["tool.started", "tool.completed"].repeat(4), "tool calls never overlap");
    // Every request offers tools and says which prefix belongs to which server.
    for seen in model.exchanges("loop") {
        assert!(seen.request["tools"].as_array().is_some_and(|tools| !tools.is_empty()));
        let system = seen.request["messages"][0]["content"].as_str().unwrap();
        assert!(system.contains("ledger__... are those of \"ledger\""), "{system}");
    }
    let parts: Vec<Vec<String>> =
        shape(&server, run["conversation_id"].as_str().unwrap()).await.into_iter().map(|(_, parts)| parts).collect();
    assert_eq!(parts[1], ["tool_call"; 3], "the calls are one message, stored before any tool runs");
}

/// Limits: 202 if accepted, 400 for an empty message or over 10,000 characters, 429 beside three active runs. The list shows
/// fifty conversations.
#[tokio::test(flavor = "multi_thread")]
async fn cms_limits_runs_conversations_and_text_length() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let send = async |agent: &str, input: &str| server.post_json("/runs", &json!({"input": input, "agent": agent})).await;

    let long = "ä".repeat(10_001);
    let (status, refused) = send("cms", &long).await;
    assert_eq!((status.as_u16(), &refused["errors"][0]["pointer"]), (400, &json!("/input")), "{refused}");
    assert!(refused.to_string().contains("has 10001 characters; at most 10000 are accepted"), "{refused}");
    assert_eq!(send("cms", "").await.0, 400);
    for (agent, input) in [("default", long.as_str()), ("cms", &long[..20_000])] {
        let (status, taken) = send(agent, input).await;
        assert_eq!(status, 202, "the server's own limit is higher and counts characters: {taken}");
        server.finished(taken["run"]["id"].as_str().unwrap()).await;
    }

    let mut active = Vec::new();
    for n in 0..3 {
        let (status, taken) = send("cms", &format!("[[id:long{n}]][[text:100000,20]]")).await;
        assert_eq!(status, 202, "{taken}");
        active.push(taken["run"]["id"].as_str().unwrap().to_owned());
    }
    let (status, refused) = send("cms", "one more").await;
    assert_eq!((status.as_u16(), &refused["code"]), (429, &json!("too_many_requests")), "{refused}");
    for run in active {
        assert!(server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await.0.is_success());
        server.finished(&run).await;
    }

    let mut kept = server.get_json("/conversations?limit=100").await["data"].as_array().unwrap().len();
    while kept < 50 {
        assert_eq!(server.post_json("/conversations", &json!({})).await.0, 201);
        kept += 1;
    }
    let (status, refused) = send("cms", "the fifty-first").await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("conflict")), "{refused}");
    let oldest = server.get_json("/conversations?limit=1").await["data"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/conversations/{oldest}/messages");
    assert_eq!(server.post_json(&path, &json!({"content": "in one that is there", "agent": "cms"})).await.0, 202);
}

/// The original code failed the whole conversation. Its document appends the error as a result and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_fails_does_not_end_the_conversation() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let calls = r#"[[call:ledger__fail {"text":"x"}]][[call:ledger__append {"text":"y"}]]"#;
    let run = run_of(&server, "cms", &format!("write [[id:fail]]{calls}[[next]][[say:One of them failed.]]")).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let results: Vec<_> = server.messages(run["conversation_id"].as_str().unwrap()).await[2]["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["is_error"].clone())
        .collect();
    assert_eq!(results, [json!(true), json!(false)], "the later calls are executed");
    let last = model.exchanges("fail").pop().unwrap().request["messages"].as_array().unwrap().len();
    assert_eq!(last, 2 + 1 + 2, "the model gets both results");
    model.assert_history_was_sendable();
}

/// Returns a script of `count` rounds, each with a call of the MCP server.
fn of_ledger(id: &str, count: usize) -> String {
    let round = |n: usize| format!(r#"[[call:ledger__append {{"text":"{n}"}}]]"#);
    format!("go on [[id:{id}]]{}", (0..count).map(round).collect::<Vec<_>>().join("[[next]]"))
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_rounds_are_the_most() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = run_of(&server, "cms", &of_ledger("many", 25)).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("max_rounds")), "{run}");
    assert_eq!(model.exchanges("many").len(), 20);
    let conversation = format!("/conversations/{}", run["conversation_id"].as_str().unwrap());
    assert_eq!(server.get_json(&format!("{conversation}?words=cms")).await["word"], "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_are_retried_twice_and_others_never() {
    // So many failures at once would open the circuit breaker.
    let (model, _site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_BREAKER__FAILURES", "0")).await;
    // Status 529 is an overloaded provider.
    let transient = [(503, "provider_overloaded"), (429, "provider_rate_limit"), (529, "provider_overloaded")];
    let (model_seen, server_asked) = (&model, &server);
    let each = transient.map(|(status, code)| async move {
        let id = format!("busy{status}");
        let run = run_of(server_asked, "cms", &format!("please generate [[id:{id}]][[status:{status}]]")).await;
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!(code)), "{run}");
        assert_eq!(model_seen.exchanges(&id).len(), 3);
        let events = server_asked.run_events_json(run["id"].as_str().unwrap()).await;
        let waits: Vec<_> = said(&events, "run.retrying").iter().map(|data| data["after_ms"].as_u64().unwrap()).collect();
        assert_eq!(waits, [3_000, 6_000]);
    });
    futures_util::future::join_all(each).await;
    // The original code took the word "generate" for a sign of rate limits.
    let run = run_of(&server, "cms", "please generate [[id:wrong]][[status:400]]").await;
    assert_eq!((run["status"].as_str(), model.exchanges("wrong").len()), (Some("failed"), 1), "{run}");
}

/// An error in words only: with status 500, and inside an answer with status 200.
#[rstest]
#[case::rate(500, "Rate limit exceeded", 3)]
#[case::overloaded(200, "The model is overloaded.", 3)]
#[case::part_of_a_word(500, "could not generate a separate answer", 1)]
#[tokio::test(flavor = "multi_thread")]
async fn words_of_an_error_are_retried_if_they_are_whole(#[case] status: u16, #[case] words: &str, #[case] attempts: usize) {
    let error = json!({"error": {"message": words}}).to_string();
    let answer = match status {
        200 => Answer::stream(format!("data: {error}\n\n")),
        _ => Answer::json(status, &error),
    };
    let wire = Wire::play(vec![answer]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_BREAKER__FAILURES", "0");
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let site = site.env("CAPSTAN_MODEL", Dialect::Openai.model());
    let server = site.start().await;
    let run = run_of(&server, "cms", "hello").await;
    assert_eq!((&run["status"], wire.asked().len()), (&json!("failed"), attempts), "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let waits: Vec<_> = said(&events, "run.retrying").iter().map(|data| data["after_ms"].as_u64().unwrap()).collect();
    assert_eq!(waits, [3_000, 6_000][..attempts - 1]);
}

/// The point at which the process is killed.
enum Dies {
    At(&'static str),
    /// While the model streams its answer.
    WhileTheModelTalks,
}

/// The crash table: the kill point, the stored status after the kill, and the number of executions at the end. Two statuses
/// differ from the document. A worker that has the conversation shows as `locked`. The last result is stored in one write with
/// the start of the next model call.
#[rstest]
#[case::before_the_model_call(Dies::At("C04=kill@1"), "processing", 1)]
#[case::during_the_model_call(Dies::WhileTheModelTalks, "processing", 1)]
#[case::after_the_calls_are_saved(Dies::At("C09=kill@1"), "tool_loop", 1)]
#[case::during_the_execution(Dies::At("C13=kill@1"), "tool_loop", 2)]
#[case::after_the_results_are_saved(Dies::At("C15=kill@1"), "tool_loop", 1)]
#[tokio::test(flavor = "multi_thread")]
async fn each_row_of_the_table_of_crashes(
    #[case] dies: Dies,
    #[case] stands: &str,
    #[case] executions: usize,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let ledger = Ledger::new(site.folder.path());
    let site = site.mcp(ledger.mcp_config());
    let (points, talks) = match dies {
        Dies::At(point) => (vec![("CAPSTAN_FAILPOINTS", point)], ""),
        Dies::WhileTheModelTalks => (Vec::new(), "[[say:Well,]][[hold]]"),
    };
    let mut server = site.start_with(&points).await;
    let script = format!(r#"write [[id:row]]{talks}[[call:ledger__append {{"text":"x"}}]][[next]][[say:Written.]]"#);
    // The process may be killed before it answers, as soon as it has claimed the run.
    let _ = server.post("/runs", &json!({"input": script, "agent": "cms"})).send().await;
    let row = site.database.rows("SELECT id, conversation_id FROM runs").await.remove(0);
    let (id, conversation) = (row[0].as_deref().unwrap(), format!("/conversations/{}", row[1].as_deref().unwrap()));
    match dies {
        Dies::At(_) => _ = server.ended(Duration::from_secs(20)).await,
        Dies::WhileTheModelTalks => {
            // The text is stored, and so is the state that the model is streaming.
            let said = async |server: &Server| server.run_events_json(id).await.iter().any(|event| event["type"] == "part.delta");
            wait::until("the first words", Duration::from_secs(20), || async { said(&server).await.then_some(()) }).await;
            server.kill9().await;
            model.release("row");
        }
    }
    // A process without workers shows the state that the killed one left.
    let mut watcher = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api")]).await;
    let seen = watcher.get_json(&format!("{conversation}?words=cms")).await;
    assert_eq!(seen["word"], stands, "{seen}");
    let listed = watcher.get_json("/conversations?words=cms").await;
    assert_eq!(listed["data"][0]["word"], stands, "{listed}");
    watcher.signal("TERM").await;
    watcher.exit().await;
    // The run is taken over without cleanup and without another request.
    let server = site.start().await;
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    let shape: Vec<String> =
        shape(&server, run["conversation_id"].as_str().unwrap()).await.into_iter().map(|(role, _)| role).collect();
    assert_eq!(shape, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(ledger.entries().len(), executions, "a call under way runs again, as the document says; a stored call does not");
    site.assert_sound(&model).await;
}
