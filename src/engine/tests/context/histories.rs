//! Random histories: the request fits into its budget and is valid.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::domain::agent::prompt::{OwnLayers, PromptPolicy, ProvidedContext};
use crate::domain::agent::{AgentProfile, OutputMode};
use crate::domain::conversation::eviction_summary;
use crate::domain::conversation::message::{
    BinaryContent, FilePart, Message, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart,
};
use crate::domain::ids::{CallId, FileId, MessageId, PartId, RunId};
use crate::domain::run::context::{Capacity, ContextPolicy, ContextStrategy, ContextSummary, ContextUnit, json_tokens};
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::ToolCallState;
use crate::domain::tool::tool_filter::{ToolFilter, ToolFilterMode};
use crate::engine::check_sendable;
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::transcript::sendable;
use crate::engine::request::{eviction, size};
use crate::engine::tests::context::{asked, profile};
use crate::engine::tests::world::{World, content_text, parts, room, tools};
use crate::engine::{RunState, model_request};
use crate::support::tokens::Tokenizer;

/// The agent's default prompt.
const AGENT: &str = "You are a helpful assistant.";

#[derive(Debug, Clone)]
pub(super) struct Round {
    pub(super) thought: Option<Thought>,
    pub(super) said: String,
    /// Calls: the length of their arguments, and their results.
    pub(super) calls: Vec<(usize, String)>,
    /// Whether the first result has an image beside its text.
    pub(super) is_seen: bool,
}

/// The reasoning before an answer.
#[derive(Debug, Clone)]
pub(super) struct Thought {
    words: String,
    /// The length of the signed part, if there is one, and whether that contains the text.
    signed: Option<(usize, bool)>,
    /// Whether the first call has a signature, too.
    is_on_call: bool,
    /// Whether it comes from the model that is asked now.
    is_own: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub(super) asked: String,
    pub(super) files: Vec<AnyFile>,
    pub(super) rounds: Vec<Round>,
    pub(super) answer: Option<String>,
    /// Calls of the last round without a result, if this is the last message.
    pub(super) open: usize,
}

/// The layers of the system prompt besides the agent's own.
#[derive(Debug, Clone)]
struct Layers {
    server: String,
    user: String,
    conversation: String,
    context: String,
}

/// A file of a question.
#[derive(Debug, Clone)]
pub(super) enum AnyFile {
    /// Uploaded: its type, the characters of its text, and the bytes of each. The last value is missing in rows of older
    /// versions.
    Uploaded(&'static str, Option<u64>, Option<u64>),
    /// At a remote URL.
    Remote,
    /// An uploaded image.
    Picture,
}

fn any_file() -> impl Strategy<Value = AnyFile> {
    let length = || prop_oneof![0..600_u64, 600..200_000_u64];
    let each = || prop::option::of(1..5_u64);
    prop_oneof![
        4 => (prop_oneof![Just("text/plain"), Just("application/pdf")], length(), each())
            .prop_map(|(kind, chars, each)| AnyFile::Uploaded(kind, Some(chars), each)),
        1 => Just(AnyFile::Uploaded("application/pdf", None, None)),
        1 => Just(AnyFile::Remote),
        2 => Just(AnyFile::Picture),
    ]
}

/// Returns the part for a file.
pub(super) fn attached(world: &World, file: &AnyFile) -> Part {
    let part = |media_type: &str| FilePart {
        file_id: Some(FileId::generate(&world.ids).as_str().to_owned()),
        name: Some("größe.bin".to_owned()),
        ..FilePart::of(PartId::generate(&world.ids), media_type)
    };
    match file {
        AnyFile::Uploaded(kind, chars, each) => {
            let text_bytes = chars.zip(*each).map(|(chars, each)| chars * each);
            Part::File(FilePart { text_chars: *chars, text_bytes, ..part(kind) })
        }
        AnyFile::Remote => {
            let url = Some("https://a.example/b.pdf".to_owned());
            Part::File(FilePart { url, file_id: None, ..part("application/pdf") })
        }
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
    fn any_thought()(
        words in prop_oneof![1 => Just(String::new()), 2 => any_text()],
        signed in prop::option::weighted(0.7, (prop_oneof![3 => 0..200_usize, 1 => 200..3_000_usize], any::<bool>())),
        is_on_call in any::<bool>(),
        is_own in prop::bool::weighted(0.8),
    ) -> Thought {
        Thought { words, signed, is_on_call, is_own }
    }
}

prop_compose! {
    fn any_round()(
        thought in prop::option::weighted(0.4, any_thought()),
        said in prop_oneof![Just(String::new()), any_text()],
        calls in prop::collection::vec((0..300_usize, any_text()), 1..4),
        is_seen in prop::bool::weighted(0.2),
    ) -> Round {
        Round { thought, said, calls, is_seen }
    }
}

prop_compose! {
    fn any_turn()(
        asked in any_text(),
        files in prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any_file(), 1..6)],
        rounds in prop::collection::vec(any_round(), 0..5),
        answer in prop::option::of(any_text()),
        open in prop_oneof![3 => Just(0_usize), 1 => 1..4_usize],
    ) -> Turn {
        Turn { asked, files, rounds, answer, open }
    }
}

