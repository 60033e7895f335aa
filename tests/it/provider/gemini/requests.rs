//! Requests of the Gemini dialect.

use std::sync::Arc;

use capstan::domain::conversation::message::{BinaryContent, Part, ReasoningPart, Role, ToolContent};
use capstan::domain::ids::PartId;
use capstan::domain::model::{ModelErrorKind, ModelOptions, ModelRequest, OutputSchema, ReasoningEffort, ToolChoice};
use capstan::provider::ClientOptions;
use capstan::support::ids::SequentialIds;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::drive::{ask_through, call, file, message, options, plain, question, request, text_part};
use super::super::mutants;
use super::{client, finish, text};
use support::wire::{Answer, Asked, Wire};

async fn asked_with(options_of: impl Fn(&Wire) -> ClientOptions, request: ModelRequest) -> Asked {
    mutants::asked_with(client, options_of, [text("ok"), finish("STOP")].concat(), request).await
}

async fn asked(request: ModelRequest) -> Value {
    asked_with(options, request).await.json()
}

#[tokio::test]
async fn a_plain_question() {
    let given = ModelOptions {
        temperature: Some(1.5),
        top_p: Some(0.5),
        max_output_tokens: Some(100),
        seed: Some(-7),
        stop: vec!["END".to_owned()],
        ..ModelOptions::default()
    };
    let asked = asked_with(options, plain("gemini-2.5-flash", given)).await;
    assert!(
        asked.head.starts_with("POST /v1/models/gemini-2.5-flash:streamGenerateContent?alt=sse HTTP/1.1\r\n"),
        "{}",
        asked.head
    );
    assert!(asked.head.contains("x-goog-api-key: sk-canary-0123456789\r\n"), "{}", asked.head);
    assert_eq!(asked.head.matches("canary").count(), 1);
    assert_eq!(
        asked.json(),
        json!({
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
            "systemInstruction": {"parts": [{"text": "be brief"}]},
            "generationConfig": {"temperature": 1.5, "topP": 0.5, "maxOutputTokens": 100, "seed": -7, "stopSequences": ["END"]},
        })
    );
    let bare = ModelRequest { system: String::new(), ..plain("gemini-2.5-flash", ModelOptions::default()) };
    assert_eq!(self::asked(bare).await, json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}));
}

