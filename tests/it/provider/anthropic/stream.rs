//! Anthropic streams: their content, their usage and their end.

use std::time::Duration;

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, Usage};
use rstest::rstest;
use serde_json::{Value, json};

use super::super::drive::{Outcome, options};
use super::super::mutants;
use super::{begin, call, client, delta, end, event, finish, outcome_of, said, said_by, said_to, start, stop, text};
use support::wire::{Answer, Step};

#[tokio::test]
async fn an_answer_as_it_is_documented() {
    let outcome = said(&[
        begin(),
        start(0, json!({"type": "text", "text": ""})),
        event(&json!({"type": "ping"})),
        delta(0, json!({"type": "text_delta", "text": "Hello"})),
        delta(0, json!({"type": "text_delta", "text": "!"})),
        delta(0, json!({"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x"}})),
        stop(0),
        event(&json!({"type": "something_new", "delta": {"text": "x"}})),
        finish("end_turn"),
        end(),
    ])
    .await;
    let usage = Usage { input_tokens: 25, output_tokens: 15, model_calls: 1, ..Usage::default() };
    assert_eq!(outcome.events, [ModelEvent::Text("Hello".to_owned()), ModelEvent::Text("!".to_owned()), ModelEvent::Usage(usage)]);
    assert_eq!(outcome.finish(), ModelFinish::Stop);
}

// L-01, L-02
#[rstest]
#[case(json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), ModelErrorKind::Overloaded)]
#[case(json!({"type": "error", "error": {"type": "api_error", "message": "Internal server error"}, "request_id": "r"}), ModelErrorKind::Unavailable)]
#[case(json!({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}), ModelErrorKind::RateLimit)]
#[case(json!({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}}), ModelErrorKind::ContextOverflow)]
#[case(json!({"type": "error", "error": {"type": "timeout_error", "message": "x"}}), ModelErrorKind::Timeout)]
#[case(json!({"type": "error", "error": {"type": "billing_error", "message": "x"}}), ModelErrorKind::Quota)]
#[case(json!({"type": "error", "message": "generate failed"}), ModelErrorKind::Unavailable)]
#[case(json!({"type": "error", "error": "plain words"}), ModelErrorKind::Unavailable)]
#[tokio::test]
async fn an_error_within_the_stream_is_the_end(#[case] error: Value, #[case] kind: ModelErrorKind) {
    for named in [event(&error), format!("data: {error}\n\n")] {
        for before in [String::new(), [begin(), text(0, "Hel")].concat(), [begin(), call(0, "a", "get_time", &["{}"])].concat()] {
            let outcome = said(&[before, named.clone(), finish("end_turn"), end()]).await;
            assert_eq!(outcome.error(), kind);
        }
    }
}

// L-03: content that looks complete is not, until the stop reason arrives.
#[rstest]
#[case::text(vec![begin(), text(0, "Hel")])]
#[case::whole_call(vec![begin(), call(0, "a", "get_time", &["{}"])])]
#[case::beginning(vec![begin()])]
#[case::no_reason(vec![begin(), text(0, "Hel"), event(&json!({"type": "message_delta", "delta": {"stop_reason": null}, "usage": {"output_tokens": 9}}))])]
#[case::reason_within_a_block(vec![begin(), start(0, json!({"type": "text", "text": "Hel"})), finish("end_turn")])]
#[case::reason_within_a_call(vec![begin(), start(0, json!({"type": "tool_use", "id": "a", "name": "get_time", "input": {}})),
    delta(0, json!({"type": "input_json_delta", "partial_json": "{\"x\":"})), finish("tool_use"), end()])]
#[case::nothing_but_the_end(vec![begin(), end()])]
#[tokio::test]
async fn a_stream_without_its_end_is_incomplete(#[case] events: Vec<String>) {
    mutants::has_no_end(client, &events.concat()).await;
}

