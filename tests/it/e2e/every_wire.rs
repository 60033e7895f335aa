//! One run on all wires: started with the package of OpenAI, watched in `useChat`, decided over AG-UI, answered over the native API, and
//! read over MCP. The server is killed twice meanwhile.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::approvals;
use super::mcp_servers::installed;
use super::use_chat::{ChatPage, Pages, text};
use support::browser::Browser;
use support::database::Kind;
use support::repository::root;
use support::server::{Server, Site};
use support::sse::SseStream;
use support::wait;

const INPUT: &str = r#"[[id:wires]][[text:3,5]][[call:ledger__append {"text":"one"}]][[next]]
    [[text:5,5]][[hold]][[say:more ]][[call:look {"at":"door"}]][[next]][[say:bye]]"#;

/// Starts a task of the clients. The returned future waits for its result.
async fn begun(server: &Server, task: &str, arguments: &[&str]) -> impl Future<Output = Value> + use<> {
    let mut command = Command::new("node");
    command.arg(root().join("tests/it/e2e/clients/every_wire.mjs")).arg(installed().await.join("node_modules"));
    command.args([server.url.as_str(), task]).args(arguments).kill_on_drop(true);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let task = task.to_owned();
    async move {
        let output = wait::within(&task, Duration::from_secs(60), child.wait_with_output()).await.unwrap();
        assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Returns the texts and results of a list of parts, which a function reads.
fn shown<'p>(parts: impl Iterator<Item = &'p Value>, read: impl Fn(&Value) -> Part) -> Value {
    let (mut texts, mut results) = (Vec::new(), serde_json::Map::new());
    for part in parts {
        match read(part) {
            Part::Text(text) => texts.push(text),
            Part::Result(name, result) => drop(results.insert(name, json!(result))),
            Part::Other => {}
        }
    }
    json!({"texts": texts, "results": results})
}

enum Part {
    Text(String),
    Result(String, String),
    Other,
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

/// Reads a part of a native message.
fn native(part: &Value) -> Part {
    match part["type"].as_str().unwrap() {
        "text" => Part::Text(string(&part["text"])),
        "tool_result" => Part::Result(string(&part["name"]), string(&part["content"][0]["text"])),
        _ => Part::Other,
    }
}

/// Reads a part of a message in `useChat`.
fn ui(part: &Value) -> Part {
    match part["type"].as_str().unwrap() {
        "text" => Part::Text(string(&part["text"])),
        "dynamic-tool" => Part::Result(string(&part["toolName"]), string(&part["output"])),
        "tool-look" => Part::Result("look".to_owned(), string(&part["output"])),
        _ => Part::Other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_the_same_on_every_wire() {
    let pages = Pages::start().await;
    pages.chat(7).await;
    let (model, site, mut server) = Site::serve(async |model| pages.allowed(approvals::site(Kind::Sqlite, model).await)).await;
    let began = begun(&server, "begin", &[INPUT]).await.await;
    assert_eq!(began["asked"], json!(["message", "mcp_approval_request"]), "{began}");
    let (thread, response) = (string(&began["conversation"]), string(&began["response"]));
    let run = response.replace("resp_", "run_");

    let browser = Browser::start().await;
    let page = ChatPage { browser: &browser, id: &thread };
    browser.open(&pages.address("chat7", &server, &format!("id={thread}"))).await;
    page.shows(".text", "r1t2").await;
    page.shows(".tool[data-state=approval-requested]", "one").await;
    server.kill9().await;
    server = site.restarted(&server).await;

    // The page follows the answer to the decision, until the server is killed in the middle of it.
    let decided = begun(&server, "decide", &[&thread]).await;
    model.wait_for("the second answer", "wires", |seen| seen.len() == 2).await;
    page.act("resume").await;
    page.shows(".text:last-of-type", "r2t4").await;
    page.shows(".tool[data-state=output-available]", "one").await;
    server.kill9().await;
    page.is("error").await;
    model.release("wires");
    server = site.restarted(&server).await;
    let decided = decided.await;
    assert!(decided["lost"].as_u64().unwrap() > 0, "{decided}");

    // The page reads again what waits for a client.
    browser.reload().await;
    page.shows(".tool[data-name=look][data-state=input-available]", "door").await;
    let call = decided["pending"][0].clone();
    let results = json!({"results": [{"call_id": call, "content": "a door"}]});
    let (status, answer) = server.post_json(&format!("/runs/{run}/tool-results"), &results).await;
    assert_eq!(status, 202, "{answer}");

    let read = begun(&server, "read", &[&thread, &response]).await.await;
    let messages = server.messages(&thread).await;
    let parts =
        messages.iter().filter(|message| message["role"] != "user").flat_map(|message| message["parts"].as_array().unwrap());
    let whole = shown(parts, native);
    assert_eq!(whole["texts"], json!(["r1t0 r1t1 r1t2 ", "r3t0 r3t1 r3t2 r3t3 r3t4 more ", "bye"]), "{whole}");
    assert_eq!((&whole["results"]["look"], whole["results"].as_object().unwrap().len()), (&json!("a door"), 2), "{whole}");
    for wire in ["items", "agent", "hydrated", "joined"] {
        assert_eq!((wire, &read[wire]), (wire, &whole));
    }
    // The result of a function is the input of a response.
    let output = json!({"texts": whole["texts"], "results": {"ledger__append": whole["results"]["ledger__append"]}});
    assert_eq!(read["responses"], output);
    for facts in [&read["mcp"]["waited"], &read["mcp"]["read"]] {
        assert_eq!(
            (&facts["status"], &facts["text"], &facts["conversation_id"]),
            (&json!("completed"), &json!("bye"), &json!(thread)),
            "{facts}"
        );
    }
    assert_eq!(read["ended"], "bye", "{read}");
    // The agent has shown the part of the run after the decision.
    assert_eq!(decided["texts"], json!(whole["texts"].as_array().unwrap()[1..2]), "{decided}");

    let stream = server.get(&format!("/runs/{run}/events")).header("accept", "text/event-stream").send().await.unwrap();
    let events: Vec<Value> = SseStream::new(stream).all().await.iter().map(support::sse::Frame::json).collect();
    let completed: Vec<&Value> = events.iter().filter(|event| event["type"] == "message.completed").collect();
    let parts = completed.iter().flat_map(|event| event["data"]["message"]["parts"].as_array().unwrap());
    assert_eq!(shown(parts, native)["texts"], whole["texts"]);
    let done: Vec<Value> =
        events.iter().filter(|event| event["type"] == "tool.completed").map(|event| event["data"].clone()).collect();
    let results = shown(done.iter(), |call| Part::Result(string(&call["name"]), string(&call["content"][0]["text"])));
    assert_eq!(results["results"], whole["results"]);

    browser.reload().await;
    let messages = page.answer("bye").await;
    assert_eq!((messages.len(), text(&messages[0])), (2, INPUT.to_owned()), "{messages:#?}");
    assert_eq!(shown(messages[1]["parts"].as_array().unwrap().iter(), ui), whole);
    assert_eq!(site.ledger.count("append", "one"), 1);
    site.assert_sound(&model).await;
}