#[rstest]
#[case("", true, "gemini-x", "/v1beta/models/gemini-x:streamGenerateContent?alt=sse")]
#[case("", false, "models/gemini-x", "/v1beta/models/gemini-x:generateContent")]
#[case("/gateway/google", true, "gemini-x", "/gateway/google/v1beta/models/gemini-x:streamGenerateContent?alt=sse")]
#[case("/v1alpha/", true, "tunedModels/mine", "/v1alpha/tunedModels/mine:streamGenerateContent?alt=sse")]
#[case(
    "/v1/projects/p/locations/l/publishers/google",
    false,
    "gemini-x",
    "/v1/projects/p/locations/l/publishers/google/models/gemini-x:generateContent"
)]
#[case("/v1beta?x=1", true, "a b?c#d", "/v1beta/models/a%20b%3Fc%23d:streamGenerateContent?x=1&alt=sse")]
#[tokio::test]
async fn where_it_is_asked(#[case] base: &str, #[case] streaming: bool, #[case] model: &str, #[case] path: &str) {
    let at = |wire: &Wire| ClientOptions { base_url: wire.base_url.replace("/v1", base), is_streaming: streaming, ..options(wire) };
    let asked = asked_with(at, plain(model, ModelOptions::default())).await;
    assert!(asked.head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", asked.head);
}

#[tokio::test]
async fn names_that_would_leave_the_path_are_refused() {
    let wire = Wire::play(vec![Answer::stream(finish("STOP"))]).await;
    for model in ["../../admin", "a//b", "tunedModels/..", ""] {
        let outcome = ask_through(client(options(&wire)).unwrap().as_ref(), plain(model, ModelOptions::default())).await;
        assert_eq!(outcome.error(), ModelErrorKind::InvalidRequest, "{model}");
    }
    assert!(wire.asked().is_empty());
}

#[tokio::test]
async fn tools_in_the_form_that_is_taken() {
    let mut request = question();
    request.model = "gemini-2.5-flash".to_owned();
    Arc::make_mut(&mut request.tools[0]).parameters =
        json!({"$schema": "x", "type": "object", "additionalProperties": false, "properties": {
        "city": {"type": ["string", "null"], "format": "uri"}, "days": {"$ref": "#/$defs/days"}}, "required": ["days"],
        "$defs": {"days": {"type": "integer", "minimum": 1}}})
        .into();
    assert_eq!(
        asked(request.clone()).await["tools"],
        json!([{"functionDeclarations": [
            {"name": "get_weather", "description": "does get_weather", "parameters": {"type": "object", "properties": {
                "city": {"type": "string", "nullable": true}, "days": {"type": "integer", "minimum": 1}}, "required": ["days"]}},
            {"name": "get_time", "description": "does get_time"}]}])
    );
    for (choice, expected) in [
        (ToolChoice::Auto, json!({"mode": "AUTO"})),
        (ToolChoice::None, json!({"mode": "NONE"})),
        (ToolChoice::Required, json!({"mode": "ANY"})),
        (ToolChoice::Tool("get_time".to_owned()), json!({"mode": "ANY", "allowedFunctionNames": ["get_time"]})),
    ] {
        request.options.tool_choice = Some(choice);
        assert_eq!(asked(request.clone()).await["toolConfig"], json!({"functionCallingConfig": expected}));
    }
}

// Gemini refuses the whole request if a tool's name begins with a digit, so the request uses another name.
#[tokio::test]
async fn a_tool_with_a_name_that_is_refused() {
    let ids = SequentialIds::default();
    let (mut called, mut answered) = call(&ids, None, json!({}), "ok");
    let (Part::ToolCall(call), Part::ToolResult(result)) = (&mut called, &mut answered) else { panic!("a call and its result") };
    (call.name, result.name) = ("7zip".to_owned(), "7zip".to_owned());
    let mut request = request(vec![
        message(&ids, Role::User, |id| vec![text_part(id(), "pack")]),
        message(&ids, Role::Assistant, |_| vec![called]),
        message(&ids, Role::Tool, |_| vec![answered]),
    ]);
    request.tools.truncate(1);
    Arc::make_mut(&mut request.tools[0]).name = "7zip".to_owned();
    request.options.tool_choice = Some(ToolChoice::Tool("7zip".to_owned()));
    let answer = [super::parts(&json!([{"functionCall": {"name": "_7zip", "args": {}}}])), finish("STOP")].concat();
    let wire = Wire::play(vec![Answer::stream(answer)]).await;
    let outcome = ask_through(client(options(&wire)).unwrap().as_ref(), request).await;
    assert_eq!(outcome.calls()[0].1, "7zip");
    let asked = wire.asked()[0].json();
    assert_eq!(asked["tools"][0]["functionDeclarations"][0]["name"], "_7zip");
    assert_eq!(asked["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"], json!(["_7zip"]));
    assert_eq!(asked["contents"][1]["parts"][0]["functionCall"]["name"], "_7zip");
    assert_eq!(asked["contents"][2]["parts"][0]["functionResponse"]["name"], "_7zip");
}

fn thought(id: PartId, text: &str, raw: Option<Value>) -> Part {
    Part::Reasoning(ReasoningPart { id, text: text.to_owned(), raw })
}

// L-28, L-33, L-35: results directly follow their calls, and each signature is on its original part.
#[tokio::test]
async fn a_history_with_signatures_and_calls() {
    let ids = SequentialIds::default();
    let (mut call_a, result_a) = call(&ids, Some("x"), json!({"zone": "UTC"}), "noon");
    let (call_b, result_b) = call(&ids, None, json!({}), "");
    let (call_c, result_c) = call(&ids, Some("x"), json!({}), "night");
    let Part::ToolCall(signed) = &mut call_a else { panic!("no call") };
    signed.raw = Some(json!({"thoughtSignature": "3"}));
    let Part::ToolResult(mut failed) = result_b else { panic!("no result") };
    failed.is_error = true;
    failed.content = vec![ToolContent::text("see"), ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="))];
    let Part::ToolResult(mut empty) = result_c else { panic!("no result") };
    empty.content = vec![];
    let history = vec![
        message(&ids, Role::User, |id| vec![text_part(id(), "when?")]),
        message(&ids, Role::Assistant, |id| {
            vec![
                thought(id(), "hm, hmm", Some(json!({"thoughtSignature": "1", "on": "thought", "bytes": 3}))),
                thought(id(), "not signed", None),
                text_part(id(), "Let me sée"),
                thought(id(), "", Some(json!({"thoughtSignature": "2", "on": "text", "bytes": 4}))),
                call_a,
                call_b,
                thought(id(), "", Some(json!({"thoughtSignature": "4", "on": "text", "bytes": 0}))),
            ]
        }),
        message(&ids, Role::Tool, |_| vec![result_a, Part::ToolResult(failed)]),
        message(&ids, Role::Assistant, |_| vec![call_c]),
        message(&ids, Role::Tool, |_| vec![Part::ToolResult(empty)]),
        message(&ids, Role::User, |id| vec![text_part(id(), "and?")]),
    ];
    let mut request = request(history);
    request.model = "gemini-3-flash".to_owned();
    assert_eq!(
        asked(request).await["contents"],
        json!([
            {"role": "user", "parts": [{"text": "when?"}]},
            {"role": "model", "parts": [
                {"text": "hmm", "thought": true, "thoughtSignature": "1"},
                {"text": "Let me "}, {"text": "sée", "thoughtSignature": "2"},
                {"functionCall": {"id": "x", "name": "get_time", "args": {"zone": "UTC"}}, "thoughtSignature": "3"},
                {"functionCall": {"name": "get_time", "args": {}}},
                {"text": "", "thoughtSignature": "4"}]},
            {"role": "user", "parts": [
                {"functionResponse": {"id": "x", "name": "get_time", "response": {"output": "noon"}}},
                {"functionResponse": {"name": "get_time", "response": {"error": "see\n[image, see below]"}}},
                {"inlineData": {"mimeType": "image/png", "data": "AA=="}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "get_time", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "get_time", "response": {"output": "(no output)"}}}]},
            {"role": "user", "parts": [{"text": "and?"}]},
        ])
    );
}

// L-33, L-46: a call of another model in this run has no signature, which new models refuse.
#[tokio::test]
async fn calls_of_another_model_are_marked() {
    let ids = SequentialIds::default();
    let (call_a, result_a) = call(&ids, None, json!({}), "noon");
    let (call_b, result_b) = call(&ids, None, json!({}), "night");
    let mut request = request(vec![
        message(&ids, Role::User, |id| vec![text_part(id(), "when?")]),
        message(&ids, Role::Assistant, |_| vec![call_a, call_b]),
        message(&ids, Role::Tool, |_| vec![result_a, result_b]),
    ]);
    for (model, expected) in [("gemini-3-pro-preview", json!("skip_thought_signature_validator")), ("gemini-2.5-pro", Value::Null)]
    {
        request.model = model.to_owned();
        let parts = asked(request.clone()).await["contents"][1]["parts"].take();
        assert_eq!((&parts[0]["thoughtSignature"], &parts[1]["thoughtSignature"]), (&expected, &Value::Null), "{model}");
    }
}

#[tokio::test]
async fn pictures_and_files() {
    let ids = SequentialIds::default();
    let file = |id: PartId, media_type: &str, url: Option<&str>| file(id, media_type, url, Some("f"));
    let parts = |id: &dyn Fn() -> PartId| {
        vec![
            text_part(id(), "look"),
            Part::Image(file(id(), "image/png", Some("data:image/png;base64,AA=="))),
            Part::Image(file(id(), "image/png", Some("https://host/b.png"))),
            Part::File(file(id(), "application/pdf", Some("data:application/pdf;base64,JVBE"))),
            Part::File(file(id(), "application/pdf", None)),
        ]
    };
    assert_eq!(
        asked(request(vec![message(&ids, Role::User, parts)])).await["contents"],
        json!([{"role": "user", "parts": [
            {"text": "look"},
            {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
            {"fileData": {"mimeType": "image/png", "fileUri": "https://host/b.png"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}},
            {"text": "[file f, application/pdf: not sent to the model]"}]}])
    );
}

#[rstest]
#[case("gemini-2.5-flash", ReasoningEffort::Medium, json!({"includeThoughts": true, "thinkingBudget": 8192}))]
#[case("gemini-2.5-flash", ReasoningEffort::None, json!({"includeThoughts": false, "thinkingBudget": 0}))]
#[case("gemini-2.5-pro", ReasoningEffort::None, json!({"includeThoughts": false, "thinkingBudget": 128}))]
#[case("gemini-3-pro-preview", ReasoningEffort::Medium, json!({"includeThoughts": true, "thinkingLevel": "high"}))]
#[case("gemini-3-flash-preview", ReasoningEffort::Minimal, json!({"includeThoughts": true, "thinkingLevel": "minimal"}))]
#[case("gemini-2.0-flash", ReasoningEffort::High, Value::Null)]
#[tokio::test]
async fn thinking(#[case] model: &str, #[case] effort: ReasoningEffort, #[case] expected: Value) {
    let given = ModelOptions { reasoning_effort: Some(effort), ..ModelOptions::default() };
    assert_eq!(asked(plain(model, given)).await["generationConfig"]["thinkingConfig"], expected);
}

#[tokio::test]
async fn a_schema_for_the_answer() {
    let schema = json!({"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "additionalProperties": false});
    let given = ModelOptions {
        output_schema: Some(OutputSchema { name: "n".to_owned(), schema, strict: true }),
        ..ModelOptions::default()
    };
    let expected = json!({"responseMimeType": "application/json",
        "responseSchema": {"type": "object", "properties": {"n": {"type": "integer", "nullable": true}}}});
    assert_eq!(asked(plain("gemini-2.5-flash", given.clone())).await["generationConfig"], expected);
    // Models before generation 3 refuse a schema beside tools.
    for (model, has) in [("gemini-2.5-flash", false), ("gemini-3-flash", true)] {
        let request = ModelRequest { model: model.to_owned(), options: given.clone(), ..question() };
        assert_eq!(asked(request).await.get("generationConfig").is_some(), has);
    }
}

#[tokio::test]
async fn a_model_without_a_system_prompt() {
    assert_eq!(
        asked(plain("gemma-3-27b-it", ModelOptions::default())).await,
        json!({"contents": [{"role": "user", "parts": [{"text": "be brief"}, {"text": "hi"}]}]})
    );
}
