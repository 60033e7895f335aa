//! Requests of chat completions with the quirks of providers.

use capstan::domain::conversation::message::{BinaryContent, Message, Part, ReasoningPart, Role, TextPart, ToolContent};
use capstan::domain::model::{ModelErrorKind, ModelOptions, ModelRequest, OutputSchema, ReasoningEffort, ToolChoice};
use capstan::provider::{Quirks, anthropic, catalog, ollama, openai, responses};
use capstan::support::ids::SequentialIds;
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{DONE, Outcome, ask_through, call, delta, file, finish, message, options, question, request, text_file};
use support::wire::{Answer, Asked, Wire};

fn accent(toml: &str) -> Quirks {
    toml::from_str(toml).unwrap()
}

async fn try_asking(accent: Quirks, request: ModelRequest) -> (Outcome, Option<Asked>) {
    let body = [delta(json!({"content": "ok"})), finish("stop"), DONE.to_owned()].concat();
    let wire = Wire::play(vec![Answer::stream(body)]).await;
    let outcome = ask_through(openai::client(options(&wire), accent).unwrap().as_ref(), request).await;
    (outcome, wire.asked().first().cloned())
}

async fn asked(toml: &str, request: ModelRequest) -> Value {
    let (outcome, asked) = try_asking(accent(toml), request).await;
    outcome.finish();
    asked.unwrap().json()
}

fn wanted() -> ModelRequest {
    let mut request = question();
    request.tools.truncate(1);
    request.options = ModelOptions {
        max_output_tokens: Some(100),
        seed: Some(7),
        stop: vec!["END".to_owned()],
        tool_choice: Some(ToolChoice::Required),
        output_schema: Some(OutputSchema { name: "a".to_owned(), schema: json!({"type": "object"}), strict: true }),
        reasoning_effort: Some(ReasoningEffort::Low),
        ..ModelOptions::default()
    };
    request
}

#[tokio::test]
async fn all_that_can_be_wanted() {
    let function =
        json!({"name": "get_weather", "description": "does get_weather", "parameters": {"type": "object", "properties": {}}});
    let tools = json!([{"type": "function", "function": function}]);
    assert_eq!(
        asked("", wanted()).await,
        json!({
            "model": "gpt-x",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "tools": tools, "tool_choice": "required",
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": true}},
            "reasoning_effort": "low", "max_tokens": 100, "seed": 7, "stop": ["END"],
            "stream": true, "stream_options": {"include_usage": true},
        })
    );
    let mistral = r#"
        stream_usage = false
        required_choice = "any"
        effort = "unsaid"
        rename = { seed = "random_seed" }
        omit = ["stop"]
        extra = { safe_prompt = true, max_tokens = 50 }
        system = "user"
        output_schema = "json_object"
    "#;
    let said = "be brief\n\nYour answer must be JSON that matches this JSON Schema, and nothing else:\n{\"type\":\"object\"}\n\nhi";
    assert_eq!(
        asked(mistral, wanted()).await,
        json!({
            "model": "gpt-x", "messages": [{"role": "user", "content": said}], "tools": tools, "tool_choice": "any",
            "response_format": {"type": "json_object"}, "max_tokens": 50, "random_seed": 7, "safe_prompt": true, "stream": true,
        })
    );
}

#[tokio::test]
async fn azure_has_its_own_url_and_header() {
    let azure = accent("url = '{host}/openai/deployments/{model}/chat/completions?api-version=2024-10-21'\nkey_header = 'api-key'");
    let asked = try_asking(azure, question()).await.1.unwrap();
    let path = "POST /v1/openai/deployments/gpt-x/chat/completions?api-version=2024-10-21 HTTP/1.1\r\n";
    assert!(asked.head.starts_with(path), "{}", asked.head);
    assert!(asked.head.contains("api-key: sk-canary-0123456789\r\n") && !asked.head.contains("authorization"), "{}", asked.head);
}

