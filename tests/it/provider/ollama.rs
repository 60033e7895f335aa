//! The Ollama chat dialect.

use capstan::domain::conversation::message::{BinaryContent, Part, ReasoningPart, Role, TextPart, ToolContent};
use capstan::domain::model::{
    ModelErrorKind, ModelEvent, ModelFinish, ModelOptions, OutputSchema, ReasoningEffort, ToolChoice, Usage,
};
use capstan::provider::ClientOptions;
use capstan::provider::ollama::client;
use capstan::support::ids::SequentialIds;
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{Outcome, ask_through, call, file, message, options, question, request, text_file};
use super::mutants::{self, Frames};
use support::wire::{Answer, Step, Wire};

fn lines(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

async fn said(body: &[Value]) -> Outcome {
    mutants::outcome_of(client, lines(body)).await
}

fn piece(message: Value) -> Value {
    json!({"model": "m", "created_at": "2026-01-01T00:00:00.1Z", "message": message, "done": false})
}

fn text(content: &str) -> Value {
    piece(json!({"role": "assistant", "content": content}))
}

fn called(calls: Value) -> Value {
    piece(json!({"role": "assistant", "content": "", "tool_calls": calls}))
}

fn done(reason: &str) -> Value {
    json!({"model": "m", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": reason,
        "total_duration": 5, "prompt_eval_count": 26, "eval_count": 10})
}

fn recorded() -> Vec<Value> {
    vec![
        piece(json!({"role": "assistant", "content": "", "thinking": "let me "})),
        piece(json!({"role": "assistant", "content": "", "thinking": "see"})),
        text("Grüße \u{85}\u{2028} "),
        text("👩‍🚀"),
        called(json!([{"function": {"index": 0, "name": "get_time", "arguments": {"zone": "Europe/Zürich"}}}])),
        called(json!([{"id": "call_7", "function": {"index": 0, "name": "get_weather", "arguments": {}}}])),
        done("stop"),
    ]
}

#[tokio::test]
async fn everything_is_said_in_order() {
    let outcome = said(&recorded()).await;
    let started = |index: usize, id: &str, name: &str| ModelEvent::ToolCallStarted {
        index,
        provider_call_id: id.to_owned(),
        name: name.to_owned(),
    };
    let arguments = |index: usize, delta: &str| ModelEvent::ToolCallArguments { index, delta: delta.to_owned() };
    assert_eq!(
        outcome.events,
        [
            ModelEvent::Reasoning("let me ".to_owned()),
            ModelEvent::Reasoning("see".to_owned()),
            ModelEvent::Text("Grüße \u{85}\u{2028} ".to_owned()),
            ModelEvent::Text("👩‍🚀".to_owned()),
            // L-25: two calls under one index.
            started(0, "", "get_time"),
            arguments(0, "{\"zone\":\"Europe/Zürich\"}"),
            started(1, "call_7", "get_weather"),
            arguments(1, "{}"),
            ModelEvent::Usage(Usage { input_tokens: 26, output_tokens: 10, model_calls: 1, ..Usage::default() }),
        ]
    );
    assert_eq!(outcome.finish(), ModelFinish::ToolCalls);
}

// L-09
#[tokio::test]
async fn framing_does_not_matter() {
    let body = lines(&recorded());
    let expected = mutants::outcome_of(client, &body).await;
    mutants::framing_does_not_matter(client, Frames::Lines, &body, &expected).await;
}

// A model whose template does not separate its reasoning.
#[tokio::test]
async fn thoughts_in_the_text_are_reasoning() {
    let pieces = ["<think>", "\n", "hm", "\n</th", "ink>", "\n\nHi"].map(text);
    let outcome = said(&[pieces.to_vec(), vec![done("stop")]].concat()).await;
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("hm", "Hi"));
}

// L-03, L-38: the last line is complete without a line end.
#[tokio::test]
async fn a_cut_stream_is_never_whole() {
    let body = lines(&recorded());
    let expected = mutants::outcome_of(client, &body).await;
    mutants::a_cut_is_never_whole(client, &body, body.len() - 1, &expected).await;
}

// L-21, L-23, L-31, and unknown finish reasons.
#[rstest]
#[case("stop", Ok(ModelFinish::Stop))]
#[case("length", Ok(ModelFinish::Length))]
#[case("load", Err(ModelErrorKind::EmptyResponse))]
#[case("unload", Err(ModelErrorKind::EmptyResponse))]
#[case("because", Err(ModelErrorKind::BadStream))]
#[tokio::test]
async fn reasons_to_stop(#[case] reason: &str, #[case] expected: Result<ModelFinish, ModelErrorKind>) {
    assert_eq!(said(&[text("Hel"), done(reason)]).await.end.map_err(|error| error.kind), expected);
    let whole_call = called(json!([{"function": {"name": "get_time", "arguments": {}}}]));
    let expected = if reason == "stop" { Ok(ModelFinish::ToolCalls) } else { expected };
    assert_eq!(said(&[whole_call, done(reason)]).await.end.map_err(|error| error.kind), expected);
}

