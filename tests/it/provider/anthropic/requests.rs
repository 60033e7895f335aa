//! Requests of the Anthropic Messages dialect.

use std::sync::Arc;

use capstan::domain::conversation::message::{BinaryContent, Message, Part, ReasoningPart, Role, ToolContent};
use capstan::domain::ids::PartId;
use capstan::domain::model::{ModelOptions, ModelRequest, OutputSchema, ReasoningEffort, ToolChoice};
use capstan::provider::ClientOptions;
use capstan::support::ids::SequentialIds;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::drive::{call, call_id, file, message, options, plain, question, request, text_file, text_part};
use super::super::mutants;
use super::{begin, client, end, finish, text};
use support::wire::{Asked, Wire};

async fn asked_with(options_of: impl Fn(&Wire) -> ClientOptions, request: ModelRequest) -> Asked {
    mutants::asked_with(client, options_of, [begin(), text(0, "ok"), finish("end_turn"), end()].concat(), request).await
}

async fn asked(request: ModelRequest) -> Value {
    asked_with(options, request).await.json()
}

#[tokio::test]
async fn a_plain_question() {
    let given = ModelOptions {
        temperature: Some(1.5),
        max_output_tokens: Some(100),
        seed: Some(1),
        stop: vec!["END".to_owned()],
        ..ModelOptions::default()
    };
    let asked = asked_with(options, plain("claude-sonnet-4-5", given)).await;
    assert!(asked.head.starts_with("POST /v1/messages HTTP/1.1\r\n"), "{}", asked.head);
    assert!(asked.head.contains("x-api-key: sk-canary-0123456789\r\n"), "{}", asked.head);
    assert!(asked.head.contains("anthropic-version: 2023-06-01\r\n"), "{}", asked.head);
    assert!(!asked.head.contains("authorization"), "{}", asked.head);
    assert_eq!(
        asked.json(),
        json!({
            "model": "claude-sonnet-4-5", "max_tokens": 100, "system": "be brief",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "temperature": 1.0, "stop_sequences": ["END"], "stream": true,
        })
    );
}

#[tokio::test]
async fn where_it_is_asked() {
    for (base, line) in
        [("/anthropic", "POST /anthropic/v1/messages "), ("", "POST /v1/messages "), ("/v1/messages", "POST /v1/messages ")]
    {
        let at = |wire: &Wire| ClientOptions { base_url: wire.base_url.replace("/v1", base), ..options(wire) };
        let asked = asked_with(at, plain("claude-3-haiku-20240307", ModelOptions::default())).await;
        assert!(asked.head.starts_with(line), "{}", asked.head);
        assert_eq!(asked.json()["max_tokens"], 4_096);
    }
    let whole = |wire: &Wire| ClientOptions { is_streaming: false, ..options(wire) };
    assert_eq!(asked_with(whole, question()).await.json()["stream"], false);
}