#[rstest]
#[case("", ToolChoice::Auto, json!(["auto", 2]))]
#[case("", ToolChoice::None, json!(["none", 2]))]
#[case("", ToolChoice::Tool("get_time".to_owned()), json!([{"type": "function", "function": {"name": "get_time"}}, 2]))]
#[case("tool_choices = 'unnamed'", ToolChoice::Tool("get_time".to_owned()), json!(["required", 1]))]
#[case("tool_choices = 'unnamed'", ToolChoice::Required, json!(["required", 2]))]
#[case("tool_choices = 'auto_only'", ToolChoice::Auto, json!([null, 2]))]
#[case("tool_choices = 'auto_only'", ToolChoice::None, json!([null, 0]))]
#[tokio::test]
async fn tool_choices(#[case] toml: &str, #[case] choice: ToolChoice, #[case] expected: Value) {
    let mut request = question();
    request.options.tool_choice = Some(choice);
    let body = asked(toml, request).await;
    assert_eq!(json!([body["tool_choice"], body["tools"].as_array().map_or(0, Vec::len)]), expected);
}

#[tokio::test]
async fn option_without_wire_form_is_refused() {
    for choice in [ToolChoice::Required, ToolChoice::Tool("get_time".to_owned())] {
        let mut request = question();
        request.options.tool_choice = Some(choice);
        let (outcome, asked) = try_asking(accent("tool_choices = 'auto_only'"), request).await;
        assert_eq!((outcome.error(), asked.is_none()), (ModelErrorKind::InvalidRequest, true));
    }
}

#[rstest]
#[case("effort = 'object'", ReasoningEffort::High, "reasoning", json!({"effort": "high"}))]
#[case("effort = 'thinking'", ReasoningEffort::Low, "thinking", json!({"type": "enabled"}))]
#[case("effort = 'thinking'", ReasoningEffort::None, "thinking", json!({"type": "disabled"}))]
#[case("effort = 'enable_thinking'", ReasoningEffort::None, "enable_thinking", json!(false))]
#[case("effort = 'chat_template'", ReasoningEffort::High, "chat_template_kwargs", json!({"enable_thinking": true}))]
#[case("effort_words = { minimal = 'low' }", ReasoningEffort::Minimal, "reasoning_effort", json!("low"))]
#[case("effort_words = { none = '' }", ReasoningEffort::None, "reasoning_effort", json!(null))]
#[case("efforts_of = { gpt = { high = 'most' } }\neffort_words = { high = 'x' }", ReasoningEffort::High, "reasoning_effort", json!("most"))]
#[tokio::test]
async fn efforts(#[case] toml: &str, #[case] effort: ReasoningEffort, #[case] field: &str, #[case] expected: Value) {
    let mut request = question();
    request.options.reasoning_effort = Some(effort);
    assert_eq!(asked(toml, request).await[field], expected);
}

#[tokio::test]
async fn limits_and_system_prompts() {
    let mut request = wanted();
    request.options.tool_choice = None;
    let body = asked("output_limit = 'max_completion_tokens'\nsystem = 'developer'", request.clone()).await;
    assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&json!(100), &Value::Null));
    assert_eq!(body["messages"][0], json!({"role": "developer", "content": "be brief"}));
    for model in ["gpt-5-mini", "openai/gpt-5-mini", "OpenAI/o3"] {
        request.model = model.to_owned();
        let body = asked("", request.clone()).await;
        assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&json!(100), &Value::Null), "{model}");
    }
    request.model = "own-model".to_owned();
    let body = asked("new_limit_models = ['own']\noutput_schema = 'prompt'", request).await;
    assert_eq!((&body["max_completion_tokens"], &body["response_format"]), (&json!(100), &Value::Null));
}

