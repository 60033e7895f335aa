//! Tool calls of chat completions, assembled from deltas.

use capstan::domain::model::{ModelErrorKind, ModelFinish};
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::{DONE, Outcome, ask, delta, finish, options, outcome_of, question, usage};
use support::wire::{Answer, Wire};

/// Returns the outcome of an answer with these deltas, one for each event.
async fn pieces(pieces: &[Value]) -> Outcome {
    let events: String = pieces.iter().map(|piece| delta(json!({"tool_calls": [piece]}))).collect();
    outcome_of([events, finish("tool_calls"), DONE.to_owned()].concat()).await
}

fn piece(index: Option<i64>, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    let mut piece = json!({"type": "function", "function": {"arguments": arguments}});
    if let Some(index) = index {
        piece["index"] = index.into();
    }
    if let Some(id) = id {
        piece["id"] = id.into();
    }
    if let Some(name) = name {
        piece["function"]["name"] = name.into();
    }
    piece
}

fn said(outcome: &Outcome) -> Vec<(&str, &str, String)> {
    let calls = outcome.calls();
    let names = ["get_time", "get_weather"];
    let known = |name: &str| names.into_iter().find(|known| *known == name).unwrap_or("?");
    let ids = ["", "a", "b", "c", "d"];
    let known_id = |id: &str| ids.into_iter().find(|known| *known == id).unwrap_or("?");
    calls.iter().map(|(id, name, arguments)| (known_id(id), known(name), arguments.clone())).collect()
}

const TIME: Option<&str> = Some("get_time");
const WEATHER: Option<&str> = Some("get_weather");
const A: Option<&str> = Some("a");
const B: Option<&str> = Some("b");
const NO: Option<&str> = None;

