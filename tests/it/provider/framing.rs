//! The same events in other frames say the same; frames that lost something never say that they are whole.

use capstan::domain::model::{ModelErrorKind, ModelFinish};
use serde_json::json;

use super::drive::{DONE, delta, event, finish, outcome, outcome_of, outcomes, usage};
use crate::support::wire::{Answer, Step};

/// An answer with everything in it: text in several scripts, line separators that are none in this format, and two calls.
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
    let recorded = recorded();
    let expected = outcome_of(&recorded).await;
    assert_eq!(expected.finish(), ModelFinish::ToolCalls);
    assert_eq!(expected.text(), "Grüße \u{85}\u{2028}\u{2029} 你好 👩‍🚀");

    let crlf = recorded.replace('\n', "\r\n");
    let mutants: [(&str, Vec<u8>); 13] = [
        ("as recorded", recorded.clone().into_bytes()),
        ("crlf", crlf.clone().into_bytes()),
        ("cr", recorded.replace('\n', "\r").into_bytes()),
        ("mixed line ends", recorded.replacen('\n', "\r\n", 5).replacen("\n\n", "\r\n\n", 3).into_bytes()),
        ("byte order mark", [b"\xef\xbb\xbf", recorded.as_bytes()].concat()),
        ("byte order mark and crlf", [b"\xef\xbb\xbf", crlf.as_bytes()].concat()),
        ("comments", recorded.replace("data:", ": OPENROUTER PROCESSING\n\n:\ndata:").into_bytes()),
        ("blank data", recorded.replace("data:", "data:\n\ndata: \n\ndata:").into_bytes()),
        ("no space", recorded.replace("data: ", "data:").into_bytes()),
        ("more blank lines", recorded.replace("\n\n", "\n\n\n\n").into_bytes()),
        ("other fields", recorded.replace("data:", "event: message\nid: 7\nretry: 10\nwhatever: x\ndata:").into_bytes()),
        ("white space around", recorded.replace("data: ", "data:  \t").replace("\n\n", " \n\n").into_bytes()),
        ("data in two lines", recorded.replace("{\"choices\":", "{\ndata: \"choices\":").into_bytes()),
    ];
    let mut names = Vec::new();
    let mut answers = Vec::new();
    for (name, body) in mutants {
        for size in [1, 2, 3, 7, 64, body.len()] {
            names.push(format!("{name}, {size} bytes each"));
            answers.push(Answer::events(body.chunks(size).map(|chunk| Step::Send(chunk.to_vec())).collect()));
        }
    }
    for (name, outcome) in names.iter().zip(outcomes(answers).await) {
        assert_eq!(outcome, expected, "{name}");
    }
}

// G9: cut anywhere before the model has said why it stopped, in order or not.
#[tokio::test]
async fn a_cut_stream_is_never_whole() {
    let recorded = recorded();
    let said_why = recorded.find("\"finish_reason\":\"tool_calls\"").unwrap();
    let whole_from = said_why + recorded[said_why..].find("\n\n").unwrap() + 2;
    for end in [None, Some(Step::Cut)] {
        let answers = (0..recorded.len()).map(|at| {
            let said = Step::Send(recorded.as_bytes()[..at].to_vec());
            Answer::events([Some(said), end.clone()].into_iter().flatten().collect())
        });
        for (at, outcome) in outcomes(answers.collect()).await.into_iter().enumerate() {
            match outcome.end {
                Ok(_) => assert!(at >= whole_from, "cut at {at} of {whole_from} ({end:?}), and was taken as whole"),
                Err(error) => {
                    assert!(at < whole_from, "the answer was whole at {at}: {error}");
                    let expected = matches!(error.kind, ModelErrorKind::IncompleteStream | ModelErrorKind::Network);
                    assert!(expected, "cut at {at} ({end:?}): {error}");
                }
            }
        }
    }
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

#[tokio::test]
async fn a_huge_header_is_refused() {
    let header = "x".repeat(1024 * 1024);
    let outcome = outcome(Answer::new(200, &[("x-huge", &header)], vec![Step::Hang])).await;
    assert_eq!(outcome.error(), ModelErrorKind::Network);
}