// Parameters that OpenAI's models refuse, by model name with or without a vendor prefix.
#[rstest]
#[case("gpt-5-mini", json!([null, null, null, "minimal"]))]
#[case("openai/o3-2025-04-16", json!([null, null, null, "low"]))]
#[case("gpt-5.1", json!([null, null, null, "none"]))]
#[case("gpt-5-pro", json!([null, null, null, "high"]))]
#[case("gpt-5-chat-latest", json!([0.5, 0.9, ["END"], null]))]
#[case("gpt-4.1", json!([0.5, 0.9, ["END"], null]))]
#[case("own-model", json!([0.5, 0.9, ["END"], "none"]))]
#[tokio::test]
async fn refused_option_is_left_out(#[case] model: &str, #[case] expected: Value) {
    let mut request = question();
    request.model = model.to_owned();
    request.options = ModelOptions {
        temperature: Some(0.5),
        top_p: Some(0.9),
        stop: vec!["END".to_owned()],
        reasoning_effort: Some(ReasoningEffort::None),
        ..ModelOptions::default()
    };
    let body = asked("", request).await;
    assert_eq!(json!([body["temperature"], body["top_p"], body["stop"], body["reasoning_effort"]]), expected);
}

// For models without a system role, the system prompt is at the start of the first user message.
#[tokio::test]
async fn a_model_may_know_no_system_prompt() {
    let mut request = question();
    request.model = "google/gemma-2-9b-it".to_owned();
    let opening = json!([{"role": "user", "content": "be brief\n\nhi"}]);
    assert_eq!(asked("", request.clone()).await["messages"], opening);
    assert_eq!(asked("system = 'developer'", request.clone()).await["messages"], opening);

    let wire = Wire::play(vec![Answer::json(500, "{}")]).await;
    for client in [ollama::client, responses::client, anthropic::client] {
        ask_through(client(options(&wire)).unwrap().as_ref(), request.clone()).await.error();
    }
    let asked: Vec<Value> = wire.asked().iter().map(Asked::json).collect();
    assert_eq!(asked[0]["messages"], opening);
    let part = |kind: &str| json!([{"type": kind, "text": "be brief\n\nhi"}]);
    assert_eq!((&asked[1]["input"][0]["content"], &asked[1]["instructions"]), (&part("input_text"), &Value::Null));
    assert_eq!((&asked[2]["messages"][0]["content"][0]["text"], &asked[2]["system"]), (&part("")[0]["text"], &Value::Null));
}

/// Returns two runs. The second has called a tool whose result is an image.
fn history() -> Vec<Message> {
    let ids = SequentialIds::default();
    let text = |id, text: &str| Part::Text(TextPart { id, text: text.to_owned() });
    let thought = |id, words: &str, raw: Value| Part::Reasoning(ReasoningPart { id, text: words.to_owned(), raw: Some(raw) });
    let details = |data: &str| json!({"reasoning_details": [{"type": "reasoning.encrypted", "data": data}]});
    let (call_a, result_a) = call(&ids, Some("call_x-1"), json!({}), "");
    let (call_b, result_b) = call(&ids, Some("abcdefgh9"), json!({}), "noon");
    let (Part::ToolCall(mut call_a), Part::ToolResult(mut result_a)) = (call_a, result_a) else { panic!("a call and its result") };
    call_a.raw = Some(json!({"extra_content": {"google": {"thought_signature": "s/+=="}}}));
    result_a.content = vec![ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="))];
    vec![
        message(&ids, Role::User, |id| vec![text(id(), "one")]),
        message(&ids, Role::Assistant, |id| vec![thought(id(), "old", details("old")), text(id(), "1")]),
        message(&ids, Role::User, |id| vec![text(id(), "two")]),
        message(&ids, Role::Assistant, |id| {
            vec![
                thought(id(), "h", details("a/+==")),
                thought(id(), "m", details("b")),
                text(id(), "Hm."),
                Part::ToolCall(call_a),
                call_b,
            ]
        }),
        message(&ids, Role::Tool, |_| vec![Part::ToolResult(result_a), result_b]),
    ]
}

async fn sent(toml: &str) -> Vec<Value> {
    asked(toml, request(history())).await["messages"].as_array().unwrap()[1..].to_vec()
}

// L-33, L-34: reasoning and signatures are sent back unchanged, to providers that accept them.
#[rstest]
#[case("", json!({}), json!({}))]
#[case("reasoning = 'reasoning_content'", json!({}), json!({"reasoning_content": "hm"}))]
#[case("reasoning = 'reasoning'\nreasoning_of = 'all'", json!({"reasoning": "old"}), json!({"reasoning": "hm"}))]
#[case("reasoning = 'reasoning_details'\nreasoning_of = 'all'",
    json!({"reasoning_details": [{"type": "reasoning.encrypted", "data": "old"}]}),
    json!({"reasoning_details": [{"type": "reasoning.encrypted", "data": "a/+=="}, {"type": "reasoning.encrypted", "data": "b"}]}))]
