//! Compaction: requests fit into the token budget, and the parts that they leave out.

mod histories;

use rstest::rstest;
use serde_json::{Value, json};

pub(super) use histories::any_context;
use histories::{AnyFile, Round, Turn, attached, stored};

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::{BinaryContent, Message, Part, ReasoningPart, Role, ToolContent};
use crate::domain::event::EventBody;
use crate::domain::ids::{PartId, RunId};
use crate::domain::model::{ModelErrorKind, ModelFinish, ModelRequest};
use crate::domain::run::context::{Capacity, ContextPolicy, ContextStrategy, ContextUnit};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::ToolOutcome;
use crate::domain::tool::tool_filter::{ToolFilter, ToolFilterMode};
use crate::engine::request::request_source::RequestSource;

use crate::engine::request::{eviction, size};
use crate::engine::tests::world::{World, call, done, room};
use crate::engine::{Input, RunState, counts_tokens, model_request};
use crate::support::tokens::Tokenizer;

/// Returns a budget for a few results of some hundred tokens.
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
    room(&RequestSource::of(world.state.as_ref().unwrap())).unwrap().remaining
}

/// Lets the model read one file after the other.
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
    // Stored messages stay whole, and another worker builds the same request.
    assert_eq!(world.rows.history.len(), 25);
    let request = request.clone();
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(*asked(&world), request);
    assert!(world.state.as_ref().unwrap().record.history.len() < 13, "summarized messages are not loaded");
    // Clients get an event for each request, and for each compaction.
    let told: Vec<_> = world.kinds().into_iter().filter(|kind| kind.starts_with("context.") || *kind == "step.started").collect();
    assert!(told.iter().filter(|kind| **kind == "context.budget").count() == 14 && told.contains(&"context.compacted"), "{told:?}");
    // The next summary extends the previous one.
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
fn resumed_run_knows_the_question_of_its_predecessor() {
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
    // The next question is a new one.
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
    assert!((0..1_100).contains(&remaining(&world)), "no more is evicted than necessary: {}", remaining(&world));
}

#[test]
fn older_results_stay_whole_while_the_window_is_free() {
    let context = ContextPolicy { compress_results: true, limit: Some(100_000), ..ContextPolicy::default() };
    let mut world = World::started(profile(context));
    rounds(&mut world, 4, &"\u{e9}".repeat(300));
    let lengths: Vec<usize> = asked(&world).messages.iter().filter(|message| message.role == Role::Tool).map(length).collect();
    assert_eq!(lengths, [300; 4]);
}

#[test]
fn older_results_are_read_by_their_beginnings() {
    let context = ContextPolicy { limit: Some(100_000), ..ContextPolicy::default() };
    let mut world = World::started(profile(context.clone()));
    rounds(&mut world, 4, &"\u{e9}".repeat(300));
    // The agent requires a little more than the remaining tokens.
    let evict_below = u64::try_from(remaining(&world)).unwrap() + 100;
    let mut world = World::started(profile(ContextPolicy { compress_results: true, evict_below, ..context }));
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
    results.flatten().map(|content| crate::engine::tests::world::content_text(content).chars().count()).sum()
}

#[test]
fn a_run_without_room_sums_up() {
    // The reserves leave space for a few short calls only. None of them can be evicted, because they belong to the newest answer.
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
    assert!(asked(&world).tools.is_empty(), "the request is attempted, because the agent permits no eviction");
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
    assert_eq!(room(&RequestSource::of(world.state.as_ref().unwrap())), None, "the window of that model is unknown");
}

/// A limit above the window has no effect, also when a fallback has the smaller window.
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
        let window = |world: &World| room(&RequestSource::of(world.state.as_ref().unwrap())).unwrap().window;
        assert_eq!(window(&world), 32_768);
        let said = |world: &World| (asked(world).model.clone(), asked(world).window);
        let is_counted = unit == ContextUnit::Tokens;
        assert_eq!(said(&world), ("a/large".to_owned(), is_counted.then_some(32_768)));
        world.fails(ModelErrorKind::Auth);
        assert_eq!(Some(window(&world)), context.budget(Some(8_192)));
        assert_eq!(said(&world), ("b/small".to_owned(), is_counted.then_some(8_192)));
        // At 3.2 bytes a token, with the reserve.
        let request = asked(&world);
        let bytes = request.system.len() + request.messages.iter().map(|message| message.text().len()).sum::<usize>();
        assert!(bytes < (8_192 - 2_768) * 16 / 5, "{bytes}");
    }
}

