//! Chat completions streams: their content, their usage and their end.

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, Usage};
use rstest::rstest;
use serde_json::json;

use super::drive::{DONE, ask, chat, delta, event, finish, options, outcome, outcome_of, question, usage};
use super::mutants;
use support::wire::{Answer, Step, Wire};

#[tokio::test]
async fn text_reasoning_and_figures() {
    let body = [
        delta(json!({"role": "assistant", "content": ""})),
        delta(json!({"reasoning_content": "hm", "reasoning": "hm"})),
        delta(json!({"reasoning": "m"})),
        delta(json!({"content": "Hel"})),
        delta(json!({"content": "lo"})),
        finish("stop"),
        event(&json!({"choices": [], "usage": {
            "prompt_tokens": 10, "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 2}}})),
        DONE.to_owned(),
    ];
    let outcome = outcome_of(body.concat()).await;
    assert_eq!(
        outcome.events,
        [
            ModelEvent::Reasoning("hm".to_owned()),
            ModelEvent::Reasoning("m".to_owned()),
            ModelEvent::Text("Hel".to_owned()),
            ModelEvent::Text("lo".to_owned()),
            ModelEvent::Usage(Usage {
                input_tokens: 10,
                output_tokens: 4,
                cached_input_tokens: 8,
                reasoning_tokens: 2,
                model_calls: 1,
                ..Usage::default()
            }),
        ]
    );
    assert_eq!(outcome.finish(), ModelFinish::Stop);
}

// L-01
#[rstest]
#[case(r#"{"error":{"message":"boom","code":502}}"#, ModelErrorKind::Unavailable)]
#[case(r#"{"error":{"message":"Overloaded","type":"overloaded_error"}}"#, ModelErrorKind::Overloaded)]
#[case(r#"{"error":{"message":"slow down","code":"rate_limit_exceeded"}}"#, ModelErrorKind::RateLimit)]
#[case(r#"{"error":"plain words"}"#, ModelErrorKind::Unavailable)]
#[case(r#"{"object":"error","message":"maximum context length is 4096 tokens","code":400}"#, ModelErrorKind::ContextOverflow)]
#[case(r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#, ModelErrorKind::Unavailable)]
#[case(r#"{"choices":[{"delta":{},"finish_reason":"error","error":{"message":"x","code":429}}]}"#, ModelErrorKind::RateLimit)]
#[tokio::test]
async fn an_error_within_the_stream_is_the_end(#[case] error: &str, #[case] kind: ModelErrorKind) {
    for named in ["", "event: error\n"] {
        let outcome = outcome_of([&delta(json!({"content": "Hel"})), named, "data: ", error, "\n\n", DONE].concat()).await;
        assert_eq!((outcome.error(), outcome.text().as_str()), (kind, "Hel"));
    }
}

// L-03
#[rstest]
#[case::text(delta(json!({"content": "Hel"})))]
#[case::whole_looking_call(delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_time", "arguments": "{}"}}]})))]
#[case::figures_only(usage(1, 1))]
#[case::nothing(": hello\n\n".to_owned())]
#[case::half_an_event([delta(json!({"content": "Hel"})), finish("stop").trim_end().to_owned()].concat())]
#[tokio::test]
async fn a_stream_without_its_end_is_incomplete(#[case] body: String) {
    mutants::has_no_end(chat, &body).await;
}

// L-04
#[tokio::test]
async fn the_end_mark_may_be_missing() {
    let said = [delta(json!({"content": "Hel"})), finish("stop"), usage(7, 1)].concat();
    for last in [None, Some(Step::Cut), Some(Step::Hang)] {
        let hangs = matches!(last, Some(Step::Hang));
        let steps = [Some(Step::Send(said.clone().into_bytes())), last].into_iter().flatten().collect();
        let wire = Wire::play(vec![Answer::events(steps)]).await;
        let mut options = options(&wire);
        if hangs {
            options.limits.after_finish = std::time::Duration::from_secs(1);
        }
        let outcome = ask(options, question()).await;
        assert_eq!((outcome.finish(), outcome.usage().unwrap().input_tokens), (ModelFinish::Stop, 7));
        if hangs {
            wire.hung_up(std::time::Duration::from_secs(10)).await;
        }
    }
}

// L-05
#[rstest]
#[case::text(delta(json!({"content": "Hel"})), Ok(ModelFinish::Stop))]
#[case::whole_call(
    delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_time", "arguments": "{\"a\":[1]}"}}]})),
    Ok(ModelFinish::ToolCalls)
)]
#[case::text_and_half_a_call(
    [
        delta(json!({"content": "Hel"})),
        delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_time", "arguments": "{\"a\":"}}]})),
    ].concat(),
    Err(ModelErrorKind::IncompleteStream)
)]
#[case::call_that_only_looks_whole(
    delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_time", "arguments": "{a}"}}]})),
    Err(ModelErrorKind::IncompleteStream)
)]
#[case::nothing(String::new(), Err(ModelErrorKind::IncompleteStream))]
#[tokio::test]
async fn the_end_mark_alone(#[case] body: String, #[case] end: Result<ModelFinish, ModelErrorKind>) {
    let outcome = outcome_of(body + DONE).await;
    assert_eq!(outcome.end.map_err(|error| error.kind), end);
}

