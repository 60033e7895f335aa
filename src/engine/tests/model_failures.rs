//! Model failures: retries, fallback chains, and changed requests.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;

use crate::domain::agent::{AgentProfile, FinalTextFor, LlmRetry};
use crate::domain::conversation::message::{BinaryContent, Message, MessageStatus, Part, Role, TextPart, ToolContent};
use crate::domain::event::EventBody;
use crate::domain::ids::{MessageId, PartId, RunId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish, ModelOptions, Usage};
use crate::domain::run::change::ReleaseCause;
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::tool::ToolOutcome;
use crate::engine::Input;
use crate::engine::steps::time_limits::jitter_ms;
use crate::engine::tests::world::{Say, World, call, content_text, done};
use crate::engine::{check_sendable, model_request};
use crate::support::ids::SequentialIds;

/// Returns the backoff of a run that released its lease, without the jitter from its id.
fn waits(world: &World) -> Option<u64> {
    let Some((Some(released), ReleaseCause::Waiting)) = world.released else { return None };
    let waiting = world.events.iter().rev().find_map(|event| match event {
        EventBody::RunRetrying { after_ms, .. } => Some(*after_ms),
        _ => None,
    });
    waiting.filter(|asked| released == asked + jitter_ms(&world.rows.fence.run_id, *asked))
}

/// D-13, L-15.
#[test]
fn runs_that_fail_together_do_not_come_back_together() {
    let ids = SequentialIds::default();
    let run = || jitter_ms(&RunId::generate(&ids), 3_000);
    let spreads: BTreeSet<u64> = (0..1_000).map(|_| run()).collect();
    assert!(spreads.len() > 300 && spreads.iter().all(|ms| *ms <= 375), "{} different backoffs", spreads.len());
    let of_an_hour: Vec<u64> = (0..1_000).map(|_| jitter_ms(&RunId::generate(&ids), 3_600_000)).collect();
    assert!(of_an_hour.iter().all(|ms| *ms <= 5_000));
    assert_eq!(jitter_ms(&RunId::generate(&ids), 7), 0);
}

/// The agent chooses the kinds of failures that are retried.
#[test]
fn failure_kind_without_retry_fails_at_once() {
    let classes = Some(vec![ModelErrorKind::RateLimit, ModelErrorKind::Overloaded]);
    let llm_retry = LlmRetry { classes, ..LlmRetry::default() };
    let profile = AgentProfile { llm_retry, ..AgentProfile::default() };
    let mut world = World::started(profile.clone());
    world.fails(ModelErrorKind::Overloaded);
    assert_eq!(waits(&world), Some(3_000));
    world.claim(ClaimCause::Timer);
    world.fails(ModelErrorKind::Unavailable);
    assert_eq!(world.error_code(), "provider_unavailable");

    let mut useless = profile;
    useless.llm_retry.classes = Some(vec![ModelErrorKind::Auth]);
    assert_eq!(useless.check().unwrap_err().field, "llm_retry/classes");
}

#[test]
fn model_failures_wait_without_a_lease_and_then_fail() {
    let mut world = World::started(AgentProfile::default());
    for after in [3_000, 6_000] {
        let failed = world.fails(ModelErrorKind::Overloaded);
        let kinds: Vec<_> = failed.events.iter().map(|event| event.kind()).collect();
        assert_eq!(kinds, ["step.reset", "run.retrying", "run.waiting", "conversation.updated"]);
        assert_eq!(waits(&world), Some(after));
        assert_eq!((world.rows.status, world.rows.reason), (RunStatus::Waiting, Some(WaitReason::Backoff)));
        let resumed = world.claim(ClaimCause::Timer);
        let kinds: Vec<_> = resumed.events.iter().map(|event| event.kind()).collect();
        assert_eq!(kinds, ["run.resumed", "conversation.updated", "step.started"]);
        assert_eq!(world.rows.steps.len(), 1);
    }
    world.fails(ModelErrorKind::Overloaded);
    assert_eq!(world.error_code(), "provider_overloaded");
    world.check_next_turn();
}

#[test]
fn no_wait_is_longer_than_the_run_may_take() {
    let mut world = World::started(AgentProfile { max_run_ms: 10_000, ..AgentProfile::default() });
    world.elapsed_ms = 7_000;
    world.fails(ModelErrorKind::Overloaded);
    assert_eq!(world.error_code(), "provider_overloaded");
}