// L-04: the stop reason ends the answer. Gateways leave out `message_stop`, or add another end mark.
#[tokio::test]
async fn the_end_mark_may_be_missing() {
    let whole = [begin(), text(0, "Hel"), call(1, "a", "get_time", &["{}"]), finish("tool_use")].concat();
    for last in [None, Some(Step::Cut), Some(Step::Hang), Some(Step::Send(b"data: [DONE]\n\n".to_vec()))] {
        let hangs = matches!(last, Some(Step::Hang));
        let steps = [Some(Step::Send(whole.clone().into_bytes())), last].into_iter().flatten().collect();
        let short = |wire: &_| {
            let mut options = options(wire);
            if hangs {
                options.limits.after_finish = Duration::from_millis(500);
            }
            options
        };
        let outcome = said_to(short, Answer::events(steps)).await;
        assert_eq!((outcome.finish(), outcome.text().as_str(), outcome.calls().len()), (ModelFinish::ToolCalls, "Hel", 1));
    }
}

// L-05
#[rstest]
#[case::text(vec![text(0, "Hel")], Ok(ModelFinish::Stop))]
#[case::whole_call(vec![call(0, "a", "get_time", &["{\"a\":", "[1]}"])], Ok(ModelFinish::ToolCalls))]
#[case::half_a_call(vec![text(0, "Hel"), call(1, "a", "get_time", &["{\"a\":"])], Err(ModelErrorKind::IncompleteStream))]
#[case::nothing(vec![], Err(ModelErrorKind::IncompleteStream))]
#[tokio::test]
async fn the_end_mark_alone(#[case] events: Vec<String>, #[case] expected: Result<ModelFinish, ModelErrorKind>) {
    for mark in [end(), "data: [DONE]\n\n".to_owned()] {
        let outcome = said(&[begin(), events.concat(), mark]).await;
        assert_eq!(outcome.end.map_err(|error| error.kind), expected);
    }
}

// L-06
#[tokio::test]
async fn events_after_the_end_are_ignored() {
    let whole = [begin(), text(0, "Hel"), finish("end_turn"), end()].concat();
    let outcome = said(&[whole, begin(), text(0, "more"), event(&json!({"type": "error", "error": {"type": "api_error"}}))]).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (ModelFinish::Stop, "Hel"));
}

// L-06: the call of the voided first half does not run.
#[rstest]
#[case::within_a_call(vec![begin(), text(0, "old"), start(1, json!({"type": "tool_use", "id": "a", "name": "get_time", "input": {}}))])]
#[case::after_a_whole_call(vec![begin(), call(0, "a", "get_time", &["{}"])])]
#[case::after_a_reason(vec![begin(), call(0, "a", "get_time", &["{}"]), finish("max_tokens")])]
#[tokio::test]
async fn a_second_beginning_voids_the_first(#[case] first: Vec<String>) {
    let second = [begin(), text(0, "new"), call(1, "b", "get_weather", &["{}"]), finish("tool_use"), end()].concat();
    let outcome = said(&[first.concat(), second.clone()]).await;
    let at = outcome.events.iter().position(|event| *event == ModelEvent::Restarted).expect("a new beginning");
    let rest = Outcome { events: outcome.events[at + 1..].to_vec(), end: outcome.end };
    assert_eq!(rest, outcome_of(client, second).await);
    let cut = said(&[first.concat(), begin(), text(0, "new")]).await;
    assert_eq!(cut.error(), ModelErrorKind::IncompleteStream);
}

// L-10
#[tokio::test]
async fn a_bad_event_is_named_and_fails() {
    for bad in
        ["{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{]}", "nonsense", "7", "{\"type\":\"message_delta\",\"delta\":7}"]
    {
        let outcome = said(&[begin(), format!("data: {bad}\n\n"), finish("end_turn"), end()]).await;
        let error = outcome.end.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadStream, "{bad}");
        assert!(error.message.starts_with("bad_frame: event 2 "), "{}", error.message);
    }
    let invalid = b"data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\xff\"}}\n\n";
    let outcome = outcome_of(client, [begin().as_bytes(), invalid, end().as_bytes()].concat()).await;
    assert!(outcome.end.unwrap_err().message.starts_with("bad_frame: "));
}