prop_compose! {
    fn any_layers()(
        lengths in prop::array::uniform4(prop_oneof![2 => Just(0_usize), 2 => 1..20_usize, 1 => 20..60_usize]),
    ) -> Layers {
        let words = |whose: &str, times: usize| format!("{whose} words. ").repeat(times).trim_end().to_owned();
        let [server, user, conversation, context] = lengths;
        Layers {
            server: words("Server", server),
            user: words("User", user),
            conversation: words("Conversation", conversation),
            context: words("Context", context),
        }
    }
}

prop_compose! {
    pub(in crate::engine::tests) fn any_context()(
        limit in prop_oneof![1 => Just(None), 2 => (1_200..3_000_u64).prop_map(Some), 2 => (3_000..20_000_u64).prop_map(Some)],
        (in_chars, compress_results) in (any::<bool>(), any::<bool>()),
        strategy in prop_oneof![
            6 => Just(ContextStrategy::Summarize), 2 => Just(ContextStrategy::DropOldest), 1 => Just(ContextStrategy::None)
        ],
        (reserve_output, safety, start_gate, evict_below) in (0..200_u64, 0..100_u64, 0..300_u64, 0..2_000_u64),
        (keep_last, summary_tokens) in (1..12_u32, 0..300_u64),
    ) -> ContextPolicy {
        let unit = if in_chars { ContextUnit::Chars } else { ContextUnit::Tokens };
        // A limit in characters must be explicit.
        let limit = limit.or(in_chars.then_some(4_000));
        ContextPolicy { unit, limit, strategy, reserve_output, safety, start_gate, evict_below, keep_last, summary_tokens, compress_results }
    }
}

/// Stores the messages as if their runs had happened, the last one in the world's own run.
pub(super) fn stored(world: &World, turns: &[Turn]) -> Vec<Message> {
    let mut history = Vec::new();
    let template = world.user("");
    let part = || PartId::generate(&world.ids);
    for (at, turn) in turns.iter().enumerate() {
        let is_last = at + 1 == turns.len();
        let run_id = if is_last { template.run_id.clone() } else { RunId::generate(&world.ids) };
        let mut add = |role, parts, model: Option<String>| {
            let (id, run_id) = (MessageId::generate(&world.ids), run_id.clone());
            history.push(Message { id, role, parts, run_id, model, ..template.clone() });
        };
        let words = |text: &str| Part::Text(TextPart { id: part(), text: text.to_owned() });
        let files = turn.files.iter().map(|file| attached(world, file));
        add(Role::User, std::iter::once(words(&turn.asked)).chain(files).collect(), None);
        for (number, round) in turn.rounds.iter().enumerate() {
            let thought = round.thought.as_ref();
            let mut said: Vec<Part> = thought.map(|thought| thought.part(part())).into_iter().collect();
            said.push(words(&round.said));
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
                    raw: thought.filter(|thought| thought.is_on_call && results.is_empty()).map(Thought::signature),
                    undoes: None,
                }));
                let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "iVBORw0KGgo="));
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
            if is_last && number + 1 == turn.rounds.len() {
                results.truncate(results.len().saturating_sub(turn.open));
            }
            add(Role::Assistant, said, thought.map(|thought| thought.model(world)));
            if !results.is_empty() {
                add(Role::Tool, results, None);
            }
        }
        if let Some(answer) = turn.answer.as_ref().filter(|_| !is_last) {
            add(Role::Assistant, vec![words(answer)], None);
        }
    }
    history
}

