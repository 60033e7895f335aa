//! One answer in many framings: any split of its bytes gives the same answer, and a truncated one is never complete. Each
//! dialect supplies a recorded answer and its meaning.

use std::sync::Arc;

use capstan::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, ModelRequest};
use capstan::provider::{ClientOptions, ModelClient, SetupError};

use super::drive::{Outcome, ask_through, options, question};
use support::wire::{Answer, Asked, Step, Wire};

/// Creates a client of a dialect.
pub type NewClient = fn(ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError>;

/// The framing of a dialect's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// Server-sent events, separated by blank lines, with LF line ends.
    Events,
    /// One JSON document for each line.
    Lines,
}

/// Returns the outcomes of these answers, requested in order by one client.
pub async fn outcomes_of(client: NewClient, answers: Vec<Answer>) -> Vec<Outcome> {
    let count = answers.len();
    let wire = Wire::play(answers).await;
    let client = client(options(&wire)).expect("usable options");
    let mut outcomes = Vec::with_capacity(count);
    for _ in 0..count {
        outcomes.push(ask_through(client.as_ref(), question()).await);
    }
    outcomes
}

/// Returns the request that a client with these options sends. It is answered with this stream, which must be whole.
pub async fn asked_with(
    client: NewClient,
    options_of: impl Fn(&Wire) -> ClientOptions,
    body: impl AsRef<[u8]>,
    request: ModelRequest,
) -> Asked {
    let wire = Wire::play(vec![Answer::stream(body)]).await;
    ask_through(client(options_of(&wire)).expect("usable options").as_ref(), request).await.finish();
    wire.asked().remove(0)
}

/// Returns the outcome of one stream.
pub async fn outcome_of(client: NewClient, body: impl AsRef<[u8]>) -> Outcome {
    outcomes_of(client, vec![Answer::stream(body)]).await.remove(0)
}

/// Asserts L-03: the stream has no end, whether its connection is closed or reset.
pub async fn has_no_end(client: NewClient, body: &str) {
    let reset = Answer::events(vec![Step::Send(body.as_bytes().to_vec()), Step::Cut]);
    for outcome in outcomes_of(client, vec![Answer::stream(body), reset]).await {
        assert_eq!(outcome.error(), ModelErrorKind::IncompleteStream);
    }
}

/// Asserts L-08 and L-09 for a recorded answer with a greeting in many scripts and two calls.
pub async fn greeting_has_any_framing(client: NewClient, recorded: &str) -> Outcome {
    let expected = outcome_of(client, recorded).await;
    assert_eq!(
        (expected.finish(), expected.text().as_str()),
        (ModelFinish::ToolCalls, "Grüße \u{85}\u{2028}\u{2029} 你好 👩\u{200d}🚀")
    );
    framing_does_not_matter(client, Frames::Events, recorded, &expected).await;
    expected
}

/// Asserts L-08 and L-09: other line ends, comments, byte order marks and fields do not change the answer. Neither do chunks of
/// any size, or a split at any byte.
pub async fn framing_does_not_matter(client: NewClient, frames: Frames, body: &str, expected: &Outcome) {
    assert!(!body.contains('\r') && body.ends_with('\n'), "the recorded stream must have plain line ends");
    let variants = match frames {
        Frames::Events => events(body),
        Frames::Lines => lines(body),
    };
    let mut names = Vec::new();
    let mut answers = Vec::new();
    for (name, variant) in &variants {
        for size in [1, 2, 3, 7, 64, variant.len()] {
            names.push(format!("{name}, {size} bytes each"));
            answers.push(Answer::events(variant.chunks(size).map(|chunk| Step::Send(chunk.to_vec())).collect()));
        }
    }
    for at in cuts(body).into_iter().filter(|at| (1..body.len()).contains(at)) {
        names.push(format!("as recorded, cut in two at {at}"));
        let (first, second) = body.as_bytes().split_at(at);
        answers.push(Answer::events(vec![Step::Send(first.to_vec()), Step::Send(second.to_vec())]));
    }
    for (name, outcome) in names.iter().zip(outcomes_of(client, answers).await) {
        assert_eq!(outcome, *expected, "{name}");
    }
}

/// Asserts L-03 and L-38: an answer that is cut before `whole_from` is incomplete and holds a prefix of the whole answer. An
/// answer that is cut later lacks at most its usage.
pub async fn a_cut_is_never_whole(client: NewClient, body: &str, whole_from: usize, expected: &Outcome) {
    let cuts = cuts(body);
    for end in [None, Some(Step::Cut)] {
        let answers = cuts.iter().map(|&at| {
            let said = Step::Send(body.as_bytes()[..at].to_vec());
            Answer::events([Some(said), end.clone()].into_iter().flatten().collect())
        });
        for (&at, outcome) in cuts.iter().zip(outcomes_of(client, answers.collect()).await) {
            match &outcome.end {
                Ok(finish) => {
                    assert!(at >= whole_from, "cut at {at} of {whole_from} ({end:?}), and taken as complete");
                    assert_eq!(Ok(*finish), expected.end, "cut at {at} ({end:?})");
                    assert_eq!(without_figures(&outcome), without_figures(expected), "cut at {at} ({end:?})");
                }
                Err(error) => {
                    assert!(at < whole_from, "the answer was complete at {at}: {error}");
                    let is_cut = matches!(error.kind, ModelErrorKind::IncompleteStream | ModelErrorKind::Network);
                    assert!(is_cut, "cut at {at} ({end:?}): {error}");
                    assert!(expected.text().starts_with(&outcome.text()), "cut at {at} ({end:?}): {:?}", outcome.text());
                    assert!(expected.reasoning().starts_with(&outcome.reasoning()), "cut at {at} ({end:?})");
                    for (said, whole) in outcome.calls().iter().zip(expected.calls()) {
                        assert_eq!((&said.0, &said.1), (&whole.0, &whole.1), "cut at {at} ({end:?})");
                        assert!(whole.2.starts_with(&said.2), "cut at {at} ({end:?}): {said:?}");
                    }
                }
            }
        }
    }
}