// L-13: pings are no progress.
#[tokio::test]
async fn pings_do_not_keep_an_answer_alive() {
    let ping = event(&json!({"type": "ping"})).into_bytes();
    let pings = (0..200).flat_map(|_| [Step::Send(ping.clone()), Step::Pause(Duration::from_millis(50))]);
    let steps = [Step::Send(begin().into_bytes())].into_iter().chain(pings).collect();
    let short = |wire: &_| {
        let mut options = options(wire);
        (options.limits.idle, options.limits.progress) = (Duration::from_secs(5), Duration::from_millis(400));
        options
    };
    assert_eq!(said_to(short, Answer::events(steps)).await.error(), ModelErrorKind::Timeout);
}

// L-21 to L-23, L-31
#[rstest]
#[case("end_turn", ModelFinish::Stop, ModelFinish::ToolCalls)]
#[case("stop_sequence", ModelFinish::Stop, ModelFinish::ToolCalls)]
#[case("tool_use", ModelFinish::ToolCalls, ModelFinish::ToolCalls)]
#[case("pause_turn", ModelFinish::Length, ModelFinish::ToolCalls)]
#[case("max_tokens", ModelFinish::Length, ModelFinish::Length)]
#[case("model_context_window_exceeded", ModelFinish::Length, ModelFinish::Length)]
#[case("refusal", ModelFinish::Refused, ModelFinish::Refused)]
#[case("STOP", ModelFinish::Stop, ModelFinish::ToolCalls)]
#[case("function_call", ModelFinish::ToolCalls, ModelFinish::ToolCalls)]
#[case("max_output_tokens", ModelFinish::Length, ModelFinish::Length)]
#[case("content_filter", ModelFinish::Refused, ModelFinish::Refused)]
#[tokio::test]
async fn reasons_to_stop(#[case] word: &str, #[case] with_text: ModelFinish, #[case] with_call: ModelFinish) {
    let outcome = said(&[begin(), text(0, "Hel"), finish(word), end()]).await;
    assert_eq!((outcome.finish(), outcome.text().as_str()), (with_text, "Hel"));
    let outcome = said(&[begin(), call(0, "a", "get_time", &["{}"]), finish(word), end()]).await;
    assert_eq!(outcome.finish(), with_call);
}

#[tokio::test]
async fn an_unknown_reason_is_no_success() {
    assert_eq!(said(&[begin(), text(0, "Hel"), finish("because"), end()]).await.error(), ModelErrorKind::BadStream);
}

// L-23: a call that reaches the output limit is truncated, with or without the end of its block.
#[tokio::test]
async fn a_call_at_the_output_limit_is_cut() {
    let open = [
        start(0, json!({"type": "tool_use", "id": "a", "name": "get_time", "input": {}})),
        delta(0, json!({"type": "input_json_delta", "partial_json": "{\"x\":"})),
    ];
    for (stopped, end) in [(stop(0), end()), (String::new(), end()), (stop(0), String::new()), (String::new(), String::new())] {
        let outcome = said(&[begin(), open.concat(), stopped, finish("max_tokens"), end]).await;
        assert_eq!((outcome.finish(), outcome.calls()[0].2.as_str()), (ModelFinish::Length, "{\"x\":"));
    }
    // The same for text, and for an answer that the provider stops.
    let words = [start(0, json!({"type": "text", "text": ""})), delta(0, json!({"type": "text_delta", "text": "Hel"}))].concat();
    for (reason, expected) in [("max_tokens", ModelFinish::Length), ("refusal", ModelFinish::Refused)] {
        let outcome = said(&[begin(), words.clone(), finish(reason)]).await;
        assert_eq!((outcome.finish(), outcome.text().as_str()), (expected, "Hel"));
    }
    assert_eq!(said(&[begin(), words, finish("end_turn")]).await.error(), ModelErrorKind::IncompleteStream);
}

// L-22, L-30: the engine judges an empty answer.
#[rstest]
#[case("end_turn", ModelFinish::Stop)]
#[case("tool_use", ModelFinish::ToolCalls)]
#[tokio::test]
async fn nothing_at_all_is_an_answer(#[case] reason: &str, #[case] expected: ModelFinish) {
    assert_eq!(said(&[begin(), finish(reason), end()]).await.finish(), expected);
}

