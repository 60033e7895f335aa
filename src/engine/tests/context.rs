//! What a request leaves out so that it fits, and that it then does.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, call, done, tools};
use crate::domain::agent::{AgentProfile, OutputMode};
use crate::domain::context::{Capacity, ContextPolicy, ContextStrategy, ContextUnit};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, FileId, MessageId, PartId, RunId};
use crate::domain::message::{FilePart, Message, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
use crate::domain::model::{ModelErrorKind, ModelRequest};
use crate::domain::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::domain::tool_filter::{ToolFilter, ToolFilterMode};
use crate::engine::context::{counts_tokens, room};
use crate::engine::source::Source;
use crate::engine::{RunState, compaction, history, model_request, size};
use crate::support::tokens::Tokenizer;

/// A budget in which a few results of some hundred tokens have room.
fn small() -> ContextPolicy {
    ContextPolicy { limit: Some(8_000), keep_last: 4, evict_below: 3_000, ..ContextPolicy::default() }
}

fn profile(context: ContextPolicy) -> AgentProfile {
    AgentProfile { context, max_rounds: 100, ..AgentProfile::default() }
}

fn asked(world: &World) -> &ModelRequest {
    world.asked.as_ref().expect("the model is asked")
}

fn remaining(world: &World) -> i64 {
    room(&Source::of(world.state.as_ref().unwrap())).unwrap().remaining
}

/// The model reads one file after the other.
fn rounds(world: &mut World, count: usize, result: &str) {
    let first = world.rows.calls.len();
    for n in first..first + count {
        world.calls(&[call("read", &json!({ "path": format!("/shots/{n}.png") }))]);
        world.tool_says(0, result);
    }
}

#[test]
fn a_long_run_is_summarised_as_it_goes() {
    let mut world = World::started(profile(small()));
    assert_eq!(asked(&world).system, "You are a helpful assistant.");
    rounds(&mut world, 12, &"words ".repeat(200));
    assert!(remaining(&world) >= 1_500, "{}", remaining(&world));
    let request = asked(&world);
    assert!(request.system.starts_with("You are a helpful assistant.\n\nEarlier messages"), "{}", request.system);
    assert!(
        request.system.contains("user: What is in the file?\nassistant:  (called read)\ntool read: words words"),
        "{}",
        request.system
    );
    assert!(request.system.contains("/shots/0.png, /shots/1.png"), "{}", request.system);
    assert_eq!(request.messages[0].text(), "What is in the file?", "the question stays");
    let last = request.messages.last().unwrap();
    assert!(matches!(&last.parts[0], Part::ToolResult(result) if result.content == [ToolContent::text("words ".repeat(200))]));
    // What is stored is whole, and whoever takes the run up asks the same.
    assert_eq!(world.rows.history.len(), 25);
    let request = request.clone();
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(*asked(&world), request);
    assert!(world.state.as_ref().unwrap().record.history.len() < 13, "what is left out is not loaded");
    // Whoever follows is told of each request, and of what they leave out.
    let told: Vec<_> = world.kinds().into_iter().filter(|kind| kind.starts_with("context.") || *kind == "step.started").collect();
    assert!(told.iter().filter(|kind| **kind == "context.budget").count() == 14 && told.contains(&"context.compacted"), "{told:?}");
    // The summary goes on from where it was.
    let covered = world.rows.summary.clone().unwrap();
    rounds(&mut world, 12, &"other ".repeat(200));
    let summary = world.rows.summary.clone().unwrap();
    assert!(
        summary.messages > covered.messages
            && summary.text.ends_with("tool read: other other other other other other other other other other")
    );
    world.says_text("Done.");
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
}

#[test]
fn a_run_that_goes_on_from_another_one_knows_what_that_was_asked() {
    let mut world = World::started(profile(small()));
    rounds(&mut world, 12, &"words ".repeat(200));
    world.fails(ModelErrorKind::Auth);
    assert_eq!(world.ended().status, RunStatus::Failed);
    let question = world.rows.history[0].id.clone();
    assert_eq!(world.rows.summary.as_ref().unwrap().asked, std::slice::from_ref(&question));
    let go_on = |world: &mut World| {
        world.rows.fence.run_id = RunId::generate(&world.ids);
        world.rows.calls.clear();
        let request = model_request(&RunState::load(world.loaded()));
        (request.messages[0].id.clone(), request.messages[0].text())
    };
    assert_eq!(go_on(&mut world), (question.clone(), "What is in the file?".to_owned()));
    // The next question is another one.
    let mut next = world.user("And now?");
    next.run_id = RunId::generate(&world.ids);
    world.rows.history.push(next);
    assert_ne!(go_on(&mut world).0, question);
}

#[test]
fn a_summary_has_an_end() {
    let mut world = World::started(profile(small()));
    rounds(&mut world, 60, &"\u{1f980} crabs ".repeat(150));
    let summary = world.rows.summary.clone().unwrap();
    assert!(summary.text.starts_with("[earlier lines are omitted]\n"), "{}", summary.text);
    assert!(summary.text.len() + summary.files.join(", ").len() <= 500 * 16 / 5, "{}", summary.text.len());
    assert!((1..=20).contains(&summary.files.len()));
    assert_eq!(asked(&world).system.matches("omitted").count(), 1);
}

#[test]
fn the_oldest_are_dropped_without_a_word() {
    let context = ContextPolicy {
        unit: ContextUnit::Chars,
        limit: Some(10_000),
        strategy: ContextStrategy::DropOldest,
        reserve_output: 0,
        safety: 0,
        start_gate: 0,
        evict_below: 0,
        ..ContextPolicy::default()
    };
    let mut world = World::started(profile(context));
    rounds(&mut world, 20, &"\u{e9}".repeat(1_000));
    let request = asked(&world);
    assert_eq!(request.system, "You are a helpful assistant.");
    let results = request.messages.iter().filter(|message| message.role == Role::Tool).count();
    assert_eq!((results, request.messages[0].text().as_str()), (9, "What is in the file?"));
    assert!((0..1_100).contains(&remaining(&world)), "no more is dropped than has to be: {}", remaining(&world));
}

#[test]
fn older_results_are_read_by_their_beginnings() {
    let context = ContextPolicy { compress_results: true, limit: Some(100_000), ..ContextPolicy::default() };
    let mut world = World::started(profile(context));
    rounds(&mut world, 4, &"\u{e9}".repeat(300));
    let lengths: Vec<usize> = asked(&world).messages.iter().filter(|message| message.role == Role::Tool).map(length).collect();
    assert_eq!(lengths, [140, 140, 300, 300]);
    assert_eq!(world.rows.summary, None);
}

fn length(message: &Message) -> usize {
    let results = message.parts.iter().filter_map(|part| match part {
        Part::ToolResult(result) => Some(&result.content),
        _ => None,
    });
    results.flatten().map(|content| super::world::content_text(content).chars().count()).sum()
}

#[test]
fn a_run_without_room_sums_up() {
    // What is left beside the reserves has room for a few short calls only, and none of them may go: they are the newest exchange.
    let context = ContextPolicy { limit: Some(4_600), ..ContextPolicy::default() };
    let mut world = World::started(AgentProfile { max_parallel_calls: 40, ..profile(context) });
    let calls: Vec<_> = (0..30).map(|n| call("read", &json!({ "path": format!("/{n}") }))).collect();
    world.calls(&calls);
    while !world.under_way.is_empty() {
        world.tool_says(0, "short");
    }
    assert!(world.hints().last().unwrap().contains("no room left"), "{:?}", world.hints());
    assert!(asked(&world).tools.is_empty() && remaining(&world) >= 0);
    world.says_text("This much I know.");
    assert_eq!((world.ended().status, world.ended().reason), (RunStatus::Completed, Some(FinishReason::Budget)));
}

#[test]
fn instructions_that_leave_no_room_fail_the_run() {
    let context = ContextPolicy { limit: Some(5_000), ..ContextPolicy::default() };
    let mut world = World::started(AgentProfile { system_prompt: "Be kind. ".repeat(1_000), ..profile(context.clone()) });
    assert_eq!(world.error_code(), "context_overflow");
    world = World::started(AgentProfile {
        system_prompt: "Be kind. ".repeat(1_000),
        ..profile(ContextPolicy { strategy: ContextStrategy::None, ..context })
    });
    assert!(asked(&world).tools.is_empty(), "it is tried, because nothing shall be left out");
    world.fails(ModelErrorKind::ContextOverflow);
    assert_eq!(world.error_code(), "context_overflow");
}

#[test]
fn the_window_of_the_model_is_the_budget() {
    let mut world = World::new(AgentProfile {
        model: "a/small".to_owned(),
        fallbacks: vec!["b/large".to_owned()],
        ..profile(ContextPolicy::default())
    });
    world.capacities = vec![("a/small".to_owned(), Capacity { window: Some(8_000), ..Capacity::default() })];
    world.claim(ClaimCause::First);
    rounds(&mut world, 12, &"words ".repeat(200));
    assert!(world.rows.summary.is_some());
    world.fails(ModelErrorKind::Auth);
    assert_eq!(asked(&world).model, "b/large");
    assert_eq!(room(&Source::of(world.state.as_ref().unwrap())), None, "nothing is known of that one");
}

/// A limit that is larger than the window is none, also where the model with the small window takes over.
#[test]
fn the_window_comes_before_a_larger_limit() {
    for unit in [ContextUnit::Tokens, ContextUnit::Chars] {
        let context = ContextPolicy { unit, limit: Some(32_768), ..ContextPolicy::default() };
        let mut world = World::new(AgentProfile {
            model: "a/large".to_owned(),
            fallbacks: vec!["b/small".to_owned()],
            ..profile(context.clone())
        });
        world.capacities = vec![("b/small".to_owned(), Capacity { window: Some(8_192), ..Capacity::default() })];
        world.rows.history = vec![world.user(&"word ".repeat(11_000))];
        world.claim(ClaimCause::First);
        let window = |world: &World| room(&Source::of(world.state.as_ref().unwrap())).unwrap().window;
        assert_eq!(window(&world), 32_768);
        let said = |world: &World| (asked(world).model.clone(), asked(world).window);
        let is_counted = unit == ContextUnit::Tokens;
        assert_eq!(said(&world), ("a/large".to_owned(), is_counted.then_some(32_768)));
        world.fails(ModelErrorKind::Auth);
        assert_eq!(Some(window(&world)), context.budget(Some(8_192)));
        assert_eq!(said(&world), ("b/small".to_owned(), is_counted.then_some(8_192)));
        // At 3.2 bytes a token, with what is kept free.
        let request = asked(&world);
        let bytes = request.system.len() + request.messages.iter().map(|message| message.text().len()).sum::<usize>();
        assert!(bytes < (8_192 - 2_768) * 16 / 5, "{bytes}");
    }
}

/// What is said of the budget of the last model call.
fn told(world: &World) -> (u64, Option<Tokenizer>) {
    let told = world.events.iter().rev().find_map(|event| match event {
        EventBody::ContextBudget { used, tokenizer, .. } => Some((*used, *tokenizer)),
        _ => None,
    });
    told.expect("the budget is told")
}

#[test]
fn tokens_are_counted_where_the_models_tokenizer_is_known() {
    let mut world = World::new(profile(small()));
    let capacity = Capacity { tokenizer: Some(Tokenizer::O200kBase), ..Capacity::default() };
    world.capacities = vec![(world.rows.model().to_owned(), capacity)];
    world.claim_with(ClaimCause::First, Vec::new());
    // "You are a helpful assistant." are six tokens, "What is in the file?" are six, and a message costs four more.
    assert_eq!(told(&world), (16, Some(Tokenizer::O200kBase)));
    assert!(counts_tokens(world.state.as_ref().unwrap()));

    let mut world = World::new(profile(small()));
    world.claim_with(ClaimCause::First, Vec::new());
    assert_eq!(told(&world), (9 + 4 + 7, None), "by 3.2 bytes each");
    assert!(!counts_tokens(world.state.as_ref().unwrap()));
}

#[test]
fn a_count_leaves_more_in_than_an_estimate_where_it_is_less() {
    // 200 words are 200 tokens; by their 1,200 bytes they would be 375.
    let kept = |tokenizer| {
        let mut world = World::new(profile(small()));
        world.capacities = vec![(world.rows.model().to_owned(), Capacity { tokenizer, ..Capacity::default() })];
        world.claim(ClaimCause::First);
        rounds(&mut world, 12, &"words ".repeat(200));
        asked(&world).messages.len()
    };
    let (estimated, counted) = (kept(None), kept(Some(Tokenizer::O200kBase)));
    assert!(counted > estimated, "{counted} and {estimated}");
}

/// A text of half a million characters is cut by counting it a few times, not dozens of times.
#[test]
fn a_huge_message_is_cut_by_its_count() {
    let mut world = World::new(profile(small()));
    world.capacities =
        vec![(world.rows.model().to_owned(), Capacity { tokenizer: Some(Tokenizer::O200kBase), ..Capacity::default() })];
    let huge = "All work and no play makes Jack a dull boy. ".repeat(12_000);
    world.rows.history = vec![world.user(&huge)];
    world.claim_with(ClaimCause::First, Vec::new());
    let room = room(&Source::of(world.state.as_ref().unwrap())).unwrap();
    assert!(room.used + small().reserved() + small().start_gate <= room.window, "{room:?}");
    assert!(room.used > (room.window - small().reserved() - small().start_gate) * 8 / 10, "no more is cut than must be: {room:?}");
}

/// A question with files, as the model is asked it.
fn asked_with(window: u64, files: &[AnyFile]) -> (World, Vec<Part>) {
    let mut world = World::new(profile(ContextPolicy::default()));
    world.capacities = vec![(world.rows.model().to_owned(), Capacity { window: Some(window), ..Capacity::default() })];
    let mut question = world.user("What does it say?");
    question.parts.extend(files.iter().map(|file| attached(&world, file)));
    world.rows.history = vec![question];
    world.claim(ClaimCause::First);
    let parts = asked(&world).messages[0].parts.clone();
    (world, parts)
}

fn left_of(part: &Part) -> Option<usize> {
    match part {
        Part::File(file) => file.text_limit.map(|limit| limit.chars),
        _ => None,
    }
}

#[rstest]
#[case::letters(AnyFile::Uploaded("text/plain", Some(100_000), Some(1)), 85_000)]
#[case::of_another_script(AnyFile::Uploaded("text/plain", Some(100_000), Some(3)), 28_000)]
#[case::document(AnyFile::Uploaded("application/pdf", Some(100_000), Some(1)), 85_000)]
#[case::of_before(AnyFile::Uploaded("text/plain", Some(100_000), None), 28_000)]
#[case::inline(AnyFile::Inline("text/plain", 100_000), 85_000)]
fn a_file_larger_than_the_window_is_cut(#[case] file: AnyFile, #[case] most: usize) {
    let (world, parts) = asked_with(32_768, std::slice::from_ref(&file));
    assert!(matches!(&parts[0], Part::Text(words) if words.text == "What does it say?"), "the words are shorter");
    let left = left_of(&parts[1]).expect("it is cut");
    assert!((most * 4 / 5..most * 11 / 10).contains(&left), "{left}");
    assert!(remaining(&world) >= 1_500, "{}", remaining(&world));
    let stored = world.rows.history[0].parts.iter().all(|part| left_of(part).is_none());
    assert!(stored, "what is stored is whole");
}

#[test]
fn pictures_that_do_not_fit_are_named() {
    let picture = AnyFile::Picture;
    let scan = AnyFile::Uploaded("application/pdf", None, None);
    let paper = AnyFile::Uploaded("application/pdf", Some(3_000), Some(1));
    // Beside 4,268 tokens that are kept free, there is room for two that cost 1,875 each.
    let (_, parts) = asked_with(8_400, &[scan, paper, picture.clone(), picture]);
    let says =
        |part: &Part| matches!(part, Part::Text(text) if text.text.starts_with("[file größe.bin, application/pdf: left out"));
    assert!(says(&parts[1]), "{:?}", parts[1]);
    assert!(left_of(&parts[2]).is_some(), "its text stays: {:?}", parts[2]);
    assert!(matches!(&parts[3..], [Part::Text(_), Part::Image(_)] | [Part::Image(_), Part::Image(_)]), "{:?}", &parts[3..]);
}

/// A token too many costs the end of the text, not the file, though a picture has come after it.
#[test]
fn an_older_file_is_cut_and_not_left_out() {
    let ask = |limit: u64| {
        let mut world = World::new(profile(ContextPolicy { limit: Some(limit), ..ContextPolicy::default() }));
        let mut question = world.user("What does it say?");
        question.parts.push(attached(&world, &AnyFile::Uploaded("text/plain", Some(40_000), Some(1))));
        world.rows.history = vec![question];
        world.claim(ClaimCause::First);
        world.calls(&[call("read", &json!({ "n": 1 }))]);
        let picture = ToolContent::Image { media_type: "image/png".to_owned(), data: "iVBORw0KGgo=".to_owned() };
        world.tool_ends(0, ToolOutcome { content: vec![picture], ..done("") });
        let left = remaining(&world);
        (asked(&world).messages.clone(), left)
    };
    let gate = i64::try_from(ContextPolicy::default().start_gate).unwrap();
    let (whole, left) = ask(100_000);
    assert_eq!(left_of(&whole[0].parts[1]), None);
    let over = left.abs_diff(gate - 1);
    let (cut, _) = ask(100_000 - over);
    assert!(left_of(&cut[0].parts[1]).is_some_and(|chars| (30_000..40_000).contains(&chars)), "{:?}", cut[0].parts);
    let shows = |message: &Message| matches!(&message.parts[0], Part::ToolResult(result) if matches!(result.content[0], ToolContent::Image { .. }));
    assert!(shows(&cut[2]), "{:?}", cut[2].parts);
}

/// Of older pictures as many are left out as it takes, before words are cut for them.
#[test]
fn no_more_older_pictures_are_left_out_than_it_takes() {
    let picture = AnyFile::Picture;
    let mut world = World::new(profile(ContextPolicy { limit: Some(18_000), ..ContextPolicy::default() }));
    let mut history = Vec::new();
    for _ in 0..8 {
        let mut said = world.user(&"words ".repeat(100));
        said.parts.push(attached(&world, &picture));
        history.push(said);
    }
    world.rows.history = history;
    world.claim(ClaimCause::First);
    let parts = || asked(&world).messages.iter().flat_map(|message| &message.parts);
    let pictures = parts().filter(|part| matches!(part, Part::Image(_))).count();
    assert!((5..8).contains(&pictures), "{pictures}");
    assert!(parts().all(|part| !matches!(part, Part::Text(text) if text.text.contains("characters are left out"))));
}

/// One by one they would take hours, of a thread that others need, too.
#[test]
fn any_number_of_pictures_is_left_out_at_once() {
    let (_, parts) = asked_with(200_000, &vec![AnyFile::Picture; 4_000]);
    assert!((1..100).contains(&parts.iter().filter(|part| matches!(part, Part::Image(_))).count()));
}

/// A provider that says it is too much is believed, whatever the budget says.
#[rstest]
#[case::text(AnyFile::Uploaded("text/plain", Some(40_000), Some(3)))]
#[case::inline(AnyFile::Inline("text/plain", 60_000))]
#[case::scan(AnyFile::Uploaded("application/pdf", None, None))]
#[case::picture(AnyFile::Picture)]
fn a_file_that_is_too_large_for_its_provider_is_cut_once(#[case] file: AnyFile) {
    let (mut world, parts) = asked_with(1_000_000, &[file]);
    assert!(parts.iter().all(|part| left_of(part).is_none()));
    let before = size::messages(&asked(&world).messages);
    world.fails(ModelErrorKind::ContextOverflow);
    let after = size::messages(&asked(&world).messages);
    assert!(after <= before / 2 + 300, "{after} of {before}");
    assert!(matches!(&asked(&world).messages[0].parts[0], Part::Text(words) if words.text == "What does it say?"));
    world.says_text("Done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

// Whatever is stored.

#[derive(Debug, Clone)]
struct Round {
    said: String,
    /// Calls: how long their arguments are, and their results.
    calls: Vec<(usize, String)>,
    /// Whether the first result has a picture beside its words.
    is_seen: bool,
}

#[derive(Debug, Clone)]
struct Turn {
    asked: String,
    files: Vec<AnyFile>,
    rounds: Vec<Round>,
    answer: Option<String>,
}

/// What comes with a question.
#[derive(Debug, Clone)]
enum AnyFile {
    /// Uploaded: its type, the characters of its text, and the bytes of each, unless it is from before they were counted.
    Uploaded(&'static str, Option<u64>, Option<u64>),
    /// In its own URL.
    Inline(&'static str, usize),
    /// Somewhere else.
    Remote,
    /// A picture that was uploaded.
    Picture,
}

fn any_file() -> impl Strategy<Value = AnyFile> {
    let length = || prop_oneof![0..600_u64, 600..200_000_u64];
    let each = || prop::option::of(1..5_u64);
    prop_oneof![
        4 => (prop_oneof![Just("text/plain"), Just("application/pdf")], length(), each())
            .prop_map(|(kind, chars, each)| AnyFile::Uploaded(kind, Some(chars), each)),
        1 => Just(AnyFile::Uploaded("application/pdf", None, None)),
        1 => (prop_oneof![Just("text/plain"), Just("application/pdf"), Just("image/png")], 0..100_000_usize)
            .prop_map(|(kind, length)| AnyFile::Inline(kind, length)),
        1 => Just(AnyFile::Remote),
        2 => Just(AnyFile::Picture),
    ]
}

/// Files as a message has them.
fn attached(world: &World, file: &AnyFile) -> Part {
    let part = |media_type: &str| FilePart {
        file_id: Some(FileId::generate(&world.ids).as_str().to_owned()),
        name: Some("größe.bin".to_owned()),
        ..FilePart::of(PartId::generate(&world.ids), media_type)
    };
    let elsewhere = |media_type: &str, url: String| FilePart { url: Some(url), file_id: None, ..part(media_type) };
    match file {
        AnyFile::Uploaded(kind, chars, each) => {
            let text_bytes = chars.zip(*each).map(|(chars, each)| chars * each);
            Part::File(FilePart { text_chars: *chars, text_bytes, ..part(kind) })
        }
        AnyFile::Inline(kind, length) => {
            let url = format!("data:{kind};base64,{}", "YWFh".repeat(length / 3));
            Part::File(elsewhere(kind, url))
        }
        AnyFile::Remote => Part::File(elsewhere("application/pdf", "https://a.example/b.pdf".to_owned())),
        AnyFile::Picture => Part::Image(part("image/png")),
    }
}

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{1,12}",
        Just("\u{1f980}\u{200d}\u{1f468}".to_owned()),
        Just("{\"a\":1}".to_owned()),
        Just("x".to_owned())
    ];
    (piece, prop_oneof![4 => 1..20_usize, 2 => 20..400_usize, 1 => 400..6_000_usize]).prop_map(|(piece, times)| piece.repeat(times))
}

prop_compose! {
    fn any_round()(said in prop_oneof![Just(String::new()), any_text()], calls in prop::collection::vec((0..300_usize, any_text()), 1..4),
        is_seen in prop::bool::weighted(0.2)) -> Round {
        Round { said, calls, is_seen }
    }
}

prop_compose! {
    fn any_turn()(
        asked in any_text(),
        files in prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any_file(), 1..6)],
        rounds in prop::collection::vec(any_round(), 0..5),
        answer in prop::option::of(any_text()),
    ) -> Turn {
        Turn { asked, files, rounds, answer }
    }
}

prop_compose! {
    pub(super) fn any_context()(
        limit in prop_oneof![1_200..3_000_u64, 3_000..20_000_u64],
        (in_chars, compress_results) in (any::<bool>(), any::<bool>()),
        strategy in prop_oneof![3 => Just(ContextStrategy::Summarize), 1 => Just(ContextStrategy::DropOldest)],
        (reserve_output, safety, start_gate, evict_below) in (0..200_u64, 0..100_u64, 0..300_u64, 0..2_000_u64),
        (keep_last, summary_tokens) in (1..12_u32, 0..300_u64),
    ) -> ContextPolicy {
        let unit = if in_chars { ContextUnit::Chars } else { ContextUnit::Tokens };
        ContextPolicy { unit, limit: Some(limit), strategy, reserve_output, safety, start_gate, evict_below, keep_last, summary_tokens, compress_results }
    }
}

/// Writes turns down as if they had happened, the last of them in the world's own run.
fn stored(world: &World, turns: &[Turn]) -> Vec<Message> {
    let mut history = Vec::new();
    let template = world.user("");
    let part = || PartId::generate(&world.ids);
    for (at, turn) in turns.iter().enumerate() {
        let is_last = at + 1 == turns.len();
        let run_id = if is_last { template.run_id.clone() } else { RunId::generate(&world.ids) };
        let mut add = |role, parts| {
            history.push(Message { id: MessageId::generate(&world.ids), role, parts, run_id: run_id.clone(), ..template.clone() });
        };
        let words = |text: &str| Part::Text(TextPart { id: part(), text: text.to_owned() });
        let files = turn.files.iter().map(|file| attached(world, file));
        add(Role::User, std::iter::once(words(&turn.asked)).chain(files).collect());
        for round in &turn.rounds {
            let mut said = vec![words(&round.said)];
            let mut results = Vec::new();
            for (length, result) in &round.calls {
                let called = ["read", "write", "pay"][length % 3];
                let (call_id, name) = (CallId::generate(&world.ids), called.to_owned());
                said.push(Part::ToolCall(ToolCallPart {
                    id: part(),
                    call_id: call_id.clone(),
                    name: name.clone(),
                    arguments: json!({ "path": "p".repeat(*length) }),
                    provider_call_id: None,
                    raw: None,
                    undoes: None,
                }));
                let picture = ToolContent::Image { media_type: "image/png".to_owned(), data: "iVBORw0KGgo=".to_owned() };
                let is_seen = round.is_seen && results.is_empty();
                let content = is_seen.then_some(picture).into_iter().chain([ToolContent::text(result.clone())]).collect();
                results.push(Part::ToolResult(ToolResultPart {
                    id: part(),
                    call_id,
                    name,
                    content,
                    is_error: false,
                    state: ToolCallState::Done,
                    undoable: false,
                }));
            }
            add(Role::Assistant, said);
            add(Role::Tool, results);
        }
        if let Some(answer) = turn.answer.as_ref().filter(|_| !is_last) {
            add(Role::Assistant, vec![words(answer)]);
        }
    }
    history
}

/// Nothing but the newest exchange is left beside the instructions, no text of it can be cut any further, no tool is on offer, and
/// even so there is no room.
fn the_least_view_is_too_large(state: &RunState) -> Result<(), TestCaseError> {
    let source = Source::of(state);
    let room = room(&source).unwrap();
    prop_assert!(room.remaining < 0, "{:?}", room);
    let own = &state.record.fence.run_id;
    let shown = source.shown().rest;
    prop_assert!(shown.iter().all(|message| message.run_id == *own));
    let answers = shown.iter().filter(|message| message.role == Role::Assistant).count();
    prop_assert!(answers == 0 || (answers == 1 && shown[0].role == Role::Assistant), "{:?}", shown);
    let (frame, messages) = history::parts(&source);
    prop_assert!(frame.tools.is_empty());
    prop_assert!(compaction::drop_pictures(&mut messages.clone(), 1) == 0, "{:?}", messages);
    // So long is what says that something is cut, or what a picture was.
    prop_assert!(compaction::longest(&messages, None) <= 80, "{:?}", messages);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_history_its_view_fits(
        context in any_context(),
        turns in prop::collection::vec(any_turn(), 1..12),
        (structured, is_counted, is_filtered) in (any::<bool>(), any::<bool>(), any::<bool>()),
        window in prop::option::of(1_000..20_000_u64),
    ) {
        let output = if structured { OutputMode::Structured } else { OutputMode::Tools };
        // What earlier turns have called is on offer beside what is chosen, as long as it is shown.
        let mode = if is_filtered { ToolFilterMode::Semantic } else { ToolFilterMode::Off };
        let tool_filter = ToolFilter { mode, k: 1, ..ToolFilter::default() };
        let mut world = World::new(AgentProfile { output, tool_filter, ..profile(context.clone()) });
        let tokenizer = is_counted.then_some(Tokenizer::O200kBase);
        world.capacities = vec![(world.rows.model().to_owned(), Capacity { tokenizer, window, ..Capacity::default() })];
        let history = stored(&world, &turns);
        world.rows.history = history.clone();
        world.claim_with(ClaimCause::First, tools());
        prop_assert_eq!(&world.rows.history[..history.len()], &history[..], "what is stored stays whole");
        if world.ending.is_some() {
            // The instructions and what may not be left out take it all.
            prop_assert_eq!(world.error_code(), "context_overflow");
            let mut state = RunState::load(world.rows.clone());
            state.know_capacities(world.capacities.clone());
            return the_least_view_is_too_large(&state);
        }
        let state = world.state.as_ref().unwrap();
        let room = room(&Source::of(state)).unwrap();
        prop_assert!(room.used + context.reserved() <= room.window, "{:?}", room);
        let has_room = |window: &u64| *window > context.reserved() + context.start_gate;
        let in_tokens = window.filter(|window| context.unit == ContextUnit::Tokens && has_room(window));
        prop_assert!(in_tokens.is_none_or(|window| room.window <= window), "{:?}", room);
        let request = asked(&world);
        prop_assert!(request.system.starts_with("You are a helpful assistant."));
        // That it is sendable, the world has seen to. Nothing is made up for a result that a call has lost, and the question is there.
        let results = request.messages.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
            Part::ToolResult(result) => Some(result.state),
            _ => None,
        });
        prop_assert!(results.into_iter().all(|state| state == ToolCallState::Done));
        let question = history.iter().rfind(|message| message.role == Role::User).unwrap().parts[0].id().clone();
        // What has no words in it is sent to nobody.
        let is_blank = turns.last().is_some_and(|turn| turn.asked.trim().is_empty());
        // What is sent of files is within what the budget takes them for.
        for file in request.messages.iter().flat_map(|message| &message.parts) {
            if let Part::Image(file) | Part::File(file) = file {
                let left = file.text_limit.map_or(usize::MAX, |limit| limit.bytes);
                prop_assert!(size::file(file).bytes >= size::text_of(file).map_or(0, |text| text.bytes.min(left)));
            }
        }
        prop_assert!(is_blank || request.messages.iter().flat_map(|message| &message.parts).any(|part| *part.id() == question));
        // The same rows make the same view, and what was decided once is not decided again.
        let asks = |rows| {
            let mut state = RunState::load(rows);
            state.know_capacities(world.capacities.clone());
            model_request(&state)
        };
        prop_assert_eq!(&asks(world.rows.clone()), request);
        prop_assert_eq!(&asks(world.loaded()), request);
        let (summary, request) = (world.rows.summary.clone(), request.clone());
        if let Some(summary) = &summary {
            let at = history.iter().position(|message| message.id == summary.covers).unwrap();
            prop_assert_eq!(summary.messages as usize, at + 1);
            prop_assert!(summary.text.len() as u64 * 5 / 16 <= context.summary_tokens);
        }
        world.die();
        world.claim(ClaimCause::Crash);
        prop_assert_eq!(asked(&world), &request);
        prop_assert_eq!(&world.rows.summary, &summary);
    }
}

