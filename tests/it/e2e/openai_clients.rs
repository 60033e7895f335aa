//! The official packages of OpenAI, and frameworks that speak its API, as clients: chat completions and responses, live, cut and read
//! again.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::mcp_servers::installed;
use support::database::Kind;
use support::model::ModelMock;
use support::repository::root;
use support::server::{Server, Site};
use support::vectors::{VectorsMock, vector};
use support::wait;

/// Returns the findings of a client.
async fn findings(what: &str, command: &mut Command) -> Value {
    let output = wait::within(what, Duration::from_secs(300), command.kill_on_drop(true).output()).await.unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Plays a task of the Python package.
async fn python(server: &Server, task: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new(installed().await.join("venv/bin/python"));
    command.arg(root().join("tests/it/e2e/clients/openai_client.py")).arg(&server.url).arg(task).args(arguments);
    findings(task, &mut command).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn openai_package_gets_chat_completions(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let found = python(&server, "chat", &["[[id:chat]][[reason:2,0]][[say:hello]]"]).await;
    for way in ["plain", "stream"] {
        assert_eq!(found[way], "hello", "{found}");
    }
    assert_eq!((&found["finish"], &found["ids"], &found["one"]), (&json!("stop"), &json!(1), &json!("default")), "{found}");
    assert!(found["usage"].as_u64().unwrap() > 0, "{found}");
    let refused = &found["refused"];
    assert_eq!((&refused["code"], &refused["param"]), (&json!("model_not_found"), &json!("model")), "{found}");
    assert!(refused["id"].is_string() && refused["message"].as_str().unwrap().contains("nobody"), "{found}");
    assert!(found["models"].as_array().unwrap().contains(&json!("default")), "{found}");
    assert_eq!(found["of_provider"], json!(["openai/mock", "openai/mock"]), "{found}");
    assert_eq!(found["no_model"], json!([404, "model_not_found"]), "{found}");

    let found = python(&server, "chat_tools", &[r#"[[id:tools]][[call:look {"at":"x"}]][[next]][[say:a red door]]"#]).await;
    let expected = json!({
        "finish": "tool_calls", "calls": [["look", {"at": "x"}]], "streamed": [[0, "look"]],
        "answer": "a red door", "third": "done",
    });
    assert_eq!(found, expected);
    // The client has seen its answers, and no conversation stays.
    assert_eq!(server.get_json("/conversations").await["data"], json!([]));
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_package_gets_embeddings() {
    let vectors = VectorsMock::start().await;
    let (_model, _site, server) = Site::serve(async |model| {
        let site = Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_PROVIDERS__VECTORS__KIND", "openai");
        let site = site.env("CAPSTAN_LIMITS__MAX_DAY_TOKENS_PER_OWNER", "40");
        site.env("CAPSTAN_PROVIDERS__VECTORS__BASE_URL", &vectors.base_url)
    })
    .await;
    let found = python(&server, "embeddings", &["vectors/small"]).await;
    assert_eq!(found["vectors"], json!([vector("an umbrella"), vector("a letter")]), "{found}");
    assert_eq!(found["same"], true, "{found}");
    assert_eq!((&found["unknown"][0], &found["unknown"][1]), (&json!(404), &json!(null)), "{found}");
    let asked = vectors.asked();
    assert_eq!((asked.len(), &asked[0].texts), (2, &vec!["an umbrella".to_owned(), "a letter".to_owned()]));
    // The provider has counted each byte.
    let day = &server.get_json("/usage").await["data"][0];
    let used = [&day["model"], &day["runs"], &day["usage"]["model_calls"], &day["usage"]["input_tokens"]];
    assert_eq!(json!(used), json!(["vectors/small", 0, 2, 27]), "{day}");
    assert_eq!(found["spent"][0], 402, "{found}");
    let reason = found["spent"][2].as_str().unwrap();
    assert!(reason.contains("27 of 40 tokens") && reason.contains("limits.max_day_tokens_per_owner"), "{reason}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn openai_package_gets_responses(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let found = python(&server, "responses", &["[[id:first]][[reason:2,0]][[text:3,0]]", "[[id:second]][[say:again]]"]).await;
    assert_eq!((&found["status"], &found["metadata"]), (&json!("completed"), &json!({"a": "b"})), "{found}");
    let types = found["types"].as_array().unwrap();
    assert_eq!((&types[0], types.last().unwrap()), (&json!("response.created"), &json!("response.completed")), "{found}");
    assert!(types.contains(&json!("response.reasoning_summary_text.delta")), "{found}");
    // The model counts its answers.
    let answer = |number: u32| json!(found["text"].as_str().unwrap().replace("r1", &format!("r{number}")));
    assert_eq!((&found["final"], &found["follow"]), (&answer(2), &json!("again")), "{found}");
    assert_eq!(found["hidden"], answer(4), "{found}");
    assert_eq!((&found["items"], &found["deleted"]), (&json!(["[[id:second]][[say:again]]"]), &json!(true)), "{found}");
    assert_eq!(found["missing"][0], "previous_response_id", "{found}");

    let input = r#"[[id:client]][[call:ledger__append {"text":"one"}]][[call:look {"at":"x"}]][[next]][[say:a door]]"#;
    let found = python(&server, "response_tools", &[input]).await;
    let expected = json!({
        "first": ["mcp_call", "function_call"], "calls": [["look", {"at": "x"}]], "unanswered": "input",
        "second": "a door", "previous": true, "again": true, "brought": [["function_call_output", true, "a door"]],
    });
    assert_eq!(found, expected);
    assert_eq!(site.ledger.count("append", "one"), 1);

    let found = python(&server, "cancel", &["[[id:endless]][[text:1,0]][[hold]]"]).await;
    assert_eq!(found, json!({"begun": "queued", "cancelled": "cancelled", "again": "cancelled"}));
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn openai_package_gets_responses_over_a_socket(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    // Without a time of grace, a run that seems to have lost its client would be cancelled at once.
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(kind, model).await.env("CAPSTAN_SERVER__COMPLETION_GRACE_MS", "0")).await;
    let inputs = ["[[id:one]][[reason:2,0]][[say:hello]]", "[[id:two]][[say:again]]"];
    let found =
        python(&server, "response_socket", &[inputs[0], inputs[1], "[[id:tool]][[call:look {}]][[next]][[say:a door]]"]).await;
    let expected = json!({
        "text": "hello", "follow": "again", "asked": ["function_call"], "answered": "a door",
        "refused": [
            [400, "invalid_request", "generate", null],
            [400, "invalid_request", "generate", "main"],
            [404, "previous_response_not_found", "previous_response_id", null],
        ],
        "steered": "steering_not_supported",
    });
    assert_eq!(found, expected);
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_follow_the_newest_and_need_every_output() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let calls = r#"[[id:chain]][[call:look {"at":"x"}]][[call:look {"at":"y"}]][[next]][[say:two doors]]"#;
    let found = python(&server, "response_chain", &[calls, r#"[[id:unstored]][[call:look {"at":"z"}]]"#]).await;
    assert_eq!(
        (&found["calls"], &found["second"], &found["unstored"]),
        (&json!(2), &json!("two doors"), &json!(["function_call"]))
    );
    let refused = |name: &str| (found[name][0].as_u64().unwrap(), found[name][1].as_str().unwrap_or_default().to_owned());
    assert_eq!(refused("part"), (400, "input".to_owned()), "{found}");
    assert!(found["part"][2].as_str().unwrap().contains("No tool output found for function call call_"), "{found}");
    assert_eq!(refused("early").0, 404, "{found}");
    assert_eq!(refused("invented"), (404, "previous_response_id".to_owned()), "{found}");
    assert_eq!(refused("stale"), (400, "previous_response_id".to_owned()), "{found}");
    for (name, param) in [("background", "background"), ("metadata", "metadata"), ("instructions", "instructions")] {
        assert_eq!(refused(name), (400, param.to_owned()), "{found}");
    }
    // No client can return to the run of a response that is not stored.
    wait::until("the run that waits for its client to be cancelled", Duration::from_secs(20), || async {
        server.log_text().contains("run ended status=\"cancelled\"").then_some(())
    })
    .await;
    let runs = server.get_json("/runs").await;
    assert_eq!(runs["data"].as_array().unwrap().len(), 1, "runs of hidden conversations are not listed: {runs}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn openai_package_keeps_conversations(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    // Calls in copies of conversations have no rows of their own, which the audit of the rows would ask for.
    let (model, _site, server) = Site::start_scripted(kind).await;
    let input = r#"[[id:talk]][[call:ledger__append {"text":"one"}]][[next]][[say:appended]]"#;
    let calls = "[[id:client]][[call:look {}]][[next]][[say:a red door]]";
    let found = python(&server, "conversations", &[input, "[[id:after]][[say:seen]]", calls]).await;
    assert_eq!(found["continued"], "a red door", "{found}");
    assert_eq!(found["types"], json!(["message", "message", "message", "mcp_call", "message"]));
    assert_eq!((&found["texts"], &found["answer"]), (&json!(["one", "two", input, "appended"]), &json!("appended")), "{found}");
    assert_eq!((&found["created"], &found["updated"]), (&json!({"a": "b"}), &json!({"c": "d"})), "{found}");
    assert_eq!(
        (&found["read"], &found["forked"], &found["cleared"]),
        (&json!({"c": "d"}), &json!({"c": "d"}), &json!({})),
        "{found}"
    );
    assert_eq!((&found["empty"], &found["deleted"]), (&json!([{}, 0]), &json!(true)), "{found}");
    assert_eq!(found["added"], json!(["five"]), "{found}");
    let request = &model.exchanges("after")[0].request["messages"];
    let messages = request.as_array().unwrap();
    let at = messages.iter().position(|message| message["content"] == "three").unwrap_or_else(|| panic!("{request}"));
    let [three, call, output, four, ..] = &messages[at..] else { panic!("{request}") };
    let of_call = [&call["tool_calls"][0]["function"]["name"], &output["content"], &four["content"]];
    assert_eq!((json!(of_call), &three["role"]), (json!(["look", "a door", "four"]), &json!("user")), "{request}");
    assert_eq!(call["tool_calls"][0]["id"], output["tool_call_id"], "{request}");
    let system = messages[0]["content"].as_str().unwrap();
    assert!(system.contains("Be brief.\n\nBe kind."), "{system}");
    for (name, status, param) in [
        ("long", 400, json!("metadata")),
        ("robot", 400, json!("items[0].role")),
        ("after", 400, json!("after")),
        ("many", 400, json!("items")),
        ("foreign", 404, Value::Null),
        ("removed", 400, Value::Null),
        ("no_item", 404, Value::Null),
        ("gone", 404, Value::Null),
        ("gone_items", 404, Value::Null),
    ] {
        assert_eq!((&found[name][0], &found[name][1]), (&json!(status), &param), "{name}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_package_answers_an_approval() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.env("CAPSTAN_AGENT__APPROVAL__TOOLS", r#"{ledger__append = "ask"}"#);
    let server = site.start().await;
    let input = |text: &str| format!(r#"[[id:{text}]][[call:ledger__append {{"text":"{text}"}}]][[next]][[say:appended]]"#);
    let found = python(&server, "approval", &[&input("one"), &input("two")]).await;
    let expected = json!({
        "request": ["ledger", "append"], "call": ["ledger", "append", "completed", true], "text": "appended",
        "brought": [["mcp_approval_response", true, true]], "resent": ["appended", true], "unknown": [400, "input"],
    });
    assert_eq!(found, expected);
    assert_eq!((site.ledger.count("append", "one"), site.ledger.count("append", "two")), (1, 1));
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_package_answers_a_question() {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#)).await;
    let ask = |id: &str, question: Value| format!("[[id:{id}]][[call:ask_user {question}]][[next]][[say:{id} is over]]");
    let choice = json!({"question": "Which one?", "choices": ["red", "blue"]});
    let form = json!({"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]});
    let form = json!({"question": "When?", "form": form});
    let inputs = [ask("choice", choice.clone()), ask("form", form), ask("chat", choice)];
    let found = python(&server, "question", &[&inputs[0], &inputs[1], &inputs[2], "[[id:resent]][[say:blue]]"]).await;
    assert_eq!(server.get_json("/runs?status=waiting").await["data"], json!([]));
    let expected = json!({
        "first": ["completed", "Which one?\n- red\n- blue"], "refused": 404,
        "second": ["completed", "choice is over", true], "brought": ["red"], "resent": "blue",
        "wrong": [400, "input"], "filled": "form is over", "chat": ["stop", "Which one?\n- red\n- blue"],
    });
    assert_eq!(found, expected);
    let answers: Vec<String> = ["choice", "form"]
        .map(|id| model.exchanges(id)[1].request["messages"].as_array().unwrap().last().unwrap()["content"].to_string())
        .into();
    assert!(answers[0].contains("red") && answers[1].contains("day"), "{answers:?}");
    // The client of a chat completion sends the question again, with its answer.
    wait::until("the run of the chat completion to be cancelled", Duration::from_secs(20), || async {
        server.log_text().contains("run ended status=\"cancelled\"").then_some(())
    })
    .await;
    site.assert_sound(&model).await;
}

// The task reads a list of files page after page, and does not end if a page repeats.
#[tokio::test(flavor = "multi_thread")]
async fn openai_package_knows_each_form_of_answer() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let found = python(&server, "forms", &[]).await;
    let expected = json!({
        "refused": [[400, "purpose"], [400, null], [400, "purpose"]], "content": "file 1", "deleted": true, "input": ["input_text", "input_image", "input_file", "input_file"],
        "chat": 2, "response": 2, "failed": ["failed", "server_error"],
        "events": ["response.created", "response.in_progress", "response.failed"],
    });
    assert_eq!(found, expected);
    site.assert_sound(&model).await;
}

#[rstest]
#[case::langchain("langchain_client.py", &["venv"], 3)]
#[case::litellm("litellm_client.py", &["venv-models"], 2)]
#[case::pydantic_ai("pydantic_ai_client.py", &["venv"], 3)]
#[case::ai_sdk_5("ai_sdk_openai_client.mjs", &["ai5", "ai-openai5"], 1)]
#[case::ai_sdk_7("ai_sdk_openai_client.mjs", &["ai7", "@ai-sdk/openai"], 1)]
#[tokio::test(flavor = "multi_thread")]
async fn frameworks_get_answers_and_execute_tools(#[case] script: &str, #[case] packages: &[&str], #[case] doors: usize) {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let (installed, path) = (installed().await, root().join("tests/it/e2e/clients").join(script));
    let mut command = match packages {
        [venv] => Command::new(installed.join(venv).join("bin/python")),
        _ => Command::new("node"),
    };
    command.arg(path);
    if packages.len() > 1 {
        command.arg(installed.join("node_modules")).args(packages);
    }
    let models = ["default", "openai/mock"];
    let all = findings(script, command.arg(&server.url).args(models)).await;
    for name in models {
        let found = &all[name];
        for api in ["chat", "responses"] {
            for way in ["plain", "stream"] {
                // Only agents have server tools, and only responses show their calls.
                let text = format!("{api}-{way}");
                let call = json!(["append", {"text": text}, format!("recorded {text}")]);
                let calls = if api == "chat" { json!([]) } else { json!([call]) };
                // The provider for version 5 cannot read calls of MCP servers in responses.
                let shows_servers = api == "chat" || packages[0] != "ai5";
                let appended = if name == "default" && shows_servers { json!([["before", "after"], calls]) } else { Value::Null };
                let looks = json!([["look", {"at": "x"}], ["look", {"at": "y"}], ["look", {"at": "z"}]]);
                let expected = json!({"words": 2, "usage": [10, 2], "loop": [looks, "three doors", "again"], "server": appended});
                assert_eq!(found[api][way], expected, "{script}, {name}, {api}, {way}");
                assert_eq!(site.ledger.count("append", &text), usize::from(shows_servers), "{script}, {name}");
            }
            assert_eq!(found[api]["doors"], json!(vec![json!({"color": "red", "height": 2}); doors]), "{script}, {name}, {api}");
            assert_eq!(found[api]["refused"], json!([404, true]), "{script}, {name}, {api}");
        }
    }
    // No run waits for calls that a client has answered. A client that asks for a door by a tool never answers that call.
    let waiting = server.get_json("/runs?status=waiting").await;
    let unanswered = if doors > 1 { 2 } else { 0 };
    assert_eq!(waiting["data"].as_array().unwrap().len(), unanswered, "{script}: {waiting}");
    model.assert_history_was_sendable();
}

// The server is killed while it streams, and the client returns with its cursor.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn background_response_resumes_after_killed_server(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
    let begun = python(&server, "begin", &["[[id:cut]][[text:40,50]]"]).await;
    let (id, seen) = (begun["id"].as_str().unwrap(), begun["seen"].as_array().unwrap());
    server.kill9().await;
    let server = site.start().await;
    let last = seen.last().unwrap()[0].to_string();
    let found = python(&server, "resume", &[id, &last]).await;
    assert_eq!(found["status"], "completed", "{found}");
    let rest = found["rest"].as_array().unwrap();
    let all: Vec<Value> = seen.iter().chain(rest).cloned().collect();
    assert_eq!(json!(all), found["whole"], "nothing is missing or doubled");
    assert_eq!(found["text"].as_str().unwrap().split_whitespace().count(), 40, "{found}");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_node_package_gets_chat_and_responses() {
    let packages = installed().await.join("node_modules");
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let mut command = Command::new("node");
    command.arg(root().join("tests/it/e2e/clients/openai_client.mjs")).arg(&packages).arg(&server.url);
    command.args(["[[id:node]][[text:4,0]]", "[[id:tool]][[call:look {}]][[next]][[say:a door]]"]);
    let found = findings("openai for Node", &mut command).await;
    // The model counts its answers.
    let answer = |number: u32| json!(found["plain"].as_str().unwrap().replace("r1", &format!("r{number}")));
    assert_eq!((&found["streamed"], &found["final"]), (&answer(2), &answer(5)), "{found}");
    assert_eq!((&found["call"], &found["answered"], &found["same"]), (&json!("look"), &json!("a door"), &json!(true)), "{found}");
    assert_eq!(found["types"].as_array().unwrap().last().unwrap(), "response.completed");
    assert_eq!(found["socket"], json!({"same": true, "text": answer(6)}), "{found}");
    assert_eq!((&found["refused"]["status"], &found["refused"]["code"]), (&json!(404), &json!("model_not_found")), "{found}");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_completion_without_its_client_is_cancelled() {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_SERVER__COMPLETION_GRACE_MS", "100"))
            .await;
    let body = json!({"model": "openai/mock", "stream": true, "messages": [{"role": "user", "content": "[[id:left]][[text:1,0]][[hold]]"}]});
    let mut answer = server.client.post(format!("{}/v1/chat/completions", server.url)).json(&body).send().await.unwrap();
    let mut read = String::new();
    let run = loop {
        read.push_str(&String::from_utf8_lossy(&answer.chunk().await.unwrap().expect("a chunk with the id")));
        if let Some((id, _)) = read.split_once("chatcmpl-").and_then(|(_, rest)| rest.split_once('"')) {
            break format!("run_{id}");
        }
    };
    drop(answer);
    wait::until("the run without its client to be cancelled", Duration::from_secs(20), || async {
        (server.get_json(&format!("/runs/{run}")).await["status"] == "cancelled").then_some(())
    })
    .await;
    site.assert_sound(&model).await;
}

async fn respond(server: &Server, key: &str, body: &Value) -> (u16, Value) {
    let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    let mut body = body.clone();
    (body["model"], body["tools"]) = (json!("openai/mock"), json!([tool]));
    let request = server.client.post(format!("{}/v1/responses", server.url)).header("idempotency-key", key).json(&body);
    let reply = request.send().await.unwrap();
    (reply.status().as_u16(), reply.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn response_that_is_not_stored_leaves_no_waiting_run() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let body = json!({"input": "[[id:gone]][[call:look {}]]", "store": false});
    let (status, response) = respond(&server, "gone", &body).await;
    assert_eq!((status, &response["output"][0]["type"]), (200, &json!("function_call")), "{response}");
    let run = response["id"].as_str().unwrap().replace("resp_", "run_");
    wait::until("the run that no request can answer to be cancelled", Duration::from_secs(20), || async {
        (server.get_json(&format!("/runs/{run}")).await["status"] == "cancelled").then_some(())
    })
    .await;
    assert_eq!(server.get_json("/runs").await["data"], json!([]), "no list shows a hidden conversation");
    let (status, refused) = respond(&server, "both", &json!({"input": "hi", "store": false, "background": true})).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("background")), "{refused}");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_outputs_get_the_same_response() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let input = r#"[[id:two]][[call:look {"at":"a"}]][[call:look {"at":"b"}]][[next]][[say:two doors]]"#;
    let (_, first) = respond(&server, "first", &json!({ "input": input })).await;
    let id = first["id"].as_str().unwrap();
    let calls: Vec<&Value> = first["output"].as_array().unwrap().iter().map(|item| &item["call_id"]).collect();
    assert_eq!(calls.len(), 2, "{first}");
    let output = |call: &Value| json!({"type": "function_call_output", "call_id": call, "output": "a door"});
    let half = json!({"input": [output(calls[0])], "previous_response_id": id});
    let (status, refused) = respond(&server, "half", &half).await;
    let expected = format!("No tool output found for function call {}.", calls[1].as_str().unwrap());
    assert_eq!((status, &refused["error"]["message"]), (400, &json!(expected)), "{refused}");
    assert_eq!(refused["error"]["type"], "invalid_request_error");

    let body = json!({"input": [output(calls[0]), output(calls[1])], "previous_response_id": id});
    let (one, other) = tokio::join!(respond(&server, "answer", &body), respond(&server, "answer", &body));
    assert_eq!((one.0, &one.1["id"]), (200, &json!(format!("{id}_1"))), "{}", one.1);
    assert_eq!(one, other, "concurrent repeats");
    assert_eq!(one, respond(&server, "answer", &body).await, "a later repeat");

    let invented = server.client.get(format!("{}/v1/responses/{id}_2?stream=true", server.url)).send().await.unwrap();
    assert_eq!(invented.status(), 404);
    let (status, refused) = respond(&server, "old", &json!({"input": "hi", "previous_response_id": id})).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("previous_response_id")), "{refused}");
    let missing = json!({"input": "hi", "previous_response_id": format!("{id}_7")});
    assert_eq!(respond(&server, "invented", &missing).await.0, 404);
    site.assert_sound(&model).await;
}