// L-39: usage comes at the start and at the end, and cached input counts as input.
#[rstest]
#[case::both(json!({"input_tokens": 10, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}), json!({"output_tokens": 9}), Some((17, 9, 4)))]
#[case::all_at_the_end(json!({"input_tokens": 0, "output_tokens": 0}), json!({"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": 9}), Some((14, 9, 4)))]
#[case::zero_at_the_end(json!({"input_tokens": 10, "output_tokens": 1}), json!({"input_tokens": 0, "output_tokens": 9}), Some((10, 9, 0)))]
#[case::null_at_the_end(json!({"input_tokens": 10, "output_tokens": 2}), json!(null), Some((10, 2, 0)))]
#[case::missing(json!(null), json!(null), None)]
#[case::nonsense(json!({"input_tokens": -5, "output_tokens": "x"}), json!({"output_tokens": i64::MAX}), None)]
#[tokio::test]
async fn tokens_used(#[case] first: Value, #[case] last: Value, #[case] expected: Option<(u64, u64, u64)>) {
    let begin = event(&json!({"type": "message_start", "message": {"content": [], "usage": first}}));
    let end = event(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last}));
    let usage = said(&[begin, text(0, "Hello!"), end]).await.usage().unwrap();
    assert_eq!((usage.estimated, usage.model_calls), (expected.is_none(), 1));
    if let Some(expected) = expected {
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.cached_input_tokens), expected);
    } else {
        assert!(usage.input_tokens > 20 && usage.output_tokens == 2, "{usage:?}");
    }
}

// L-40
#[tokio::test]
async fn halves_of_characters_and_nul_become_replacement_characters() {
    let outcome = said(&[
        begin(),
        r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud83db \u0000 \\u0000 \ud83d\ude00"}}"#.to_owned(),
        "\n\n".to_owned(),
        stop(0),
        r#"data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"get_time","input":{"x":"\ud83d\u0000"}}}"#.to_owned(),
        "\n\n".to_owned(),
        stop(1),
        finish("tool_use"),
        end(),
    ])
    .await;
    assert_eq!(outcome.text(), "a\u{fffd}b \u{fffd} \\u0000 \u{1f600}");
    assert_eq!(outcome.calls()[0].2, r#"{"x":"\ufffd\ufffd"}"#);
}

// L-42: a document instead of a stream, for any request and any content type.
#[tokio::test]
async fn an_answer_in_one_piece() {
    let whole = json!({"id": "m", "type": "message", "role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "text", "text": "wait"},
        {"type": "tool_use", "id": "a", "name": "get_time", "input": {"zone": "UTC"}},
        {"type": "tool_use", "id": "b", "name": "get_weather", "input": {}}],
        "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 4}});
    for content_type in ["application/json", "text/event-stream"] {
        for streaming in [true, false] {
            let answer = Answer::new(200, &[("content-type", content_type)], vec![Step::Send(format!("\n {whole}").into_bytes())]);
            let outcome =
                said_to(|wire| capstan::provider::ClientOptions { is_streaming: streaming, ..options(wire) }, answer).await;
            assert_eq!((outcome.text().as_str(), outcome.reasoning().as_str()), ("wait", "hm"));
            assert!(outcome.events.contains(&ModelEvent::ReasoningBlock(json!({"signature": "c2ln"}))));
            assert_eq!(outcome.calls()[0].2, r#"{"zone":"UTC"}"#);
            assert_eq!((outcome.finish(), outcome.calls().len()), (ModelFinish::ToolCalls, 2));
            assert_eq!(outcome.usage().unwrap().output_tokens, 4);
        }
    }
}

// L-42: documents of gateways that translate another dialect. Results of server tools are ignored.
#[rstest]
#[case::text(json!("wait"))]
#[case::block(json!({"type": "text", "text": "wait"}))]
#[case::texts(json!(["wa", null, "it"]))]
#[case::both(json!(["wa", {"type": "text", "text": "it"}]))]
#[case::results(json!([{"type": "text", "text": "wait"}, {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": "x"},
    {"type": "document", "content": "y", "source": {"type": "text", "data": "z"}}]))]