#[test]
fn an_answer_gives_the_tries_back() {
    let mut world = World::started(AgentProfile::default());
    for n in 0..4 {
        world.fails(ModelErrorKind::Timeout);
        world.claim(ClaimCause::Timer);
        world.calls(&[call("read", &json!({ "n": n }))]);
        world.tool_says(0, "ok");
    }
    assert!(world.ending.is_none());
}

#[rstest]
#[case(ModelErrorKind::Auth, "provider_auth")]
#[case(ModelErrorKind::Quota, "provider_quota")]
#[case(ModelErrorKind::ContextOverflow, "context_overflow")]
#[case(ModelErrorKind::InvalidRequest, "provider_invalid_request")]
#[case(ModelErrorKind::ContentFilter, "content_filter")]
fn permanent_failure_fails_the_run_at_once(#[case] kind: ModelErrorKind, #[case] code: &str) {
    let mut world = World::started(AgentProfile::default());
    world.fails(kind);
    assert_eq!(world.error_code(), code);
    assert_eq!(world.ended().error.as_ref().unwrap().detail, "no luck");
}

#[test]
fn answer_over_the_total_limit_is_not_repeated() {
    let cut = |world: &mut World| {
        world.show(&[Say::Text("some words")]);
        let partial = world.hang_up();
        let error = ModelError { over_total_limit: true, ..ModelError::new(ModelErrorKind::Timeout, "too long") };
        world.feed(Input::ModelCut { error, partial })
    };
    let mut world = World::started(AgentProfile::default());
    cut(&mut world);
    let error = world.ended().error.clone().unwrap();
    assert_eq!((error.code.as_str(), error.retryable), ("provider_timeout", false));
    let kept = world.rows.history.last().unwrap();
    assert_eq!((kept.text().as_str(), kept.status, kept.finish_reason), ("some words", MessageStatus::Partial, None));
    world.check_next_turn();
    let mut world = World::started(AgentProfile { fallbacks: vec!["b/other".to_owned()], ..AgentProfile::default() });
    cut(&mut world);
    assert!(world.ending.is_none() && world.rows.model() == "b/other", "another model may be faster");
}

#[rstest]
#[case(ModelFinish::Length, None, 10, true)]
#[case(ModelFinish::Stop, Some(50), 50, true)]
#[case(ModelFinish::Stop, Some(50), 49, false)]
#[case(ModelFinish::Stop, None, 50, false)]
fn used_up_output_limit_is_not_asked_again(
    #[case] finish: ModelFinish,
    #[case] limit: Option<u32>,
    #[case] output_tokens: u64,
    #[case] fails: bool,
) {
    let options = ModelOptions { max_output_tokens: limit, ..ModelOptions::default() };
    let mut world = World::started(AgentProfile { options, ..AgentProfile::default() });
    let mut input = world.answer(&[], finish);
    if let Input::ModelFinished { turn, .. } = &mut input {
        turn.usage = Usage { output_tokens, reasoning_tokens: output_tokens, model_calls: 1, ..Usage::default() };
    }
    world.feed(input);
    assert_eq!(world.ending.is_some(), fails);
    if fails {
        let error = world.ended().error.as_ref().unwrap();
        assert_eq!((error.code.as_str(), error.retryable), ("provider_empty_response", false));
        assert!(error.detail.contains("on reasoning") && error.detail.contains("options.max_output_tokens"), "{}", error.detail);
    }
}

#[test]
fn the_providers_own_wait_wins_up_to_a_limit() {
    let asks = |ms: u64| {
        let retry = LlmRetry { max_retry_after_ms: 10_000, ..LlmRetry::default() };
        let mut world = World::started(AgentProfile { llm_retry: retry, ..AgentProfile::default() });
        world.asked = None;
        let error = ModelError { retry_after_ms: Some(ms), ..ModelError::new(ModelErrorKind::RateLimit, "slow down") };
        world.feed(Input::ModelFailed(error));
        world
    };
    assert_eq!(waits(&asks(500)), Some(500));
    assert_eq!(waits(&asks(10_000)), Some(10_000));
    assert_eq!(asks(10_001).error_code(), "provider_rate_limit");
}