#[tokio::test]
async fn a_line_that_says_nothing_of_its_end_is_not_the_last() {
    for open in [json!(null), json!(""), json!(0), json!([])] {
        let piece = json!({"message": {"content": "Hel", "tool_calls": ""}, "done": open, "done_reason": null});
        assert_eq!(said(&[piece.clone(), text("lo"), done("stop")]).await.text(), "Hello");
        assert_eq!(said(&[piece]).await.error(), ModelErrorKind::IncompleteStream);
    }
}

#[tokio::test]
async fn an_older_server_gives_no_reason_and_no_figures() {
    let outcome = said(&[text("Hello!"), json!({"done": true})]).await;
    let usage = outcome.usage().unwrap();
    assert_eq!((outcome.finish(), usage.estimated, usage.output_tokens), (ModelFinish::Stop, true, 2));
}

// L-23
#[tokio::test]
async fn a_call_at_the_output_limit_is_cut() {
    let body = lines(&[called(json!([{"function": {"name": "get_time", "arguments": {}}}])), done("stop")]);
    for (limit, expected) in [(10, ModelFinish::Length), (11, ModelFinish::ToolCalls)] {
        let wire = Wire::play(vec![Answer::stream(&body)]).await;
        let mut request = question();
        request.options.max_output_tokens = Some(limit);
        assert_eq!(ask_through(client(options(&wire)).unwrap().as_ref(), request).await.finish(), expected);
    }
}

// L-24 to L-29
#[rstest]
#[case::arguments_as_text(json!([{"function": {"name": "get_time", "arguments": "{\"x\":1}"}}]), Some(vec!["{\"x\":1}"]))]
#[case::no_arguments(json!([{"function": {"name": "get_time"}}]), Some(vec![""]))]
#[case::null_arguments(json!([{"function": {"name": "get_time", "arguments": null}}]), Some(vec![""]))]
#[case::one_id_for_two(json!([{"id": "a", "function": {"name": "get_time", "arguments": {}}}, {"id": "a", "function": {"name": "get_time", "arguments": {}}}]), Some(vec!["{}", "{}"]))]
#[case::one_alone(json!({"function": {"name": "get_time", "arguments": {"x": 1}}}), Some(vec!["{\"x\":1}"]))]
#[case::one_alone_with_arguments_as_text(json!({"id": "a", "function": {"name": "get_time", "arguments": "{\"x\":1}"}}), Some(vec!["{\"x\":1}"]))]
#[case::nothing_beside_one(json!([null, {"function": {"name": "get_time", "arguments": {}}}]), Some(vec!["{}"]))]
#[case::words(json!("get_time"), None)]
#[case::words_in_a_list(json!(["get_time"]), None)]
#[case::nameless(json!([{"function": {"arguments": {}}}]), None)]
#[case::empty(json!([{}]), None)]
#[tokio::test]
async fn calls_are_whole(#[case] given: Value, #[case] expected: Option<Vec<&str>>) {
    let outcome = said(&[called(given), done("stop")]).await;
    match expected {
        Some(arguments) => {
            assert_eq!(outcome.finish(), ModelFinish::ToolCalls);
            assert_eq!(outcome.calls().into_iter().map(|call| call.2).collect::<Vec<_>>(), arguments);
        }
        None => assert_eq!(outcome.error(), ModelErrorKind::BadStream),
    }
}

// L-01
#[rstest]
#[case(json!({"error": "model runner has unexpectedly stopped"}), ModelErrorKind::Unavailable)]
#[case(json!({"error": "slow down", "status_code": 429}), ModelErrorKind::RateLimit)]
#[case(json!({"error": "the prompt exceeds the available context size"}), ModelErrorKind::ContextOverflow)]
#[tokio::test]
async fn an_error_within_the_stream_is_the_end(#[case] error: Value, #[case] kind: ModelErrorKind) {
    let outcome = said(&[text("Hel"), error.clone(), done("stop")]).await;
    assert_eq!((outcome.error(), outcome.text().as_str()), (kind, "Hel"));
    assert_eq!(said(&[error]).await.error(), kind);
}