#[tokio::test]
async fn content_of_many_forms(#[case] content: Value) {
    let whole = json!({"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"});
    let begun = event(&json!({"type": "message_start", "message": {"content": content, "stop_reason": null}}));
    for outcome in [
        said_by(Answer::json(200, &whole.to_string())).await,
        said_by(Answer::json(200, &json!([whole]).to_string())).await,
        said(&[event(&whole)]).await,
        said(&[begun.clone(), finish("end_turn"), end()]).await,
    ] {
        assert_eq!((outcome.text().as_str(), outcome.end), ("wait", Ok(ModelFinish::Stop)));
    }
    assert_eq!(said(&[begun]).await.error(), ModelErrorKind::IncompleteStream);
    let cut = json!({"type": "message", "content": content, "stop_reason": null}).to_string();
    assert_eq!(said_by(Answer::json(200, &cut)).await.error(), ModelErrorKind::IncompleteStream);
}

// Empty fields, and indexes in other types.
#[tokio::test]
async fn nothing_in_many_forms() {
    let start = |index: Value| {
        event(&json!({"type": "content_block_start", "index": index, "content_block": {"type": "text"}, "delta": ""}))
    };
    let piece = |index: Value, text: &str| {
        event(
            &json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}, "content_block": []}),
        )
    };
    let outcome = said(&[
        event(&json!({"type": "message_start", "message": {"content": "", "usage": []}})),
        start(json!("0")),
        piece(json!(0.0), "Hel"),
        event(&json!({"type": "content_block_delta", "index": 0, "delta": null})),
        piece(json!("0"), "lo"),
        stop(0),
        event(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ""})),
    ])
    .await;
    assert_eq!((outcome.text().as_str(), outcome.end), ("Hello", Ok(ModelFinish::Stop)));
}

#[rstest]
#[case::no_reason(
    r#"{"type":"message","content":[{"type":"text","text":"Hel"}],"stop_reason":null}"#,
    ModelErrorKind::IncompleteStream
)]
#[case::cut(r#"{"type":"message","content":[{"type":"text","text":"Hel"#, ModelErrorKind::IncompleteStream)]
#[case::error(r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, ModelErrorKind::Overloaded)]
#[case::something_else(r#"{"ok":true}"#, ModelErrorKind::IncompleteStream)]
#[case::list("[]", ModelErrorKind::BadStream)]
#[tokio::test]
async fn a_document_that_is_no_answer(#[case] body: &str, #[case] kind: ModelErrorKind) {
    assert_eq!(said_by(Answer::json(200, body)).await.error(), kind);
}

// L-16 to L-20: the status and the error type of the body.
#[rstest]
#[case(529, "overloaded_error", "Overloaded", ModelErrorKind::Overloaded)]
#[case(429, "rate_limit_error", "This request would exceed your organization's rate limit", ModelErrorKind::RateLimit)]
#[case(500, "api_error", "Internal server error", ModelErrorKind::Unavailable)]
#[case(401, "authentication_error", "invalid x-api-key", ModelErrorKind::Auth)]
#[case(403, "permission_error", "no", ModelErrorKind::Auth)]
#[case(402, "billing_error", "no", ModelErrorKind::Quota)]
#[case(404, "not_found_error", "model: claude-x", ModelErrorKind::InvalidRequest)]
#[case(413, "request_too_large", "Request exceeds the maximum size", ModelErrorKind::ContextOverflow)]
#[case(400, "invalid_request_error", "failed to generate", ModelErrorKind::InvalidRequest)]
#[case(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", ModelErrorKind::ContextOverflow)]
#[case(
    400,
    "invalid_request_error",
    "input length and `max_tokens` exceed context limit: 1 + 2 > 3",
    ModelErrorKind::ContextOverflow
)]
#[case(504, "timeout_error", "x", ModelErrorKind::Unavailable)]
#[tokio::test]
async fn refusals(#[case] status: u16, #[case] kind: &str, #[case] message: &str, #[case] expected: ModelErrorKind) {
    let body = json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}).to_string();
    let headers = [("content-type", "application/json"), ("retry-after", "7")];
    let error = said_by(Answer::new(status, &headers, vec![Step::Send(body.into_bytes())])).await.end.unwrap_err();
    // An error 404 also names the path.
    let said = error.message.split(" (404 for the path ").next();
    assert_eq!((error.kind, error.status, said), (expected, Some(status), Some(message)));
    assert_eq!(error.retry_after_ms, expected.is_retryable().then_some(7_000));
}
