//! Responses streams and documents: their content, their usage and their end.

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, Usage};
use capstan::provider::responses::client;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    added, arguments_delta, arguments_done, brief, call, completed, created, document, done, events, message, reasoning, recorded,
    said, text_delta,
};
use crate::drive::{Outcome, ask_through, options, question};
use crate::mutants::{self, Frames};
use support::wire::{Answer, Step, Wire};

fn calls(expected: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    expected.iter().map(|(id, name, arguments)| ((*id).to_owned(), (*name).to_owned(), (*arguments).to_owned())).collect()
}

fn blocks(outcome: &Outcome) -> Vec<&Value> {
    let blocks = outcome.events.iter().filter_map(|event| match event {
        ModelEvent::ReasoningBlock(raw) | ModelEvent::ToolCallBlock { raw, .. } => Some(raw),
        _ => None,
    });
    blocks.collect()
}

#[tokio::test]
async fn everything_is_said_once_and_in_order() {
    let outcome = said(&recorded()).await;
    let mut thought = reasoning("rs_1", "Let me see.", "gAAA/+==");
    thought["summary"] = json!([{"type": "summary_text", "text": "Let me see."}, {"type": "summary_text", "text": "Oh."}]);
    let started = |index: usize, id: &str, name: &str| ModelEvent::ToolCallStarted {
        index,
        provider_call_id: id.to_owned(),
        name: name.to_owned(),
    };
    let more = |index: usize, delta: &str| ModelEvent::ToolCallArguments { index, delta: delta.to_owned() };
    let reasoned = |text: &str| ModelEvent::Reasoning(text.to_owned());
    assert_eq!(
        outcome.events,
        [
            reasoned("Let me "),
            reasoned("see."),
            reasoned("\n\n"),
            reasoned("Oh."),
            ModelEvent::ReasoningBlock(thought),
            ModelEvent::Text("Grüße \u{85}\u{2028} ".to_owned()),
            ModelEvent::Text("👩‍🚀".to_owned()),
            started(0, "call_a", "get_time"),
            started(1, "call_b", "get_weather"),
            more(1, "{\"city\":"),
            more(0, "{}"),
            more(1, "\"Zürich\"}"),
            ModelEvent::ToolCallBlock { index: 0, raw: json!({"id": "fc_1"}) },
            ModelEvent::ToolCallBlock { index: 1, raw: json!({"id": "fc_2"}) },
            ModelEvent::Usage(Usage {
                input_tokens: 30,
                output_tokens: 20,
                cached_input_tokens: 8,
                reasoning_tokens: 12,
                model_calls: 1,
                ..Usage::default()
            }),
        ]
    );
    assert_eq!(outcome.finish(), ModelFinish::ToolCalls);
}

// L-08, L-09
#[tokio::test]
async fn framing_does_not_matter() {
    let body = events(&brief());
    let expected = mutants::outcome_of(client, &body).await;
    mutants::framing_does_not_matter(client, Frames::Events, &body, &expected).await;
}

// L-03, L-38
#[tokio::test]
async fn a_cut_stream_is_never_whole() {
    let body = events(&brief());
    let expected = mutants::outcome_of(client, &body).await;
    mutants::a_cut_is_never_whole(client, &body, body.len(), &expected).await;
}

// L-37: any event may be missing if another one has the same content, and all may be but the last.
#[tokio::test]
async fn missing_event_fields_come_from_other_events() {
    let recorded = recorded();
    let expected = said(&recorded).await;
    let kinds: std::collections::BTreeSet<&str> = recorded.iter().filter_map(|event| event["type"].as_str()).collect();
    for kind in kinds.iter().filter(|kind| **kind != "response.completed") {
        let left: Vec<Value> = recorded.iter().filter(|event| event["type"] != **kind).cloned().collect();
        let outcome = said(&left).await;
        assert_eq!((outcome.text(), outcome.finish()), (expected.text(), expected.finish()), "without {kind}");
        assert_eq!(outcome.reasoning(), expected.reasoning(), "without {kind}");
        let mut calls = outcome.calls();
        calls.sort();
        assert_eq!(calls, expected.calls(), "without {kind}");
        assert_eq!(blocks(&outcome).len(), 3, "without {kind}");
    }
    let whole = said(&[created(), recorded.last().unwrap().clone()]).await;
    assert_eq!((whole.text(), whole.reasoning(), whole.calls()), (expected.text(), expected.reasoning(), expected.calls()));
    assert_eq!((blocks(&whole), whole.usage()), (blocks(&expected), expected.usage()));

    let response = recorded.last().unwrap()["response"].clone();
    let at_once = document(&response).await;
    assert_eq!(at_once, whole);
}

