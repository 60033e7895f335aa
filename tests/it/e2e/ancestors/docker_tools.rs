//! The tool-call workflow with containers: discovery, the first call with tools, parallel execution, records, and an answer
//! without tools.

use serde_json::{Value, json};

use super::{ledger_of, rounds, run_of, said, shape, untrusted};
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::ledger::Ledger;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::kinds;
use support::wire::{Answer, Wire};

/// Returns the events of the run's calls that clients saw, in order.
async fn calls_told(server: &Server, run: &Value) -> Vec<String> {
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let told = events.iter().filter_map(|event| event["type"].as_str());
    told.filter(|kind| matches!(*kind, "tool.started" | "tool.completed")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workflow_from_the_first_call_to_the_last_message() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let ledger = Ledger::new(site.folder.path());
    let site = site.mcp(json!({"mcpServers": {"ledger-data": ledger.mcp_server()}}));
    let server = site.start().await;
    let slow = |text: &str| format!(r#"[[call:ledger-data__slow_append {{"text":"{text}","ms":700}}]]"#);
    let script = format!("do it [[id:w]][[say:One moment.]]{}{}[[next]][[say:Both are done.]]", slow("a"), slow("b"));
    let run = run_of(&server, "docker-tools", &script).await;
    assert_eq!(run["status"], "completed", "{run}");

    // Steps 1 and 2: tools are discovered, prefixed by their server, and offered on the first call. Step 7: they are offered on
    // no later call.
    let seen = model.exchanges("w");
    let names: Vec<&str> =
        seen[0].request["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"ledger-data__slow_append"), "{names:?}");
    assert_eq!((seen.len(), &seen[0].request["tool_choice"]), (2, &json!("auto")));
    assert!(seen[1].request.get("tools").is_none() && seen[1].request.get("tool_choice").is_none(), "{}", seen[1].request);

    // Step 5: all calls of an answer run at once, under the names that their server uses.
    let turns = calls_told(&server, &run).await;
    assert_eq!(turns, ["tool.started", "tool.started", "tool.completed", "tool.completed"]);
    assert!(ledger.entries().iter().all(|entry| entry.tool == "slow_append"));

    // Steps 4, 6 and 8: the records.
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let call_ids: Vec<&Value> = messages[1]["parts"].as_array().unwrap().iter().filter_map(|part| part.get("call_id")).collect();
    assert_eq!(
        (messages[1]["parts"][0]["text"].as_str(), call_ids.len()),
        (Some("One moment."), 2),
        "text before the calls is kept"
    );
    let results: Vec<&Value> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .flat_map(|message| message["parts"].as_array().unwrap())
        .collect();
    assert_eq!(results.iter().map(|part| &part["call_id"]).collect::<Vec<_>>(), call_ids);
    assert!(results.iter().all(|part| part["name"] == "ledger-data__slow_append"), "{results:?}");
    assert_eq!(messages[1]["finish_reason"], "tool_calls");
    let last = messages.last().unwrap();
    assert_eq!((&last["role"], &last["finish_reason"]), (&json!("assistant"), &json!("stop")));
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_asks_again_gets_what_it_asks_for() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let again =
        r#"q [[id:again]][[call:calculate {"expression":"1"}]][[next]][[call:calculate {"expression":"2"}]][[next]][[say:One.]]"#;
    let run = run_of(&server, "docker-tools", again).await;
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let made = events.iter().filter(|event| event["type"] == "tool.started").count();
    assert_eq!((run["status"].as_str(), made), (Some("completed"), 2), "{run}");
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let last = &messages.last().unwrap()["parts"];
    assert_eq!((last.as_array().unwrap().len(), &last[0]["text"]), (1, &json!("One.")));
    assert_eq!(model.exchanges("again").len(), 3);
}

/// The streaming half: one round of tools, then the streamed answer.
#[tokio::test(flavor = "multi_thread")]
async fn tool_round_is_followed_by_a_streamed_answer() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let mut profile = server.get_json("/agents/docker-tools").await["profile"].clone();
    profile["tools_policy"] = json!("one_round_then_text");
    let (status, made) = server.post_json("/agents", &json!({"name": "streaming", "profile": profile})).await;
    assert_eq!(status, 201, "{made}");
    let calls = r#"[[call:calculate {"expression":"1"}]][[call:calculate {"expression":"2"}]]"#;
    let script = format!("q [[id:stream]]{calls}[[next]][[text:3,0]][[say:Three.]]");
    let frames = server.stream_run(&json!({"input": script, "agent": "streaming"})).await.all().await;
    let kinds = kinds(&frames);
    let at = |kind: &str| kinds.iter().rposition(|seen| seen == kind).unwrap();
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool.completed").count(), 2);
    assert!(at("tool.completed") < at("part.delta") && at("part.delta") < at("run.completed"), "{kinds:?}");
    let seen = model.exchanges("stream");
    let offered: Vec<bool> = seen.iter().map(|seen| seen.request.get("tools").is_some()).collect();
    assert_eq!(offered, [true, false]);
    assert!(seen.iter().all(|seen| seen.request["stream"] == true));

    // A model that calls another tool gets a note that it must answer in text.
    let more = format!("{}[[next]][[say:Enough.]]", rounds("more", 2));
    let run = run_of(&server, "streaming", &more).await;
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert_eq!((run["status"].as_str(), said(&events, "tool.started").len()), (Some("completed"), 1), "{run}");
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_failure_is_its_result() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let ledger = Ledger::new(site.folder.path());
    let broken = json!({"command": "/no/such/program"});
    let site = site.mcp(json!({"mcpServers": {"ledger": ledger.mcp_server(), "broken": broken}}));
    let server = site.start().await;
    let script = r#"q [[id:wrong]][[call:ledger__fail {"text":"x"}]][[call:broken__read {}]][[next]][[say:Neither works.]]"#;
    let run = run_of(&server, "docker-tools", script).await;
    assert_eq!(run["status"], "completed", "{run}");
    let last = model.exchanges("wrong").pop().unwrap().request;
    let results: Vec<&Value> = last["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(results.len(), 2, "{last}");
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn six_calls_in_a_row_are_five_turns_and_a_word_about_the_limit() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = run_of(&server, "docker-tools", &rounds("six", 6)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("max_rounds")), "{run}");
    let seen = model.exchanges("six");
    let offered: Vec<bool> = seen.iter().map(|seen| seen.request.get("tools").is_some()).collect();
    assert_eq!(offered, [true, false, false, false, false]);
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert_eq!(said(&events, "tool.started").len(), 5, "a tool that was offered once can be called in every round");

    // Each round is a row of the assistant with its calls and a row of the tools. The last row says why there is no answer.
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, [vec!["user"], ["assistant", "tool"].repeat(5), vec!["assistant"]].concat());
    let last = messages.last().unwrap();
    assert!(last["parts"][0]["text"].as_str().unwrap().contains("reached the limit of rounds"), "{last}");
    assert_eq!(last["finish_reason"], "max_rounds");
    model.assert_history_was_sendable();
}

/// Creates a user server whose tools write to this ledger, for the current key.
async fn keep(server: &Server, ledger: &Ledger) {
    let (status, kept) = server.post_json("/mcp-servers", &json!({"name": "ledger-data", "entry": untrusted(ledger)})).await;
    assert_eq!(status, 201, "{kept}");
}

/// Step 1: the current user's servers and no other user's.
#[tokio::test(flavor = "multi_thread")]
async fn the_servers_of_a_user_are_offered_to_that_user_alone() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model).env("CAPSTAN_SECRET_KEY", "a master key of some length");
    let site = site.env("CAPSTAN_MCP__ALLOW_USER_COMMANDS", "true");
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let (of_ann, of_bob) = (ledger_of(&site, "ann"), ledger_of(&site, "bob"));
    let mut server = site.start().await;
    // Returns whether a run was offered the append tool.
    let writes = async |server: &Server, text: &str| -> bool {
        let script = format!(r#"q [[id:{text}]][[call:ledger-data__append {{"text":"{text}"}}]][[next]][[say:Done.]]"#);
        let run = run_of(server, "docker-tools", &script).await;
        assert_eq!(run["status"], "completed", "{run}");
        model.exchanges(text)[0].request["tools"].to_string().contains("ledger-data__append")
    };
    server.set_key(&ann);
    keep(&server, &of_ann).await;
    assert!(writes(&server, "anns").await);
    server.set_key(&bob);
    assert!(!writes(&server, "nobodys").await, "another user's server");
    // A server of the same name under another user is a different server.
    keep(&server, &of_bob).await;
    assert!(writes(&server, "bobs").await);
    let written = |ledger: &Ledger| ledger.entries().into_iter().map(|entry| entry.arguments["text"].clone()).collect::<Vec<_>>();
    assert_eq!((written(&of_ann), written(&of_bob)), (vec![json!("anns")], vec![json!("bobs")]));
    model.assert_history_was_sendable();
}