#[tokio::test]
async fn tools_and_what_to_keep() {
    let mut request = question();
    request.model = "claude-opus-4-6".to_owned();
    request.options.tool_choice = Some(ToolChoice::Required);
    let tool = |name: &str| json!({"name": name, "description": format!("does {name}"), "input_schema": {"type": "object", "properties": {}}});
    let keep = json!({"type": "ephemeral"});
    assert_eq!(
        asked(request.clone()).await,
        json!({
            "model": "claude-opus-4-6", "max_tokens": 16384,
            "system": [{"type": "text", "text": "be brief", "cache_control": keep}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": keep}]}],
            "tools": [tool("get_weather"), tool("get_time")], "tool_choice": {"type": "any"}, "stream": true,
        })
    );
    request.system = String::new();
    let body = asked(request.clone()).await;
    assert_eq!((body.get("system"), &body["tools"][1]["cache_control"]), (None, &keep));
    for (choice, expected) in [
        (ToolChoice::Auto, json!({"type": "auto"})),
        (ToolChoice::None, json!({"type": "none"})),
        (ToolChoice::Tool("get_time".to_owned()), json!({"type": "tool", "name": "get_time"})),
    ] {
        request.options.tool_choice = Some(choice);
        assert_eq!(asked(request.clone()).await["tool_choice"], expected);
    }
}

// The provider refuses the whole request if a schema has a union at its top level.
#[tokio::test]
async fn a_tool_with_a_union_at_the_top() {
    let mut request = question();
    request.tools.truncate(1);
    Arc::make_mut(&mut request.tools[0]).parameters = json!({"anyOf": [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]})
    .into();
    assert_eq!(
        asked(request).await["tools"][0]["input_schema"],
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": []})
    );
}

// L-28, L-34, L-35
#[tokio::test]
async fn a_history_with_thoughts_and_calls() {
    let ids = SequentialIds::default();
    let (call_a, result_a) = call(&ids, Some("toolu_x"), json!({"zone": "UTC"}), "noon");
    let (call_b, result_b) = call(&ids, None, json!({}), "");
    let (call_c, result_c) = call(&ids, Some("toolu_x"), json!({"_raw": "{broken"}), "night");
    let (id_b, id_c) = (call_id(&call_b), call_id(&call_c));
    let Part::ToolResult(mut failed) = result_b else { panic!("no result") };
    failed.is_error = true;
    failed.content = vec![
        ToolContent::text(" \n"),
        ToolContent::text("see"),
        ToolContent::Image(BinaryContent::inline("image/png", None, "AA==")),
        ToolContent::Image(BinaryContent::inline("image/tiff", None, "AA==")),
    ];
    let Part::ToolResult(mut empty) = result_c else { panic!("no result") };
    empty.content = vec![];
    let thought = |id: PartId, text: &str, raw: Option<Value>| Part::Reasoning(ReasoningPart { id, text: text.to_owned(), raw });
    let history: Vec<Message> = vec![
        message(&ids, Role::User, |id| vec![text_part(id(), "when?")]),
        message(&ids, Role::Assistant, |id| {
            vec![
                thought(id(), "  hm\n ", Some(json!({"signature": "c2ln+/="}))),
                thought(id(), "", Some(json!({"signature": "empty"}))),
                thought(id(), "", Some(json!({"data": "ZW5j"}))),
                thought(id(), "never signed", None),
                thought(id(), "nor this", Some(json!({}))),
                text_part(id(), "Let me see. "),
                call_a,
                call_b,
            ]
        }),
        message(&ids, Role::Tool, |_| vec![result_a, Part::ToolResult(failed)]),
        message(&ids, Role::User, |id| vec![text_part(id(), "and?")]),
        message(&ids, Role::User, |id| vec![text_part(id(), "well?")]),
        message(&ids, Role::Assistant, |_| vec![call_c]),
        message(&ids, Role::Tool, |_| vec![Part::ToolResult(empty)]),
    ];
    let mut request = request(history);
    request.tools.clear();
    let text = |text: &str| json!({"type": "text", "text": text});
    let body = asked(request).await;
    // The provider refuses calls of undeclared tools, so a request without tools declares those of its history.
    assert_eq!(
        (&body["tools"], &body["tool_choice"]),
        (
            &json!([{"name": "get_time", "description": "No longer on offer.", "input_schema": {"type": "object", "properties": {}}}]),
            &json!({"type": "none"})
        )
    );
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [text("when?")]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "  hm\n ", "signature": "c2ln+/="},
                {"type": "thinking", "thinking": "", "signature": "empty"},
                {"type": "redacted_thinking", "data": "ZW5j"},
                text("Let me see. "),
                {"type": "tool_use", "id": "toolu_x", "name": "get_time", "input": {"zone": "UTC"}},
                {"type": "tool_use", "id": id_b, "name": "get_time", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_x", "content": [text("noon")]},
                {"type": "tool_result", "tool_use_id": id_b, "is_error": true, "content": [
                    text("see"), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                    text("[image, image/tiff: not sent to the model]")]},
                text("and?"), text("well?")]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": id_c, "name": "get_time", "input": {"_raw": "{broken"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_c, "content": [text("(no output)")]}]},
        ])
    );
}

#[tokio::test]
async fn pictures_and_files() {
    let ids = SequentialIds::default();
    let file = |id: PartId, media_type: &str, url: Option<&str>| file(id, media_type, url, Some("f"));
    let parts = |id: &dyn Fn() -> PartId| {
        vec![
            Part::Image(file(id(), "image/png", Some("data:image/png;base64,AA=="))),
            Part::Image(file(id(), "image/png", Some("https://host/b.png"))),
            Part::Image(file(id(), "image/tiff", Some("data:image/tiff;base64,AA=="))),
            Part::Image(file(id(), "image/png", None)),
            Part::File(file(id(), "application/pdf", Some("data:application/pdf;base64,JVBE"))),
            Part::File(file(id(), "application/pdf", Some("https://host/c.pdf"))),
            text_file(id(), "hi"),
            Part::File(file(id(), "application/zip", Some("https://host/d.zip"))),
        ]
    };
    let mut request = request(vec![message(&ids, Role::User, parts)]);
    request.tools.clear();
    assert_eq!(
        asked(request).await["messages"][0]["content"],
        json!([
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            {"type": "image", "source": {"type": "url", "url": "https://host/b.png"}},
            {"type": "text", "text": "[image f, image/tiff: not sent to the model]"},
            {"type": "text", "text": "[image f, image/png: not sent to the model]"},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}, "title": "f"},
            {"type": "document", "source": {"type": "url", "url": "https://host/c.pdf"}, "title": "f"},
            {"type": "text", "text": "[file a.txt, text/plain]\nhi"},
            {"type": "text", "text": "[file f, application/zip: not sent to the model]"},
        ])
    );
}