// L-37: changing ids, identical indexes, an end without output.
#[rstest]
#[case::ids_change_in_every_event("{fresh}", None)]
#[case::ids_are_empty("", None)]
#[case::positions_are_all_the_same("{id}", Some(json!(0)))]
#[case::positions_are_missing("{id}", Some(Value::Null))]
#[tokio::test]
async fn places_may_be_unreliable(#[case] id: &str, #[case] position: Option<Value>) {
    let expected = said(&recorded()).await;
    let mut events = recorded();
    let count = events.len();
    for (at, event) in events.iter_mut().enumerate() {
        let rename = |known: &str| id.replace("{fresh}", &format!("x{at}")).replace("{id}", known);
        if let Some(known) = event["item_id"].as_str().map(str::to_owned) {
            event["item_id"] = rename(&known).into();
        }
        if let Some(known) = event["item"]["id"].as_str().map(str::to_owned) {
            event["item"]["id"] = rename(&known).into();
        }
        if let (Some(position), true) = (&position, event.get("output_index").is_some()) {
            event["output_index"] = position.clone();
        }
        if at == count - 1 {
            event["response"]["output"] = json!([]);
        }
    }
    let outcome = said(&events).await;
    assert_eq!((outcome.text(), outcome.reasoning(), outcome.calls()), (expected.text(), expected.reasoning(), expected.calls()));
    assert_eq!((outcome.finish(), outcome.usage()), (expected.finish(), expected.usage()));
}

/// Returns the events of vLLM for calls of gpt-oss: three different ids, in the first event, with the item, and with the
/// answer.
fn ids_of_vllm(count: u32) -> Vec<Value> {
    let item = |id: Value, call_id: String, arguments: &str| json!({"id": id, "type": "function_call", "call_id": call_id, "name": "get_time", "arguments": arguments, "status": null});
    let mut events = vec![created()];
    let mut output = Vec::new();
    for at in 0..count {
        let (id, arguments) = (format!("fc_{at}"), format!("{{\"x\":{at}}}"));
        events.push(added(at, item(json!(id), format!("call_{at}"), "")));
        events.push(arguments_delta(at, &id, &arguments));
        events.push(arguments_done(at, &id, &arguments));
        events.push(done(at, item(Value::Null, format!("fc_other_{at}"), &arguments)));
        output.push(item(json!(format!("third_{at}")), format!("call_third_{at}"), &arguments));
    }
    events.push(completed(json!(output)));
    events
}

// L-28, L-37
#[tokio::test]
async fn a_call_under_three_ids_is_one_call() {
    for count in 1..3 {
        let expected: Vec<_> =
            (0..count).map(|at| (format!("call_{at}"), "get_time".to_owned(), format!("{{\"x\":{at}}}"))).collect();
        let all = ids_of_vllm(count);
        // Without deltas, complete arguments or items, and in any order of the answer.
        let without = |kind: &str| all.iter().filter(|event| event["type"] != kind).cloned().collect::<Vec<_>>();
        let mut turned = all.clone();
        turned.last_mut().unwrap()["response"]["output"].as_array_mut().unwrap().reverse();
        let bodies = [
            all.clone(),
            without("response.function_call_arguments.delta"),
            without("response.function_call_arguments.done"),
            without("response.output_item.done"),
            turned,
        ];
        for (at, body) in bodies.iter().enumerate() {
            let outcome = said(body).await;
            assert_eq!((outcome.calls(), outcome.finish()), (expected.clone(), ModelFinish::ToolCalls), "{count}, {at}");
        }
        let body = events(&all);
        let outcome = said(&all).await;
        let whole_from = body.find("event: response.completed").unwrap();
        let whole_from = whole_from + body[whole_from..].find("\n\n").unwrap() + 2;
        if count > 1 {
            continue;
        }
        mutants::a_cut_is_never_whole(client, &body, whole_from, &outcome).await;
    }
}