#[test]
fn another_model_may_come_before_a_second_try() {
    let llm_retry = LlmRetry { delays_ms: vec![1_000], fallback_first: true, ..LlmRetry::default() };
    let mut world = with_fallbacks(AgentProfile { llm_retry, ..AgentProfile::default() });
    for (kind, next) in [(ModelErrorKind::RateLimit, "b/second"), (ModelErrorKind::Unavailable, "c/third")] {
        world.fails(kind);
        assert_eq!(model_request(world.state.as_ref().unwrap()).model, next);
    }
    world.fails(ModelErrorKind::Unavailable);
    assert_eq!(waits(&world), Some(1_000), "the fallback chain has ended");
    world.claim(ClaimCause::Timer);
    world.fails(ModelErrorKind::RateLimit);
    assert_eq!(world.error_code(), "provider_rate_limit");
}

/// Returns a run whose model has two fallbacks.
fn with_fallbacks(profile: AgentProfile) -> World {
    let fallbacks = vec!["b/second".to_owned(), "c/third".to_owned()];
    World::started(AgentProfile { model: "a/first".to_owned(), fallbacks, ..profile })
}

// L-46
#[test]
fn models_take_over_one_after_the_other() {
    let mut world = with_fallbacks(AgentProfile::default());
    // A transient failure is retried first.
    for _ in 0..2 {
        world.fails(ModelErrorKind::Overloaded);
        world.claim(ClaimCause::Timer);
        assert_eq!(model_request(world.state.as_ref().unwrap()).model, "a/first");
    }
    let switched = world.fails(ModelErrorKind::Overloaded);
    let kinds: Vec<_> = switched.events.iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, ["run.retrying", "step.reset", "step.started"]);
    assert!(world.released.is_none() && world.asked.is_some(), "the slot is kept");
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "b/second");
    // The next model has its own retries, and keeps its position after a crash.
    world.fails(ModelErrorKind::Overloaded);
    assert_eq!(waits(&world), Some(3_000));
    world.claim(ClaimCause::Timer);
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "b/second");
    world.fails(ModelErrorKind::Auth);
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "c/third");
    world.fails(ModelErrorKind::Quota);
    assert_eq!(world.error_code(), "provider_quota");
    world.check_next_turn();
}

#[test]
fn fallback_model_is_tried_without_backoff() {
    let mut world = with_fallbacks(AgentProfile::default());
    world.asked = None;
    let error = ModelError { retry_after_ms: Some(30_000), ..ModelError::new(ModelErrorKind::Unavailable, "left alone") };
    world.feed(Input::ModelFailed(error));
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "b/second");
}

/// Returns the input of an open circuit breaker.
fn left_alone(wait_ms: u64) -> Input {
    let refusal = ModelError::new(ModelErrorKind::Unavailable, "left alone");
    Input::ModelFailed(ModelError { retry_after_ms: Some(wait_ms), request_not_sent: true, ..refusal })
}

#[test]
fn model_behind_open_breaker_has_not_failed() {
    let retry = LlmRetry { max_retry_after_ms: 100_000, ..LlmRetry::default() };
    let mut world = World::started(AgentProfile { llm_retry: retry, ..AgentProfile::default() });
    world.fails(ModelErrorKind::Overloaded);
    world.claim(ClaimCause::Timer);
    // The number of retries does not limit these waits, and no wait is shorter than the delay of the first retry.
    for (asks, expected) in [(30_000, 30_000), (1_000, 3_000), (1_000, 3_000), (1_000, 3_000)] {
        world.asked = None;
        world.feed(left_alone(asks));
        assert_eq!(waits(&world), Some(expected));
        world.claim(ClaimCause::Timer);
    }
    // The remaining retry is still available, and an answer completes the run.
    world.fails(ModelErrorKind::Overloaded);
    assert_eq!(waits(&world), Some(6_000));
    world.claim(ClaimCause::Timer);
    // The sum of these waits for one attempt is limited.
    for _ in 0..3 {
        world.asked = None;
        world.feed(left_alone(30_000));
        world.claim(ClaimCause::Timer);
    }
    world.asked = None;
    world.feed(left_alone(30_000));
    assert_eq!(world.error_code(), "provider_unavailable");
    assert!(world.ended().error.as_ref().unwrap().detail.contains("90000 ms"));
}