// L-06
#[tokio::test]
async fn nothing_counts_after_the_end_mark() {
    let body =
        [delta(json!({"content": "Hel"})), finish("stop"), DONE.to_owned(), delta(json!({"content": "lo"})), "data: {".to_owned()];
    let outcome = outcome_of(body.concat()).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hel", ModelFinish::Stop));
}

// L-07
#[tokio::test]
async fn events_without_a_delta_are_skipped() {
    let body = [
        event(&json!({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]})),
        event(&json!({"usage": null})),
        event(&json!({"choices": null, "usage": {"prompt_tokens": 5, "completion_tokens": 1}})),
        event(&json!({"choices": [{"index": 0, "finish_reason": null}]})),
        event(&json!({"choices": [{"index": 0, "delta": null}]})),
        event(&json!({"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "length"}]})),
        delta(json!({"content": null, "tool_calls": null, "refusal": null})),
        delta(json!({"content": [{"type": "text", "text": "Hel"}, {"type": "x"}, {"type": "text", "text": "lo"}]})),
        event(&json!({"choices": [{"delta": {}, "finish_reason": ""}]})),
        finish("stop"),
        DONE.to_owned(),
    ];
    let outcome = outcome_of(body.concat()).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello", ModelFinish::Stop));
    assert_eq!(outcome.usage().unwrap().input_tokens, 5);
}

// L-10
#[tokio::test]
async fn a_bad_event_is_named_and_fails() {
    let good = delta(json!({"content": "Hel"}));
    let ends = [finish("stop"), DONE.to_owned()].concat();
    for bad in [&b"data: {\"choices\":[{]}\n\n"[..], b"data: {\"choices\": 7}\n\n", b"data: nonsense\n\n"] {
        let outcome = outcome_of([good.as_bytes(), bad, ends.as_bytes()].concat()).await;
        let error = outcome.end.clone().unwrap_err();
        assert_eq!((error.kind, outcome.text().as_str()), (ModelErrorKind::BadStream, "Hel"));
        assert!(error.message.starts_with("bad_frame: event 2 "), "{}", error.message);
    }
    let outcome =
        outcome_of([good.as_bytes(), b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n", ends.as_bytes()].concat())
            .await;
    assert!(outcome.end.unwrap_err().message.starts_with("bad_frame: "));
}

// L-21, L-31
#[rstest]
#[case("stop", ModelFinish::Stop)]
#[case("length", ModelFinish::Length)]
#[case("content_filter", ModelFinish::Refused)]
#[case("SAFETY", ModelFinish::Refused)]
#[case("COMPLETE", ModelFinish::Stop)]
#[case("end_turn", ModelFinish::Stop)]
#[case("eos", ModelFinish::Stop)]
#[case("stop_token", ModelFinish::Stop)]
#[case("normal", ModelFinish::Stop)]
#[case("max-tokens", ModelFinish::Length)]
#[case("model_length", ModelFinish::Length)]
#[case("max_output", ModelFinish::Length)]
#[case("token_limit", ModelFinish::Length)]
#[case("repetition", ModelFinish::Length)]
#[case("ERROR_LIMIT", ModelFinish::Length)]
#[case("sensitive", ModelFinish::Refused)]
#[case("blacklist", ModelFinish::Refused)]
#[case("ERROR_TOXIC", ModelFinish::Refused)]
#[case("content_filter: RECITATION", ModelFinish::Refused)]
#[tokio::test]
async fn reasons_to_stop(#[case] word: &str, #[case] expected: ModelFinish) {
    let outcome = outcome_of([delta(json!({"content": "Hel"})), finish(word), DONE.to_owned()].concat()).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (expected, "Hel"));
}

#[tokio::test]
async fn a_refusal_is_text_and_an_end() {
    let body = [delta(json!({"refusal": "I can"})), delta(json!({"refusal": "not."})), finish("stop"), DONE.to_owned()];
    let outcome = outcome_of(body.concat()).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("I cannot.", ModelFinish::Refused));
}

// L-32 and unknown finish reasons: never a success.
#[rstest]
#[case("MALFORMED_FUNCTION_CALL", ModelErrorKind::BadStream)]
#[case("abort", ModelErrorKind::IncompleteStream)]
#[case("insufficient_system_resource", ModelErrorKind::Overloaded)]
#[case("network_error", ModelErrorKind::Unavailable)]
#[case("TIMEOUT", ModelErrorKind::Timeout)]
#[case("because", ModelErrorKind::BadStream)]
#[tokio::test]
async fn reasons_that_are_failures(#[case] word: &str, #[case] kind: ModelErrorKind) {
    assert_eq!(outcome_of([delta(json!({"content": "Hel"})), finish(word), DONE.to_owned()].concat()).await.error(), kind);
}

// L-22, L-30: the engine judges an empty answer.
#[rstest]
#[case("stop", ModelFinish::Stop)]
#[case("tool_calls", ModelFinish::ToolCalls)]
#[tokio::test]
async fn nothing_at_all_is_an_answer(#[case] reason: &str, #[case] expected: ModelFinish) {
    let outcome = outcome_of([finish(reason), usage(3, 0), DONE.to_owned()].concat()).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (expected, ""));
    let thought = outcome_of([delta(json!({"reasoning": "hm"})), finish(reason), DONE.to_owned()].concat()).await;
    assert_eq!((thought.finish(), thought.reasoning().as_str()), (expected, "hm"));
}

// L-39
#[rstest]
#[case::missing(String::new(), None)]
#[case::twice([usage(1, 1), usage(9, 2)].concat(), Some((9, 2)))]
#[case::null_last([usage(9, 2), event(&json!({"choices": [], "usage": null}))].concat(), Some((9, 2)))]
#[case::negative(usage(-9, 2), None)]
#[case::huge(usage(i64::MAX, 2), None)]
#[tokio::test]
async fn tokens_used(#[case] figures: String, #[case] expected: Option<(u64, u64)>) {
    let outcome = outcome_of([delta(json!({"content": "Hello!"})), finish("stop"), figures, DONE.to_owned()].concat()).await;
    let usage = outcome.usage().unwrap();
    assert_eq!((usage.estimated, usage.model_calls), (expected.is_none(), 1));
    match expected {
        Some(expected) => assert_eq!((usage.input_tokens, usage.output_tokens), expected),
        None => assert!((20..500).contains(&usage.input_tokens) && usage.output_tokens == 2, "{usage:?}"),
    }
}

// L-40
#[tokio::test]
async fn halves_of_characters_and_nul_become_replacement_characters() {
    let body = [
        r#"data: {"choices":[{"delta":{"content":"a\ud83db \u0000 \\u0000 \ud83d\ude00"}}]}"#,
        r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"get_time","arguments":"{\"x\":\"\u0000\"}"}}]}}]}"#,
        r#"data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
        "",
    ];
    let outcome = outcome_of(body.join("\n\n")).await;
    assert_eq!(outcome.text(), "a\u{fffd}b \u{fffd} \\u0000 \u{1f600}");
    assert_eq!(outcome.calls()[0].2, "{\"x\":\"\u{fffd}\"}");
}