// L-28: a second call at the same index is another call.
#[tokio::test]
async fn another_call_in_one_place_is_not_swallowed() {
    for (name, arguments) in [("get_weather", "{\"x\":1}"), ("get_time", "{\"x\":2}")] {
        let outcome = said(&[
            created(),
            added(0, call("f", "call_a", "get_time", "")),
            arguments_delta(0, "f", "{\"x\":1}"),
            arguments_done(0, "f", "{\"x\":1}"),
            done(0, call("g", "call_b", name, arguments)),
            completed(json!([])),
        ])
        .await;
        assert_eq!(outcome.calls(), calls(&[("call_a", "get_time", "{\"x\":1}"), ("call_b", name, arguments)]));
    }
}

// L-37: only the last event says how the answer ended.
#[rstest]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}}), ModelErrorKind::RateLimit)]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}}}), ModelErrorKind::Unavailable)]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "invalid_prompt", "message": "x"}}}), ModelErrorKind::ContentFilter)]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "invalid_image_url", "message": "x"}}}), ModelErrorKind::InvalidRequest)]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": null}}), ModelErrorKind::Unavailable)]
#[case(json!({"type": "response.failed"}), ModelErrorKind::Unavailable)]
#[case(json!({"type": "response.completed", "response": {"status": "failed", "error": {"code": "context_length_exceeded", "message": "x"}}}), ModelErrorKind::ContextOverflow)]
#[case(json!({"type": "response.cancelled", "response": {"status": "cancelled"}}), ModelErrorKind::IncompleteStream)]
#[case(json!({"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": null}}), ModelErrorKind::IncompleteStream)]
#[case(json!({"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": {"reason": "because"}}}), ModelErrorKind::BadStream)]
// L-01
#[case(json!({"type": "error", "code": "server_error", "message": "boom", "param": null}), ModelErrorKind::Unavailable)]
#[case(json!({"type": "error", "error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}}), ModelErrorKind::Quota)]
#[case(json!({"type": "error", "code": "server_is_overloaded", "message": "Our servers are currently overloaded."}), ModelErrorKind::Overloaded)]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "slow_down", "message": "x"}}}), ModelErrorKind::Overloaded)]
#[case(json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "usage_limit_reached", "message": "x"}}}), ModelErrorKind::Quota)]
#[case(json!({"type": "error", "code": null, "message": "maximum context length is 8 tokens"}), ModelErrorKind::ContextOverflow)]
#[case(json!({"error": {"message": "over", "type": "overloaded_error"}}), ModelErrorKind::Overloaded)]
#[case(json!({"type": "error", "error": {"type": "requests", "code": "429", "message": "slow"}}), ModelErrorKind::RateLimit)]
#[tokio::test]
async fn failures_within_the_stream(#[case] last: Value, #[case] kind: ModelErrorKind) {
    let outcome = said(&[created(), text_delta(0, "m", "Hel"), last, completed(json!([]))]).await;
    assert_eq!((outcome.error(), outcome.text().as_str()), (kind, "Hel"));
}

#[tokio::test]
async fn an_error_that_is_no_json_is_still_one() {
    let body = [events(&[created()]).as_str(), "event: error\ndata: upstream went away\n\n"].concat();
    let error = mutants::outcome_of(client, body).await.end.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ModelErrorKind::Unavailable, "upstream went away"));
}