#[test]
fn run_without_retries_does_not_wait() {
    let mut world = with_fallbacks(AgentProfile::default());
    world.asked = None;
    world.feed(left_alone(1_000));
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "b/second", "the chain has another model");
    let retry = LlmRetry { delays_ms: Vec::new(), ..LlmRetry::default() };
    let mut world = World::started(AgentProfile { llm_retry: retry, ..AgentProfile::default() });
    world.asked = None;
    world.feed(left_alone(1_000));
    assert_eq!(world.error_code(), "provider_unavailable");
}

#[test]
fn refused_request_is_tried_on_the_fallback() {
    let mut world = with_fallbacks(AgentProfile { tool_result_chars: 20_000, ..AgentProfile::default() });
    world.calls(&[call("read", &json!({"n": 1}))]);
    world.tool_says(0, &"x".repeat(9_000));
    let whole: usize = texts_of(&world).iter().map(|(_, chars)| chars).sum();
    world.fails(ModelErrorKind::ContextOverflow);
    let halved: usize = texts_of(&world).iter().map(|(_, chars)| chars).sum();
    assert!(halved < whole);
    world.fails(ModelErrorKind::ContextOverflow);
    let request = model_request(world.state.as_ref().unwrap());
    assert_eq!((request.model.as_str(), request.tools.len()), ("b/second", 3));
    assert_eq!(texts_of(&world).iter().map(|(_, chars)| chars).sum::<usize>(), whole);
}

/// Adds a signature to the model's own messages.
fn signs(world: &mut World) {
    let model = world.rows.model().to_owned();
    let state = world.state.as_mut().unwrap();
    for history in [&mut state.record.history, &mut world.rows.history] {
        for message in history.iter_mut().filter(|message| message.role == Role::Assistant) {
            message.model = Some(model.clone());
            for part in &mut message.parts {
                if let Part::ToolCall(call) = part {
                    call.raw = Some(json!({"signature": "s"}));
                    call.provider_call_id = Some("toolu_1".to_owned());
                }
            }
        }
    }
}

fn signed(world: &World) -> bool {
    let request = model_request(world.state.as_ref().unwrap());
    request.messages.iter().flat_map(Message::tool_calls).any(|call| call.raw.is_some() || call.provider_call_id.is_some())
}

#[test]
fn foreign_signature_is_left_out_once() {
    let refusal = || {
        let error = ModelError::new(ModelErrorKind::InvalidRequest, "Invalid `signature` in `thinking` block");
        Input::ModelFailed(ModelError { refused_signed: true, ..error })
    };
    let mut world = with_fallbacks(AgentProfile::default());
    world.calls(&[call("read", &json!({"n": 1}))]);
    world.tool_says(0, "ok");
    signs(&mut world);
    assert!(signed(&world));
    world.asked = None;
    let again = world.feed(refusal());
    let kinds: Vec<_> = again.events.iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, ["run.retrying", "step.reset", "step.started"]);
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "a/first");
    assert!(!signed(&world));
    // The same request is not sent again.
    world.asked = None;
    world.feed(refusal());
    assert_eq!(model_request(world.state.as_ref().unwrap()).model, "b/second");
    // Without a signed part, no repeated request is sent.
    let mut world = World::started(AgentProfile::default());
    world.asked = None;
    world.feed(refusal());
    assert_eq!(world.error_code(), "provider_invalid_request");
}

#[test]
fn failed_model_call_is_paid_for() {
    let mut world = World::started(AgentProfile::default());
    world.fails(ModelErrorKind::Overloaded);
    assert_eq!(world.rows.usage, Usage::default(), "no text was received");
    world.claim(ClaimCause::Timer);
    world.show(&[Say::Text("Half an answer.")]);
    world.fails(ModelErrorKind::IncompleteStream);
    let once = world.rows.usage;
    let asked = once.input_tokens;
    assert!(asked > 10 && once.estimated, "{once:?}");
    assert_eq!((once.output_tokens, once.model_calls), (4, 1));
    world.claim(ClaimCause::Timer);
    world.show(&[Say::Text("Half an answer.")]);
    let partial = world.hang_up();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial, stopped: Vec::new() });
    let twice = world.rows.usage;
    assert_eq!((twice.input_tokens, twice.output_tokens, twice.model_calls), (2 * asked, 8, 2));
}