impl Thought {
    fn part(&self, id: PartId) -> Part {
        let raw = self.signed.map(|(length, holds_words)| {
            let said = if holds_words { json!([{ "type": "summary_text", "text": self.words }]) } else { json!([]) };
            json!({ "type": "reasoning", "encrypted_content": "gAAA".repeat(length), "summary": said })
        });
        Part::Reasoning(ReasoningPart { id, text: self.words.clone(), raw })
    }

    fn signature(&self) -> Value {
        json!({ "thoughtSignature": "x".repeat(self.signed.map_or(40, |(length, _)| length)) })
    }

    fn model(&self, world: &World) -> String {
        let model = if self.is_own { world.rows.model() } else { "b/other" };
        model.to_owned()
    }
}

impl Layers {
    /// Adds the layers to a run.
    fn give(&self, world: &mut World) {
        world.rows.own_layers = OwnLayers { system_prompt: self.conversation.clone(), instructions: self.user.clone() };
        world.rows.contexts = Some(vec![ProvidedContext { name: "clock".to_owned(), text: self.context.clone() }]);
    }

    /// Returns all layers in order.
    fn all(&self) -> impl Iterator<Item = &str> {
        let all = [self.server.as_str(), AGENT, self.user.as_str(), self.conversation.as_str(), self.context.as_str()];
        all.into_iter().filter(|layer| !layer.is_empty())
    }
}

/// Returns the calls without a result.
fn open_calls(history: &[Message]) -> Vec<CallId> {
    let answered = answered(history);
    let calls = history.iter().flat_map(Message::tool_calls).map(|call| call.call_id.clone());
    calls.filter(|call| !answered.contains(call)).collect()
}

/// Returns the calls with a result.
fn answered(history: &[Message]) -> Vec<CallId> {
    let parts = history.iter().flat_map(|message| &message.parts);
    parts.filter_map(|part| if let Part::ToolResult(result) = part { Some(result.call_id.clone()) } else { None }).collect()
}

/// Returns bytes and characters of the signed parts, as serialized.
fn signed(messages: &[Message]) -> (usize, usize) {
    let raw = messages.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
        Part::Reasoning(reasoning) => reasoning.raw.as_ref(),
        Part::ToolCall(call) => call.raw.as_ref(),
        _ => None,
    });
    raw.map(Value::to_string).fold((0, 0), |(bytes, chars), text| (bytes + text.len(), chars + text.chars().count()))
}

/// Returns the bytes of text, reasoning and calls, without files and images.
fn said(messages: &[Message]) -> usize {
    let parts = messages.iter().flat_map(|message| &message.parts).map(|part| match part {
        Part::Text(text) => text.text.len(),
        Part::Reasoning(reasoning) => reasoning.raw.as_ref().map_or(reasoning.text.len(), |raw| raw.to_string().len()),
        Part::ToolCall(call) => call.arguments.to_string().len(),
        Part::ToolResult(result) => result.content.iter().map(|content| content_text(content).len()).sum(),
        Part::Image(_) | Part::File(_) | Part::Source(_) => 0,
    });
    parts.sum()
}