// L-24 to L-29: deltas as providers send them, and the calls that they mean.
#[rstest]
#[case::by_the_book(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), NO, NO, "{\"x\""), piece(Some(0), NO, NO, ":1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::interleaved(
    vec![
        piece(Some(0), A, TIME, ""), piece(Some(1), B, WEATHER, ""), piece(Some(0), NO, NO, "{\"x\""),
        piece(Some(1), NO, NO, "{\"y\""), piece(Some(0), NO, NO, ":1}"), piece(Some(1), NO, NO, ":2}"),
    ],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{\"y\":2}")]
)]
#[case::interleaved_by_id_under_one_index(
    vec![piece(Some(0), A, TIME, "{\"x\""), piece(Some(0), B, WEATHER, "{\"y\""), piece(Some(0), A, NO, ":1}"), piece(Some(0), B, NO, ":2}")],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{\"y\":2}")]
)]
#[case::two_whole_calls_under_one_index(
    vec![piece(Some(0), A, TIME, "{}"), piece(Some(0), B, WEATHER, "{}")],
    vec![("a", "get_time", "{}"), ("b", "get_weather", "{}")]
)]
#[case::two_whole_calls_under_one_index_without_ids(
    vec![piece(Some(0), NO, TIME, "{\"x\":1}"), piece(Some(0), NO, TIME, "{\"x\":2}")],
    vec![("", "get_time", "{\"x\":1}"), ("", "get_time", "{\"x\":2}")]
)]
#[case::next_call_begins_with_its_name_under_the_same_index(
    vec![piece(Some(0), NO, TIME, "{}"), piece(Some(0), NO, TIME, ""), piece(Some(0), NO, NO, "{\"x\":2}")],
    vec![("", "get_time", "{}"), ("", "get_time", "{\"x\":2}")]
)]
#[case::index_missing(
    vec![piece(None, A, TIME, ""), piece(None, NO, NO, "{\"x\":"), piece(None, NO, NO, "1}"), piece(None, B, WEATHER, "{}")],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{}")]
)]
#[case::index_rising_without_ids(
    vec![piece(Some(0), A, TIME, ""), piece(Some(1), NO, NO, "{\"x\":"), piece(Some(2), NO, NO, "1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::index_rising_with_the_id_again(
    vec![piece(Some(0), A, TIME, ""), piece(Some(1), A, NO, "{\"x\":"), piece(Some(2), A, NO, "1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::id_and_name_in_every_piece(
    vec![piece(Some(0), A, TIME, "{\"x\":"), piece(Some(0), A, TIME, "1}"), piece(Some(0), A, TIME, "")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::id_empty_after_the_first(
    vec![piece(Some(0), A, TIME, "{\"x\":"), piece(Some(0), Some(""), Some(""), "1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::whole_call_repeated_at_the_end(
    vec![piece(Some(0), A, TIME, "{\"x\":"), piece(Some(0), NO, NO, "1}"), piece(Some(0), A, TIME, "{\"x\":1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::no_ids_at_all(
    vec![piece(Some(0), NO, TIME, "{}"), piece(Some(1), Some(""), WEATHER, "{}")],
    vec![("", "get_time", "{}"), ("", "get_weather", "{}")]
)]
#[case::one_id_for_two_calls(
    vec![piece(Some(0), A, TIME, "{\"x\":1}"), piece(Some(1), A, TIME, "{\"x\":2}")],
    vec![("a", "get_time", "{\"x\":1}"), ("a", "get_time", "{\"x\":2}")]
)]
#[case::one_id_for_two_calls_without_index(
    vec![piece(None, A, TIME, "{\"x\":1}"), piece(None, A, TIME, "{\"x\":2}")],
    vec![("a", "get_time", "{\"x\":1}"), ("a", "get_time", "{\"x\":2}")]
)]
#[case::late_name(
    vec![piece(Some(0), A, NO, "{\"x\":"), piece(Some(0), NO, NO, "1}"), piece(Some(0), NO, TIME, "")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::late_id_and_name(
    vec![piece(Some(0), NO, NO, "{}"), piece(Some(0), A, TIME, "")],
    vec![("a", "get_time", "{}")]
)]
#[case::split_name(
    vec![piece(Some(0), A, Some("get_"), ""), piece(Some(0), NO, Some("time"), ""), piece(Some(0), NO, NO, "{}")],
    vec![("a", "get_time", "{}")]
)]
#[case::no_arguments(
    vec![piece(Some(0), A, TIME, ""), piece(Some(1), B, WEATHER, "")],
    vec![("a", "get_time", ""), ("b", "get_weather", "")]
)]
#[case::no_arguments_under_one_index_without_ids(
    vec![piece(Some(0), NO, TIME, ""), piece(Some(0), NO, WEATHER, "")],
    vec![("", "get_time", ""), ("", "get_weather", "")]
)]
#[case::null_arguments(
    vec![json!({"index": 0, "id": "a", "function": {"name": "get_time", "arguments": null}})],
    vec![("a", "get_time", "")]
)]
#[case::arguments_as_an_object(
    vec![json!({"index": 0, "id": "a", "function": {"name": "get_time", "arguments": {"x": {"y": "}"}}}})],
    vec![("a", "get_time", "{\"x\":{\"y\":\"}\"}}")]
)]
#[case::brackets_and_quotes_in_texts(
    vec![piece(Some(0), A, TIME, r#"{"x":"\"}"#), piece(Some(0), NO, NO, r#"\\"}"#), piece(Some(0), B, WEATHER, "{}")],
    vec![("a", "get_time", r#"{"x":"\"}\\"}"#), ("b", "get_weather", "{}")]
)]
#[case::id_changes_in_every_piece(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), B, NO, "{\"x\""), piece(Some(0), Some("c"), NO, ":1}"), piece(Some(0), Some("d"), NO, "")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::id_changes_in_every_piece_and_the_name_comes_again(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), B, TIME, "{\"x\""), piece(Some(0), Some("c"), TIME, ":1}"), piece(Some(0), Some("d"), TIME, "")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::id_changes_in_every_piece_of_two_calls(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), Some("c"), NO, "{}"), piece(Some(1), B, WEATHER, ""), piece(Some(1), Some("d"), NO, "{}")],
    vec![("a", "get_time", "{}"), ("b", "get_weather", "{}")]
)]
#[case::id_changes_without_an_index(
    vec![piece(None, A, TIME, ""), piece(None, Some("c"), NO, "{\"x\":"), piece(None, Some("d"), NO, "1}"), piece(None, B, WEATHER, "{}")],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{}")]
)]
#[case::calls_without_arguments_under_one_index(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), B, TIME, ""), piece(Some(0), Some("c"), TIME, "")],
    vec![("a", "get_time", ""), ("b", "get_time", ""), ("c", "get_time", "")]
)]
#[case::one_of_them_goes_on(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), B, TIME, ""), piece(Some(0), B, TIME, "{\"x\":"), piece(Some(0), B, NO, "1}")],
    // In the order of their first deltas.
    vec![("b", "get_time", "{\"x\":1}"), ("a", "get_time", "")]
)]
#[case::a_call_without_arguments_under_its_id_again(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), A, TIME, ""), piece(Some(0), A, TIME, "")],
    vec![("a", "get_time", "")]
)]
#[case::id_changes_in_every_piece_of_a_call_without_arguments(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), B, NO, ""), piece(Some(0), Some("c"), TIME, "")],
    vec![("a", "get_time", "")]
)]
#[case::next_call_of_the_same_tool_under_one_index(
    vec![piece(Some(0), A, TIME, "{\"x\":1}"), piece(Some(0), B, TIME, ""), piece(Some(0), B, NO, "{\"x\":2}")],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_time", "{\"x\":2}")]
)]
#[case::empty_object_in_the_place_of_arguments(
    vec![piece(Some(0), A, TIME, "{}"), piece(Some(0), NO, NO, ""), piece(Some(0), NO, NO, "{\"x\":"), piece(Some(0), NO, NO, "1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::empty_objects_in_the_place_of_arguments_of_two_calls(
    vec![
        piece(Some(0), A, TIME, "{}"), piece(Some(0), NO, NO, "{\"x\":1}"),
        piece(Some(1), B, WEATHER, "{}"), piece(Some(1), NO, NO, "{"), piece(Some(1), NO, NO, "}"),
    ],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{}")]
)]
#[case::empty_object_with_id_and_name_in_every_piece(
    vec![piece(Some(0), A, TIME, "{}"), piece(Some(0), A, TIME, "{\"x\":"), piece(Some(0), A, TIME, "1}")],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::one_call_that_is_no_list(
    vec![json!({"index": 0, "id": "", "type": "function", "function": {"name": "get_time", "arguments": "{}"}})],
    vec![("", "get_time", "{}")]
)]
#[case::arguments_that_are_a_list(
    vec![json!({"index": 0, "id": "a", "function": {"name": "get_time", "arguments": []}}), json!({"index": 1, "id": "b", "function": {"name": "get_weather", "arguments": 7}})],
    vec![("a", "get_time", "[]"), ("b", "get_weather", "7")]
)]
#[case::trailing_text_is_kept_for_the_loop_to_refuse(
    vec![piece(Some(0), A, TIME, "{}"), piece(Some(0), NO, NO, " and so on")],
    vec![("a", "get_time", "{} and so on")]
)]
#[tokio::test]
async fn calls_from_pieces(#[case] sent: Vec<Value>, #[case] expected: Vec<(&str, &str, &str)>) {
    let outcome = pieces(&sent).await;
    assert_eq!(outcome.finish(), ModelFinish::ToolCalls);
    let expected: Vec<_> = expected.into_iter().map(|(id, name, arguments)| (id, name, arguments.to_owned())).collect();
    assert_eq!(said(&outcome), expected);
}

