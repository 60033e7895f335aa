//! Content blocks of Anthropic: tool calls, thinking blocks, and blocks to ignore.

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish};
use rstest::rstest;
use serde_json::{Value, json};

use super::super::drive::Outcome;
use super::{begin, call, delta, end, finish, said, start, stop, text};

async fn blocks(blocks: &[String]) -> Outcome {
    said(&[begin(), blocks.concat(), finish("tool_use"), end()]).await
}

fn tool(index: u64, id: &str, name: &str, input: Value) -> String {
    start(index, json!({"type": "tool_use", "id": id, "name": name, "input": input}))
}

fn json_piece(index: u64, piece: &str) -> String {
    delta(index, json!({"type": "input_json_delta", "partial_json": piece}))
}

fn thinking(index: u64, pieces: &[&str], signature: Option<&str>) -> String {
    let begin = start(index, json!({"type": "thinking", "thinking": "", "signature": ""}));
    let pieces: String = pieces.iter().map(|piece| delta(index, json!({"type": "thinking_delta", "thinking": piece}))).collect();
    let signature = signature.map(|signature| delta(index, json!({"type": "signature_delta", "signature": signature})));
    [begin, pieces, signature.unwrap_or_default(), stop(index)].concat()
}

// L-24, L-27, L-28: blocks as sent, and the calls that they mean.
#[rstest]
#[case::in_pieces(vec![call(0, "a", "get_time", &["", "{\"zo", "ne\": \"UTC\"}"])], vec![("a", "get_time", "{\"zone\": \"UTC\"}")])]
#[case::no_arguments(vec![call(0, "a", "get_time", &[])], vec![("a", "get_time", "")])]
#[case::empty_pieces(vec![call(0, "a", "get_time", &["", ""])], vec![("a", "get_time", "")])]
#[case::parallel(
    vec![call(0, "a", "get_time", &["{\"x\":1}"]), call(1, "b", "get_weather", &["{}"])],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{}")]
)]
#[case::interleaved(
    vec![tool(0, "a", "get_time", json!({})), tool(1, "b", "get_weather", json!({})), json_piece(1, "{\"y\""), json_piece(0, "{\"x\""),
        json_piece(1, ":2}"), json_piece(0, ":1}"), stop(1), stop(0)],
    vec![("a", "get_time", "{\"x\":1}"), ("b", "get_weather", "{\"y\":2}")]
)]
#[case::whole_at_the_beginning(
    vec![tool(0, "a", "get_time", json!({"x": {"y": "}"}})), stop(0)],
    vec![("a", "get_time", "{\"x\":{\"y\":\"}\"}}")]
)]
#[case::whole_at_the_beginning_and_in_pieces(
    vec![tool(0, "a", "get_time", json!({"x": 1})), json_piece(0, "{\"x\":"), json_piece(0, "1}"), stop(0)],
    vec![("a", "get_time", "{\"x\":1}")]
)]
#[case::a_text_at_the_beginning(vec![tool(0, "a", "get_time", json!("{\"x\":1}")), stop(0)], vec![("a", "get_time", "{\"x\":1}")])]
#[case::an_empty_text_at_the_beginning(vec![tool(0, "a", "get_time", json!("")), stop(0)], vec![("a", "get_time", "")])]
#[case::no_input(vec![start(0, json!({"type": "tool_use", "id": "a", "name": "get_time"})), stop(0)], vec![("a", "get_time", "")])]
#[case::one_id_for_two(
    vec![call(0, "a", "get_time", &["{}"]), call(1, "a", "get_time", &["{\"x\":2}"])],
    vec![("a", "get_time", "{}"), ("a", "get_time", "{\"x\":2}")]
)]
#[case::one_index_for_two(
    vec![call(0, "a", "get_time", &["{}"]), call(0, "b", "get_weather", &["{\"x\":2}"])],
    vec![("a", "get_time", "{}"), ("b", "get_weather", "{\"x\":2}")]
)]
#[case::one_index_for_two_without_ends(
    vec![tool(0, "a", "get_time", json!({})), json_piece(0, "{}"), tool(0, "b", "get_weather", json!({})), json_piece(0, "{\"x\":2}")],
    vec![("a", "get_time", "{}"), ("b", "get_weather", "{\"x\":2}")]
)]
#[case::no_id(vec![call(0, "", "get_time", &["{}"])], vec![("", "get_time", "{}")])]
#[case::behind_text(vec![text(0, "wait"), call(1, "a", "get_time", &["{}"])], vec![("a", "get_time", "{}")])]
#[case::behind_tools_of_the_provider(
    vec![
        start(0, json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})),
        json_piece(0, "{\"query\":\"x\"}"), stop(0),
        start(1, json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "title": "t"}]})), stop(1),
        start(2, json!({"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}})), stop(2),
        start(3, json!({"type": "something_new", "text": 7})), delta(3, json!({"type": "something_delta", "thinking": "x"})), stop(3),
        call(4, "a", "get_time", &["{}"]),
    ],
    vec![("a", "get_time", "{}")]
)]
#[tokio::test]
async fn calls(#[case] sent: Vec<String>, #[case] expected: Vec<(&str, &str, &str)>) {
    let outcome = blocks(&sent).await;
    assert_eq!(outcome.finish(), ModelFinish::ToolCalls);
    let owned = |(id, name, arguments): (&str, &str, &str)| (id.to_owned(), name.to_owned(), arguments.to_owned());
    assert_eq!(outcome.calls(), expected.into_iter().map(owned).collect::<Vec<_>>());
}