/// Returns used tokens and tokenizer of the last budget event.
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
    // "You are a helpful assistant." and "What is in the file?" have six tokens each, and a message costs four more.
    assert_eq!(told(&world), (16, Some(Tokenizer::O200kBase)));
    assert!(counts_tokens(world.state.as_ref().unwrap()));

    let mut world = World::new(profile(small()));
    world.claim_with(ClaimCause::First, Vec::new());
    assert_eq!(told(&world), (9 + 4 + 7, None), "at 3.2 bytes a token");
    assert!(!counts_tokens(world.state.as_ref().unwrap()));
}

#[test]
fn a_count_leaves_more_in_than_an_estimate_where_it_is_less() {
    // 200 words are 200 tokens. Estimated from their 1,200 bytes, they would be 375.
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

/// Truncating half a million characters takes a few token counts, not dozens.
#[test]
fn a_huge_message_is_cut_by_its_count() {
    let mut world = World::new(profile(small()));
    world.capacities =
        vec![(world.rows.model().to_owned(), Capacity { tokenizer: Some(Tokenizer::O200kBase), ..Capacity::default() })];
    let huge = "All work and no play makes Jack a dull boy. ".repeat(12_000);
    world.rows.history = vec![world.user(&huge)];
    world.claim_with(ClaimCause::First, Vec::new());
    let room = room(&RequestSource::of(world.state.as_ref().unwrap())).unwrap();
    assert!(room.used + small().reserved() + small().start_gate <= room.window, "{room:?}");
    assert!(
        room.used > (room.window - small().reserved() - small().start_gate) * 8 / 10,
        "no more is truncated than necessary: {room:?}"
    );
}

/// Asks a question with files. Returns the world and the parts in the request.
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
fn a_file_larger_than_the_window_is_cut(#[case] file: AnyFile, #[case] most: usize) {
    let (world, parts) = asked_with(32_768, std::slice::from_ref(&file));
    assert!(matches!(&parts[0], Part::Text(words) if words.text == "What does it say?"), "the question is shorter than the file");
    let left = left_of(&parts[1]).expect("it is cut");
    assert!((most * 4 / 5..most * 11 / 10).contains(&left), "{left}");
    assert!(remaining(&world) >= 1_500, "{}", remaining(&world));
    let stored = world.rows.history[0].parts.iter().all(|part| left_of(part).is_none());
    assert!(stored, "the stored message is whole");
}

#[test]
fn pictures_that_do_not_fit_are_named() {
    let picture = AnyFile::Picture;
    let scan = AnyFile::Uploaded("application/pdf", None, None);
    let paper = AnyFile::Uploaded("application/pdf", Some(3_000), Some(1));
    // A reserve of 4,268 tokens leaves space for two images of 1,875 tokens each.
    let (_, parts) = asked_with(8_400, &[scan, paper, picture.clone(), picture]);
    let says =
        |part: &Part| matches!(part, Part::Text(text) if text.text.starts_with("[file größe.bin, application/pdf: left out"));
    assert!(says(&parts[1]), "{:?}", parts[1]);
    assert!(left_of(&parts[2]).is_some(), "its text stays: {:?}", parts[2]);
    assert!(matches!(&parts[3..], [Part::Text(_), Part::Image(_)] | [Part::Image(_), Part::Image(_)]), "{:?}", &parts[3..]);
}

/// One token too many truncates the file instead of removing it, although an image came after it.
#[test]
fn an_older_file_is_cut_and_not_left_out() {
    let ask = |limit: u64| {
        let mut world = World::new(profile(ContextPolicy { limit: Some(limit), ..ContextPolicy::default() }));
        let mut question = world.user("What does it say?");
        question.parts.push(attached(&world, &AnyFile::Uploaded("text/plain", Some(40_000), Some(1))));
        world.rows.history = vec![question];
        world.claim(ClaimCause::First);
        world.calls(&[call("read", &json!({ "n": 1 }))]);
        let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "iVBORw0KGgo="));
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
    let shows = |message: &Message| matches!(&message.parts[0], Part::ToolResult(result) if matches!(result.content[0], ToolContent::Image(_)));
    assert!(shows(&cut[2]), "{:?}", cut[2].parts);
}

