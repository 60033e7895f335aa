//! Gemini streams: their content, their usage and their end.

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, Usage};
use capstan::provider::ClientOptions;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::drive::{ask_through, options, question};
use super::super::mutants;
use super::{chunk, client, finish, outcome_of, parts, said, said_by, text};
use support::wire::{Answer, Step, Wire};

#[tokio::test]
async fn text_thoughts_and_figures() {
    let outcome = said(&[
        parts(&json!([{"text": "hm", "thought": true}])),
        parts(&json!([{"text": "m", "thought": true}, {"text": "Hel"}])),
        parts(&json!([{"executableCode": {"language": "PYTHON", "code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"inlineData": {"mimeType": "image/png", "data": "AA=="}}, {"somethingNew": {"text": 7}}])),
        text("lo"),
        finish("STOP"),
    ])
    .await;
    let usage = Usage {
        input_tokens: 10,
        output_tokens: 10,
        cached_input_tokens: 3,
        reasoning_tokens: 6,
        model_calls: 1,
        ..Usage::default()
    };
    assert_eq!(
        outcome.events,
        [
            ModelEvent::Reasoning("hm".to_owned()),
            ModelEvent::Reasoning("m".to_owned()),
            ModelEvent::Text("Hel".to_owned()),
            // Its bytes are no image.
            ModelEvent::Text("[a picture that cannot be shown]".to_owned()),
            ModelEvent::Text("lo".to_owned()),
            ModelEvent::Usage(usage),
        ]
    );
    assert_eq!(outcome.finish(), ModelFinish::Stop);
}

// L-33: each signature stays with its original part.
#[tokio::test]
async fn signatures() {
    let outcome = said(&[
        parts(&json!([{"text": "hmm", "thought": true, "thoughtSignature": "1"}, {"text": "a"}, {"text": "bé", "thoughtSignature": "2"}])),
        parts(&json!([{"functionCall": {"name": "get_time", "args": {}}, "thoughtSignature": "3"}, {"functionCall": {"name": "get_time", "args": {}}}])),
        parts(&json!([{"text": "", "thought_signature": "4"}])),
        finish("STOP"),
    ])
    .await;
    let blocks: Vec<&ModelEvent> = outcome
        .events
        .iter()
        .filter(|event| matches!(event, ModelEvent::ReasoningBlock(_) | ModelEvent::ToolCallBlock { .. }))
        .collect();
    assert_eq!(
        blocks,
        [
            &ModelEvent::ReasoningBlock(json!({"thoughtSignature": "1", "on": "thought", "bytes": 3})),
            &ModelEvent::ReasoningBlock(json!({"thoughtSignature": "2", "on": "text", "bytes": 3})),
            &ModelEvent::ToolCallBlock { index: 0, raw: json!({"thoughtSignature": "3"}) },
            &ModelEvent::ReasoningBlock(json!({"thoughtSignature": "4", "on": "text", "bytes": 0})),
        ]
    );
}

// L-21, L-24, L-28
#[tokio::test]
async fn calls() {
    let outcome = said(&[
        parts(&json!([{"functionCall": {"name": "get_time", "args": {"zone": "UTC", "n": 1.0}, "id": "a"}}, {"functionCall": {"name": "get_time", "args": {}}}])),
        parts(&json!([{"functionCall": {"name": "get_weather"}}, {"functionCall": {"name": "get_weather", "args": "{\"x\":1}", "id": "a"}}])),
        finish("STOP"),
    ])
    .await;
    let owned = |(id, name, arguments): (&str, &str, &str)| (id.to_owned(), name.to_owned(), arguments.to_owned());
    let expected = [
        ("a", "get_time", r#"{"zone":"UTC","n":1.0}"#),
        ("", "get_time", "{}"),
        ("", "get_weather", ""),
        ("a", "get_weather", r#"{"x":1}"#),
    ];
    let mut calls = outcome.calls();
    // The order of the fields is kept.
    let first: Value = serde_json::from_str(&calls[0].2).unwrap();
    assert_eq!(first, json!({"zone": "UTC", "n": 1.0}));
    calls[0].2 = expected[0].2.to_owned();
    assert_eq!(calls, expected.map(owned));
    assert_eq!(outcome.finish(), ModelFinish::ToolCalls);

    let nameless = said(&[parts(&json!([{"functionCall": {"args": {}}}])), finish("STOP")]).await;
    assert_eq!(nameless.error(), ModelErrorKind::BadStream);
}

#[tokio::test]
async fn arguments_in_pieces_fail_the_answer() {
    let pieces = json!([{"jsonPath": "$.x", "stringValue": "a"}]);
    for call in [
        json!({"name": "get_time", "partialArgs": pieces}),
        json!({"name": "get_time", "args": {}, "partial_args": pieces}),
        json!({"name": "get_time", "id": "a", "willContinue": true}),
        json!({"partialArgs": pieces, "will_continue": true}),
    ] {
        let outcome = said(&[parts(&json!([{ "functionCall": call }])), finish("STOP")]).await;
        assert!(outcome.calls().is_empty(), "{call}");
        let error = outcome.end.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadStream, "{error}");
        assert!(error.message.contains("partialArgs") && error.message.contains("streamFunctionCallArguments"), "{error}");
    }
    let whole = json!({"name": "get_time", "args": {"x": 1}, "partialArgs": [], "willContinue": false});
    let outcome = said(&[parts(&json!([{ "functionCall": whole }])), finish("STOP")]).await;
    assert_eq!((outcome.calls()[0].2.as_str(), outcome.finish()), (r#"{"x":1}"#, ModelFinish::ToolCalls));
}

// L-01
#[rstest]
#[case(json!({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}), ModelErrorKind::Overloaded)]
#[case(json!({"error": {"code": 500, "message": "failed to generate", "status": "INTERNAL"}}), ModelErrorKind::Unavailable)]
#[case(json!({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}), ModelErrorKind::RateLimit)]
#[case(json!({"error": {"code": 499, "message": "x", "status": "CANCELLED"}}), ModelErrorKind::Unavailable)]
#[case(json!([{"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}]), ModelErrorKind::Overloaded)]
#[tokio::test]
async fn an_error_within_the_stream_is_the_end(#[case] error: Value, #[case] kind: ModelErrorKind) {
    for named in ["", "event: error\n"] {
        let outcome = said(&[text("Hel"), named.to_owned(), chunk(&error), finish("STOP")]).await;
        assert_eq!((outcome.error(), outcome.text().as_str()), (kind, "Hel"));
    }
}

// L-03, L-04: the finish reason is the only end mark.
#[rstest]
#[case::text(vec![text("Hel")])]
#[case::whole_call(vec![parts(&json!([{"functionCall": {"name": "get_time", "args": {}}}]))])]
#[case::empty_candidates(vec![chunk(&json!({"candidates": [], "usageMetadata": {"promptTokenCount": 1}}))])]
#[case::no_candidates(vec![chunk(&json!({"usageMetadata": {"promptTokenCount": 1}}))])]
#[case::another_mark(vec![text("Hel"), "data: [DONE]\n\n".to_owned()])]
#[tokio::test]
async fn a_stream_without_its_end_is_incomplete(#[case] events: Vec<String>) {
    mutants::has_no_end(client, &events.concat()).await;
}

#[tokio::test]
async fn a_reason_to_stop_is_the_end() {
    for last in [None, Some(Step::Cut), Some(Step::Hang), Some(Step::Send(b"data: [DONE]\n\n".to_vec()))] {
        let steps = [Some(Step::Send([text("Hel"), finish("STOP")].concat().into_bytes())), last].into_iter().flatten().collect();
        let wire = Wire::play(vec![Answer::events(steps)]).await;
        let mut options = options(&wire);
        options.limits.after_finish = std::time::Duration::from_millis(500);
        let outcome = ask_through(client(options).unwrap().as_ref(), question()).await;
        assert_eq!((outcome.finish(), outcome.usage().unwrap().input_tokens), (ModelFinish::Stop, 10));
    }
}

// Old models send `STOP` with every chunk.
#[tokio::test]
async fn a_reason_with_every_chunk() {
    let each = |text: &str| chunk(&json!({"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}));
    let outcome = said(&[each("Hel"), each("lo")]).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Stop, "Hello"));
    // After any pause before the second chunk.
    let pause = Step::Pause(std::time::Duration::from_millis(400));
    let steps = vec![Step::Send(each("Hel").into_bytes()), pause, Step::Send(each("lo").into_bytes())];
    let wire = Wire::play(vec![Answer::events(steps)]).await;
    let mut options = options(&wire);
    options.limits.after_finish = std::time::Duration::from_millis(50);
    assert_eq!(ask_through(client(options).unwrap().as_ref(), question()).await.text(), "Hello");
}

// Proxies fill a field that has no value yet.
#[tokio::test]
async fn a_reason_that_is_not_given_is_none() {
    let outcome = said(&[text("Hel"), finish("FINISH_REASON_UNSPECIFIED"), text("lo"), finish("STOP")]).await;
    assert_eq!((outcome.text().as_str(), outcome.end), ("Hello", Ok(ModelFinish::Stop)));
}

// L-21, L-23, L-31: gateways pass finish reasons of other dialects on.
#[rstest]
#[case("stop", ModelFinish::Stop)]
#[case("end_turn", ModelFinish::Stop)]
#[case("tool_calls", ModelFinish::Stop)]
#[case("length", ModelFinish::Length)]
#[case("content_filter", ModelFinish::Refused)]
#[tokio::test]
async fn reasons_in_other_words(#[case] word: &str, #[case] expected: ModelFinish) {
    let outcome = said(&[text("Hel"), finish(word)]).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (expected, "Hel"));
}

// L-31
#[rstest]
#[case("SAFETY")]
#[case("RECITATION")]
#[case("LANGUAGE")]
#[case("BLOCKLIST")]
#[case("PROHIBITED_CONTENT")]
#[case("SPII")]
#[case("IMAGE_SAFETY")]
#[tokio::test]
async fn refusals_keep_their_text(#[case] word: &str) {
    let outcome = said(&[text("Hel"), finish(word)]).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Refused, "Hel"));
}

// L-31: the prompt itself was blocked.
#[tokio::test]
async fn a_blocked_prompt_is_refused() {
    for reason in ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT"] {
        let blocked = json!({"promptFeedback": {"blockReason": reason, "safetyRatings": []}, "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7}});
        for answer in [Answer::stream(chunk(&blocked)), Answer::json(200, &blocked.to_string())] {
            let outcome = said_by(answer).await;
            assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Refused, ""));
            assert_eq!(outcome.usage().unwrap().input_tokens, 7);
        }
    }
}

// L-23
#[tokio::test]
async fn the_output_limit() {
    let call = parts(&json!([{"functionCall": {"name": "get_time", "args": {}}}]));
    for said_before in [text("Hel"), call, String::new()] {
        assert_eq!(said(&[said_before, finish("MAX_TOKENS")]).await.finish(), ModelFinish::Length);
    }
}

// L-32: never a success.
#[rstest]
#[case("MALFORMED_FUNCTION_CALL", ModelErrorKind::BadStream)]
#[case("UNEXPECTED_TOOL_CALL", ModelErrorKind::BadStream)]
#[case("TOO_MANY_TOOL_CALLS", ModelErrorKind::BadStream)]
#[case("OTHER", ModelErrorKind::BadStream)]
#[case("FINISH_REASON_UNSPECIFIED", ModelErrorKind::IncompleteStream)]
#[case("SOMETHING_NEW", ModelErrorKind::BadStream)]
#[case("MISSING_THOUGHT_SIGNATURE", ModelErrorKind::InvalidRequest)]
#[tokio::test]
async fn reasons_that_are_failures(#[case] word: &str, #[case] kind: ModelErrorKind) {
    let bare = chunk(&json!({"candidates": [{"finishReason": word, "finishMessage": "why", "index": 0}]}));
    for events in [vec![text("Hel"), finish(word)], vec![bare]] {
        assert_eq!(said(&events).await.error(), kind);
    }
}

// L-22, L-30, L-32: the engine judges an answer without content.
#[rstest]
#[case(json!({"candidates": [{"finishReason": "STOP", "index": 0}]}))]
#[case(json!({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}))]
#[case(json!({"candidates": [{"content": {"parts": null}, "finishReason": "STOP"}]}))]
#[case(json!({"candidates": [{"content": {"parts": [{"text": "hm", "thought": true}]}, "finishReason": "STOP"}]}))]
#[tokio::test]
async fn nothing_at_all_is_an_answer(#[case] answer: Value) {
    let outcome = said(&[chunk(&answer)]).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Stop, ""));
}

// L-10
#[tokio::test]
async fn a_bad_event_is_named_and_fails() {
    for bad in ["{\"candidates\":[{]}", "{\"candidates\": 7}", "nonsense", "7"] {
        let error = said(&[text("Hel"), format!("data: {bad}\n\n"), finish("STOP")]).await.end.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadStream, "{bad}");
        assert!(error.message.starts_with("bad_frame: event 2 "), "{}", error.message);
    }
}

// L-39: usage may be in any chunk, and the last one counts.
#[rstest]
#[case::in_the_middle(vec![json!({"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 1}}), json!({})], Some((5, 3)))]
#[case::in_pieces(vec![json!({"usageMetadata": {"promptTokenCount": 5}}), json!({"usageMetadata": {"candidatesTokenCount": 2, "promptTokenCount": null}})], Some((5, 2)))]
#[case::again(vec![json!({"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1}}), json!({"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2}})], Some((5, 2)))]
#[case::total_only(vec![json!({"usageMetadata": {"promptTokenCount": 5, "toolUsePromptTokenCount": 2, "totalTokenCount": 9}})], Some((7, 2)))]
#[case::missing(vec![json!({"usageMetadata": null})], None)]
#[case::nonsense(vec![json!({"usageMetadata": {"promptTokenCount": -5, "candidatesTokenCount": i64::MAX}})], None)]
#[tokio::test]
async fn tokens_used(#[case] figures: Vec<Value>, #[case] expected: Option<(u64, u64)>) {
    let figures: String = figures.iter().map(chunk).collect();
    let end = chunk(&json!({"candidates": [{"finishReason": "STOP"}]}));
    let usage = said(&[text("Hello!"), figures, end]).await.usage().unwrap();
    assert_eq!((usage.estimated, usage.model_calls), (expected.is_none(), 1));
    match expected {
        Some(expected) => assert_eq!((usage.input_tokens, usage.output_tokens), expected),
        None => assert!(usage.input_tokens > 20 && usage.output_tokens == 2, "{usage:?}"),
    }
}

// L-40
#[tokio::test]
async fn halves_of_characters_and_nul_become_replacement_characters() {
    let odd = r#"data: {"candidates":[{"content":{"parts":[{"text":"a\ud83db \u0000 \\u0000 \ud83d\ude00"},{"functionCall":{"name":"get_time","args":{"x":"\ud83d\u0000"}}}]}}]}"#;
    let outcome = said(&[format!("{odd}\n\n"), finish("STOP")]).await;
    assert_eq!(outcome.text(), "a\u{fffd}b \u{fffd} \\u0000 \u{1f600}");
    assert_eq!(outcome.calls()[0].2, r#"{"x":"\ufffd\ufffd"}"#);
}

// L-42: a single document, and the JSON list that a gateway returns when it drops `alt=sse`.
#[tokio::test]
async fn an_answer_in_one_piece() {
    let chunks = [
        json!({"candidates": [{"content": {"parts": [{"text": "hm", "thought": true}, {"text": "wa"}]}, "index": 0}]}),
        json!({"candidates": [{"content": {"parts": [{"text": "it"}, {"functionCall": {"name": "get_time", "args": {"zone": "UTC"}}}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}}),
    ];
    let whole = json!({"candidates": [{"content": {"parts": [{"text": "hm", "thought": true}, {"text": "wait"},
        {"functionCall": {"name": "get_time", "args": {"zone": "UTC"}}}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}});
    let list = format!("[{}\n,\r\n{}\n]\n", chunks[0], chunks[1]);
    for body in [whole.to_string(), list.clone()] {
        for streaming in [true, false] {
            let wire = Wire::play(vec![Answer::json(200, &body)]).await;
            let client = client(ClientOptions { is_streaming: streaming, ..options(&wire) }).unwrap();
            let outcome = ask_through(client.as_ref(), question()).await;
            assert_eq!((outcome.text().as_str(), outcome.reasoning().as_str()), ("wait", "hm"));
            assert_eq!((outcome.finish(), outcome.calls()[0].2.as_str()), (ModelFinish::ToolCalls, r#"{"zone":"UTC"}"#));
            assert_eq!(outcome.usage().unwrap().output_tokens, 4);
        }
    }
    for at in 1..list.trim_end().len() {
        assert_eq!(said_by(Answer::json(200, &list[..at])).await.error(), ModelErrorKind::IncompleteStream, "cut at {at}");
    }
}

// L-42: Code Assist and Vertex proxies wrap each answer in an envelope.
#[tokio::test]
async fn an_answer_in_an_envelope() {
    let wrapped = |chunk: &Value| json!({"response": chunk, "traceId": "t", "metadata": {}});
    let chunks = [
        json!({"candidates": [{"content": {"parts": [{"text": "hm", "thought": true}, {"text": "wa"}]}, "index": 0}]}),
        json!({"candidates": [{"content": {"parts": {"text": "it"}}}]}),
        json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "get_time", "args": {"zone": "UTC"}}}]}}]}),
        json!({"candidates": [{"content": {}, "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}}),
    ];
    let bare = outcome_of(client, chunks.iter().map(chunk).collect::<String>()).await;
    assert_eq!((bare.text().as_str(), bare.reasoning().as_str(), bare.calls().len()), ("wait", "hm", 1));
    assert_eq!((bare.finish(), bare.usage().unwrap().output_tokens), (ModelFinish::ToolCalls, 4));
    let events: Vec<String> = chunks.iter().map(|bare| chunk(&wrapped(bare))).collect();
    let body = events.concat();
    assert_eq!(outcome_of(client, &body).await, bare);
    mutants::framing_does_not_matter(client, mutants::Frames::Events, &body, &bare).await;
    mutants::a_cut_is_never_whole(client, &body, body.len(), &bare).await;

    let list = json!(chunks.iter().map(wrapped).collect::<Vec<_>>());
    let whole = wrapped(&json!({"candidates": [{"content": {"parts": [{"text": "wait"}]}, "finishReason": "STOP"}]}));
    for (body, calls) in [(list, 1), (whole.clone(), 0), (json!([whole]), 0)] {
        for streaming in [true, false] {
            let wire = Wire::play(vec![Answer::json(200, &body.to_string())]).await;
            let client = client(ClientOptions { is_streaming: streaming, ..options(&wire) }).unwrap();
            let outcome = ask_through(client.as_ref(), question()).await;
            assert_eq!((outcome.text().as_str(), outcome.calls().len(), outcome.end.is_ok()), ("wait", calls, true));
        }
    }
    let error = wrapped(&json!({"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}));
    assert_eq!(said(&[events[0].clone(), chunk(&error), events[3].clone()]).await.error(), ModelErrorKind::Overloaded);
    let blocked = wrapped(&json!({"promptFeedback": {"blockReason": "SAFETY"}}));
    assert_eq!(said(&[chunk(&blocked)]).await.finish(), ModelFinish::Refused);
    assert_eq!(said(&[chunk(&wrapped(&json!({})))]).await.error(), ModelErrorKind::IncompleteStream);
}

#[rstest]
#[case::no_reason(r#"{"candidates":[{"content":{"parts":[{"text":"Hel"}]}}]}"#, ModelErrorKind::IncompleteStream)]
#[case::error(r#"[{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}]"#, ModelErrorKind::Overloaded)]
#[case::empty_list("[]", ModelErrorKind::IncompleteStream)]
#[case::something_else(r#"{"ok":true}"#, ModelErrorKind::IncompleteStream)]
#[tokio::test]
async fn a_document_that_is_no_answer(#[case] body: &str, #[case] kind: ModelErrorKind) {
    assert_eq!(said_by(Answer::json(200, body)).await.error(), kind);
}

// L-16 to L-20
#[rstest]
#[case(
    429,
    "RESOURCE_EXHAUSTED",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ModelErrorKind::ContextOverflow
)]
#[case(
    400,
    "INVALID_ARGUMENT",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ModelErrorKind::ContextOverflow
)]
#[case(400, "INVALID_ARGUMENT", "Invalid JSON payload received.", ModelErrorKind::InvalidRequest)]
#[case(400, "FAILED_PRECONDITION", "User location is not supported for the API use.", ModelErrorKind::InvalidRequest)]
#[case(403, "PERMISSION_DENIED", "no", ModelErrorKind::Auth)]
#[case(404, "NOT_FOUND", "models/x is not found", ModelErrorKind::InvalidRequest)]
#[case(500, "INTERNAL", "An internal error has occurred.", ModelErrorKind::Unavailable)]
#[case(503, "UNAVAILABLE", "The model is overloaded. Please try again later.", ModelErrorKind::Overloaded)]
#[case(504, "DEADLINE_EXCEEDED", "x", ModelErrorKind::Unavailable)]
#[tokio::test]
async fn refusals_of_the_server(#[case] status: u16, #[case] word: &str, #[case] message: &str, #[case] kind: ModelErrorKind) {
    let error = json!({"error": {"code": status, "message": message, "status": word}});
    for body in [error.to_string(), format!("[{error}]")] {
        let error = said_by(Answer::json(status, &body)).await.end.unwrap_err();
        // An error 404 also names the path.
        let said = error.message.split(" (404 for the path ").next();
        assert_eq!((error.kind, error.status, said), (kind, Some(status), Some(message)));
    }
}

#[tokio::test]
async fn unrequested_candidates_are_ignored() {
    let other =
        chunk(&json!({"candidates": [{"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "MAX_TOKENS"},
        {"index": 0, "content": {"parts": [{"text": "Hel"}]}}]}));
    let outcome = outcome_of(client, [other, finish("STOP")].concat()).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hel", ModelFinish::Stop));
}