// L-26: a delta that fits no call fails.
#[rstest]
#[case::unknown_call(vec![json_piece(3, "{}")])]
#[case::text_is_no_call(vec![start(0, json!({"type": "text", "text": ""})), json_piece(0, "{}"), stop(0)])]
#[case::after_the_end(vec![call(0, "a", "get_time", &["{}"]), json_piece(0, "{}")])]
#[case::nameless(vec![start(0, json!({"type": "tool_use", "id": "a", "input": {}})), stop(0)])]
#[tokio::test]
async fn contradictions_fail(#[case] sent: Vec<String>) {
    assert_eq!(blocks(&sent).await.error(), ModelErrorKind::BadStream);
}

fn words(outcome: &Outcome) -> Vec<String> {
    let word = |event: &ModelEvent| match event {
        ModelEvent::Text(text) => Some(format!("text {text}")),
        ModelEvent::Reasoning(text) => Some(format!("thought {text}")),
        ModelEvent::ReasoningBlock(raw) => Some(format!("block {raw}")),
        ModelEvent::ToolCallStarted { name, .. } => Some(format!("call {name}")),
        _ => None,
    };
    outcome.events.iter().filter_map(word).collect()
}

// L-34: each thinking block keeps its own signature and its position.
#[rstest]
#[case::signed(vec![thinking(0, &["hm", "m"], Some("c2ln"))], vec!["thought hm", "thought m", "block {\"signature\":\"c2ln\"}"])]
#[case::kept_to_itself(vec![thinking(0, &[], Some("c2ln"))], vec!["block {\"signature\":\"c2ln\"}"])]
#[case::hidden(
    vec![start(0, json!({"type": "redacted_thinking", "data": "ZW5j"})), stop(0), text(1, "so")],
    vec!["block {\"data\":\"ZW5j\"}", "text so"]
)]
#[case::between_calls(
    vec![thinking(0, &["a"], Some("1")), call(1, "a", "get_time", &["{}"]), thinking(2, &["b"], Some("2")), call(3, "b", "get_weather", &["{}"])],
    vec!["thought a", "block {\"signature\":\"1\"}", "call get_time", "thought b", "block {\"signature\":\"2\"}", "call get_weather"]
)]
#[case::signed_at_the_beginning(
    vec![start(0, json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"})), stop(0)],
    vec!["thought hm", "block {\"signature\":\"c2ln\"}"]
)]
#[case::unsigned(vec![thinking(0, &["hm"], None), text(1, "so")], vec!["thought hm", "text so"])]
#[case::unsigned_before_signed(
    vec![thinking(0, &["a"], None), thinking(1, &["b"], Some("2"))],
    vec!["thought a", "block {}", "thought b", "block {\"signature\":\"2\"}"]
)]
#[case::unsigned_before_hidden(
    vec![thinking(0, &["a"], None), start(1, json!({"type": "redacted_thinking", "data": "ZW5j"})), stop(1)],
    vec!["thought a", "block {}", "block {\"data\":\"ZW5j\"}"]
)]
#[case::interleaved(
    vec![
        start(0, json!({"type": "thinking", "thinking": ""})), start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "so"})), delta(0, json!({"type": "thinking_delta", "thinking": "a"})),
        call(2, "a", "get_time", &["{}"]),
        delta(1, json!({"type": "text_delta", "text": "!"})), delta(0, json!({"type": "thinking_delta", "thinking": "b"})),
        delta(0, json!({"type": "signature_delta", "signature": "1"})), stop(1), stop(0),
    ],
    vec!["thought a", "thought b", "block {\"signature\":\"1\"}", "text so", "text !", "call get_time"]
)]
#[case::without_beginnings_and_ends(
    vec![delta(0, json!({"type": "thinking_delta", "thinking": "a"})), delta(1, json!({"type": "text_delta", "text": "so"}))],
    vec!["thought a", "text so"]
)]
#[tokio::test]
async fn thoughts(#[case] sent: Vec<String>, #[case] expected: Vec<&str>) {
    let outcome = blocks(&sent).await;
    assert!(outcome.end.is_ok());
    assert_eq!(words(&outcome), expected);
}

// The number of blocks is limited.
#[tokio::test]
async fn blocks_are_bounded() {
    let flood: String = (0..10_001).map(|index| start(index, json!({"type": "x"}))).collect();
    assert_eq!(blocks(&[flood]).await.error(), ModelErrorKind::BadStream);
}