/// Older images are left out, only as many as necessary, before text is truncated.
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

/// Removing the images one by one would block a shared thread for hours.
#[test]
fn any_number_of_pictures_is_left_out_at_once() {
    let (_, parts) = asked_with(200_000, &vec![AnyFile::Picture; 4_000]);
    assert!((1..100).contains(&parts.iter().filter(|part| matches!(part, Part::Image(_))).count()));
}

/// If the provider says that the request is too large, the request shrinks, even if it is within the budget.
#[rstest]
#[case::text(AnyFile::Uploaded("text/plain", Some(40_000), Some(3)))]
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

/// Lets the model reason in an encrypted form and then read a file.
fn thinks(world: &mut World, length: usize, result: &str) {
    let mut input = world.answer(&[call("read", &json!({ "n": world.rows.calls.len() }))], ModelFinish::ToolCalls);
    if let Input::ModelFinished { message, .. } = &mut input {
        let raw = json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA".repeat(length / 4) });
        let id = PartId::generate(&world.ids);
        message.parts.insert(0, Part::Reasoning(ReasoningPart { id, text: String::new(), raw: Some(raw) }));
    }
    world.feed(input);
    world.tool_says(0, result);
}

/// Returns which answers in the request hold reasoning, oldest first.
fn thoughtful(world: &World) -> Vec<bool> {
    let answers = asked(world).messages.iter().filter(|message| message.role == Role::Assistant);
    answers.map(eviction::has_reasoning).collect()
}

/// As in the Responses API: no text, and some 3,000 tokens of encrypted reasoning in each request.
#[test]
fn sealed_thoughts_cost_what_is_sent_of_them() {
    for tokenizer in [None, Some(Tokenizer::O200kBase)] {
        let mut world = World::new(profile(ContextPolicy::default()));
        let capacity = Capacity { window: Some(32_768), tokenizer, ..Capacity::default() };
        world.capacities = vec![(world.rows.model().to_owned(), capacity)];
        world.claim(ClaimCause::First);
        let before = remaining(&world);
        thinks(&mut world, 16_000, "ok");
        assert!((5_700..6_100).contains(&(before - remaining(&world))), "{} and {before}", remaining(&world));
        for _ in 1..10 {
            thinks(&mut world, 16_000, "ok");
            assert!(remaining(&world) >= 1_500, "{}", remaining(&world));
        }
        assert!(world.rows.summary.is_some());
        let shown = thoughtful(&world);
        assert!((2..6).contains(&shown.len()) && shown.iter().all(|has_some| *has_some), "{shown:?}");
        world.says_text("Done.");
        assert_eq!(world.ended().status, RunStatus::Completed);
    }
}

/// The size of encrypted reasoning is an overestimate, so a run in which it does not fit does not fail.
#[test]
fn thoughts_that_have_no_room_at_all_are_left_out() {
    let mut world = World::started(profile(small()));
    thinks(&mut world, 40_000, &"words ".repeat(100));
    assert_eq!(thoughtful(&world), [false]);
    assert!(remaining(&world) >= 1_500, "{}", remaining(&world));
    let result = asked(&world).messages.last().unwrap();
    assert!(matches!(&result.parts[0], Part::ToolResult(result) if result.content == [ToolContent::text("words ".repeat(100))]));
    // The stored messages keep them.
    assert!(world.rows.history.iter().any(eviction::has_reasoning));
}