/// Asserts that the smallest possible request does not fit. It has only the newest exchange and the system prompt, maximally
/// truncated, without reasoning and tools.
fn the_least_view_is_too_large(state: &RunState) -> Result<(), TestCaseError> {
    let source = RequestSource::of(state);
    let room = room(&source).unwrap();
    prop_assert!(room.remaining < 0, "{:?}", room);
    let own = &state.record.fence.run_id;
    let shown = source.request_messages().uncovered;
    prop_assert!(shown.iter().all(|message| message.run_id == *own));
    let answers = shown.iter().filter(|message| message.role == Role::Assistant).count();
    prop_assert!(answers == 0 || (answers == 1 && shown[0].role == Role::Assistant), "{:?}", shown);
    let (frame, messages) = parts(&source);
    prop_assert!(frame.tools.is_empty());
    prop_assert!(eviction::drop_images(&mut messages.clone(), 1) == 0, "{:?}", messages);
    // The longest note that replaces truncated text or an image.
    prop_assert!(eviction::longest(&messages, None) <= 80, "{:?}", messages);
    prop_assert!(!messages.iter().any(eviction::has_reasoning), "{:?}", messages);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn window_of_any_history_fits_the_budget(
        context in any_context(),
        turns in prop::collection::vec(any_turn(), 1..12),
        layers in any_layers(),
        (structured, is_counted, is_filtered) in (any::<bool>(), any::<bool>(), any::<bool>()),
        window in prop::option::of(1_000..20_000_u64),
    ) {
        let output = if structured { OutputMode::Structured } else { OutputMode::Tools };
        // Tools that earlier messages called are offered beside the selected ones, while those messages are in the request.
        let mode = if is_filtered { ToolFilterMode::Semantic } else { ToolFilterMode::Off };
        let tool_filter = ToolFilter { mode, k: 1, ..ToolFilter::default() };
        let prompt = PromptPolicy { server: layers.server.clone(), ..PromptPolicy::default() };
        let mut world = World::new(AgentProfile { output, tool_filter, prompt, ..profile(context.clone()) });
        layers.give(&mut world);
        let tokenizer = is_counted.then_some(Tokenizer::O200kBase);
        world.capacities = vec![(world.rows.model().to_owned(), Capacity { tokenizer, window, ..Capacity::default() })];
        let history = stored(&world, &turns);
        let open = open_calls(&history);
        let is_bounded = context.strategy != ContextStrategy::None && context.budget(window).is_some();
        world.rows.history = history.clone();
        world.claim_with(ClaimCause::First, tools());
        prop_assert_eq!(&world.rows.history[..history.len()], &history[..], "stored messages stay whole");
        if world.ending.is_some() {
            // The system prompt and the required messages use the whole budget.
            prop_assert_eq!(world.error_code(), "context_overflow");
            prop_assert!(is_bounded, "the run failed before every reduction was tried");
            let mut state = RunState::load(world.rows.clone());
            state.facts.capacities = world.capacities.clone();
            return the_least_view_is_too_large(&state);
        }
        let state = world.state.as_ref().unwrap();
        let source = RequestSource::of(state);
        // The request before tools become text.
        let (frame, view) = parts(&source);
        let room = room(&source);
        prop_assert_eq!(room.map(|room| room.window), context.budget(window));
        if let Some(room) = room {
            prop_assert!(!is_bounded || room.used + context.reserved() <= room.window, "{:?}", room);
            let has_room = |window: &u64| *window > context.reserved() + context.start_gate;
            let in_tokens = window.filter(|window| context.unit == ContextUnit::Tokens && has_room(window));
            prop_assert!(in_tokens.is_none_or(|window| room.window <= window), "{:?}", room);
            // A signed part costs its serialized size.
            let (bytes, chars) = signed(&view);
            let least = match context.unit {
                ContextUnit::Chars => chars as u64,
                ContextUnit::Tokens => json_tokens(bytes),
            };
            prop_assert!(room.used >= least, "{:?}: {} bytes are signed", room, bytes);
        }
        // With any counting, the model's window holds the request, at 3.2 bytes a token and with the default reserve.
        let by_window = ContextPolicy { limit: None, ..context }.budget(window);
        let in_chars = window.filter(|_| is_bounded && context.unit == ContextUnit::Chars && by_window.is_some());
        let bytes = (frame.system.len() + said(&view)) as u64;
        let kept_free = ContextPolicy::default().reserved();
        prop_assert!(in_chars.is_none_or(|window| bytes * 5 / 16 + kept_free <= window), "{:?}: {} bytes", room, bytes);
        if !is_bounded {
            prop_assert_eq!(&view, &sendable(&source), "no text is truncated");
            prop_assert!(world.rows.summary.is_none(), "no message is evicted");
        }
        let request = asked(&world);
        // Every layer of the system prompt is present, followed by the summary of evicted messages.
        let mut layers_left = request.system.as_str();
        prop_assert!(layers.all().next().is_some_and(|first| layers_left.starts_with(first)));
        for layer in layers.all() {
            let at = layers_left.find(layer);
            prop_assert!(at.is_some(), "{}: {}", layer, request.system);
            layers_left = &layers_left[at.unwrap() + layer.len()..];
        }
        match world.rows.summary.as_ref().and_then(eviction_summary::section) {
            Some(section) => {
                prop_assert!(layers_left.contains(&format!("\n\n{section}")), "{}", request.system);
            }
            None => {
                prop_assert!(!request.system.contains("Earlier messages of this conversation"), "{}", request.system);
            }
        }
        // The world has checked that the request is valid. No result is invented for a lost call, open calls stay, and the
        // question is present.
        let results = request.messages.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
            Part::ToolResult(result) => Some(result),
            _ => None,
        });
        prop_assert!(results.into_iter().all(|result| result.state == ToolCallState::Done || open.contains(&result.call_id)));
        let called: Vec<&CallId> = view.iter().flat_map(Message::tool_calls).map(|call| &call.call_id).collect();
        prop_assert!(open.iter().all(|call| called.contains(&call)), "an open call is missing");
        let question = history.iter().rfind(|message| message.role == Role::User).unwrap().parts[0].id().clone();
        // A message without text is not sent.
        let is_blank = turns.last().is_some_and(|turn| turn.asked.trim().is_empty());
        // The size of sent files is within the budget's estimate.
        for file in request.messages.iter().flat_map(|message| &message.parts) {
            if let Part::Image(file) | Part::File(file) = file {
                let left = file.text_limit.map_or(usize::MAX, |limit| limit.bytes);
                prop_assert!(size::file(file).bytes >= size::text_of(file).map_or(0, |text| text.bytes.min(left)));
            }
        }
        prop_assert!(is_blank || request.messages.iter().flat_map(|message| &message.parts).any(|part| *part.id() == question));
        // The same rows give the same request, and a decision is not made twice.
        let asks = |rows| {
            let mut state = RunState::load(rows);
            state.facts.capacities = world.capacities.clone();
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

    /// A summary on demand, possibly the second one: calls keep their results, and the newest messages stay. The next request
    /// has each call without a result, with any outcome.
    #[test]
    fn a_summary_on_demand_loses_no_open_call(
        context in any_context(),
        turns in prop::collection::vec(any_turn(), 1..8),
        first in 0..9_usize,
    ) {
        let mut world = World::new(profile(ContextPolicy::default()));
        let history = stored(&world, &turns);
        let open = open_calls(&history);
        // The length of the conversation at the first summary.
        let questions = history.iter().enumerate().filter(|(_, message)| message.role == Role::User).map(|(at, _)| at);
        let come = questions.into_iter().nth(first).unwrap_or(history.len());
        let mut covers = None;
        for until in [come, history.len()] {
            let covered = covers.as_ref().map_or(0, |summary: &ContextSummary| summary.messages as usize);
            let later = eviction_summary::compact_history(&context, covers.as_ref(), &history[covered..until]);
            let Some(later) = later else { continue };
            let at = later.messages as usize;
            prop_assert!(at > covered && at <= until);
            prop_assert_eq!(&history[at - 1].id, &later.covers);
            prop_assert!(until - at >= (context.keep_last as usize).min(until - covered), "the newest messages stay");
            let left_out: Vec<CallId> = history[..at].iter().flat_map(Message::tool_calls).map(|call| call.call_id.clone()).collect();
            let shown = answered(&history[at..]);
            prop_assert!(left_out.iter().all(|call| !shown.contains(call)), "a result has lost its call");
            prop_assert!(left_out.iter().all(|call| !open.contains(call)), "an open call is left out");
            covers = Some(later);
        }
        // The next run has another question.
        world.rows.summary = covers;
        world.rows.history = history;
        world.rows.fence.run_id = RunId::generate(&world.ids);
        let mut next = world.user("And now?");
        next.run_id = world.rows.fence.run_id.clone();
        world.rows.history.push(next);
        let request = model_request(&RunState::load(world.loaded()));
        prop_assert!(check_sendable(&request.messages).is_ok());
        let called: Vec<&CallId> = request.messages.iter().flat_map(Message::tool_calls).map(|call| &call.call_id).collect();
        prop_assert!(open.iter().all(|call| called.contains(&call)), "an open call is missing");
    }
}