/// Step 5: each tool call answers only when eight calls are under way. The default is four calls at a time for each server.
#[tokio::test(flavor = "multi_thread")]
async fn eight_calls_of_one_answer_are_under_way_at_once() {
    let model = ModelMock::start().await;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/ancestors/meeting.py");
    let entry = json!({"command": "python3", "args": [program, "8"], "capstan": {"trusted": true, "concurrency": 8}});
    let site = Site::scripted(Kind::Sqlite, &model).await.mcp(json!({"mcpServers": {"meeting": entry}}));
    let server = site.start().await;
    let calls: String = (0..8).map(|n| format!(r#"[[call:meeting__meet {{"n":{n}}}]]"#)).collect();
    let run = run_of(&server, "docker-tools", &format!("meet [[id:eight]]{calls}[[next]][[say:All have met.]]")).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let turns = calls_told(&server, &run).await;
    assert_eq!(turns, [["tool.started"; 8], ["tool.completed"; 8]].concat());
    // Results are in the order of the calls, independent of the order of completion.
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let results = messages[2]["parts"].as_array().unwrap();
    let said: Vec<&str> = results.iter().map(|result| result["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(said, (0..8).map(|n| format!("met {n}")).collect::<Vec<_>>());
    assert!(results.iter().all(|result| result["is_error"] == false), "{results:?}");
    model.assert_history_was_sendable();
}

/// A permanent provider error: the run reports it in the provider's words, and the conversation stays usable.
#[tokio::test(flavor = "multi_thread")]
async fn model_error_fails_the_run_and_the_next_message_works() {
    let refusal = || Answer::json(400, r#"{"error":{"message":"as scripted","type":"invalid_request_error"}}"#);
    let one = json!({"expression": "1"});
    let calls = Dialect::Openai.answer(Says { call: Some(("call_1", "calculate", &one)), ..Says::default() });
    let answers = Dialect::Openai.answer(Says { text: "Now it works.", ..Says::default() });
    let wire = Wire::play(vec![refusal(), calls, refusal(), answers]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", Dialect::Openai.model());
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let server = site.start().await;
    let (_, conversation) = server.post_json("/conversations", &json!({})).await;
    let conversation = conversation["id"].as_str().unwrap();
    let turn = async |input: &str| -> Value {
        let body = json!({"input": input, "agent": "docker-tools", "conversation_id": conversation});
        let run = server.start_run(&body).await;
        server.finished(run["id"].as_str().unwrap()).await
    };
    let roles = async || -> Vec<String> { shape(&server, conversation).await.into_iter().map(|(role, _)| role).collect() };
    let stands = async || -> Value { server.get_json(&format!("/conversations/{conversation}")).await["status"].clone() };

    // Before the first text, and after a round of tools.
    for (input, requests) in [("one way", 1), ("the other way", 3)] {
        let run = turn(input).await;
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("provider_invalid_request")), "{run}");
        assert_eq!((&run["finish_reason"], &run["error"]["retryable"]), (&Value::Null, &json!(false)), "{run}");
        assert_eq!(run["error"]["title"], "The model provider refused the request");
        assert!(run["error"]["detail"].as_str().unwrap().contains("as scripted"), "{run}");
        assert_eq!(wire.asked().len(), requests, "a permanent error is not retried");
        let events = server.run_events_json(run["id"].as_str().unwrap()).await;
        assert_eq!(events.last().unwrap()["type"], "run.failed");
        assert_eq!(said(&events, "run.failed")[0]["error"]["code"], run["error"]["code"]);
        assert_eq!(stands().await, "failed");
    }
    // The history holds text and results. The error is no message of it.
    assert_eq!(roles().await, ["user", "user", "assistant", "tool"]);

    let run = turn("and now?").await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    assert_eq!((stands().await, wire.asked().len()), (json!("idle"), 4));
    let sent = wire.asked().remove(3);
    assert_eq!(Dialect::Openai.history(&sent).len(), 2, "a call and its result");
    let sent = sent.json()["messages"].to_string();
    assert!(["one way", "the other way", "and now?"].iter().all(|words| sent.contains(words)), "{sent}");
    assert_eq!(roles().await, ["user", "user", "assistant", "tool", "user", "assistant"]);
}