/// In the current run, the oldest reasoning is removed before text is truncated. The newest stays, because the model continues
/// from it.
#[test]
fn oversized_turn_drops_older_reasoning() {
    let mut world = World::started(profile(ContextPolicy::default()));
    for _ in 0..6 {
        thinks(&mut world, 16_000, &"words ".repeat(200));
    }
    assert_eq!(thoughtful(&world), [true; 6]);
    let before = size::messages(&asked(&world).messages);
    world.fails(ModelErrorKind::ContextOverflow);
    assert!(size::messages(&asked(&world).messages) <= before / 2);
    assert_eq!(thoughtful(&world), [false, false, false, false, true, true]);
    let parts = || asked(&world).messages.iter().flat_map(|message| &message.parts);
    let is_whole = |part: &Part| match part {
        Part::ToolResult(result) => result.content == [ToolContent::text("words ".repeat(200))],
        _ => true,
    };
    assert!(parts().all(is_whole));
    assert!(world.events.iter().any(|event| matches!(event, EventBody::ContextCompacted { messages: 0, texts: 4, .. })));
}

/// A window holds fewer characters if each of them is a token.
#[rstest]
#[case::letters("a", 10_000)]
#[case::of_another_script("\u{6c49}", 4_000)]
fn a_budget_of_characters_is_within_the_window(#[case] letter: &str, #[case] most: usize) {
    let context = ContextPolicy { unit: ContextUnit::Chars, limit: Some(200_000), ..ContextPolicy::default() };
    let mut world = World::new(profile(context));
    world.capacities = vec![(world.rows.model().to_owned(), Capacity { window: Some(8_192), ..Capacity::default() })];
    world.rows.history = vec![world.user(&letter.repeat(20_000))];
    world.claim(ClaimCause::First);
    let said = asked(&world).messages[0].text();
    // At 3.2 bytes a token, with the reserve.
    assert!(said.len() < (8_192 - 2_768) * 16 / 5, "{}", said.len());
    assert!((most * 4 / 5..most * 6 / 5).contains(&said.chars().count()), "{}", said.chars().count());
    assert!(remaining(&world) >= 1_500, "{}", remaining(&world));
}

/// Without eviction, results are not compressed either. The budget event equals the budget of the request.
#[test]
fn an_agent_that_leaves_nothing_out_shortens_no_results_either() {
    let context = ContextPolicy { strategy: ContextStrategy::None, compress_results: true, ..small() };
    let mut world = World::started(profile(context));
    rounds(&mut world, 6, &"words ".repeat(50));
    assert_eq!(told(&world).0, room(&RequestSource::of(world.state.as_ref().unwrap())).unwrap().used);
    let results = asked(&world).messages.iter().filter(|message| message.role == Role::Tool);
    assert!(results.map(length).all(|chars| chars == 300));
}

#[test]
fn the_tools_on_offer_are_the_same_after_a_crash() {
    let tool_filter = ToolFilter { mode: ToolFilterMode::Semantic, k: 1, ..ToolFilter::default() };
    let mut world = World::new(AgentProfile { tool_filter, ..profile(small()) });
    let round =
        |length, times| Round { thought: None, said: String::new(), calls: vec![(length, "words ".repeat(times))], is_seen: false };
    let turn = |asked: &str, rounds, answer| Turn { asked: asked.to_owned(), files: Vec::new(), rounds, answer, open: 0 };
    let earlier = turn("Write it.", vec![round(1, 200)], Some("Written.".to_owned()));
    let now = turn("What is in the file?", (0..12).map(|_| round(0, 200)).collect(), None);
    world.rows.history = stored(&world, &[earlier, now]);
    world.claim(ClaimCause::First);
    let request = asked(&world).clone();
    assert!(world.rows.summary.is_some());
    let names: Vec<_> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["pay", "read"], "a call in the summarized part does not keep its tool on offer");
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(*asked(&world), request);
}

#[test]
fn a_profile_says_what_is_wrong_with_its_context() {
    let base = AgentProfile::default();
    let said = |context: Value| {
        let said = json!({ "context": context });
        crate::domain::agent::agent_record::profile_of(&base, "mine", 1, said.as_object().unwrap()).map_err(|error| error.field)
    };
    assert_eq!(said(json!({"limit": 4_000})).unwrap_err(), "context/limit");
    assert_eq!(said(json!({"strategy": "forget"})).unwrap_err(), "context/strategy");
    assert_eq!(said(json!({"unit": "chars"})).unwrap_err(), "context/limit");
    assert_eq!(said(json!({"limit": 32_768})).unwrap().context.budget(None), Some(32_768));
    // A profile without the field is serialized without it.
    assert!(serde_json::to_value(&base).unwrap().get("context").is_none());
}
