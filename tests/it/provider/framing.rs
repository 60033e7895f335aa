//! Framing of chat completions streams: it does not change an answer, and a truncated stream is never complete.

use capstan::domain::model::{ModelErrorKind, ModelFinish};
use serde_json::json;

use super::drive::{DONE, chat, delta, event, finish, outcome, outcome_of, usage};
use super::mutants;
use support::wire::{Answer, Step};

/// Returns an answer with text in several scripts, Unicode line separators that do not end SSE lines, and two calls.
fn recorded() -> String {
    [
        delta(json!({"role": "assistant", "content": ""})),
        delta(json!({"reasoning_content": "let me see"})),
        event(&json!({"choices": [{"index": 0, "delta": {"content": "Grüße \u{85}\u{2028}\u{2029} 你好 👩‍🚀"}}]})),
        delta(
            json!({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "get_time", "arguments": ""}}]}),
        ),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"zone\":"}}]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "\"Europe/Zürich\"}"}}]})),
        delta(json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "get_weather", "arguments": "{}"}}]})),
        finish("tool_calls"),
        usage(11, 22),
        DONE.to_owned(),
    ]
    .concat()
}

// L-08, L-09
#[tokio::test]
async fn framing_does_not_matter() {
    mutants::greeting_has_any_framing(chat, &recorded()).await;
}

// Truncated anywhere before the finish reason, by an orderly close or a reset.
#[tokio::test]
async fn a_cut_stream_is_never_whole() {
    let recorded = recorded();
    let said_why = recorded.find("\"finish_reason\":\"tool_calls\"").unwrap();
    let whole_from = said_why + recorded[said_why..].find("\n\n").unwrap() + 2;
    let expected = outcome_of(&recorded).await;
    mutants::a_cut_is_never_whole(chat, &recorded, whole_from, &expected).await;
}

// L-11
#[tokio::test]
async fn memory_is_bounded() {
    let large = "x".repeat(8 * 1024 * 1024);
    let allowed = outcome_of([delta(json!({"content": large})), finish("stop"), DONE.to_owned()].concat()).await;
    assert_eq!((allowed.finish(), allowed.text().len()), (ModelFinish::Stop, large.len()));

    let mebibyte = || Step::Send(vec![b'x'; 1024 * 1024]);
    let endless_event = [Step::Send(b"data: ".to_vec())].into_iter().chain((0..24).map(|_| mebibyte())).chain([Step::Hang]);
    let endless_line = (0..24).map(|_| mebibyte()).chain([Step::Hang]);
    let endless_document = [Step::Send(b"{".to_vec())].into_iter().chain((0..24).map(|_| mebibyte())).chain([Step::Hang]);
    let text = delta(json!({"content": large})).into_bytes();
    let endless_answer = (0..9).map(|_| Step::Send(text.clone())).chain([Step::Hang]);
    let answers: [Vec<Step>; 4] =
        [endless_event.collect(), endless_line.collect(), endless_document.collect(), endless_answer.collect()];
    for steps in answers {
        let outcome = outcome(Answer::events(steps)).await;
        let error = outcome.end.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadStream);
        assert!(error.message.contains("MiB"), "{}", error.message);
    }
}

// L-11
#[tokio::test]
async fn a_huge_header_is_refused() {
    let said = Step::Send([delta(json!({"content": "Hi"})), finish("stop"), DONE.to_owned()].concat().into_bytes());
    for (bytes, kind, words) in [
        (16 * 1024, None, ""),
        (64 * 1024, Some(ModelErrorKind::BadStream), "the headers of the answer are larger than 32 KiB"),
        (1024 * 1024, Some(ModelErrorKind::Network), "too large"),
    ] {
        let header = "x".repeat(bytes);
        for status in [200, 503] {
            let outcome = outcome(Answer::new(status, &[("x-huge", &header)], vec![said.clone()])).await;
            match (kind, outcome.end) {
                (Some(kind), Err(error)) => assert!(error.kind == kind && error.message.contains(words), "{bytes}: {error}"),
                (Some(_), Ok(_)) => panic!("{bytes} bytes of headers were taken"),
                (None, end) => assert_eq!(end.is_ok(), status == 200, "{bytes}"),
            }
        }
    }
}