// L-42
#[tokio::test]
async fn an_answer_in_one_piece() {
    let whole = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": "wait", "reasoning_content": "hm", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Ulm"}}}]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
    let wrong_types = ["application/json", "text/event-stream", "text/plain"];
    for content_type in wrong_types {
        let answer = Answer::new(200, &[("content-type", content_type)], vec![Step::Send(format!("\n {whole}").into_bytes())]);
        let wire = Wire::play(vec![answer]).await;
        for streaming in [true, false] {
            let mut options = options(&wire);
            options.is_streaming = streaming;
            let outcome = ask(options, question()).await;
            assert_eq!((outcome.text().as_str(), outcome.reasoning().as_str()), ("wait", "hm"));
            let calls = [("a", "get_time", "{}"), ("a", "get_weather", r#"{"city":"Ulm"}"#)];
            assert_eq!(outcome.calls(), calls.map(|(id, name, arguments)| (id.to_owned(), name.to_owned(), arguments.to_owned())));
            assert_eq!((outcome.finish(), outcome.usage().unwrap().output_tokens), (ModelFinish::ToolCalls, 4));
        }
        assert_eq!(wire.asked()[1].json()["stream"], false);
    }
    // An event stream with another content type is still read as one.
    let body = [delta(json!({"content": "Hel"})), finish("stop"), DONE.to_owned()].concat();
    let answer = Answer::new(200, &[("content-type", "application/json")], vec![Step::Send(body.into_bytes())]);
    assert_eq!(outcome(answer).await.finish(), ModelFinish::Stop);
}

// L-42: one document for each line, and an error before the events of an answer.
#[tokio::test]
async fn documents_without_a_field() {
    let lines = [delta(json!({"content": "Hel"})), delta(json!({"content": "lo"})), finish("stop")].concat().replace("data: ", "");
    for body in [lines.replace("\n\n", "\n"), lines.clone(), format!("\n {lines}")] {
        let whole = outcome(Answer::json(200, &body)).await;
        assert_eq!((whole.text().as_str(), whole.end), ("Hello", Ok(ModelFinish::Stop)), "{body}");
        let cut = outcome(Answer::json(200, &body[..body.len() - 20])).await;
        assert_eq!((cut.text().as_str(), cut.error()), ("Hello", ModelErrorKind::IncompleteStream), "{body}");
    }
    let error = r#"{"error":{"message":"x","code":"insufficient_quota"}}"#;
    assert_eq!(outcome_of(format!("{error}\n\n{DONE}")).await.error(), ModelErrorKind::Quota);
}

#[rstest]
#[case::no_reason_and_nothing_said(
    r#"{"choices":[{"message":{"content":""},"finish_reason":null}]}"#,
    ModelErrorKind::IncompleteStream
)]
#[case::one_event_of_a_stream(
    r#"{"choices":[{"delta":{"content":"Hel"},"finish_reason":null}]}"#,
    ModelErrorKind::IncompleteStream
)]
#[case::half_a_call(
    r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"get_time","arguments":"{"}}]}}]}"#,
    ModelErrorKind::IncompleteStream
)]
#[case::cut(r#"{"choices":[{"message":{"content":"Hel"#, ModelErrorKind::IncompleteStream)]
#[case::error(r#"{"error":{"message":"x","code":"insufficient_quota"}}"#, ModelErrorKind::Quota)]
#[case::page("<html>gateway</html>", ModelErrorKind::BadStream)]
#[case::empty("", ModelErrorKind::IncompleteStream)]
#[case::blank(" \n", ModelErrorKind::IncompleteStream)]
#[tokio::test]
async fn a_document_that_is_no_answer(#[case] body: &str, #[case] kind: ModelErrorKind) {
    let outcome = outcome(Answer::json(200, body)).await;
    assert_eq!(outcome.error(), kind);
    assert!(!outcome.end.unwrap_err().message.contains('<'));
}

// L-42: a document without a finish reason is complete if its calls are.
#[tokio::test]
async fn a_document_without_a_reason_is_whole_if_its_calls_are() {
    let text = outcome(Answer::json(200, r#"{"choices":[{"message":{"content":"Hel"},"finish_reason":null}]}"#)).await;
    assert_eq!((text.text().as_str(), text.finish()), ("Hel", ModelFinish::Stop));
    let call = r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"get_time","arguments":"{}"}}]}}]}"#;
    assert_eq!(outcome(Answer::json(200, call)).await.finish(), ModelFinish::ToolCalls);
}
