//! Numbers and the order of keys, from the text of a model or a user to the bytes at a server, and back.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};

use super::approvals::waits;
use super::elicitation::asked;
use support::audit;
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;
use support::wire::Wire;

/// No number here fits a float exactly, and the keys are not in alphabetical order.
const ARGUMENTS: &str = r#"{"z":20000000000000000001,"a":1.10,"m":1e+2,"b":0.1}"#;

/// A site with one MCP server that records its input.
struct Recorded {
    site: Site,
    record: PathBuf,
}

fn recorded(site: Site, capstan: &Value) -> Recorded {
    let record = site.folder.path().join("record");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/verbatim.py");
    let entry = json!({"command": "python3", "args": [script, record], "capstan": capstan});
    Recorded { site: site.mcp(json!({"mcpServers": {"v": entry}})), record }
}

impl Recorded {
    /// Returns the lines that the server received, for calls and answers.
    fn lines(&self) -> Vec<String> {
        let record = std::fs::read_to_string(&self.record).unwrap_or_default();
        record.lines().map(str::to_owned).collect()
    }
}

/// Returns the body of an answer as sent.
async fn text(server: &Server, path: &str) -> String {
    let answer = server.get(path).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    answer.text().await.unwrap()
}

/// Posts a body as written.
async fn post(server: &Server, path: &str, body: &str) -> (StatusCode, String) {
    let request = server.request(reqwest::Method::POST, path).header(CONTENT_TYPE, "application/json");
    let answer = request.body(body.to_owned()).send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

/// Waits for the open approval.
async fn approval(server: &Server) -> String {
    let open = wait::until("an approval", Duration::from_secs(30), || async {
        let open = server.get_json("/approvals?status=pending").await;
        open["data"].as_array().unwrap().first().cloned()
    });
    format!("/approvals/{}", open.await["id"].as_str().unwrap())
}

/// Returns whether the pieces occur in the text in this order.
fn in_order(text: &str, pieces: &[&str]) -> bool {
    let mut rest = text;
    pieces.iter().all(|piece| {
        rest.split_once(piece).is_some_and(|(_, after)| {
            rest = after;
            true
        })
    })
}

#[rstest]
#[case::openai(Dialect::Openai, Kind::Sqlite)]
#[case::openai_postgres(Dialect::Openai, Kind::Postgres)]
#[case::responses(Dialect::Responses, Kind::Sqlite)]
#[case::anthropic(Dialect::Anthropic, Kind::Sqlite)]
#[case::gemini(Dialect::Gemini, Kind::Sqlite)]
#[case::ollama(Dialect::Ollama, Kind::Sqlite)]
#[tokio::test(flavor = "multi_thread")]
async fn call_arguments_are_kept_as_written_everywhere(#[case] dialect: Dialect, #[case] kind: Kind) {
    let arguments: Value = serde_json::from_str(ARGUMENTS).unwrap();
    let signature = if dialect.signs() { "EqQBCkYIBxgCKkD+/first==" } else { "" };
    let wire = Wire::play(vec![
        dialect.answer(Says { signature, text: "I keep it.", call: Some(("call_1", "v__keep", &arguments)) }),
        dialect.answer(Says { text: "Kept.", ..Says::default() }),
    ])
    .await;
    let mut site = Site::new(kind).await.short_leases().env("CAPSTAN_MODEL", dialect.model());
    for (name, value) in dialect.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let recorded = recorded(site, &json!({"approval": {"keep": "ask"}}));
    let mut server = recorded.site.start().await;
    let run = server.start_run(&json!({"input": "Keep it."})).await;
    let (id, conversation) = (run["id"].as_str().unwrap(), run["conversation_id"].as_str().unwrap());
    waits(&server, id).await;
    let path = approval(&server).await;
    let argued = format!(r#""arguments":{ARGUMENTS}"#);
    assert!(text(&server, &path).await.contains(&argued));

    // A restarted server reads the stored rows.
    server.kill9().await;
    server = recorded.site.start().await;
    waits(&server, id).await;
    assert!(text(&server, &path).await.contains(&argued));
    assert_eq!(post(&server, &path, r#"{"decision":"allow"}"#).await.0, StatusCode::OK);
    assert_eq!(server.finished(id).await["status"], "completed");

    let lines = recorded.lines();
    assert!(lines.len() == 1 && lines[0].contains(&argued), "{lines:?}");
    let bodies: Vec<String> = wire.asked().iter().map(|asked| String::from_utf8_lossy(&asked.body).replace("\\\"", "\"")).collect();
    let schema = ["\"z\":{", "\"maximum\":20000000000000000002", "\"a\":{", "\"minimum\":1.10", "\"m\":{", "\"b\":{"];
    assert!(in_order(&bodies[0], &schema), "{}", bodies[0]);
    assert!(bodies[1].contains(ARGUMENTS), "{}", bodies[1]);
    assert!(bodies[1].contains(r#"{"total":20000000000000000001,"each":1.10,"also":[0.1,1e-7]}"#), "{}", bodies[1]);

    let events = text(&server, &format!("/runs/{id}/events?limit=100")).await;
    let started = events.split("\"type\":\"").find(|event| event.starts_with("tool.started")).unwrap();
    assert!(started.contains(&argued), "{started}");
    assert!(text(&server, &format!("/conversations/{conversation}/messages")).await.contains(&argued));
    assert!(text(&server, &format!("/conversations/{conversation}/export")).await.contains(&argued));
    let call = server.messages(conversation).await[1]["parts"].as_array().unwrap().last().unwrap()["call_id"].clone();
    assert!(text(&server, &format!("/runs/{id}/tool-calls/{}", call.as_str().unwrap())).await.contains(&argued));
    audit::assert_sound(&recorded.site.database).await;

    // A copy through export and import. The record of the call stays with the original.
    let exported = text(&server, &format!("/conversations/{conversation}/export")).await;
    let (status, imported) = post(&server, "/conversations/import", &exported).await;
    assert_eq!(status, StatusCode::CREATED, "{imported}");
    let imported: Value = serde_json::from_str(&imported).unwrap();
    let copy = imported["id"].as_str().unwrap_or_else(|| imported["conversation"]["id"].as_str().unwrap());
    assert!(text(&server, &format!("/conversations/{copy}/messages")).await.contains(&argued));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn edited_arguments_are_sent_as_a_human_wrote_them(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let recorded = recorded(Site::scripted(kind, &model).await.short_leases(), &json!({"approval": {"keep": "ask"}}));
    let mut server = recorded.site.start().await;
    let run = server.start_run(&json!({"input": r#"[[id:edit]][[call:v__keep {"z":1}]][[next]][[say:bye]]"#})).await;
    let id = run["id"].as_str().unwrap();
    waits(&server, id).await;
    let path = approval(&server).await;

    let long = format!(r#"{{"decision":"allow","arguments":{{"z":{}}}}}"#, "9".repeat(1_001));
    let (status, refused) = post(&server, &path, &long).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(refused.contains("a number has 1001 characters, and at most 1000 are accepted: send it as a string"), "{refused}");
    // Above the schema's limit by one, a difference that a float loses.
    let (status, refused) = post(&server, &path, r#"{"decision":"allow","arguments":{"z":20000000000000000003}}"#).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(refused.contains("20000000000000000003 is greater than the maximum of 20000000000000000002"), "{refused}");

    let edited = r#"{"b":1.10,"z":20000000000000000001,"a":1.1000000000000000000001}"#;
    let (status, answer) = post(&server, &path, &format!(r#"{{"decision":"allow","arguments":{edited}}}"#)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert!(answer.contains(&format!(r#""edited_arguments":{edited}"#)), "{answer}");
    assert_eq!(server.finished(id).await["status"], "completed");
    assert!(recorded.lines()[0].contains(&format!(r#""arguments":{edited}"#)), "{:?}", recorded.lines());
    server.kill9().await;
    server = recorded.site.start().await;
    assert!(text(&server, &path).await.contains(&format!(r#""edited_arguments":{edited}"#)));
    audit::assert_sound(&recorded.site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn form_and_its_answer_keep_order_and_numbers(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let recorded = recorded(Site::scripted(kind, &model).await, &json!({"elicitation": true}));
    let server = recorded.site.start().await;
    let run = server.start_run(&json!({"input": "[[id:form]][[call:v__ask {}]][[next]][[say:bye]]"})).await;
    let question = asked(&server).await;
    let path = format!("/input-requests/{}", question["id"].as_str().unwrap());
    let shown = text(&server, &path).await;
    assert!(in_order(&shown, &["\"zip\":{", "\"amount\":{", "\"age\":{"]), "{shown}");

    let (status, refused) =
        post(&server, &path, r#"{"action":"accept","content":{"zip":"1","amount":0.09999999999999999999999}}"#).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{refused}");
    let content = r#"{"zip":"1","amount":1.10,"age":20000000000000000001}"#;
    let (status, answer) = post(&server, &path, &format!(r#"{{"action":"accept","content":{content}}}"#)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let lines = recorded.lines();
    assert!(lines[1].contains(&format!(r#""content":{content}"#)), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn form_of_a_model_keeps_the_order_of_its_fields() {
    let (model, _site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#)).await;
    let form = r#"{"type":"object","properties":{"zip":{"type":"string"},"amount":{"type":"number","minimum":0.10},"age":{"type":"integer"}}}"#;
    let call = format!(r#"[[call:ask_user {{"question":"Who?","form":{form}}}]]"#);
    let run = server.start_run(&json!({"input": format!("[[id:who]]{call}[[next]][[say:bye]]")})).await;
    let question = asked(&server).await;
    let path = format!("/input-requests/{}", question["id"].as_str().unwrap());
    let shown = text(&server, &path).await;
    assert!(shown.contains(form), "{shown}");
    let content = r#"{"zip":"1","amount":1.10,"age":20000000000000000001}"#;
    let (status, answer) = post(&server, &path, &format!(r#"{{"action":"accept","content":{content}}}"#)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let asked = model.exchanges("who");
    let told = asked.last().unwrap().request.to_string().replace("\\\"", "\"");
    assert!(told.contains(content), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn number_that_is_too_long_is_refused_with_its_reason() {
    let model = ModelMock::start().await;
    let recorded = recorded(Site::scripted(Kind::Sqlite, &model).await, &json!({}));
    let server = recorded.site.start().await;
    let long = format!(r#"{{"z":{}}}"#, "9".repeat(1_001));
    let script = format!(
        r#"[[id:long]][[wrote:v__keep {long}]][[next]][[wrote:v__keep {{"z":NaN}}]][[next]][[call:v__long {{}}]][[next]][[say:bye]]"#
    );
    let run = server.start_run(&json!({ "input": script })).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let results: Vec<String> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["parts"][0]["content"].to_string())
        .collect();
    assert!(results[0].contains("a number has 1001 characters, and at most 1000 are accepted"), "{results:?}");
    assert!(results[1].contains("not valid JSON") || results[1].contains("JSON"), "{results:?}");
    assert!(results[2].contains("its answer cannot be read: a number has 1001 characters"), "{results:?}");
    let lines = recorded.lines();
    assert!(lines.len() == 1 && lines[0].contains("\"long\""), "the first two calls reach no server: {lines:?}");
    model.assert_history_was_sendable();
}

#[rstest]
#[case::openai(Dialect::Openai)]
#[case::responses(Dialect::Responses)]
#[case::anthropic(Dialect::Anthropic)]
#[case::gemini(Dialect::Gemini)]
#[case::ollama(Dialect::Ollama)]
#[tokio::test(flavor = "multi_thread")]
async fn schema_of_an_answer_keeps_the_order_of_its_properties(#[case] dialect: Dialect) {
    let answer = r#"{"reasoning":"It is the total.","answer":20000000000000000001,"confidence":0.90}"#;
    let wire = Wire::play(vec![dialect.answer(Says { text: answer, ..Says::default() })]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", dialect.model());
    for (name, value) in dialect.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let server = site.start().await;
    let properties = r#"{"reasoning":{"type":"string"},"answer":{"type":"integer"},"confidence":{"type":"number"}}"#;
    let schema = format!(r#"{{"type":"object","properties":{properties},"required":["reasoning","answer","confidence"]}}"#);
    let body = format!(r#"{{"input":"How much?","options":{{"output_schema":{{"name":"sum","schema":{schema}}}}}}}"#);
    let (status, started) = post(&server, "/runs", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{started}");
    let started: Value = serde_json::from_str(&started).unwrap();
    let ended = server.finished(started["run"]["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let asked = String::from_utf8_lossy(&wire.asked()[0].body).into_owned();
    assert!(asked.contains(&format!(r#""properties":{properties}"#)), "{asked}");
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    assert_eq!(messages[1]["parts"].as_array().unwrap().last().unwrap()["text"], answer);
}