#[case("reasoning = 'think_tags'\nreasoning_of = 'all'", json!({"content": "<think>\nold\n</think>\n\n1"}),
    json!({"content": "<think>\nhm\n</think>\n\nHm."}))]
#[case("reasoning = 'thinking_chunks'", json!({}), json!({"content": [
    {"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}, {"type": "thinking", "thinking": [{"type": "text", "text": "m"}]},
    {"type": "text", "text": "Hm."}]}))]
#[tokio::test]
async fn reasoning_goes_back(#[case] toml: &str, #[case] first: Value, #[case] second: Value) {
    let function = json!({"name": "get_time", "arguments": "{}"});
    let calls = json!([
        {"id": "call_x-1", "type": "function", "function": function, "extra_content": {"google": {"thought_signature": "s/+=="}}},
        {"id": "abcdefgh9", "type": "function", "function": function}]);
    let mut expected =
        [json!({"role": "assistant", "content": "1"}), json!({"role": "assistant", "content": "Hm.", "tool_calls": calls})];
    for (message, more) in expected.iter_mut().zip([first, second]) {
        for (name, value) in more.as_object().unwrap() {
            message[name] = value.clone();
        }
    }
    let sent = sent(toml).await;
    assert_eq!([sent[1].clone(), sent[3].clone()], expected);
}

#[tokio::test]
async fn a_call_without_reasoning_may_need_a_filler() {
    let mut history = history();
    history[3].parts.retain(|part| !matches!(part, Part::Reasoning(_)));
    let body = asked("reasoning = 'reasoning_content'\nreasoning_filler = ' '", request(history)).await;
    assert_eq!((&body["messages"][2]["reasoning_content"], &body["messages"][4]["reasoning_content"]), (&Value::Null, &json!(" ")));
}

// L-34: DeepSeek and Moonshot require this field, for this run or also for earlier ones.
#[rstest]
#[case("deepseek", json!(""), json!(""))]
#[case("moonshot", json!(null), json!(" "))]
#[tokio::test]
async fn thoughts_of_every_turn_go_back(#[case] provider: &str, #[case] without_calls: Value, #[case] with_calls: Value) {
    let accent = &catalog::providers().unwrap()[provider].quirks;
    let sent = async |history: Vec<Message>| {
        let (outcome, asked) = try_asking(accent.clone(), request(history)).await;
        outcome.finish();
        asked.unwrap().json()["messages"].clone()
    };
    let messages = sent(history()).await;
    assert_eq!((&messages[2]["reasoning_content"], &messages[4]["reasoning_content"]), (&json!("old"), &json!("hm")));
    let mut bare = history();
    bare.iter_mut().for_each(|message| message.parts.retain(|part| !matches!(part, Part::Reasoning(_))));
    let messages = sent(bare).await;
    assert_eq!((&messages[2]["reasoning_content"], &messages[4]["reasoning_content"]), (&without_calls, &with_calls));
}

