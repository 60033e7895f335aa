//! Requests of the OpenAI Responses dialect.

use capstan::domain::conversation::message::{BinaryContent, Part, ReasoningPart, Role, TextPart, ToolContent};
use capstan::domain::model::{ModelErrorKind, ModelOptions, ModelRequest, OutputSchema, ReasoningEffort, ToolChoice};
use capstan::provider::ClientOptions;
use capstan::provider::responses::client;
use capstan::support::ids::SequentialIds;
use rstest::rstest;
use serde_json::{Value, json};

use super::{completed, events, message as said_message};
use crate::drive::{ask_through, call, call_id, file, message, options, question, request, text_file};
use support::wire::{Answer, Wire};

fn answer() -> Answer {
    Answer::stream(events(&[completed(json!([said_message("m", "ok")]))]))
}

async fn asked(request: ModelRequest) -> Value {
    let wire = Wire::play(vec![answer()]).await;
    ask_through(client(options(&wire)).unwrap().as_ref(), request).await.finish();
    wire.asked()[0].json()
}

#[tokio::test]
async fn a_plain_question() {
    let wire = Wire::play(vec![answer()]).await;
    let mut request = question();
    request.tools.truncate(1);
    request.model = "gpt-5".to_owned();
    request.options = ModelOptions {
        temperature: Some(0.5),
        top_p: Some(1.0),
        max_output_tokens: Some(100),
        seed: Some(7),
        tool_choice: Some(ToolChoice::Tool("get_weather".to_owned())),
        output_schema: Some(OutputSchema { name: "a".to_owned(), schema: json!({"type": "object"}), strict: true }),
        reasoning_effort: Some(ReasoningEffort::Low),
        ..ModelOptions::default()
    };
    ask_through(client(options(&wire)).unwrap().as_ref(), request).await.finish();
    let asked = &wire.asked()[0];
    assert!(asked.head.starts_with("POST /v1/responses HTTP/1.1\r\n"), "{}", asked.head);
    assert!(asked.head.contains("authorization: Bearer sk-canary-0123456789\r\n"), "{}", asked.head);
    assert_eq!(
        asked.json(),
        json!({
            "model": "gpt-5", "instructions": "be brief",
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "tools": [{"type": "function", "name": "get_weather", "description": "does get_weather",
                "parameters": {"type": "object", "properties": {}}, "strict": false}],
            "tool_choice": {"type": "function", "name": "get_weather"},
            "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": true}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "max_output_tokens": 100,
            "include": ["reasoning.encrypted_content"], "store": false, "stream": true,
        })
    );
}

// Models without reasoning refuse the reasoning parameter.
#[tokio::test]
async fn a_model_that_does_not_reason() {
    let wire = Wire::play(vec![Answer::json(200, r#"{"status":"completed","output":[]}"#)]).await;
    let mut request = question();
    request.model = "gpt-4.1".to_owned();
    request.options.reasoning_effort = Some(ReasoningEffort::High);
    (request.system, request.tools) = (String::new(), Vec::new());
    let options = ClientOptions { is_streaming: false, ..options(&wire) };
    ask_through(client(options).unwrap().as_ref(), request).await.finish();
    let input = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]);
    assert_eq!(wire.asked()[0].json(), json!({"model": "gpt-4.1", "input": input, "store": false, "stream": false}));
}

#[rstest]
#[case(ToolChoice::Auto, json!("auto"))]
#[case(ToolChoice::None, json!("none"))]
#[case(ToolChoice::Required, json!("required"))]
#[tokio::test]
async fn tool_choices(#[case] choice: ToolChoice, #[case] expected: Value) {
    let mut request = question();
    request.options.tool_choice = Some(choice);
    assert_eq!(asked(request).await["tool_choice"], expected);
}

#[tokio::test]
async fn option_without_wire_form_is_refused() {
    let wire = Wire::play(vec![answer()]).await;
    let mut request = question();
    request.options.stop = vec!["END".to_owned()];
    let error = ask_through(client(options(&wire)).unwrap().as_ref(), request).await.end.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::InvalidRequest);
    assert!(error.message.contains("options.stop"), "{error}");
    assert!(wire.asked().is_empty());
}

