//! The harness itself: a mock that accepts every request would prove nothing.

use serde_json::json;

use support::model::ModelMock;

async fn ask(mock: &ModelMock, messages: serde_json::Value) -> (u16, String) {
    let body = json!({"model": "mock", "stream": true, "stream_options": {"include_usage": true}, "messages": messages});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.post(format!("{}/chat/completions", mock.base_url)).json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn model_follows_its_script_by_rounds() {
    let mock = ModelMock::start().await;
    let script = r#"[[id:a]][[call:t {"x":1}]][[call:u {"y":2}]][[next]][[text:2,0]]"#;
    let (status, first) = ask(&mock, json!([{"role": "user", "content": script}])).await;
    assert_eq!(status, 200);
    assert!(first.contains(r#""name":"t""#) && first.contains(r#""name":"u""#) && first.contains("tool_calls"), "{first}");
    let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let answered = json!([
        {"role": "user", "content": script},
        {"role": "assistant", "content": null, "tool_calls": [call("c1", "t"), call("c2", "u")]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
    ]);
    let (status, second) = ask(&mock, answered).await;
    assert_eq!(status, 200);
    assert!(second.contains("r2t0 ") && second.contains("r2t1 ") && second.ends_with("data: [DONE]\n\n"), "{second}");
    assert_eq!(mock.exchanges("a").iter().map(|exchange| exchange.round).collect::<Vec<_>>(), [0, 1]);
    mock.assert_history_was_sendable();
}

#[tokio::test]
async fn model_refuses_histories_that_providers_refuse() {
    let mock = ModelMock::start().await;
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "t", "arguments": "{}"}});
    let user = json!({"role": "user", "content": "x"});
    let asked = json!({"role": "assistant", "tool_calls": [call("c1"), call("c2")]});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "1"});
    let refused = [
        json!([user, asked, result("c1")]),
        json!([user, asked, result("c2"), result("c1")]),
        json!([user, asked, result("c1"), result("c2"), result("c2")]),
        json!([user, asked, user, result("c1"), result("c2")]),
        json!([user, result("c1")]),
        json!([user, {"role": "assistant", "content": ""}, user]),
        json!([{"role": "assistant", "content": "x"}, user]),
        json!([user, {"role": "assistant", "content": "x"}]),
    ];
    for history in refused {
        assert_eq!(ask(&mock, history.clone()).await.0, 400, "{history}");
    }
    let accepted = json!([user, asked, result("c1"), result("c2")]);
    assert_eq!(ask(&mock, accepted).await.0, 200);
}

#[tokio::test]
async fn model_notes_who_hangs_up() {
    let mock = ModelMock::start().await;
    let body = json!({"model": "mock", "stream": true, "messages": [{"role": "user", "content": "[[id:h]][[text:1,0]][[hold]]"}]});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut answer = client.post(format!("{}/chat/completions", mock.base_url)).json(&body).send().await.unwrap();
    assert!(answer.chunk().await.unwrap().is_some());
    drop(answer);
    let seen = mock.wait_for("the hang-up", "h", |seen| seen.first().is_some_and(|first| first.hung_up.is_some())).await;
    assert!(!seen[0].finished);
}
