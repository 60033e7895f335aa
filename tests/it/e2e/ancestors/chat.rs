//! The browser chat system: content blocks, tool names, stopping, persistence, ten rounds, and its status words for
//! conversations.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{ledger_of, rounds, run_of, said, shape};
use support::database::Kind;
use support::ledger::Ledger;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

/// Returns the conversation's status in that system's vocabulary.
async fn word(server: &Server, conversation: &str) -> Value {
    server.get_json(&format!("/conversations/{conversation}?words=chat")).await["word"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_test_tools_answer_in_blocks_that_are_all_stored() {
    let (_model, site, mut server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_TOOLS__ENABLE", "['get_weather']")).await;
    let script = r#"all [[id:a]][[say:Let me see.]][[call:get_weather {"location":"Rome"}]][[call:calculate {"expression":"2+2"}]][[call:current_time {"timezone":"Europe/Berlin"}]][[next]][[say:Sunny, 4, and late.]]"#;
    let run = run_of(&server, "chat", script).await;
    assert_eq!(run["status"], "completed", "{run}");
    let conversation = run["conversation_id"].as_str().unwrap();
    let kept = server.messages(conversation).await;
    let parts = |at: usize| kept[at]["parts"].as_array().unwrap().clone();
    let types = |at: usize| parts(at).iter().map(|part| part["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(types(1), ["text", "tool_call", "tool_call", "tool_call"]);
    let results: Vec<Value> = kept
        .iter()
        .filter(|message| message["role"] == "tool")
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .collect();
    let answered: Vec<&Value> = results.iter().map(|result| &result["call_id"]).collect();
    let asked = parts(1);
    assert_eq!(
        answered,
        asked[1..].iter().map(|call| &call["call_id"]).collect::<Vec<_>>(),
        "by call id, in the order of the calls"
    );
    assert!(results.iter().all(|result| result["is_error"] == false), "{results:?}");
    let time = results[2]["content"][0]["text"].as_str().unwrap();
    let is_there = ["+01:00 (", "+02:00 ("].iter().any(|offset| time.contains(offset)) && time.ends_with(", Europe/Berlin)");
    assert!(is_there, "the same instant in winter and summer time: {time}");

    server.signal("TERM").await;
    server.exit().await;
    let server = site.start().await;
    assert_eq!(server.messages(conversation).await, kept);
    assert_eq!(word(&server, conversation).await, "idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_made_one_by_one() {
    let (_model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    // The first call takes longer than the second.
    let slow = |text: &str, ms: u32| format!(r#"[[call:ledger__slow_append {{"text":"{text}","ms":{ms}}}]]"#);
    let run = run_of(&server, "chat", &format!("q [[id:two]]{}{}", slow("first", 500), slow("second", 0))).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let steps: Vec<(&str, &str)> = events
        .iter()
        .filter_map(|event| Some((event["type"].as_str()?.strip_prefix("tool.")?, event["data"]["call_id"].as_str()?)))
        .collect();
    let kinds: Vec<&str> = steps.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, ["started", "completed", "started", "completed"]);
    assert!(steps[0].1 == steps[1].1 && steps[1].1 != steps[2].1 && steps[2].1 == steps[3].1, "{steps:?}");
    let texts: Vec<Value> = site.ledger.entries().into_iter().map(|entry| entry.arguments["text"].clone()).collect();
    assert_eq!(texts.iter().position(|text| text == "second"), texts.iter().rposition(|text| text == "first").map(|at| at + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_come_and_go_with_their_servers() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await.mcp(json!({"mcpServers": {}}));
    let server = site.start().await;
    let (_, conversation) = server.post_json("/conversations", &json!({})).await;
    // Returns whether the next run of the conversation is offered the tools.
    let offered = async |id: &str| -> bool {
        let body = json!({"input": format!("q [[id:{id}]]"), "agent": "chat", "conversation_id": conversation["id"]});
        let run = server.start_run(&body).await;
        assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
        model.exchanges(id)[0].request["tools"].to_string().contains("ledger__append")
    };
    assert!(!offered("before").await);
    let (status, kept) = server.post_json("/mcp-servers", &json!({"name": "ledger", "entry": site.ledger.mcp_server()})).await;
    assert_eq!(status, 201, "{kept}");
    assert!(offered("connected").await);
    let kept = format!("/mcp-servers/{}", kept["id"].as_str().unwrap());
    let gone = server.request(reqwest::Method::DELETE, &kept).send().await.unwrap();
    assert_eq!(gone.status(), 204);
    assert!(!offered("gone").await);
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_tools_keep_to_what_providers_take() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let ledger = Ledger::new(site.folder.path());
    let name = "a.server with/odd characters and far more of them than any provider takes in a name";
    let site = site.mcp(json!({"mcpServers": {name: ledger.mcp_server()}}));
    let server = site.start().await;
    run_of(&server, "chat", "names [[id:n]]").await;
    let request = model.exchanges("n").pop().unwrap().request;
    let names: Vec<&str> =
        request["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert!(names.iter().any(|name| name.contains("__")), "{names:?}");
    let is_fine =
        |name: &str| (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    assert!(names.iter().all(|name| is_fine(name)), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_reports_progress_and_stops_on_cancel() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let ledger = &site.ledger;
    let script = r#"q [[id:s]][[hold]][[call:ledger__slow_append {"text":"x","ms":60000}]]"#;
    let run = server.start_run(&json!({"input": script, "agent": "chat"})).await;
    let (id, conversation) = (run["id"].as_str().unwrap(), run["conversation_id"].as_str().unwrap());
    model.wait_for("the request", "s", |seen| !seen.is_empty()).await;
    assert_eq!(word(&server, conversation).await, "thinking");
    model.release("s");
    wait::until("the tool to run", Duration::from_secs(20), || async {
        (word(&server, conversation).await == "calling_tools" && !ledger.entries().is_empty()).then_some(())
    })
    .await;
    let (status, _) = server.post_json(&format!("/runs/{id}/cancel"), &json!({})).await;
    assert!(status.is_success(), "{status}");
    assert_eq!(server.finished(id).await["status"], "cancelled");
    assert_eq!(word(&server, conversation).await, "idle");
    // The cancelled run's open calls are answered, so the next message can be sent.
    let next = server.send(conversation, "again [[id:t]][[say:Here.]]", "queue").await;
    assert_eq!(server.finished(next["run"]["id"].as_str().unwrap()).await["status"], "completed");
    model.assert_history_was_sendable();

    let run = run_of(&server, "chat", "fail [[id:e]][[status:401]]").await;
    assert_eq!(word(&server, run["conversation_id"].as_str().unwrap()).await, "error");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_shown_to_the_model_and_ten_rounds_are_the_most() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run =
        run_of(&server, "chat", r#"q [[id:bad]][[call:calculate {"expression":"1/"}]][[next]][[say:It does not work.]]"#).await;
    assert_eq!(run["status"], "completed");
    let conversation = run["conversation_id"].as_str().unwrap();
    let results = server.messages(conversation).await;
    assert!(results.iter().any(|message| message["role"] == "tool" && message["parts"][0]["is_error"] == true), "{results:?}");
    assert_eq!(shape(&server, conversation).await.last().unwrap().1, ["text"]);
    let run = run_of(&server, "chat", &rounds("ten", 15)).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("max_rounds")));
    assert_eq!(model.exchanges("ten").len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn network_failure_is_retried_with_growing_backoff() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    // No process listens on this port.
    let site = site
        .env("CAPSTAN_PROVIDERS__DEAD__KIND", "openai")
        .env("CAPSTAN_PROVIDERS__DEAD__BASE_URL", "http://127.0.0.1:9/v1")
        .env("CAPSTAN_PROVIDERS__DEAD__KEY_ENV", "OPENAI_API_KEY");
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "q", "agent": "chat", "model": "dead/mock"})).await;
    let (run, back) = tokio::join!(
        server.finished(run["id"].as_str().unwrap()),
        run_of(&server, "chat", "q [[id:back]][[flaky:2,502]][[say:Here.]]")
    );
    let waits = async |run: &Value| -> Vec<u64> {
        let events = server.run_events_json(run["id"].as_str().unwrap()).await;
        said(&events, "run.retrying").iter().map(|data| data["after_ms"].as_u64().unwrap()).collect()
    };
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("provider_network")), "{run}");
    assert_eq!(waits(&run).await, [1_000, 2_000, 4_000]);
    assert_eq!(back["status"], "completed", "{back}");
    assert_eq!(waits(&back).await, [1_000, 2_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_cannot_be_read_are_kept_as_they_were_written() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = run_of(&server, "chat", r#"q [[id:raw]][[wrote:calculate {"expression": "1+]][[next]][[say:Sorry.]]"#).await;
    assert_eq!(run["status"], "completed", "{run}");
    let kept = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(kept[1]["parts"][0]["arguments"], json!({"_raw": r#"{"expression": "1+"#}));
    assert_eq!((&kept[2]["role"], &kept[2]["parts"][0]["is_error"]), (&json!("tool"), &json!(true)));
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_connected_again_after_a_restart() {
    let (model, site, mut server) = Site::start_scripted(Kind::Sqlite).await;
    let ledger = &site.ledger;
    let script = |text: &str| format!(r#"q [[id:{text}]][[call:ledger__append {{"text":"{text}"}}]][[next]][[say:Written.]]"#);
    let run = run_of(&server, "chat", &script("before")).await;
    server.signal("TERM").await;
    server.exit().await;
    ledger.no_server_left().await;
    let server = site.start().await;
    // The client does not have to reconnect: the next message has the tools.
    let next = json!({"input": script("after"), "agent": "chat", "conversation_id": run["conversation_id"]});
    let next = server.start_run(&next).await;
    assert_eq!(server.finished(next["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!((ledger.count("append", "before"), ledger.count("append", "after")), (1, 1));
    model.assert_history_was_sendable();
}

/// Returns its list of conversations with its own status words.
async fn listed(server: &Server) -> Vec<Value> {
    server.get_json("/conversations?words=chat").await["data"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_listed_switched_and_deleted() {
    let (model, site, mut server) = Site::start_scripted(Kind::Sqlite).await;
    let rain = "What's the weather like in Rome, today? And is it going to rain (or even to snow!) tomorrow, in the evening?";
    let rome = run_of(&server, "chat", &format!("{rain} [[id:rome]][[say:Sunny.]]")).await;
    let fails = r#"Tea [[id:tea]][[call:calculate {"expression":"1"}]][[next]][[status:400]]"#;
    let tea = run_of(&server, "chat", fails).await;
    let (rome, tea) = (rome["conversation_id"].as_str().unwrap(), tea["conversation_id"].as_str().unwrap());

    // Title, time and status, newest first.
    let shown = listed(&server).await;
    let ids: Vec<(&Value, &Value)> = shown.iter().map(|one| (&one["id"], &one["word"])).collect();
    assert_eq!(ids, [(&json!(tea), &json!("error")), (&json!(rome), &json!("idle"))]);
    let times = |one: &Value| ["created_at", "updated_at"].map(|field| one[field].as_str().unwrap().to_owned());
    for one in &shown {
        let [made, changed] = times(one);
        assert!(made.ends_with('Z') && made <= changed, "{one}");
    }
    // A title is the beginning of the first message, shortened if it is long.
    let titles: Vec<&str> = shown.iter().map(|one| one["title"].as_str().unwrap()).collect();
    assert!(titles[0].starts_with("Tea"), "{titles:?}");
    assert!(titles[1].starts_with("What's the weather like in Rome, today?") && rain.starts_with(titles[1]), "{titles:?}");
    assert!(titles[1].chars().count() < rain.chars().count() && titles[1].chars().count() <= 255, "{titles:?}");

    // Switching back continues each conversation at its last state.
    let goes_on = async |conversation: &str, id: &str| -> String {
        let input = format!("And now? [[id:{id}]][[say:Here.]]");
        let run = server.start_run(&json!({"input": input, "agent": "chat", "conversation_id": conversation})).await;
        assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
        model.exchanges(id)[0].request["messages"].to_string()
    };
    let (of_rome, of_tea) = (goes_on(rome, "rome2").await, goes_on(tea, "tea2").await);
    assert!(of_rome.contains("Sunny.") && !of_rome.contains("[[id:tea]]"), "{of_rome}");
    assert!(of_tea.contains("[[id:tea]]") && !of_tea.contains("Sunny."), "{of_tea}");
    let later = listed(&server).await;
    assert_eq!(later.len(), 2);
    for (after, before) in later.iter().zip(&shown) {
        assert!(times(after)[1] > times(before)[1], "the update time increases: {after}");
        assert_eq!((&after["id"], &after["title"]), (&before["id"], &before["title"]));
    }
    assert_eq!((&later[0]["id"], &later[0]["word"]), (&json!(tea), &json!("idle")));

    // The original code lost the deletion of the last conversation.
    for (conversation, left) in [(tea, vec![json!(rome)]), (rome, Vec::new())] {
        let path = format!("/conversations/{conversation}");
        let gone = server.request(Method::DELETE, &path).send().await.unwrap();
        assert_eq!(gone.status(), StatusCode::NO_CONTENT);
        assert_eq!(server.get(&path).send().await.unwrap().status(), StatusCode::NOT_FOUND);
        let ids: Vec<Value> = listed(&server).await.iter().map(|one| one["id"].clone()).collect();
        assert_eq!(ids, left);
    }
    server.signal("TERM").await;
    server.exit().await;
    let server = site.start().await;
    assert_eq!(listed(&server).await, Vec::<Value>::new());
    model.assert_history_was_sendable();
}

/// Both names are sanitized to `my_server`. The original code mixed the two servers up.
#[tokio::test(flavor = "multi_thread")]
async fn servers_with_colliding_clean_names_are_distinct() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let ledgers = ["one", "two"].map(|name| ledger_of(&site, name));
    let site = site.mcp(json!({"mcpServers": {"my server": ledgers[0].mcp_server(), "my.server": ledgers[1].mcp_server()}}));
    let server = site.start().await;
    let names: [String; 2] = wait::until("the tools of both", Duration::from_secs(60), || async {
        let tools = server.get_json("/tools").await["data"].as_array().unwrap().clone();
        let name = |of: &str| {
            let tool = tools.iter().find(|tool| tool["server"] == of && tool["tool"] == "append")?;
            Some(tool["name"].as_str()?.to_owned())
        };
        Some([name("my server")?, name("my.server")?])
    })
    .await;
    assert!(names[0] != names[1] && names.iter().all(|name| name.starts_with("my_server")), "{names:?}");
    let calls = format!(r#"[[call:{} {{"text":"first"}}]][[call:{} {{"text":"second"}}]]"#, names[0], names[1]);
    let run = run_of(&server, "chat", &format!("q [[id:same]]{calls}[[next]][[say:Both are written.]]")).await;
    assert_eq!((&run["status"], &run["finish_reason"]), (&json!("completed"), &json!("stop")), "{run}");
    let offered = model.exchanges("same")[0].request["tools"].to_string();
    assert!(names.iter().all(|name| offered.contains(&format!("{name:?}"))), "{offered}");
    let written = ledgers.each_ref().map(|ledger| ledger.entries().into_iter().map(|entry| entry.arguments).collect::<Vec<_>>());
    assert_eq!(written, [vec![json!({"text": "first"})], vec![json!({"text": "second"})]]);
    model.assert_history_was_sendable();
}