#[test]
fn content_filter_tries_no_fallback() {
    let mut world = with_fallbacks(AgentProfile::default());
    world.fails(ModelErrorKind::ContentFilter);
    assert_eq!(world.error_code(), "content_filter");
}

#[test]
fn fallback_gets_no_signature_of_the_first_model() {
    let mut world = with_fallbacks(AgentProfile::default());
    world.calls(&[call("read", &json!({"n": 1}))]);
    world.tool_says(0, "ok");
    let raw = |world: &World| {
        let request = model_request(world.state.as_ref().unwrap());
        let calls: Vec<_> = request.messages.iter().flat_map(|message| message.tool_calls().cloned()).collect();
        calls.into_iter().any(|call| call.raw.is_some())
    };
    for message in &mut world.state.as_mut().unwrap().record.history {
        for part in &mut message.parts {
            if let Part::ToolCall(call) = part {
                call.raw = Some(json!({"signature": "s"}));
            }
        }
        message.model = message.model.as_ref().map(|_| "a/first".to_owned());
    }
    assert!(raw(&world));
    world.state.as_mut().unwrap().record.counters.fallback = 1;
    assert!(!raw(&world));
}

#[test]
fn the_profiles_last_words_stand_in_for_the_model() {
    let profile = AgentProfile {
        final_text: Some("We are closed.".to_owned()),
        llm_retry: LlmRetry { delays_ms: Vec::new(), ..LlmRetry::default() },
        ..AgentProfile::default()
    };
    let mut world = World::started(profile);
    world.fails(ModelErrorKind::Network);
    let end = world.ended();
    assert_eq!(end.status, RunStatus::Completed);
    assert_eq!(end.error.as_ref().unwrap().code, "provider_network", "the run has the error beside its answer");
    let Some(EventBody::RunCompleted { error: Some(error), .. }) = world.events.last() else { panic!("{:?}", world.events) };
    assert_eq!(error.code, "provider_network", "its stream has it, too");
    assert_eq!(world.rows.history.last().unwrap().text(), "We are closed.");
    world.check_next_turn();
}

/// A refusal shows that the provider was reachable.
#[rstest]
#[case(ModelErrorKind::Auth, true)]
#[case(ModelErrorKind::Quota, true)]
#[case(ModelErrorKind::EmptyResponse, true)]
#[case(ModelErrorKind::ContentFilter, false)]
#[case(ModelErrorKind::InvalidRequest, false)]
#[case(ModelErrorKind::ContextOverflow, false)]
fn last_words_hide_no_refusal(#[case] kind: ModelErrorKind, #[case] stand_in: bool) {
    let profile = AgentProfile {
        final_text: Some("We are closed.".to_owned()),
        llm_retry: LlmRetry { delays_ms: Vec::new(), ..LlmRetry::default() },
        ..AgentProfile::default()
    };
    let mut world = World::started(profile);
    world.fails(kind);
    let status = if stand_in { RunStatus::Completed } else { RunStatus::Failed };
    assert_eq!((world.ended().status, world.error_code()), (status, kind.code()));
}

/// Returns role and text length of each message in a request.
fn texts_of(world: &World) -> Vec<(Role, usize)> {
    let request = model_request(world.state.as_ref().unwrap());
    check_sendable(&request.messages).unwrap();
    let size = |message: &Message| {
        message
            .parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.text.chars().count(),
                Part::ToolResult(result) => result.content.iter().map(|content| content_text(content).chars().count()).sum(),
                _ => 0,
            })
            .sum()
    };
    request.messages.iter().map(|message| (message.role, size(message))).collect()
}

