//! Stop analysis seen through the API: a model that stops early, a model that asks back, and a model that claims work it has
//! not done.

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

async fn analysing(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::scripted(kind, model).await;
    let site = site.env("CAPSTAN_AGENT__RESPONSE_ANALYSIS__INCOMPLETE", "3");
    site.env("CAPSTAN_AGENT__RESPONSE_ANALYSIS__DEFLECTION", "3")
}

/// Runs to the end. Returns the run, its events and the messages of its conversation.
async fn finished(server: &Server, body: &Value) -> (Value, Vec<Value>, Vec<Value>) {
    let run = server.start_run(body).await;
    let id = run["id"].as_str().unwrap();
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    (run, server.run_events_json(id).await, messages)
}

/// Returns the assistant's texts that a client shows, from the stored messages.
fn shown(messages: &[Value]) -> Vec<&str> {
    let shown = messages.iter().filter(|message| message["role"] == "assistant" && message["internal"] != true);
    let parts = shown.flat_map(|message| message["parts"].as_array().unwrap());
    parts.filter_map(|part| part["text"].as_str()).collect()
}

/// Returns the messages that a client rebuilds from the event log alone.
fn followed(events: &[Value]) -> Vec<&Value> {
    let whole = events.iter().filter(|event| event["type"] == "message.completed" || event["type"] == "message.created");
    whole.map(|event| &event["data"]["message"]).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_tires_at_the_fourth_screenshot_goes_on(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::serve(async |model| analysing(kind, model).await).await;
    let pay = |n: u32| format!("[[call:ledger__pay {{\"text\":\"screenshot {n}\"}}]][[next]]");
    let tired = "I've renamed 3 files. There are 4 remaining.";
    let (first, rest): (String, String) = ((1..=3).map(pay).collect(), (4..=7).map(pay).collect());
    let script = format!("[[id:tired]]{first}[[say:{tired}]][[next]]{rest}[[say:All screenshots have been renamed.]]");
    let (run, events, messages) = finished(&server, &json!({"input": script})).await;

    for n in 1..=7 {
        assert_eq!(site.ledger.count("pay", &format!("screenshot {n}")), 1, "each screenshot once: {n}");
    }
    let seen = model.exchanges("tired");
    assert_eq!(seen.len(), 9);
    let request = seen[4].request["messages"].as_array().unwrap();
    let [.., said, told] = request.as_slice() else { panic!("{request:?}") };
    assert_eq!((&said["role"], &said["content"]), (&json!("assistant"), &json!(tired)));
    assert!(told["content"].as_str().unwrap().starts_with("You stopped before"), "{told}");

    let resets: Vec<_> =
        events.iter().filter(|event| event["type"] == "step.reset").map(|event| &event["data"]["reason"]).collect();
    assert_eq!(resets, ["continuation"]);
    assert_eq!(shown(&messages), ["All screenshots have been renamed."]);
    assert_eq!(followed(&events), messages.iter().collect::<Vec<_>>(), "the stream and the rows agree");
    for_clients_alone(&server, run["conversation_id"].as_str().unwrap(), &messages).await;
    site.assert_sound(&model).await;
}

/// Asserts that pages without internal messages contain all other messages.
async fn for_clients_alone(server: &Server, conversation: &str, messages: &[Value]) {
    let (mut listed, mut next) = (Vec::new(), Some(format!("/conversations/{conversation}/messages?limit=3&internal=false")));
    while let Some(path) = next.take() {
        let answer = server.get(&path).send().await.unwrap();
        let link = answer.headers().get("link").map(|link| link.to_str().unwrap().to_owned());
        next = link.map(|link| link.split_once("/api/v1").unwrap().1.split_once('>').unwrap().0.to_owned());
        let page: Value = answer.json().await.unwrap();
        listed.extend(page["data"].as_array().unwrap().clone());
    }
    let (internal, others): (Vec<_>, Vec<_>) = messages.iter().cloned().partition(|message| message["internal"] == true);
    assert_eq!((listed, internal.len()), (others, 2), "the incomplete answer and the nudge are internal");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_asks_back_is_believed_the_fourth_time(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::serve(async |model| analysing(kind, model).await).await;
    let asks = "[[next]][[say:Shall I go on with the rest?]]".repeat(3);
    let script = format!("[[id:asks]][[call:ledger__pay {{\"text\":\"rent\"}}]]{asks}[[next]][[say:I can't do the others.]]");
    let (run, events, messages) = finished(&server, &json!({"input": script})).await;
    assert_eq!(model.exchanges("asks").len(), 5);
    assert_eq!(events.iter().filter(|event| event["data"]["reason"] == "continuation").count(), 3);
    assert_eq!(shown(&messages), ["I can't do the others."]);

    // The next run sees the answer only, not the nudges.
    let again = json!({"input": "[[id:next]][[say:yes]]", "conversation_id": run["conversation_id"]});
    finished(&server, &again).await;
    let request = model.exchanges("next").remove(0).request;
    let said: Vec<_> =
        request["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap_or("")).collect();
    let [.., answer, _] = said.as_slice() else { panic!("{request}") };
    assert_eq!((said.len(), *answer), (6, "I can't do the others."), "{request}");

    let done =
        r#"[[id:done]][[call:ledger__pay {"text":"gas"}]][[next]][[say:All done, none remaining. Let me know if I can help.]]"#;
    finished(&server, &json!({"input": done})).await;
    assert_eq!(model.exchanges("done").len(), 2, "an answer that claims completion is accepted");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn claimed_but_missing_write_is_reported(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let notice = |events: &[Value]| events.last().unwrap()["data"]["notice"].clone();
    let (run, events, _) = finished(&server, &json!({"agent": "cms", "input": "[[id:a]][[say:I have updated the page.]]"})).await;
    assert_eq!(notice(&events), "nothing_written");
    let again = r#"[[id:b]][[call:ledger__pay {"text":"page"}]][[next]][[say:I have updated the page.]]"#;
    let (_, events, _) =
        finished(&server, &json!({"agent": "cms", "input": again, "conversation_id": run["conversation_id"]})).await;
    assert_eq!(notice(&events), Value::Null);
    let request = model.exchanges("b")[0].request["messages"].to_string();
    assert!(request.contains("Nothing was saved"), "{request}");
    let (_, events, _) = finished(&server, &json!({"input": "[[id:c]][[say:I have updated the page.]]"})).await;
    assert_eq!(notice(&events), Value::Null, "off by default");
    audit::assert_sound(&site.database).await;
}