// L-34
#[tokio::test]
async fn thinking_blocks_go_back() {
    let ids = SequentialIds::default();
    let block = json!({"type": "thinking", "thinking": "hm", "signature": "EqQB=="});
    let raw = Some(json!({"thinking_blocks": [block]}));
    let (call, result) = call(&ids, Some("a"), json!({}), "noon");
    let history = vec![
        message(&ids, Role::User, |id| vec![Part::Text(TextPart { id: id(), text: "hi".to_owned() })]),
        message(&ids, Role::Assistant, |id| vec![Part::Reasoning(ReasoningPart { id: id(), text: "hm".to_owned(), raw }), call]),
        message(&ids, Role::Tool, |_| vec![result]),
    ];
    assert_eq!(asked("reasoning = 'thinking_blocks'", request(history)).await["messages"][2]["thinking_blocks"], json!([block]));
}

#[rstest]
#[case("", json!([
    {"role": "tool", "tool_call_id": "call_x-1", "content": "[image, image/png: shown in the next message]"},
    {"role": "tool", "tool_call_id": "abcdefgh9", "content": "noon"},
    {"role": "user", "content": [{"type": "text", "text": "[images of the result of get_time]"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]))]
#[case("images = false\nresult_names = true", json!([
    {"role": "tool", "tool_call_id": "call_x-1", "name": "get_time", "content": "[image, image/png: not sent to the model]"},
    {"role": "tool", "tool_call_id": "abcdefgh9", "name": "get_time", "content": "noon"}]))]
#[case("tool_images = 'result'", json!([
    {"role": "tool", "tool_call_id": "call_x-1", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
    {"role": "tool", "tool_call_id": "abcdefgh9", "content": "noon"}]))]
#[case("user_after_tools = false", json!([
    {"role": "tool", "tool_call_id": "call_x-1", "content": "[image, image/png: shown in the next message]"},
    {"role": "tool", "tool_call_id": "abcdefgh9", "content": "noon"},
    {"role": "assistant", "content": "(The tools have answered.)"},
    {"role": "user", "content": [{"type": "text", "text": "[images of the result of get_time]"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]))]
#[tokio::test]
async fn images_of_tool_results(#[case] toml: &str, #[case] expected: Value) {
    assert_eq!(json!(sent(toml).await[4..]), expected);
}

#[tokio::test]
async fn ids_of_calls_fit_their_provider() {
    let sent = sent("call_ids = 'nine_alphanumerics'").await;
    let (first, second) = (sent[3]["tool_calls"][0]["id"].as_str().unwrap(), sent[3]["tool_calls"][1]["id"].as_str().unwrap());
    assert!(first.len() == 9 && first.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{first}");
    assert_eq!((second, &sent[4]["tool_call_id"], &sent[5]["tool_call_id"]), ("abcdefgh9", &json!(first), &json!(second)));
}

#[rstest]
#[case("", json!({"type": "file", "file": {"filename": "a", "file_data": "data:application/pdf;base64,AA=="}}))]
#[case("files = 'document_url'", json!({"type": "document_url", "document_url": "data:application/pdf;base64,AA==", "document_name": "a"}))]
#[case("files = 'none'", json!({"type": "text", "text": "[file a, application/pdf: not sent to the model]"}))]
#[tokio::test]
async fn files(#[case] toml: &str, #[case] expected: Value) {
    let ids = SequentialIds::default();
    let parts = |id: &dyn Fn() -> _| {
        let pdf = file(id(), "application/pdf", Some("data:application/pdf;base64,AA=="), Some("a"));
        vec![Part::File(pdf), text_file(id(), "hi")]
    };
    let history = vec![message(&ids, Role::User, parts)];
    let words = json!({"type": "text", "text": "[file a.txt, text/plain]\nhi"});
    assert_eq!(asked(toml, request(history)).await["messages"][1]["content"], json!([expected, words]));
}