// L-20: compaction once, never the same payload again.
#[test]
fn a_request_that_is_too_large_is_halved_once() {
    let mut world = World::started(AgentProfile { tool_result_chars: 20_000, ..AgentProfile::default() });
    for n in 0..2 {
        world.calls(&[call("read", &json!({ "n": n }))]);
        world.tool_says(0, &"\u{e9}".repeat(9_000));
    }
    let before: usize = texts_of(&world).iter().map(|(_, chars)| chars).sum();
    world.asked = None;
    let overflow = || Input::ModelFailed(ModelError::new(ModelErrorKind::ContextOverflow, "too long"));
    let compacted = world.feed(overflow());
    let kinds: Vec<_> = compacted.events.iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, ["context.compacted", "step.reset", "step.started"]);
    let after: usize = texts_of(&world).iter().map(|(_, chars)| chars).sum();
    assert!(after <= before / 2 + 1_000, "{after} of {before}");
    assert_eq!(texts_of(&world).len(), 5, "no call has lost its result");
    // The same payload is never sent twice. A payload that is still too large fails.
    world.asked = None;
    world.feed(overflow());
    assert_eq!(world.error_code(), "context_overflow");
    world.check_next_turn();
}

#[test]
fn the_oldest_turns_go_first_and_whole() {
    let ids = SequentialIds::default();
    let mut world = World::started(AgentProfile::default());
    let template = world.rows.history[0].clone();
    let text = |text: String| Part::Text(TextPart { id: PartId::generate(&ids), text });
    let older = (0..6).map(|n| Message {
        id: MessageId::generate(&ids),
        role: if n % 2 == 0 { Role::User } else { Role::Assistant },
        parts: vec![text(format!("{n}{}", "x".repeat(1_000)))],
        ..template.clone()
    });
    let state = world.state.as_mut().unwrap();
    state.record.history.splice(0..0, older);
    state.record.counters.halved = true;
    let request = model_request(state);
    check_sendable(&request.messages).unwrap();
    let firsts: Vec<_> = request.messages.iter().map(|message| message.text().chars().next().unwrap()).collect();
    assert_eq!(firsts.len(), 3, "{firsts:?}");
    assert_eq!(&firsts[..2], ['4', '5']);
}

/// Returns the size of a run's request before it is halved, and the halved messages.
fn halved(history: impl FnOnce(&World) -> Vec<Message>) -> (usize, Vec<Message>) {
    let mut world = World::started(AgentProfile::default());
    let history = history(&world);
    let state = world.state.as_mut().unwrap();
    state.record.history = history;
    let whole = size(&model_request(state).messages);
    state.record.counters.halved = true;
    let messages = model_request(state).messages;
    check_sendable(&messages).unwrap();
    (whole, messages)
}

/// Returns the bytes of all text, with 6,000 for each image.
fn size(messages: &[Message]) -> usize {
    crate::engine::request::size::messages(messages)
}

fn said(world: &World, role: Role, parts: Vec<Part>) -> Message {
    Message { id: MessageId::generate(&world.ids), role, parts, ..world.rows.history[0].clone() }
}

fn words(world: &World, text: &str) -> Part {
    Part::Text(TextPart { id: PartId::generate(&world.ids), text: text.to_owned() })
}

#[test]
fn about_half_of_one_long_text_is_left_and_the_question_whole() {
    let document = format!("BEGIN{}END", "x".repeat(400_000));
    let (whole, messages) = halved(|world| {
        vec![
            said(world, Role::User, vec![words(world, &document)]),
            said(world, Role::Assistant, vec![words(world, &"y".repeat(300_000))]),
            said(world, Role::User, vec![words(world, &format!("{} What does it say?", "z".repeat(90_000)))]),
        ]
    });
    // The older message is evicted as a whole, and the rest fits.
    assert!(messages.len() == 1 && messages[0].text().ends_with("z What does it say?"), "{}", messages.len());
    assert_eq!(messages[0].text().len(), 90_018);
    assert!(size(&messages) < whole / 2);

    let (whole, messages) = halved(|world| vec![said(world, Role::User, vec![words(world, &format!("{document} What?"))])]);
    let (left, text) = (size(&messages), messages[0].text());
    assert!((whole * 2 / 5..whole * 11 / 20).contains(&left), "{left} of {whole}");
    assert!(text.starts_with("BEGIN") && text.ends_with("END What?") && text.contains("characters are left out"));
}