// L-29: Text Generation Inference sends a single call as an object, older ones with the name among the arguments.
#[tokio::test]
async fn a_single_call_as_an_object() {
    let alone = |function: Value| {
        delta(json!({"role": "assistant", "tool_calls": {"index": 0, "id": "", "type": "function", "function": function}}))
    };
    let ends = [finish("eos_token"), DONE.to_owned()].concat();
    let named = [alone(json!({"name": "get_time", "arguments": "{\"x\":"})), alone(json!({"name": null, "arguments": "1}"}))];
    let within = [
        alone(json!({"name": null, "arguments": "{\"function\": {\"_name\": \"get_time\","})),
        alone(json!({"name": null, "arguments": " \"x\":1}}"})),
        alone(json!({"name": null, "arguments": "<|eot_id|>"})),
    ];
    for body in [named.concat(), within.concat()] {
        let outcome = outcome_of(body + &ends).await;
        assert_eq!((said(&outcome), outcome.finish()), (vec![("", "get_time", "{\"x\":1}".to_owned())], ModelFinish::ToolCalls));
    }
    // The name of a tool that was not offered is not taken as a name.
    for arguments in [
        "{\"function\":{\"_name\":\"no_tool\"}}",
        "{\"function\":{\"_name\":\"get_time\"}} or not",
        "{\"function\":{\"_name\":\"get_time\"",
    ] {
        let body = alone(json!({"name": null, "arguments": arguments})) + &ends;
        assert_eq!(outcome_of(body).await.error(), ModelErrorKind::BadStream, "{arguments}");
    }
}

