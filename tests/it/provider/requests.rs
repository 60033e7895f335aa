//! Requests of chat completions.

use capstan::domain::conversation::message::{BinaryContent, Part, ReasoningPart, Role, ToolContent};
use capstan::domain::ids::PartId;
use capstan::domain::model::ModelOptions;
use capstan::provider::{Quirks, openai};
use capstan::support::ids::SequentialIds;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::drive::{DONE, ask, call, call_id, delta, file, finish, message, options, question, request, text_part};
use support::wire::{Answer, Wire};

fn answer() -> Answer {
    Answer::stream([delta(json!({"content": "ok"})), finish("stop"), DONE.to_owned()].concat())
}

async fn asked(request: capstan::domain::model::ModelRequest) -> Value {
    let wire = Wire::play(vec![answer()]).await;
    ask(options(&wire), request).await.finish();
    wire.asked()[0].json()
}

#[tokio::test]
async fn a_plain_question() {
    let wire = Wire::play(vec![answer()]).await;
    let mut request = question();
    request.options = ModelOptions {
        temperature: Some(0.5),
        top_p: Some(1.0),
        max_output_tokens: Some(100),
        seed: Some(-1),
        ..ModelOptions::default()
    };
    request.tools.truncate(1);
    ask(options(&wire), request.clone()).await.finish();
    let asked = &wire.asked()[0];
    assert!(asked.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", asked.head);
    assert!(asked.head.contains("authorization: Bearer sk-canary-0123456789\r\n"), "{}", asked.head);
    let function =
        json!({"name": "get_weather", "description": "does get_weather", "parameters": {"type": "object", "properties": {}}});
    assert_eq!(
        asked.json(),
        json!({
            "model": "gpt-x",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "temperature": 0.5, "top_p": 1.0, "max_tokens": 100, "seed": -1,
            "stream": true, "stream_options": {"include_usage": true},
        })
    );

    request.model = "gpt-5-mini".to_owned();
    request.options = ModelOptions { max_output_tokens: Some(7), ..ModelOptions::default() };
    (request.system, request.tools) = (String::new(), Vec::new());
    assert_eq!(
        self::asked(request).await,
        json!({
            "model": "gpt-5-mini", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7,
            "stream": true, "stream_options": {"include_usage": true},
        })
    );
}

// L-28: a provider's call id is sent back to it, but is unique in each request.
#[tokio::test]
async fn a_history_with_calls() {
    let ids = SequentialIds::default();
    let (call_a, result_a) = call(&ids, Some("call_x"), json!({"zone": "UTC"}), "noon");
    let (call_b, result_b) = call(&ids, None, json!({}), "");
    let (call_c, result_c) = call(&ids, Some("call_x"), json!({"_raw": "{broken"}), "night");
    let (id_b, id_c) = (call_id(&call_b), call_id(&call_c));
    let Part::ToolResult(mut with_image) = result_b else { panic!("no result") };
    with_image.content = vec![ToolContent::text("see"), ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="))];

    let history = vec![
        message(&ids, Role::User, |id| vec![text_part(id(), "when?")]),
        message(&ids, Role::Assistant, |id| {
            let thought = ReasoningPart { id: id(), text: "hm".to_owned(), raw: None };
            vec![Part::Reasoning(thought), text_part(id(), "Let me "), text_part(id(), "see."), call_a, call_b]
        }),
        message(&ids, Role::Tool, |_| vec![result_a, Part::ToolResult(with_image)]),
        message(&ids, Role::Assistant, |_| vec![]),
        message(&ids, Role::User, |id| vec![text_part(id(), "again")]),
        message(&ids, Role::Assistant, |_| vec![call_c]),
        message(&ids, Role::Tool, |_| vec![result_c]),
    ];
    let function = |arguments: &str| json!({"name": "get_time", "arguments": arguments});
    assert_eq!(
        asked(request(history)).await["messages"],
        json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "when?"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [
                {"id": "call_x", "type": "function", "function": function("{\"zone\":\"UTC\"}")},
                {"id": id_b, "type": "function", "function": function("{}")}]},
            {"role": "tool", "tool_call_id": "call_x", "content": "noon"},
            {"role": "tool", "tool_call_id": id_b, "content": "see\n[image, image/png: shown in the next message]"},
            {"role": "user", "content": [
                {"type": "text", "text": "[images of the result of get_time]"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {"type": "text", "text": "again"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": id_c, "type": "function", "function": function("{\"_raw\":\"{broken\"}")}]},
            {"role": "tool", "tool_call_id": id_c, "content": "night"},
        ])
    );
}

#[tokio::test]
async fn pictures_and_files() {
    let ids = SequentialIds::default();
    let file = |id: PartId, url: Option<&str>, name: Option<&str>| file(id, "image/png", url, name);
    let history = vec![
        message(&ids, Role::User, |id| {
            vec![
                text_part(id(), "look"),
                Part::Image(file(id(), Some("data:image/png;base64,AA=="), None)),
                Part::Image(file(id(), None, Some("lost.png"))),
                Part::File(file(id(), Some("https://host/a"), None)),
            ]
        }),
        message(&ids, Role::User, |id| vec![Part::Image(file(id(), Some("https://host/b.png"), None))]),
        message(&ids, Role::User, |_| vec![]),
    ];
    assert_eq!(
        asked(request(history)).await["messages"],
        json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {"type": "text", "text": "[image lost.png, image/png: not sent to the model]"},
                {"type": "text", "text": "[file without a name, image/png: not sent to the model]"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://host/b.png"}}]},
            {"role": "user", "content": ""},
        ])
    );
}

#[tokio::test]
async fn a_finished_answer_leaves_the_connection_for_the_next() {
    let wire = Wire::play(vec![answer()]).await;
    let client = openai::client(options(&wire), Quirks::default()).unwrap();
    for _ in 0..5 {
        let events: Vec<_> = client.stream(question()).await.unwrap().collect().await;
        assert!(events.iter().all(Result::is_ok));
    }
    assert_eq!(wire.asked().len(), 5);
    // On a busy machine, the end of a body may arrive late, but not every time.
    assert!(wire.connections() < 5, "{} connections", wire.connections());
}

// L-33: fields of a message are sent back byte for byte, independent of the quirks for reasoning.
#[tokio::test]
async fn signatures_of_messages_go_back() {
    let ids = SequentialIds::default();
    let fields = json!({"extra_content": {"google": {"thought_signature": "Cv/+==\u{e9}"}}, "reasoning_opaque": "sealed=="});
    let raw = Some(json!({"message": fields}));
    let signed = message(&ids, Role::Assistant, |id| {
        vec![text_part(id(), "Hello"), Part::Reasoning(ReasoningPart { id: id(), text: String::new(), raw })]
    });
    let messages = vec![
        message(&ids, Role::User, |id| vec![text_part(id(), "hi")]),
        signed,
        message(&ids, Role::User, |id| vec![text_part(id(), "more")]),
    ];
    let body = asked(request(messages)).await;
    let mut expected = fields;
    expected["role"] = "assistant".into();
    expected["content"] = "Hello".into();
    assert_eq!(body["messages"][2], expected);
}