// L-03, L-05: no end, or only the end mark of another dialect.
#[rstest]
#[case("")]
#[case("data: [DONE]\n\n")]
#[tokio::test]
async fn a_stream_without_its_last_event_is_incomplete(#[case] mark: &str) {
    let all = recorded();
    let body = events(&all[..all.len() - 1]) + mark;
    assert_eq!(mutants::outcome_of(client, body).await.error(), ModelErrorKind::IncompleteStream);
}

// L-04, L-06: the last event is the end, and later bytes are ignored.
#[tokio::test]
async fn events_after_the_last_one_are_ignored() {
    let body = events(&[created(), text_delta(0, "m", "Hello"), completed(json!([message("m", "Hello")]))]);
    for rest in ["data: [DONE]\n\n", "data: nonsense\n\n", "event: error\ndata: {}\n\n"] {
        let outcome = mutants::outcome_of(client, body.clone() + rest).await;
        assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello", ModelFinish::Stop));
    }
    for last in [Step::Cut, Step::Hang] {
        let steps = vec![Step::Send(body.clone().into_bytes()), last];
        let outcome = mutants::outcomes_of(client, vec![Answer::events(steps)]).await.remove(0);
        assert_eq!((outcome.text().as_str(), outcome.finish()), ("Hello", ModelFinish::Stop));
    }
}

// L-06
#[tokio::test]
async fn a_second_beginning_voids_the_first() {
    let outcome = said(&[
        created(),
        created(),
        text_delta(0, "m", "Hel"),
        added(1, call("f", "call_a", "get_time", "")),
        created(),
        text_delta(0, "m", "Hello"),
        completed(json!([message("m", "Hello")])),
    ])
    .await;
    let at = outcome.events.iter().position(|event| *event == ModelEvent::Restarted).unwrap();
    assert_eq!(outcome.events[at + 1], ModelEvent::Text("Hello".to_owned()));
    assert_eq!((outcome.events.len(), outcome.finish()), (at + 3, ModelFinish::Stop));
}

// L-10
#[tokio::test]
async fn a_bad_event_is_named_and_fails() {
    for bad in
        ["{\"type\":\"response.output_text.delta\",", "nonsense", "[]", "{\"type\":\"response.output_item.done\",\"item\":7}"]
    {
        let body = [events(&[created(), text_delta(0, "m", "Hel")]), format!("data: {bad}\n\n"), events(&[completed(json!([]))])];
        let outcome = mutants::outcome_of(client, body.concat()).await;
        let error = outcome.end.clone().unwrap_err();
        assert_eq!((error.kind, outcome.text().as_str()), (ModelErrorKind::BadStream, "Hel"), "{bad}");
        assert!(error.message.starts_with("bad_frame: event 3 "), "{}", error.message);
    }
}

// L-23, L-31
#[rstest]
#[case("max_output_tokens", ModelFinish::Length)]
#[case("content_filter", ModelFinish::Refused)]
#[tokio::test]
async fn an_incomplete_answer_says_why(#[case] reason: &str, #[case] expected: ModelFinish) {
    let cut = json!({"id": "f", "type": "function_call", "status": "incomplete", "call_id": "call_a", "name": "get_time", "arguments": "{\"x\""});
    let response = json!({"status": "incomplete", "incomplete_details": {"reason": reason}, "output": [cut]});
    let last = json!({"type": "response.incomplete", "response": response});
    let begun = added(0, call("f", "call_a", "get_time", ""));
    let outcome = said(&[created(), begun, arguments_delta(0, "f", "{\"x\""), done(0, cut.clone()), last]).await;
    assert_eq!((outcome.finish(), outcome.calls()), (expected, calls(&[("call_a", "get_time", "{\"x\"")])));
    assert_eq!(document(&response).await.finish(), expected);
}

// L-23: the output limit counts, even if the status says completed.
#[tokio::test]
async fn a_call_at_the_output_limit_is_cut() {
    let body = events(&[created(), completed(json!([call("f", "call_a", "get_time", "{}")]))]);
    for (limit, expected) in [(20, ModelFinish::Length), (21, ModelFinish::ToolCalls)] {
        let wire = Wire::play(vec![Answer::stream(&body)]).await;
        let mut request = question();
        request.options.max_output_tokens = Some(limit);
        assert_eq!(ask_through(client(options(&wire)).unwrap().as_ref(), request).await.finish(), expected);
    }
}

