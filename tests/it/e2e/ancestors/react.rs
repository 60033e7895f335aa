//! The contract of the thought-action-observation loop: its end, its limits, and the classes of errors.

use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::{asked, decide, rounds, run_of, said, site_of_a_stranger};
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;
use support::wire::Wire;

async fn copy(server: &Server, name: &str, field: &str, value: Value) {
    let mut profile = server.get_json("/agents/react").await["profile"].clone();
    profile[field] = value;
    let (status, made) = server.post_json("/agents", &json!({"name": name, "profile": profile})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn react_run_ends_with_an_answer_or_after_five_steps() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let (status, problem) = server.post_json("/runs", &json!({"input": "", "agent": "react"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    let run = run_of(&server, "react", r#"q [[id:a]][[call:calculate {"expression":"2*3"}]][[next]][[say:Six.]]"#).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")));
    let seen = model.exchanges("a");
    let observation = seen[1].request["messages"].as_array().unwrap().last().unwrap().clone();
    assert!(observation["role"] == "tool" && observation["content"].as_str().unwrap().contains('6'), "{observation}");

    let run = run_of(&server, "react", &rounds("b", 9)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("max_rounds")), "{run}");
    assert_eq!(model.exchanges("b").len(), 5);
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(
        messages.last().unwrap()["role"],
        "assistant",
        "the last message is never empty: a text says that the limit was reached"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn react_step_takes_one_action() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let both = r#"q [[id:two]][[call:calculate {"expression":"1"}]][[call:calculate {"expression":"2"}]]"#;
    let run = run_of(&server, "react", both).await;
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert_eq!(said(&events, "tool.started").len(), 1, "the second call gets a result and is not executed");
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_fails_three_times_forces_the_answer() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let round = |n: usize| format!(r#"[[call:calculate {{"expression":"{n}/"}}]]"#);
    let script = format!("q [[id:f]]{}[[next]][[say:It cannot be done.]]", (0..3).map(round).collect::<Vec<_>>().join("[[next]]"));
    let run = run_of(&server, "react", &script).await;
    assert_eq!(run["status"], "completed", "tool errors never end a run: {run}");
    let offered: Vec<bool> = model.exchanges("f").iter().map(|seen| seen.request.get("tools").is_some()).collect();
    assert_eq!(offered, [true, true, true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_answer_is_never_the_answer() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    copy(&server, "brisk", "llm_retry", json!({"delays_ms": [1]})).await;
    // The provider's connection breaks in the middle of the text, on each attempt.
    let run = run_of(&server, "brisk", "q [[id:half]][[text:3,50]][[cut]]").await;
    assert_eq!((&run["status"], model.exchanges("half").len()), (&json!("failed"), 2), "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let at = |kind: &str| events.iter().rposition(|event| event["type"] == kind).unwrap();
    assert!(at("part.started") < at("step.reset") && at("step.reset") < at("run.failed"), "the shown part is reset");
    assert_eq!(said(&events, "message.completed").len(), 0, "{events:?}");
    assert_eq!(server.messages(run["conversation_id"].as_str().unwrap()).await.len(), 1, "only the user's message");
    // Text beside tool calls is not the answer either: the run ends with a complete text.
    let round = |n: usize| format!(r#"[[say:Half of it.]][[call:calculate {{"expression":"{n}+1"}}]][[next]]"#);
    let input = format!("q [[id:rounds]]{}", (0..6).map(round).collect::<String>());
    let run = run_of(&server, "brisk", &input).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("max_rounds")), "{run}");
    let last = server.messages(run["conversation_id"].as_str().unwrap()).await.pop().unwrap();
    assert_eq!(
        (&last["role"], &last["status"], &last["finish_reason"]),
        (&json!("assistant"), &json!("complete"), &json!("max_rounds"))
    );
    let words = last["parts"][0]["text"].as_str().unwrap();
    assert!(words.contains("reached the limit of rounds") && !words.contains("Half"), "{last}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn tool_failures_count_across_runs_until_a_success(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::start_scripted(kind).await;
    let (_, conversation) = server.post_json("/conversations", &json!({})).await;
    // Each entry of `fails` is a round whose tool fails or works. Returns whether each request offers tools.
    let turn = async |id: &str, fails: &[bool]| -> Vec<bool> {
        let round = |(n, fails): (usize, &bool)| {
            format!(r#"[[call:calculate {{"expression":"{n}{}"}}]][[next]]"#, if *fails { "/" } else { "" })
        };
        let rounds: String = fails.iter().enumerate().map(round).collect();
        let input = format!("q [[id:{id}]]{rounds}[[say:So be it.]]");
        let run = server.start_run(&json!({"input": input, "agent": "react", "conversation_id": conversation["id"]})).await;
        let run = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
        model.exchanges(id).iter().map(|seen| seen.request.get("tools").is_some()).collect()
    };
    assert_eq!(turn("twice", &[true, true]).await, [true, true, true]);
    assert_eq!(turn("third", &[true]).await, [true, false], "the third failure of the conversation");
    assert_eq!(turn("fourth", &[true]).await, [true, false], "and each later failure");
    assert_eq!(turn("works", &[false, true, true]).await, [true; 4], "a tool that worked may fail again");
    assert_eq!(turn("fails", &[true]).await, [true, false], "the third failure in a row");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_provider_are_retried_or_fatal_by_their_kind() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = run_of(&server, "react", "q [[id:limited]][[status:429]]").await;
    assert_eq!((&run["error"]["code"], &run["error"]["retryable"]), (&json!("provider_rate_limit"), &json!(true)), "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let waits: Vec<_> = said(&events, "run.retrying").iter().map(|data| data["after_ms"].as_u64().unwrap()).collect();
    assert_eq!(waits, [1_000, 2_000, 4_000]);
    let run = run_of(&server, "react", "q [[id:denied]][[status:401]]").await;
    assert_eq!((&run["error"]["code"], &run["error"]["retryable"]), (&json!("provider_auth"), &json!(false)), "{run}");
    assert_eq!(model.exchanges("denied").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_out_of_reach_ends_the_run_and_is_named() {
    // No process listens on this port.
    let (model, _site, server) = Site::serve(async |model| {
        Site::scripted(Kind::Sqlite, model)
            .await
            .env("CAPSTAN_PROVIDERS__DEAD__KIND", "openai")
            .env("CAPSTAN_PROVIDERS__DEAD__BASE_URL", "http://127.0.0.1:9/v1")
            .env("CAPSTAN_PROVIDERS__DEAD__KEY_ENV", "OPENAI_API_KEY")
    })
    .await;
    copy(&server, "brisk", "llm_retry", json!({"delays_ms": [1, 2, 4]})).await;
    let dead = server.start_run(&json!({"input": "q", "agent": "brisk", "model": "dead/mock"})).await;
    let dead = server.finished(dead["id"].as_str().unwrap()).await;
    let ill = run_of(&server, "brisk", "q [[id:ill]][[status:503]]").await;
    assert_eq!(model.exchanges("ill").len(), 4);
    for (run, code, title) in [(dead, "provider_network", "could not be reached"), (ill, "provider_overloaded", "is overloaded")] {
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!(code)), "{run}");
        assert!(run["error"]["title"].as_str().unwrap().contains(title), "{run}");
        let events = server.run_events_json(run["id"].as_str().unwrap()).await;
        let waits: Vec<_> = said(&events, "run.retrying").iter().map(|data| data["after_ms"].as_u64().unwrap()).collect();
        assert_eq!(waits, [1, 2, 4]);
        assert_eq!(said(&events, "run.failed").len(), 1);
        let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
        assert_eq!(messages.len(), 1, "only the user's message: {messages:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_messages_go_at_two_hundred_thousand_characters() {
    let (model, _site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_AGENT__SYSTEM_PROMPT", "STAY")).await;
    let (_, conversation) = server.post_json("/conversations", &json!({})).await;
    let id = conversation["id"].as_str().unwrap();
    for name in ["one", "two", "three"] {
        let input = format!("{name} {}[[id:{name}]]", "word ".repeat(17_000));
        let run = server.start_run(&json!({"input": input, "conversation_id": id, "agent": "react"})).await;
        assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    }
    let texts = |name: &str| -> Vec<String> {
        let request = model.exchanges(name).pop().unwrap().request;
        let messages = request["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    };
    let (second, third) = (texts("two"), texts("three"));
    assert!(second[1].starts_with("one ") && second[0].contains("STAY"));
    assert!(third.iter().all(|text| !text.starts_with("one ")), "the oldest message was evicted");
    assert!(third[0].contains("STAY") && third.last().unwrap().starts_with("three "), "the instructions and the question stay");
    assert!(third.iter().map(|text| text.chars().count()).sum::<usize>() <= 200_000);
    let figures = server.get("//metrics").send().await.unwrap().text().await.unwrap();
    assert!(figures.contains("\ncapstan_context_compactions_total 1\n"), "{figures}");
    let kept = server.messages(id).await;
    assert!(kept.len() == 6 && kept[0]["parts"][0]["text"].as_str().unwrap().starts_with("one "), "stored messages stay whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_takes_too_long_is_an_observation() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let agent = server.get_json("/agents/react").await;
    assert_eq!((&agent["profile"]["tool_timeout_ms"], &agent["effective"]["tool_timeout_ms"]), (&json!(30_000), &json!(30_000)));
    let script = r#"q [[id:slow]][[call:ledger__slow_append {"text":"x","ms":60000}]][[next]][[say:It takes too long.]]"#;
    let run = server.start_run(&json!({"input": script, "agent": "react", "limits": {"tool_timeout_ms": 1_000}})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let seen = model.exchanges("slow");
    let observation = seen[1].request["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(observation["role"], "tool", "{observation}");
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(messages[2]["parts"][0]["is_error"], true, "{}", messages[2]);
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_reach_no_tool_and_the_model_corrects_them() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let calls = r#"[[call:ledger__append {"text":6}]][[next]][[call:ledger__append {"text":"six"}]]"#;
    let run = run_of(&server, "react", &format!("q [[id:fit]]{calls}[[next]][[say:Written.]]")).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    // The step begins, but the tool is not called.
    let made: Vec<Value> = site.ledger.entries().into_iter().map(|entry| entry.arguments["text"].clone()).collect();
    assert_eq!(made, ["six"]);
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let states: Vec<&Value> = said(&events, "tool.completed").into_iter().map(|data| &data["state"]).collect();
    assert_eq!(states, ["failed", "done"]);
    let seen = model.exchanges("fit");
    let observation = seen[1].request["messages"].as_array().unwrap().last().unwrap().clone();
    let words = observation["content"].as_str().unwrap();
    assert!(observation["role"] == "tool" && words.contains("violate the schema") && words.contains("/text"), "{observation}");
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn valid_form_after_two_invalid_ones_completes_the_run() {
    let (wrong, right) = ("I think that six is right.", r#"{"answer":"Six."}"#);
    let answers = [wrong, right, wrong, wrong, right].map(|text| Dialect::Openai.answer(Says { text, ..Says::default() }));
    let wire = Wire::play(answers.into()).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", Dialect::Openai.model());
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let server = site.start().await;
    copy(&server, "union", "output", json!("structured")).await;
    for (corrections, asked) in [(1, 2), (2, 5)] {
        let run = run_of(&server, "union", "How much is 2 * 3?").await;
        assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
        let requests = wire.asked();
        assert_eq!(requests.len(), asked);
        let told = requests.last().unwrap().json()["messages"].to_string();
        assert_eq!(told.matches("not the one JSON object that was requested").count(), corrections, "{told}");
        assert_eq!(told.matches(wrong).count(), corrections, "the model gets its own malformed answer back: {told}");
        let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
        let answers: Vec<&Value> = messages.iter().filter(|message| message["role"] == "assistant").collect();
        assert_eq!((answers.len(), &answers[0]["parts"][0]["text"]), (1, &json!("Six.")), "{messages:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_form_is_corrected_twice_and_then_fails_the_run() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    // The document's unions are objects here, for agents that ask for structured output.
    copy(&server, "union", "output", json!("structured")).await;
    let run = run_of(&server, "union", "q [[id:form]][[say:I think that six is right.]]").await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("invalid_output")), "{run}");
    let seen = model.exchanges("form");
    let asked: Vec<usize> = seen.iter().map(|seen| seen.request["messages"].to_string().len()).collect();
    assert!(asked.len() == 3 && asked[0] < asked[1], "the error is shown before the next request: {asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_has_a_trace_lines_in_the_log_and_figures() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await.env("CAPSTAN_LOG__FORMAT", "json");
    let site = site.env("CAPSTAN_LOG__LEVEL", "info,capstan=debug");
    let server = site.start().await;
    let calls = r#"[[call:calculate {"expression":"2*3"}]][[next]][[call:calculate {"expression":"2/"}]]"#;
    let body = json!({"input": format!("q [[id:traced]]{calls}[[next]][[say:Six.]]"), "agent": "react"});
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let accepted = server.post("/runs", &body).header("traceparent", traceparent).send().await.unwrap();
    let accepted: serde_json::Value = accepted.json().await.unwrap();
    let run = accepted["run"]["id"].as_str().unwrap();
    let ended = server.finished(run).await;
    assert_eq!((&ended["status"], &ended["trace_id"]), (&json!("completed"), &json!(TRACE)));
    let logged = |message: &str| {
        let log = server.log_text();
        log.lines().any(|line| line.contains(TRACE) && line.contains(run) && line.contains(message))
    };
    for message in ["run accepted", "tool call ended", "run ended"] {
        wait::until(message, Duration::from_secs(10), || async { logged(message).then_some(()) }).await;
    }
    // Steps, model calls with their tokens, tool calls, tool failures, and durations.
    let figures = server.get("//metrics").send().await.unwrap().text().await.unwrap();
    let figure = |name: &str| {
        let lines = figures.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
    };
    assert_eq!(figure("capstan_step_seconds_count"), 5.0, "three model steps and two tool steps: {figures}");
    assert!(figure("capstan_tokens_total") > 0.0 && figure("capstan_runs_finished_total") >= 1.0, "{figures}");
    for labelled in
        ["capstan_tokens_total{provider=\"openai\",direction=\"input\"}", "capstan_first_token_seconds_count{provider=\"openai\"}"]
    {
        assert!(figure(labelled) > 0.0, "{labelled}: {figures}");
    }
    assert_eq!(figure("capstan_tool_calls_total"), 2.0, "{figures}");
    let labels = ["{server=\"", ",tool=\"calculate\"", ",outcome=\"done\""];
    let mut of_calls = figures.lines().filter(|line| line.starts_with("capstan_tool_calls_total{"));
    assert!(of_calls.any(|line| labels.iter().all(|label| line.contains(label))), "{figures}");
    // The length of the history, its tokens, and the number of evictions.
    assert_eq!(
        (figure("capstan_request_messages_sum"), figure("capstan_request_messages_count")),
        (1.0 + 3.0 + 5.0, 3.0),
        "{figures}"
    );
    assert!(figure("capstan_request_tokens_sum") > 3.0 && figure("capstan_context_compactions_total") == 0.0, "{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_key_is_an_error_of_the_configuration() {
    // The server starts, so that the page can set the provider up, and the error names the variable.
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", "openai/mock");
    let server = site.start().await;
    let run = run_of(&server, "react", "q").await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("provider_auth")), "{run}");
    assert!(run["error"]["detail"].as_str().unwrap().contains("OPENAI_API_KEY"), "{run}");
    // A provider that is neither the default nor configured is unknown.
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let body = json!({"input": "q", "agent": "react", "model": "anthropic/claude"});
    let (status, problem) = server.post_json("/runs", &body).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("unknown_model")), "{problem}");
}

/// A tool that is not known to be closed-world needs an approval, and a denial ends the run.
#[tokio::test(flavor = "multi_thread")]
async fn untrusted_call_asks_with_a_reason_and_denial_ends_the_turn() {
    let (model, site, server) = Site::serve(async |model| site_of_a_stranger(model).await).await;
    let inside = r#"[[call:calculate {"expression":"2*3"}]]"#;
    let outside = r#"[[say:The list lacks it.]][[call:ledger__append {"text":"one"}]]"#;
    let input = format!("q [[id:no]]{inside}[[next]]{outside}[[next]][[say:Never said.]]");
    let run = server.start_run(&json!({"input": input, "agent": "react"})).await;
    let (id, conversation) = (run["id"].as_str().unwrap(), run["conversation_id"].as_str().unwrap());
    let approval = asked(&server, id).await;
    assert_eq!(
        (&approval["name"], &approval["arguments"], &approval["rationale"]),
        (&json!("ledger__append"), &json!({"text": "one"}), &json!("The list lacks it."))
    );
    let waiting = server.get_json(&format!("/runs/{id}")).await;
    assert_eq!((&waiting["status"], &waiting["reason"]), (&json!("waiting"), &json!("approval")), "{waiting}");
    let told = model.exchanges("no")[0].request["messages"][0]["content"].as_str().unwrap().to_owned();
    assert!(told.contains("ledger__append") && told.contains("why it is needed"), "{told}");

    decide(&server, &approval, &json!({"decision": "deny", "reason": "not today"})).await;
    let ended = server.finished(id).await;
    assert_eq!((&ended["status"], &ended["finish_reason"]), (&json!("completed"), &json!("stop")), "{ended}");
    assert_eq!(
        (model.exchanges("no").len(), site.ledger.entries().len()),
        (2, 0),
        "no tool runs, and the model is not asked again"
    );
    let events = server.run_events_json(id).await;
    let made: Vec<&Value> = said(&events, "tool.started").into_iter().map(|data| &data["name"]).collect();
    assert_eq!(made, ["calculate"], "a built-in tool needs no approval");
    let messages = server.messages(conversation).await;
    let [.., result, last] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!((&result["role"], &result["parts"][0]["state"]), (&json!("tool"), &json!("denied")), "{result}");
    assert!(result["parts"][0]["content"][0]["text"].as_str().unwrap().contains("not today"), "{result}");
    assert_eq!((&last["role"], &last["finish_reason"]), (&json!("assistant"), &json!("stop")), "{last}");
    assert!(last["parts"][0]["text"].as_str().unwrap().starts_with("I stop here, because the action was not approved."), "{last}");

    // The next run sees the denial, and its own call needs an approval again.
    let again = r#"again [[id:yes]][[call:ledger__append {"text":"two"}]][[next]][[say:Written.]]"#;
    let next = server.start_run(&json!({"input": again, "agent": "react", "conversation_id": conversation})).await;
    let next = next["id"].as_str().unwrap();
    let approval = asked(&server, next).await;
    assert_eq!(approval.get("rationale"), None, "an answer without text has no rationale");
    decide(&server, &approval, &json!({"decision": "allow"})).await;
    let ended = server.finished(next).await;
    assert_eq!((&ended["status"], &ended["finish_reason"]), (&json!("completed"), &json!("stop")), "{ended}");
    assert_eq!((site.ledger.count("append", "one"), site.ledger.count("append", "two")), (0, 1));
    let seen = model.exchanges("yes");
    assert!(seen[0].request["messages"].to_string().contains("not today"));
    let observation = seen[1].request["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&observation["role"], &observation["content"]), (&json!("tool"), &json!("recorded two")));
    model.assert_history_was_sendable();
}

/// Returns the step kind, the part type, or else the event type. Returns `None` for events in between.
fn word(line: &Value) -> Option<&str> {
    let kind = line["type"].as_str().unwrap();
    match kind {
        "step.started" => line["data"]["kind"].as_str(),
        "part.completed" => line["data"]["part"]["type"].as_str(),
        "run.started" | "run.waiting" | "run.completed" | "stream.end" => Some(kind),
        "approval.requested" | "approval.resolved" | "tool.started" | "tool.completed" | "message.completed" => Some(kind),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_is_logged_in_the_order_of_its_phases() {
    let (model, site, server) = Site::serve(async |model| site_of_a_stranger(model).await).await;
    let script = r#"q [[id:lines]][[say:The list lacks it.]][[call:ledger__append {"text":"one"}]][[next]][[say:Written.]]"#;
    let request = server.post("/runs", &json!({"input": script, "agent": "react"})).header("accept", "application/x-ndjson");
    let telling = request.send().await.unwrap();
    assert_eq!((telling.status(), telling.headers()["content-type"].to_str().unwrap()), (StatusCode::OK, "application/x-ndjson"));
    let run = telling.headers()["content-location"].to_str().unwrap().rsplit('/').next().unwrap().to_owned();
    // The approval is answered while the stream goes on.
    let (told, ()) = tokio::join!(wait::within("the last line", Duration::from_secs(60), telling.text()), async {
        let approval = asked(&server, &run).await;
        decide(&server, &approval, &json!({"decision": "allow"})).await;
    });
    let lines: Vec<Value> = told.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words: Vec<&str> = lines.iter().filter_map(word).collect();
    let decides = ["run.started", "model", "text", "tool_call", "message.completed"];
    let asks = ["tools", "approval.requested", "run.waiting", "approval.resolved"];
    let observes = ["tool.started", "tool.completed", "message.completed"];
    let ends = ["model", "text", "message.completed", "run.completed", "stream.end"];
    assert_eq!(words, [&decides[..], &asks[..], &observes[..], &ends[..]].concat());

    let (requested, completed) = (said(&lines, "approval.requested")[0], said(&lines, "tool.completed")[0]);
    assert_eq!((&requested["rationale"], &requested["name"]), (&json!("The list lacks it."), &json!("ledger__append")));
    assert_eq!(completed["content"][0]["text"], "recorded one", "the observation");
    let answers = said(&lines, "message.completed");
    assert_eq!(answers.last().unwrap()["message"]["parts"][0]["text"], "Written.");
    assert_eq!(lines.split_last().unwrap().1, server.run_events_json(&run).await, "the log holds the same lines");
    assert_eq!(site.ledger.count("append", "one"), 1);
    model.assert_history_was_sendable();
}

/// Emoji of several code points, combining marks composed and decomposed, scripts without spaces, and right-to-left scripts.
const SCRIPTS: [&str; 5] = [
    "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f1e9}\u{1f1ea} \u{1f44d}\u{1f3fd}",
    "e\u{301} \u{e9} o\u{323}\u{308} o\u{308}\u{323} \u{212b}",
    "\u{6f22}\u{5b57}\u{304b}\u{306a}\u{3001}\u{d55c}\u{ad6d}\u{c5b4} \u{20bb7}",
    "\u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{200f}\u{645}\u{631}\u{62d}\u{628}\u{627}\u{64b}\u{200e} \u{202e}abc\u{202c}",
    "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{e44}\u{e17}\u{e22} \u{2028}\u{feff}.",
];

#[tokio::test(flavor = "multi_thread")]
async fn words_of_every_script_pass_byte_for_byte() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let words = SCRIPTS.join(" / ");
    let call = format!("[[say:{words}]][[call:ledger__append {}]]", json!({"text": words}));
    // The answer arrives in pieces of one code point.
    let pieces: String = words.chars().map(|piece| format!("[[say:{piece}]]")).collect();
    let input = format!("{words} [[id:utf8]]{call}[[next]]{pieces}");
    let run = run_of(&server, "react", &input).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");

    let seen = model.exchanges("utf8");
    let read = |at: usize| seen[at].request["messages"].as_array().unwrap().clone();
    assert_eq!(read(0).last().unwrap()["content"], input);
    let second = read(1);
    let [.., answer, observation] = second.as_slice() else { panic!("{second:?}") };
    let arguments = answer["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!((&answer["content"], &arguments["text"]), (&json!(words), &json!(words)));
    assert_eq!(observation["content"], format!("recorded {words}"));
    assert_eq!(site.ledger.count("append", &words), 1);

    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let last = events.iter().skip_while(|event| event["type"] != "tool.completed").filter(|event| event["type"] == "part.delta");
    let streamed: String = last.map(|event| event["data"]["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed, words);
    let path = format!("/conversations/{}/messages", run["conversation_id"].as_str().unwrap());
    let kept = server.get_json(&path).await["data"].clone();
    assert_eq!((&kept[0]["parts"][0]["text"], &kept[3]["parts"][0]["text"]), (&json!(input), &json!(words)), "{kept}");
    let sent = server.get(&path).send().await.unwrap().bytes().await.unwrap();
    let times = sent.windows(words.len()).filter(|bytes| *bytes == words.as_bytes()).count();
    assert!(times >= 4, "found {times} times as it was written");
    model.assert_history_was_sendable();

    // Invalid UTF-8 is rejected.
    let body = [&br#"{"agent":"react","input":"q "#[..], &[0xff, 0xfe][..], &br#""}"#[..]].concat();
    let request = server.request(reqwest::Method::POST, "/runs").header("content-type", "application/json");
    let refused = request.body(body).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
}