#[test]
fn the_tools_on_offer_are_the_same_after_a_crash() {
    let tool_filter = ToolFilter { mode: ToolFilterMode::Semantic, k: 1, ..ToolFilter::default() };
    let mut world = World::new(AgentProfile { tool_filter, ..profile(small()) });
    let round = |length, times| Round { said: String::new(), calls: vec![(length, "words ".repeat(times))], is_seen: false };
    let turn = |asked: &str, rounds, answer| Turn { asked: asked.to_owned(), files: Vec::new(), rounds, answer };
    let earlier = turn("Write it.", vec![round(1, 200)], Some("Written.".to_owned()));
    let now = turn("What is in the file?", (0..12).map(|_| round(0, 200)).collect(), None);
    world.rows.history = stored(&world, &[earlier, now]);
    world.claim(ClaimCause::First);
    let request = asked(&world).clone();
    assert!(world.rows.summary.is_some());
    let names: Vec<_> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["pay", "read"], "what was called in the part that is left out is not on offer for that");
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(*asked(&world), request);
}

#[test]
fn a_profile_says_what_is_wrong_with_its_context() {
    let base = AgentProfile::default();
    let said = |context: Value| {
        let said = json!({ "context": context });
        crate::domain::agent_record::profile_of(&base, "mine", 1, said.as_object().unwrap()).map_err(|error| error.field)
    };
    assert_eq!(said(json!({"limit": 4_000})).unwrap_err(), "context/limit");
    assert_eq!(said(json!({"strategy": "forget"})).unwrap_err(), "context/strategy");
    assert_eq!(said(json!({"unit": "chars"})).unwrap_err(), "context/limit");
    assert_eq!(said(json!({"limit": 32_768})).unwrap().context.budget(None), Some(32_768));
    // A profile that says nothing of it is written as before.
    assert!(serde_json::to_value(&base).unwrap().get("context").is_none());
}