// The reasoning effort in the form of each model generation. With it, sampling parameters and a forced tool are not allowed.
#[rstest]
#[case::budget("claude-sonnet-4-5", ReasoningEffort::Medium, None, json!({"max_tokens": 24576, "thinking": {"type": "enabled", "budget_tokens": 8192}}))]
#[case::budget_within_a_limit("claude-sonnet-4-5", ReasoningEffort::High, Some(4_000), json!({"max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}}))]
#[case::limit_too_low("claude-sonnet-4-5", ReasoningEffort::High, Some(2_000), json!({"max_tokens": 2000, "temperature": 0.5}))]
#[case::not_at_all("claude-sonnet-4-5", ReasoningEffort::None, None, json!({"max_tokens": 16384, "temperature": 0.5}))]
#[case::cannot("claude-3-5-sonnet-latest", ReasoningEffort::High, None, json!({"max_tokens": 8192, "temperature": 0.5}))]
#[case::adaptive("claude-opus-4-6", ReasoningEffort::Minimal, None, json!({"max_tokens": 16384, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}}))]
#[case::adaptive_not_at_all("claude-opus-4-6", ReasoningEffort::None, None, json!({"max_tokens": 16384, "temperature": 0.5, "thinking": {"type": "disabled"}}))]
#[case::always("claude-fable-5", ReasoningEffort::None, None, json!({"max_tokens": 32000, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}}))]
#[case::adaptive_most("claude-opus-4-6", ReasoningEffort::XHigh, None, json!({"max_tokens": 16384, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}}))]
#[case::opus_of_32_000("claude-opus-4-1", ReasoningEffort::Max, None, json!({"max_tokens": 32000, "thinking": {"type": "enabled", "budget_tokens": 16384}}))]
#[case::by_default_not_at_all("claude-opus-5", ReasoningEffort::None, None, json!({"max_tokens": 32000, "thinking": {"type": "disabled"}}))]
#[case::more_than_high("claude-opus-5", ReasoningEffort::XHigh, None, json!({"max_tokens": 32000, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "xhigh"}}))]
#[case::cannot_stop("claude-opus-5-5", ReasoningEffort::None, None, json!({"max_tokens": 32000, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}}))]
#[case::stops_between("claude-sonnet-5-5", ReasoningEffort::None, None, json!({"max_tokens": 32000, "thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}}))]
#[case::all_it_can("claude-sonnet-5-5", ReasoningEffort::Max, None, json!({"max_tokens": 32000, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}}))]
#[tokio::test]
async fn thinking(#[case] model: &str, #[case] effort: ReasoningEffort, #[case] limit: Option<u32>, #[case] expected: Value) {
    let given = ModelOptions {
        reasoning_effort: Some(effort),
        max_output_tokens: limit,
        temperature: Some(0.5),
        ..ModelOptions::default()
    };
    let mut body = asked(plain(model, given)).await;
    for known in ["model", "system", "messages", "stream"] {
        body.as_object_mut().unwrap().remove(known);
    }
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_turn_under_way_without_thoughts_goes_on_without() {
    let ids = SequentialIds::default();
    for (raw, thinks) in [(Some(json!({"signature": "s"})), true), (None, false)] {
        let (call, result) = call(&ids, Some("a"), json!({}), "noon");
        let mut request = request(vec![
            message(&ids, Role::User, |id| vec![text_part(id(), "when?")]),
            message(&ids, Role::Assistant, |id| {
                vec![Part::Reasoning(ReasoningPart { id: id(), text: "hm".to_owned(), raw }), call]
            }),
            message(&ids, Role::Tool, |_| vec![result]),
        ]);
        request.model = "claude-sonnet-4-5".to_owned();
        request.options.reasoning_effort = Some(ReasoningEffort::Low);
        let body = asked(request.clone()).await;
        assert_eq!(body.get("thinking").is_some(), thinks);
        // A nudge, or a message that joined, does not affect the calls.
        let mut joined = request.clone();
        joined.messages.push(message(&ids, Role::User, |id| vec![text_part(id(), "in Rome")]));
        assert_eq!(asked(joined.clone()).await.get("thinking").is_some(), thinks);
        joined.messages.push(message(&ids, Role::Assistant, |id| vec![text_part(id(), "At noon.")]));
        joined.messages.push(message(&ids, Role::User, |id| vec![text_part(id(), "And today?")]));
        assert!(asked(joined).await.get("thinking").is_some(), "the next run starts with reasoning");
        request.options.tool_choice = Some(ToolChoice::Required);
        let body = asked(request).await;
        assert_eq!((body.get("thinking"), &body["tool_choice"]["type"]), (None, &json!("any")));
    }
}

// Models with default reasoning hide it unless the request asks for it, and refuse a forced tool while they reason.
#[rstest]
#[case("claude-opus-4-8", false, None, "auto")]
#[case("claude-opus-4-8", true, None, "any")]
#[case("claude-opus-5", false, Some(json!({"type": "adaptive", "display": "summarized"})), "auto")]
#[case("claude-opus-5", true, Some(json!({"type": "disabled"})), "any")]
#[case("claude-opus-5-5", true, Some(json!({"type": "adaptive", "display": "summarized"})), "auto")]
#[case("claude-sonnet-5-5", true, Some(json!({"type": "adaptive", "display": "summarized"})), "auto")]
#[tokio::test]
async fn models_that_think_unasked(
    #[case] model: &str,
    #[case] forced: bool,
    #[case] thinking: Option<Value>,
    #[case] choice: &str,
) {
    let mut request = question();
    request.model = model.to_owned();
    request.options.tool_choice = Some(if forced { ToolChoice::Required } else { ToolChoice::Auto });
    let body = asked(request).await;
    assert_eq!((body.get("thinking"), &body["tool_choice"]["type"]), (thinking.as_ref(), &json!(choice)));
    assert_eq!(body.get("output_config"), None);
}

// The newest models bind a signature to the messages before it, which change with each context provider's answer.
#[tokio::test]
async fn thoughts_that_no_longer_fit_are_overlooked() {
    let ids = SequentialIds::default();
    let thought = |raw: Option<Value>| {
        let (call, result) = call(&ids, Some("a"), json!({}), "noon");
        request(vec![
            message(&ids, Role::User, |id| vec![text_part(id(), "when?")]),
            message(&ids, Role::Assistant, |id| {
                vec![Part::Reasoning(ReasoningPart { id: id(), text: "hm".to_owned(), raw }), call]
            }),
            message(&ids, Role::Tool, |_| vec![result]),
        ])
    };
    let own = |wire: &Wire| ClientOptions { headers: vec![("anthropic-beta".to_owned(), "mine".into())], ..options(wire) };
    let signed = || Some(json!({"signature": "s"}));
    for (model, raw, binds) in
        [("claude-opus-5-5", signed(), true), ("claude-opus-5-5", None, false), ("claude-opus-5", signed(), false)]
    {
        let asked = asked_with(own, ModelRequest { model: model.to_owned(), ..thought(raw) }).await;
        let binding = binds.then(|| json!({"prefix_mismatch_behavior": "drop_block"}));
        assert_eq!(asked.json()["thinking"].get("block_binding"), binding.as_ref(), "{model}");
        let head = asked.head.to_ascii_lowercase();
        let beta =
            if binds { "anthropic-beta: mine, thinking-binding-controls-2026-08-01\r\n" } else { "anthropic-beta: mine\r\n" };
        assert!(
            head.contains(beta) && head.matches("anthropic-beta").count() == 1,
            "the configured beta header is sent, too: {head}"
        );
    }
}

#[tokio::test]
async fn a_schema_for_the_answer() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]});
    let given = ModelOptions {
        output_schema: Some(OutputSchema { name: "n".to_owned(), schema, strict: true }),
        ..ModelOptions::default()
    };
    let expected = json!({"format": {"type": "json_schema", "schema": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}}});
    assert_eq!(asked(plain("claude-sonnet-4-5", given.clone())).await["output_config"], expected);
    assert_eq!(asked(plain("claude-3-7-sonnet-latest", given)).await.get("output_config"), None);
}