// L-03, L-23: no event completes the call, although the answer is marked as completed.
#[rstest]
#[case::begun(vec![], Some(ModelErrorKind::IncompleteStream))]
#[case::cut(vec![arguments_delta(0, "f", "{\"x\":")], Some(ModelErrorKind::IncompleteStream))]
#[case::complete(vec![arguments_delta(0, "f", "{\"x\":1}")], None)]
#[case::without_arguments(vec![arguments_done(0, "f", "")], None)]
#[case::two_versions(vec![arguments_delta(0, "f", "{\"x\":1}"), arguments_done(0, "f", "{\"x\":2}")], Some(ModelErrorKind::BadStream))]
#[case::same_in_other_words(vec![arguments_delta(0, "f", "{\"x\":1}"), arguments_done(0, "f", "{\"x\": 1}")], None)]
#[case::nameless(vec![arguments_done(0, "f", "{}"), arguments_delta(7, "g", "{}")], Some(ModelErrorKind::BadStream))]
#[tokio::test]
async fn a_call_must_be_whole(#[case] between: Vec<Value>, #[case] failure: Option<ModelErrorKind>) {
    let mut body = vec![created(), added(0, call("f", "call_a", "get_time", ""))];
    body.extend(between);
    body.push(completed(json!([])));
    let outcome = said(&body).await;
    match failure {
        Some(kind) => assert_eq!(outcome.error(), kind),
        None => assert_eq!(outcome.finish(), ModelFinish::ToolCalls),
    }
}

// L-26: two open calls at one index, and deltas that name neither.
#[tokio::test]
async fn pieces_that_fit_no_single_call_fail() {
    let outcome = said(&[
        created(),
        added(0, call("f", "call_a", "get_time", "")),
        added(0, call("g", "call_b", "get_time", "")),
        arguments_delta(0, "h", "{}"),
        completed(json!([])),
    ])
    .await;
    assert_eq!(outcome.error(), ModelErrorKind::BadStream);
}

// L-26: indexes in other types.
#[tokio::test]
async fn places_may_be_texts() {
    let dressed = |event: Value, place: Value| {
        let mut event = event;
        event["output_index"] = place;
        (event["content_index"], event["part"]) = (json!("0"), json!(""));
        event
    };
    let expected = calls(&[("call_a", "get_time", "{}"), ("call_b", "get_time", "{\"x\":1}")]);
    let outcome = said(&[
        created(),
        dressed(added(0, call("", "call_a", "get_time", "")), json!("0")),
        dressed(added(1, call("", "call_b", "get_time", "")), json!(1.0)),
        dressed(arguments_delta(1, "", "{\"x\":1}"), json!("1")),
        dressed(arguments_delta(0, "", "{}"), json!(0.0)),
        completed(json!([])),
    ])
    .await;
    assert_eq!((outcome.calls(), outcome.finish()), (expected, ModelFinish::ToolCalls));
}

// L-24: arguments as an object.
#[tokio::test]
async fn arguments_may_be_an_object() {
    let mut given = call("f", "call_a", "get_time", "");
    given["arguments"] = json!({"x": {"y": 1}});
    let outcome = said(&[created(), completed(json!([given]))]).await;
    assert_eq!(outcome.calls(), calls(&[("call_a", "get_time", "{\"x\":{\"y\":1}}")]));
}