// L-10
#[tokio::test]
async fn a_bad_line_is_named_and_fails() {
    for bad in ["nonsense", "{\"message\":7}", "[]"] {
        let outcome =
            mutants::outcome_of(client, [lines(&[text("Hel")]), format!("{bad}\n"), lines(&[done("stop")])].concat()).await;
        let error = outcome.end.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadStream);
        assert!(error.message.starts_with("bad_frame: event 2 "), "{}", error.message);
    }
    let bytes =
        [lines(&[text("Hel")]).as_bytes(), b"{\"message\":{\"content\":\"\xff\"}}\n", lines(&[done("stop")]).as_bytes()].concat();
    assert!(mutants::outcome_of(client, bytes).await.end.unwrap_err().message.starts_with("bad_frame: "));
}

// L-04, L-06, L-12
#[tokio::test]
async fn the_last_line_is_the_end() {
    let body = lines(&[text("Hello"), done("stop")]);
    for last in [Step::Send(lines(&[text("more"), json!({"error": "x"})]).into_bytes()), Step::Cut, Step::Hang] {
        let steps = vec![Step::Send(body.clone().into_bytes()), last];
        let outcome = mutants::outcomes_of(client, vec![Answer::events(steps)]).await.remove(0);
        assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello", ModelFinish::Stop));
    }
}

// L-11
#[tokio::test]
async fn an_endless_line_is_cut() {
    let steps =
        [Step::Send(b"{".to_vec())].into_iter().chain((0..24).map(|_| Step::Send(vec![b' '; 1024 * 1024]))).chain([Step::Hang]);
    let error = mutants::outcomes_of(client, vec![Answer::events(steps.collect())]).await.remove(0).end.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::BadStream);
    assert!(error.message.contains("MiB"), "{}", error.message);
}

// L-40
#[tokio::test]
async fn halves_of_characters_and_nul_become_replacement_characters() {
    let body = "{\"message\":{\"content\":\"a\\ud83db \\u0000\"}}\n{\"done\":true}\n";
    assert_eq!(mutants::outcome_of(client, body).await.text(), "a\u{fffd}b \u{fffd}");
}

// L-42
#[tokio::test]
async fn an_answer_in_one_piece() {
    let mut whole = done("stop");
    whole["message"] = json!({"role": "assistant", "content": "wait", "thinking": "hm",
        "tool_calls": [{"function": {"name": "get_time", "arguments": {"x": 1}}}]});
    let wire = Wire::play(vec![Answer::json(200, &whole.to_string())]).await;
    for streaming in [true, false] {
        let options = ClientOptions { is_streaming: streaming, ..options(&wire) };
        let outcome = ask_through(client(options).unwrap().as_ref(), question()).await;
        assert_eq!((outcome.text().as_str(), outcome.reasoning().as_str()), ("wait", "hm"));
        assert_eq!((outcome.calls()[0].2.as_str(), outcome.finish()), ("{\"x\":1}", ModelFinish::ToolCalls));
    }
    assert_eq!(wire.asked()[1].json()["stream"], false);
}

// L-18, L-19
#[rstest]
#[case(404, r#"{"error":"model 'x' not found"}"#, ModelErrorKind::InvalidRequest)]
#[case(400, r#"{"error":"\"x\" does not support thinking"}"#, ModelErrorKind::InvalidRequest)]
#[case(500, r#"{"error":"llama runner process has terminated"}"#, ModelErrorKind::Unavailable)]
#[case(503, r#"{"error":"server busy, please try again"}"#, ModelErrorKind::Overloaded)]
#[tokio::test]
async fn refusals(#[case] status: u16, #[case] body: &str, #[case] kind: ModelErrorKind) {
    assert_eq!(mutants::outcomes_of(client, vec![Answer::json(status, body)]).await.remove(0).error(), kind);
}

async fn asked(request: capstan::domain::model::ModelRequest) -> Value {
    let wire = Wire::play(vec![Answer::stream(lines(&[text("ok"), done("stop")]))]).await;
    ask_through(client(options(&wire)).unwrap().as_ref(), request).await.finish();
    let asked = &wire.asked()[0];
    assert!(asked.head.starts_with("POST /api/chat HTTP/1.1\r\n"), "{}", asked.head);
    asked.json()
}