/// Returns where a body is cut: around each end of a line and each character outside of ASCII, and at every seventh byte. The
/// fuzzers cut at every byte, without a network.
fn cuts(body: &str) -> Vec<usize> {
    let near = |at: usize| &body.as_bytes()[at.saturating_sub(2)..(at + 2).min(body.len())];
    (0..=body.len()).filter(|at| at % 7 == 0 || near(*at).iter().any(|byte| *byte == b'\n' || !byte.is_ascii())).collect()
}

fn without_figures(outcome: &Outcome) -> Vec<&ModelEvent> {
    outcome.events.iter().filter(|event| !matches!(event, ModelEvent::Usage(_))).collect()
}

/// Returns variants of an event stream.
fn events(body: &str) -> Vec<(&'static str, Vec<u8>)> {
    let crlf = body.replace('\n', "\r\n");
    let each = |before: &str| body.split_inclusive("\n\n").map(|event| format!("{before}{event}")).collect::<String>();
    let data = |from: &str, to: &str| {
        let dress = |line: &str| line.strip_prefix(from).map_or(line.to_owned(), |rest| format!("{to}{rest}"));
        body.split_inclusive('\n').map(dress).collect::<String>()
    };
    let variants: [(&str, String); 14] = [
        ("as recorded", body.to_owned()),
        ("crlf", crlf.clone()),
        ("cr", body.replace('\n', "\r")),
        ("mixed line ends", body.replacen('\n', "\r\n", 5).replacen("\n\n", "\n\r\n", 3)),
        ("byte order mark", format!("\u{feff}{body}")),
        ("byte order mark and crlf", format!("\u{feff}{crlf}")),
        ("comments", each(": OPENROUTER PROCESSING\n\n:\n")),
        ("comments within events", data("data:", ": still here\ndata:")),
        ("blank data", each("data:\n\ndata: \n\n")),
        ("no space", data("data: ", "data:")),
        ("more blank lines", each("\n\n")),
        ("other fields", each("id: 7\nretry: 10\nwhatever: x\n")),
        ("white space around", data("data: ", "data:  \t").replace("\n\n", " \n\n")),
        ("data in two lines", data("data: {", "data: {\ndata: ")),
    ];
    let glued = glued(body).into_iter().flatten();
    variants.into_iter().chain(glued).map(|(name, body)| (name, body.into_bytes())).collect()
}

/// Returns streams that join several events into one, unless a line has no field. The type of an event is in its data.
fn glued(body: &str) -> Option<[(&'static str, String); 4]> {
    let lines = || body.lines().filter(|line| !line.is_empty() && !line.starts_with("event:") && !line.starts_with(':'));
    let data: Vec<&str> = lines().map(|line| line.strip_prefix("data:").map(str::trim)).collect::<Option<_>>()?;
    let (mark, events): (Vec<&str>, Vec<&str>) = data.iter().partition(|data| **data == "[DONE]");
    let mark: String = mark.iter().map(|mark| format!("data: {mark}\n\n")).collect();
    let in_twos = |list: bool| {
        let two =
            |pair: &[&str]| if list { format!("data: [{}]\n\n", pair.join(",")) } else { format!("data: {}\n\n", pair.join(" ")) };
        events.chunks(2).map(two).collect::<String>()
    };
    Some([
        ("all in one line", format!("data: {}\n\n", data.concat())),
        ("all in one line, with fields", format!("data: {}\n\n", data.join("data: "))),
        ("two in one line", in_twos(false) + &mark),
        ("two in a list", in_twos(true) + &mark),
    ])
}

/// Returns variants of a stream of lines.
fn lines(body: &str) -> Vec<(&'static str, Vec<u8>)> {
    let variants: [(&str, String); 6] = [
        ("as recorded", body.to_owned()),
        ("crlf", body.replace('\n', "\r\n")),
        ("blank lines", body.replace('\n', "\n\n \n")),
        ("white space around", body.replace('\n', " \t\n  ")),
        ("all in one line", body.replace('\n', "") + "\n"),
        ("all in one list", format!("{}[{}]\n", " \n", body.trim_end().replace('\n', ","))),
    ];
    variants.map(|(name, body)| (name, body.into_bytes())).into()
}