// L-31
#[tokio::test]
async fn a_refusal_is_text_and_an_end() {
    let refusal = json!({"id": "m", "type": "message", "content": [{"type": "refusal", "refusal": "I cannot."}]});
    let piece = |delta: &str| json!({"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "item_id": "m", "delta": delta});
    let whole =
        json!({"type": "response.refusal.done", "output_index": 0, "content_index": 0, "item_id": "m", "refusal": "I cannot."});
    let last = completed(json!([refusal]));
    for body in [
        vec![piece("I can"), piece("not."), whole.clone(), done(0, refusal.clone()), last.clone()],
        vec![whole, last.clone()],
        vec![done(0, refusal), completed(json!([]))],
        vec![last],
    ] {
        let outcome = said(&body).await;
        assert_eq!((outcome.text().as_str(), outcome.finish()), ("I cannot.", ModelFinish::Refused));
    }
}

// L-30: the engine judges an empty answer.
#[tokio::test]
async fn nothing_at_all_is_an_answer() {
    let outcome = said(&[created(), completed(json!([]))]).await;
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("", ModelFinish::Stop));
}

#[tokio::test]
async fn thoughts_themselves_are_shown_where_there_is_no_summary() {
    let item = json!({"id": "r", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm hm"}]});
    let piece = |delta: &str| json!({"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "item_id": "r", "delta": delta});
    let outcome = said(&[created(), piece("hm"), piece(" hm"), done(0, item.clone()), completed(json!([item]))]).await;
    assert_eq!((outcome.reasoning().as_str(), blocks(&outcome)), ("hm hm", vec![&item]));

    // Several items, each with its own block.
    let (one, two) = (reasoning("r1", "one", "e1"), reasoning("r2", "two", "e2"));
    let outcome = said(&[created(), done(0, one.clone()), done(1, two.clone()), completed(json!([one, two]))]).await;
    assert_eq!((outcome.reasoning().as_str(), blocks(&outcome)), ("onetwo", vec![&one, &two]));
}

// L-39
#[tokio::test]
async fn tokens_used() {
    for (usage, expected) in [
        (json!(null), None),
        (json!({"input_tokens": -1, "output_tokens": 2}), None),
        (json!({"input_tokens": 9, "output_tokens": 2, "input_tokens_details": null}), Some((9, 2))),
    ] {
        let mut last = completed(json!([message("m", "Hello!")]));
        last["response"]["usage"] = usage;
        let usage = said(&[created(), last]).await.usage().unwrap();
        assert_eq!(usage.estimated, expected.is_none(), "{usage:?}");
        if let Some(expected) = expected {
            assert_eq!((usage.input_tokens, usage.output_tokens), expected);
        }
    }
}

// L-40
#[tokio::test]
async fn halves_of_characters_and_nul_become_replacement_characters() {
    let body = [
        r#"data: {"type":"response.output_text.delta","output_index":0,"item_id":"m","delta":"a\ud83db \u0000 \\u0000 \ud83d\ude00"}"#,
        r#"data: {"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","call_id":"a","name":"get_time","arguments":"{\"x\":\"\u0000\"}"}}"#,
        r#"data: {"type":"response.completed","response":{"status":"completed"}}"#,
        "",
    ];
    let outcome = mutants::outcome_of(client, body.join("\n\n")).await;
    assert_eq!(outcome.text(), "a\u{fffd}b \u{fffd} \\u0000 \u{1f600}");
    assert_eq!(outcome.calls()[0].2, "{\"x\":\"\u{fffd}\"}");
}

// L-42
#[rstest]
#[case(json!({"object": "response", "status": "in_progress", "output": []}), ModelErrorKind::IncompleteStream)]
#[case(json!({"object": "response", "status": "queued", "output": []}), ModelErrorKind::IncompleteStream)]
#[case(json!({}), ModelErrorKind::IncompleteStream)]
#[case(json!({"status": "failed", "error": {"code": "server_error", "message": "x"}}), ModelErrorKind::Unavailable)]
#[case(json!({"error": {"code": "insufficient_quota", "message": "x"}}), ModelErrorKind::Quota)]
#[case(json!({"object": "error", "code": 429, "message": "x"}), ModelErrorKind::RateLimit)]
#[tokio::test]
async fn a_document_that_is_no_answer(#[case] body: Value, #[case] kind: ModelErrorKind) {
    assert_eq!(document(&body).await.error(), kind);
}