// L-33, L-34: reasoning items are sent back unchanged and in their position. L-28: ids.
#[tokio::test]
async fn a_history_with_reasoning_and_calls() {
    let ids = SequentialIds::default();
    let (call_a, result_a) = call(&ids, Some("call_x"), json!({"zone": "UTC"}), "noon");
    let (call_b, result_b) = call(&ids, None, json!({"_raw": "{"}), "");
    let own = |part: Part, id: &str| match part {
        Part::ToolCall(mut call) => {
            call.raw = Some(json!({"id": id}));
            Part::ToolCall(call)
        }
        _ => panic!("no call"),
    };
    let (call_a, call_b) = (own(call_a, "fc_1"), own(call_b, "fc_2"));
    let id_b = call_id(&call_b);
    let Part::ToolResult(mut with_image) = result_b else { panic!("no result") };
    with_image.content = vec![ToolContent::text("see"), ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="))];
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g\u{e4}+/=="});
    let kept_there = json!({"type": "reasoning", "id": "rs_2", "summary": []});
    let text = |id, text: &str| Part::Text(TextPart { id, text: text.to_owned() });
    let thought = |id, raw: Option<&Value>| Part::Reasoning(ReasoningPart { id, text: "hm".to_owned(), raw: raw.cloned() });

    let history = vec![
        message(&ids, Role::User, |id| vec![text(id(), "when?")]),
        message(&ids, Role::Assistant, |id| {
            vec![thought(id(), None), thought(id(), Some(&item)), text(id(), "Let me "), text(id(), "see."), call_a]
        }),
        message(&ids, Role::Tool, |_| vec![result_a]),
        // The provider does not store the items, so it refuses one without its content, and a call that refers to it.
        message(&ids, Role::Assistant, |id| vec![thought(id(), Some(&kept_there)), call_b, thought(id(), Some(&item))]),
        message(&ids, Role::Tool, |_| vec![Part::ToolResult(with_image)]),
    ];
    assert_eq!(
        asked(request(history)).await["input"],
        json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "when?"}]},
            item,
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "Let me "}, {"type": "output_text", "text": "see."}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_x", "name": "get_time", "arguments": "{\"zone\":\"UTC\"}"},
            {"type": "function_call_output", "call_id": "call_x", "output": "noon"},
            {"type": "function_call", "call_id": id_b, "name": "get_time", "arguments": "{\"_raw\":\"{\"}"},
            {"type": "function_call_output", "call_id": id_b, "output": [
                {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
        ])
    );
}

#[tokio::test]
async fn pictures_and_files() {
    let ids = SequentialIds::default();
    let pdf = "application/pdf";
    let history = vec![message(&ids, Role::User, |id| {
        vec![
            Part::Image(file(id(), "image/png", Some("https://host/a.png"), None)),
            Part::Image(file(id(), "image/png", None, Some("lost.png"))),
            Part::File(file(id(), pdf, Some("data:application/pdf;base64,AA=="), Some("a.pdf"))),
            Part::File(file(id(), pdf, Some("https://host/a.pdf"), None)),
            text_file(id(), "hi"),
            Part::File(file(id(), "application/zip", Some("https://host/a.zip"), Some("a.zip"))),
        ]
    })];
    assert_eq!(
        asked(request(history)).await["input"][0]["content"],
        json!([
            {"type": "input_image", "image_url": "https://host/a.png"},
            {"type": "input_text", "text": "[image lost.png, image/png: not sent to the model]"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
            {"type": "input_file", "file_url": "https://host/a.pdf"},
            {"type": "input_text", "text": "[file a.txt, text/plain]\nhi"},
            {"type": "input_text", "text": "[file a.zip, application/zip: not sent to the model]"},
        ])
    );
}