#[tokio::test]
async fn a_plain_question() {
    let mut request = question();
    request.tools.truncate(1);
    request.options = ModelOptions {
        temperature: Some(0.5),
        top_p: Some(1.0),
        max_output_tokens: Some(100),
        seed: Some(7),
        stop: vec!["END".to_owned()],
        tool_choice: Some(ToolChoice::Auto),
        output_schema: Some(OutputSchema { name: "a".to_owned(), schema: json!({"type": "object"}), strict: true }),
        reasoning_effort: Some(ReasoningEffort::Minimal),
    };
    let function =
        json!({"name": "get_weather", "description": "does get_weather", "parameters": {"type": "object", "properties": {}}});
    assert_eq!(
        asked(request.clone()).await,
        json!({
            "model": "gpt-x", "stream": true,
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "format": {"type": "object"}, "think": true,
            "options": {"num_ctx": 8_192, "temperature": 0.5, "top_p": 1.0, "seed": 7, "num_predict": 100, "stop": ["END"]},
        })
    );

    // Some models have effort levels. Without tools, no call is possible.
    request.model = "gpt-oss:20b".to_owned();
    request.system = String::new();
    request.options = ModelOptions {
        tool_choice: Some(ToolChoice::None),
        reasoning_effort: Some(ReasoningEffort::Minimal),
        ..ModelOptions::default()
    };
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "gpt-oss:20b", "stream": true, "messages": messages, "think": "low", "options": {"num_ctx": 8_192}});
    assert_eq!(asked(request.clone()).await, body);
    request.options.reasoning_effort = Some(ReasoningEffort::None);
    assert_eq!(asked(request.clone()).await["think"], false);

    for choice in [ToolChoice::Required, ToolChoice::Tool("get_time".to_owned())] {
        request.options.tool_choice = Some(choice);
        let wire = Wire::play(vec![Answer::json(200, "{}")]).await;
        let outcome = ask_through(client(options(&wire)).unwrap().as_ref(), request.clone()).await;
        assert_eq!((outcome.error(), wire.asked().len()), (ModelErrorKind::InvalidRequest, 0));
    }
}

/// Without a window in the request, Ollama uses its own default and silently truncates longer requests.
#[rstest]
#[case::a_word(1, None, None, 8_192)]
#[case::what_fits_with_its_answer(13_000, None, None, 8_192)]
#[case::what_does_not(14_000, None, None, 16_384)]
#[case::a_long_text(100_000, None, None, 65_536)]
#[case::a_long_answer(1, Some(20_000), None, 32_768)]
#[case::said(1, None, Some(32_768), 32_768)]
#[case::said_and_odd(100_000, None, Some(40_000), 40_000)]
#[tokio::test]
async fn the_window_has_room_for_request_and_answer(
    #[case] bytes: usize,
    #[case] max_output_tokens: Option<u32>,
    #[case] window: Option<u64>,
    #[case] num_ctx: u64,
) {
    let ids = SequentialIds::default();
    let words = |id| Part::Text(TextPart { id, text: "x".repeat(bytes) });
    let mut request = request(vec![message(&ids, Role::User, |id| vec![words(id())])]);
    request.tools.clear();
    request.options.max_output_tokens = max_output_tokens;
    request.window = window;
    assert_eq!(asked(request).await["options"]["num_ctx"], num_ctx);
}

#[tokio::test]
async fn a_history() {
    let ids = SequentialIds::default();
    let part = |id, text: &str| Part::Text(TextPart { id, text: text.to_owned() });
    let file = |id, media_type: &str, url: &str| file(id, media_type, Some(url), Some("a"));
    let thought = |id| Part::Reasoning(ReasoningPart { id, text: "hm".to_owned(), raw: None });
    let (call_a, result_a) = call(&ids, Some("call_x"), json!({"zone": "UTC"}), "noon");
    let (call_b, result_b) = call(&ids, None, json!("broken"), "");
    let Part::ToolResult(mut with_image) = result_b else { panic!("no result") };
    with_image.content = vec![ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="))];
    let history = vec![
        message(&ids, Role::User, |id| vec![part(id(), "when?")]),
        message(&ids, Role::Assistant, |id| vec![thought(id()), part(id(), "now")]),
        message(&ids, Role::User, |id| {
            vec![
                part(id(), "look"),
                Part::Image(file(id(), "image/png", "data:image/png;base64,BB==")),
                Part::Image(file(id(), "image/png", "https://host/a.png")),
                text_file(id(), "hi"),
            ]
        }),
        message(&ids, Role::Assistant, |id| vec![thought(id()), call_a, call_b]),
        message(&ids, Role::Tool, |_| vec![result_a, Part::ToolResult(with_image)]),
    ];
    assert_eq!(
        asked(request(history)).await["messages"],
        json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "when?"},
            {"role": "assistant", "content": "now"},
            {"role": "user", "content": "look\n[image a, image/png: not sent to the model]\n[file a.txt, text/plain]\nhi", "images": ["BB=="]},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"function": {"name": "get_time", "arguments": {"zone": "UTC"}}},
                {"function": {"name": "get_time", "arguments": {"_raw": "broken"}}}]},
            {"role": "tool", "content": "noon", "tool_name": "get_time"},
            {"role": "tool", "content": "[image, image/png: shown in the next message]", "tool_name": "get_time"},
            {"role": "user", "content": "[images of the results of tools]", "images": ["AA=="]},
        ])
    );
}