#[test]
fn the_newest_words_are_cut_last() {
    let (whole, messages) = halved(|world| {
        let answer = said(world, Role::Assistant, vec![words(world, &"y".repeat(50_000))]);
        vec![
            said(world, Role::User, vec![words(world, &"z".repeat(40_000))]),
            Message { status: MessageStatus::Complete, ..answer },
            Message { internal: true, ..said(world, Role::User, vec![words(world, "Go on.")]) },
        ]
    });
    assert_eq!(messages[0].text().len(), 40_000);
    assert!(messages[1].text().len() < 6_000 && size(&messages) <= whole / 2 + 200, "{}", size(&messages));
}

#[test]
fn old_pictures_and_arguments_make_room() {
    let mut world = World::started(AgentProfile { tool_result_chars: 20_000, ..AgentProfile::default() });
    for n in 0..6 {
        world.calls(&[call("read", &json!({ "n": n, "text": "w".repeat(8_000) }))]);
        let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "iVBORw0KGgo="));
        world.tool_ends(0, ToolOutcome { content: vec![picture, ToolContent::text("seen")], ..done("") });
    }
    let whole = size(&model_request(world.state.as_ref().unwrap()).messages);
    world.fails(ModelErrorKind::ContextOverflow);
    let request = model_request(world.state.as_ref().unwrap());
    check_sendable(&request.messages).unwrap();
    assert!(size(&request.messages) <= whole / 2 + 1_000, "{} of {whole}", size(&request.messages));
    let pictures: Vec<bool> = request.messages.iter().filter(|message| message.role == Role::Tool).map(shows).collect();
    assert_eq!(pictures, [false, false, false, false, false, true], "the newest image is still sent");
    assert!(request.messages.iter().flat_map(Message::tool_calls).all(|call| call.arguments["n"].is_number()));
    world.says_text("Done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

fn shows(message: &Message) -> bool {
    message.parts.iter().any(
        |part| matches!(part, Part::ToolResult(result) if result.content.iter().any(|piece| matches!(piece, ToolContent::Image(_)))),
    )
}

fn says(world: &mut World, kind: ModelErrorKind, message: &str) {
    world.hang_up();
    world.feed(Input::ModelFailed(ModelError::new(kind, message)));
}

#[rstest]
#[case::rate("Rate limit exceeded, please slow down", true)]
#[case::overloaded("the engine is currently overloaded", true)]
#[case::part_of_a_word("could not generate a separate answer", false)]
fn words_of_an_error_are_retried_as_the_profile_says(#[case] message: &str, #[case] is_retried: bool) {
    let messages = vec!["rate".to_owned(), "overloaded".to_owned()];
    let classes = Some(vec![ModelErrorKind::RateLimit, ModelErrorKind::Overloaded]);
    let profile = AgentProfile { llm_retry: LlmRetry { classes, messages, ..LlmRetry::default() }, ..AgentProfile::default() };
    for kind in [ModelErrorKind::Unavailable, ModelErrorKind::InvalidRequest] {
        let mut world = World::started(profile.clone());
        says(&mut world, kind, message);
        assert_eq!(waits(&world).is_some(), is_retried, "{kind:?}");
    }
    let mut empty = profile;
    empty.llm_retry.messages = vec!["...".to_owned()];
    assert_eq!(empty.check().unwrap_err().field, "llm_retry/messages");
}

#[rstest]
#[case(ModelErrorKind::InvalidRequest)]
#[case(ModelErrorKind::ContextOverflow)]
#[case(ModelErrorKind::Unavailable)]
fn fixed_text_answers_every_failure_of_an_agent_that_wants_it(#[case] kind: ModelErrorKind) {
    let llm_retry = LlmRetry { delays_ms: Vec::new(), ..LlmRetry::default() };
    let profile = AgentProfile { final_text: Some("Later.".to_owned()), llm_retry, ..AgentProfile::default() };
    let mut world = World::started(AgentProfile { final_text_for: FinalTextFor::All, ..profile.clone() });
    world.fails(kind);
    assert_eq!((world.ended().status, world.rows.history.last().unwrap().text().as_str()), (RunStatus::Completed, "Later."));
    assert_eq!(world.error_code(), crate::domain::problem::ProblemCode::from(kind).as_str());
    let mut world = World::started(profile);
    world.fails(kind);
    assert_eq!(world.ended().status == RunStatus::Completed, kind.is_outage());
}