// L-05, L-23: an empty object as arguments is complete only with a finish reason, like any other.
#[tokio::test]
async fn an_empty_object_needs_an_end_like_any_other() {
    let call = delta(json!({"tool_calls": [piece(Some(0), A, TIME, "{}")]}));
    let outcome = outcome_of(call.clone() + DONE).await;
    assert_eq!((said(&outcome), outcome.finish()), (vec![("a", "get_time", "{}".to_owned())], ModelFinish::ToolCalls));
    assert_eq!(outcome_of(call.clone()).await.error(), ModelErrorKind::IncompleteStream);
    let begun = delta(json!({"tool_calls": [piece(Some(0), NO, NO, "{\"x\":")]}));
    assert_eq!(outcome_of([call, begun, DONE.to_owned()].concat()).await.error(), ModelErrorKind::IncompleteStream);
}

// L-26: a delta that fits no single call fails.
#[rstest]
#[case::nameless(vec![piece(Some(0), A, NO, "{}")])]
#[case::bare_piece_with_two_open_calls(
    vec![piece(Some(0), A, TIME, "{\"x\""), piece(Some(1), B, WEATHER, "{\"y\""), piece(None, NO, NO, ":1}")]
)]
#[case::new_index_with_two_open_calls(
    vec![piece(Some(0), A, TIME, "{\"x\""), piece(Some(1), B, WEATHER, "{\"y\""), piece(Some(2), NO, NO, ":1}")]
)]
#[case::index_lent_and_then_claimed(
    vec![piece(Some(0), A, TIME, "{\"x\""), piece(Some(1), NO, NO, ":1}"), piece(Some(1), B, WEATHER, "")]
)]
#[case::index_and_id_disagree(
    vec![piece(Some(0), A, TIME, "{\"x\""), piece(Some(1), B, WEATHER, "{\"y\""), piece(Some(0), B, NO, ":1}")]
)]
#[case::one_call_with_two_beginnings_or_two_calls(
    vec![piece(Some(0), A, TIME, ""), piece(Some(0), B, TIME, ""), piece(Some(0), Some("c"), TIME, "{\"x\":1}")]
)]
#[case::name_changes(vec![piece(Some(0), A, TIME, "{\"x\""), piece(Some(0), A, WEATHER, ":1}")])]
#[tokio::test]
async fn ambiguous_pieces_fail(#[case] sent: Vec<Value>) {
    assert_eq!(pieces(&sent).await.error(), ModelErrorKind::BadStream);
}

// L-21
#[tokio::test]
async fn the_presence_of_calls_decides() {
    let call = delta(json!({"tool_calls": [piece(Some(0), A, TIME, "{}")]}));
    let outcome = outcome_of([call, finish("stop"), DONE.to_owned()].concat()).await;
    assert_eq!(outcome.finish(), ModelFinish::ToolCalls);
}

// L-23
#[tokio::test]
async fn a_call_at_the_output_limit_is_cut() {
    let call = delta(json!({"tool_calls": [piece(Some(0), A, TIME, "{}")]}));
    let outcome = outcome_of([call.as_str(), &finish("length"), DONE].concat()).await;
    assert_eq!(outcome.finish(), ModelFinish::Length);

    let mut request = question();
    request.options.max_output_tokens = Some(100);
    for (used, expected) in [(99, ModelFinish::ToolCalls), (100, ModelFinish::Length)] {
        let wire = Wire::play(vec![Answer::stream([call.as_str(), &finish("tool_calls"), &usage(5, used), DONE].concat())]).await;
        assert_eq!(ask(options(&wire), request.clone()).await.finish(), expected);
    }
}
