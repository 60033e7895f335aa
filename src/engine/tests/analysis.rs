//! Stop analysis: nudges to go on, and notices about claims without an action. Both are limited.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use crate::domain::agent::stop_analysis_settings::StopAnalysisSettings;
use crate::domain::agent::{AgentProfile, OnLimit, ToolsPolicy};
use crate::domain::conversation::message::{Message, Role};
use crate::domain::event::EventBody;
use crate::domain::ids::RunId;
use crate::domain::model::sampling::{Sampling, SamplingByTurn};
use crate::domain::model::{ModelFinish, ModelOptions};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, Notice, RunStatus};
use crate::domain::tool::ToolCallState;
use crate::domain::tool::approval::ApprovalMode;
use crate::engine::tests::world::{Say, World, call};
use crate::engine::{Input, prompts};

const TIRED: &str = "I've renamed 3 files. There are 4 remaining.";
const ASKS: &str = "Shall I go on?";

fn analysing(incomplete: u32, deflection: u32) -> AgentProfile {
    AgentProfile {
        response_analysis: StopAnalysisSettings { incomplete, deflection, ..StopAnalysisSettings::default() },
        ..AgentProfile::default()
    }
}

/// Returns a run that has called a tool successfully.
fn at_work(profile: AgentProfile) -> World {
    let mut world = World::started(profile);
    works(&mut world, 0);
    world
}

fn works(world: &mut World, n: u32) {
    world.calls(&[call("write", &json!({ "n": n }))]);
    world.tool_says(0, "ok");
}

fn answers(messages: &[Message]) -> Vec<String> {
    messages.iter().filter(|message| message.role == Role::Assistant && !message.internal).map(Message::text).collect()
}

#[test]
fn incomplete_answer_gets_a_nudge() {
    let mut world = at_work(analysing(3, 3));
    let decision = world.says_text(TIRED);
    let kinds: Vec<_> = decision.events.iter().map(EventBody::kind).collect();
    assert_eq!(kinds, ["step.reset", "message.created", "step.completed", "message.created", "step.started"]);
    assert_eq!(decision.events[0], EventBody::StepReset { step: 3, reason: "continuation".to_owned() });
    let request = world.asked.as_ref().unwrap();
    let last: Vec<String> = request.messages.iter().rev().take(2).map(Message::text).collect();
    assert_eq!(last, [prompts::CONTINUE_WORK, TIRED], "the model reads its own answer");
    // A client that follows the log shows the same text as a client that reads the rows.
    assert_eq!(answers(&world.followed()), [""], "the answer that held the call had no words");
    works(&mut world, 1);
    world.says_text("All files have been renamed, none is remaining.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(answers(&world.rows.history).pop().unwrap(), "All files have been renamed, none is remaining.");
    let stored: Vec<_> = world.rows.history.iter().skip(1).cloned().collect();
    assert_eq!(world.followed(), stored);
    world.check_next_turn();
}

#[test]
fn nudges_are_limited_in_a_row_and_work_resets_them() {
    let mut world = at_work(analysing(2, 0));
    world.says_text(TIRED);
    works(&mut world, 1);
    for nudges in 0..2 {
        assert_eq!(world.rows.counters.continuations, nudges);
        world.says_text(TIRED);
        assert!(world.ending.is_none());
    }
    world.says_text(TIRED);
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
    assert_eq!(answers(&world.rows.history).last().unwrap(), TIRED, "the last text is the answer");
}

#[test]
fn deflecting_answer_gets_three_nudges_and_is_then_accepted() {
    let mut world = at_work(analysing(0, 3));
    for n in 0..3 {
        world.says_text(if n == 1 { "I don't have access to that." } else { ASKS });
        assert_eq!(world.hints().last().unwrap(), prompts::CONTINUE_WITHOUT_QUESTIONS);
        works(&mut world, n + 1);
    }
    world.says_text(ASKS);
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(answers(&world.rows.history).last().unwrap(), ASKS);
}

/// After a denial, a model that asks its user how to go on does the right thing.
#[test]
fn a_model_that_was_denied_a_call_may_ask() {
    let mut profile = analysing(3, 3);
    profile.approval.tools.insert("pay".to_owned(), ApprovalMode::Ask);
    let mut world = at_work(profile);
    works(&mut world, 1);
    world.calls(&[call("pay", &json!({}))]);
    assert!(world.human_decides("deny", None));
    world.claim(ClaimCause::Request);
    assert_eq!(world.rows.calls.last().unwrap().state, ToolCallState::Denied);
    world.says_text(TIRED);
    assert!(world.ending.is_none(), "an early stop still gets a nudge");
    world.says_text(ASKS);
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[rstest]
#[case::fewer_than_the_limit(4, 5, true)]
#[case::as_many(5, 5, false)]
#[case::no_limit(5, 0, true)]
fn a_model_that_has_worked_for_long_may_ask(#[case] calls: u32, #[case] deflection_calls: u32, #[case] is_told: bool) {
    let response_analysis = StopAnalysisSettings { deflection_calls, ..analysing(3, 3).response_analysis };
    let mut world = at_work(AgentProfile { response_analysis, ..AgentProfile::default() });
    (1..calls).for_each(|n| works(&mut world, n));
    assert_eq!(world.rows.calls.len(), calls as usize);
    world.says_text(ASKS);
    assert_eq!(world.ending.is_none(), is_told);
    if !is_told {
        return;
    }
    // A model that stops early is nudged in any case.
    works(&mut world, calls);
    world.says_text(TIRED);
    assert_eq!(world.hints().last().unwrap(), prompts::CONTINUE_WORK);
}

#[test]
fn a_crash_resets_no_count() {
    let mut world = at_work(analysing(0, 2));
    for _ in 0..2 {
        let input = world.answer(&[Say::Text(ASKS)], ModelFinish::Stop);
        world.feed_and_die(input);
        world.claim(ClaimCause::Crash);
        assert!(world.asked.is_some(), "the model is asked again, with the nudge");
    }
    world.says_text(ASKS);
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(world.hints().iter().filter(|hint| *hint == prompts::CONTINUE_WITHOUT_QUESTIONS).count(), 2);
}

#[rstest]
#[case::off(AgentProfile::default())]
#[case::no_rounds_left(AgentProfile { max_rounds: 2, on_limit: OnLimit::Fail, ..analysing(3, 3) })]
#[case::no_tools_left(AgentProfile { tools_policy: ToolsPolicy::OneRoundThenText, ..analysing(3, 3) })]
#[case::no_tokens_left(AgentProfile { max_run_tokens: 30, ..analysing(3, 3) })]
fn an_answer_is_taken_where_the_model_could_not_go_on(#[case] profile: AgentProfile) {
    for says in [TIRED, ASKS] {
        let mut world = at_work(profile.clone());
        world.says_text(says);
        assert_eq!(world.ended().status, RunStatus::Completed, "{says}");
    }
}

#[test]
fn only_a_model_that_has_worked_can_stop_too_early() {
    for says in [TIRED, ASKS] {
        let mut world = World::started(analysing(3, 3));
        world.says_text(says);
        assert_eq!(world.ended().status, RunStatus::Completed);
        let mut world = World::started(analysing(3, 3));
        world.calls(&[call("write", &json!({}))]);
        world.tool_fails(0);
        world.says_text(says);
        assert_eq!(world.ended().status, RunStatus::Completed, "no tool has run");
    }
}

/// Completed work still counts after the round counter restarts.
#[test]
fn a_model_may_stop_too_early_right_after_a_message_has_joined() {
    let mut world = at_work(analysing(3, 3));
    world.join("And the invoices, too.");
    works(&mut world, 1);
    assert_eq!(world.state.as_ref().unwrap().record.counters.rounds, 0, "the rounds count from the message");
    world.says_text(TIRED);
    assert_eq!(world.hints(), [TIRED, prompts::CONTINUE_WORK]);
}

#[test]
fn a_message_that_joins_comes_first() {
    let mut world = at_work(analysing(3, 3));
    world.join("Stop it, please.");
    world.says_text(TIRED);
    assert_eq!(world.hints(), [prompts::JOINED]);
}

proptest! {
    /// Nudges always end: within the agent's limits without work in between, and at the round limit at the latest.
    #[test]
    fn nudges_always_end(
        incomplete in 0..4_u32,
        deflection in 0..4_u32,
        max_rounds in 2..12_u32,
        acts in prop::collection::vec(0..4_u8, 0..40),
    ) {
        let mut world = at_work(AgentProfile { max_rounds, ..analysing(incomplete, deflection) });
        let mut asked = 2;
        for (n, act) in acts.into_iter().enumerate() {
            if world.ending.is_some() {
                break;
            }
            match act {
                0 => { world.says_text(TIRED); }
                1 => { world.says_text(ASKS); }
                2 => { world.says_text("I can't do that; the others are remaining."); }
                _ if world.asked.as_ref().unwrap().tools.is_empty() => { world.says_text(ASKS); }
                _ => works(&mut world, 10 + u32::try_from(n).unwrap()),
            }
            asked += 1;
        }
        for _ in 0..incomplete + deflection + 1 {
            if world.ending.is_none() {
                world.says_text(TIRED);
                asked += 1;
            }
        }
        prop_assert!(world.ending.is_some());
        prop_assert!(asked <= max_rounds + 3, "{asked} answers of {max_rounds}");
        world.check_next_turn();
    }
}

// Claims.

fn checking_claims() -> AgentProfile {
    AgentProfile {
        response_analysis: StopAnalysisSettings { claims: true, ..StopAnalysisSettings::default() },
        ..AgentProfile::default()
    }
}

fn notice(world: &World) -> Option<Notice> {
    let EventBody::RunCompleted { notice, .. } = world.events.last().unwrap() else { panic!("the run is completed") };
    *notice
}

/// Returns the next run of the conversation, claimed.
fn next_turn(before: &World) -> World {
    let mut world = World::new(AgentProfile::clone(&before.rows.profile));
    let mut history = before.rows.history.clone();
    // Every world generates ids from 1, so the ids of the earlier runs are skipped.
    (0..1_000 * history.len()).for_each(|_| drop(RunId::generate(&world.ids)));
    let question = &mut world.rows.history[0];
    question.run_id = RunId::from_stored(format!("run_{:032}", before.rows.history.len()));
    world.rows.fence.run_id = question.run_id.clone();
    history.append(&mut world.rows.history);
    world.rows.history = history;
    world.claim(ClaimCause::First);
    world
}

#[test]
fn claimed_change_without_a_call_is_corrected() {
    let mut world = World::started(checking_claims());
    world.calls(&[call("read", &json!({}))]);
    world.tool_says(0, "text");
    world.calls(&[call("write", &json!({}))]);
    world.tool_fails(0);
    world.says_text("I have updated the page.");
    assert_eq!(notice(&world), Some(Notice::NothingWritten));
    let mut next = next_turn(&world);
    let request = next.asked.as_ref().unwrap();
    assert!(request.messages.last().unwrap().text().ends_with(prompts::FALSE_CLAIM));
    works(&mut next, 0);
    next.says_text("I have updated the page now.");
    assert_eq!(notice(&next), None);
    assert!(next_turn(&next).hints().iter().all(|hint| !hint.contains("page")));
    assert_eq!(next_turn(&next).rows.history.last().unwrap().text(), "What is in the file?", "no claim is corrected twice");
}

#[test]
fn claimed_change_with_a_possible_effect_is_accepted() {
    let mut world = at_work(checking_claims());
    world.says_text("I have updated the page.");
    assert_eq!(notice(&world), None);
    let mut world = World::started(checking_claims());
    world.says_text("The page is blue.");
    assert_eq!(notice(&world), None);
    let mut world = World::started(AgentProfile::default());
    world.says_text("I have updated the page.");
    assert_eq!(notice(&world), None, "off by default");
}

#[test]
fn calls_with_and_without_tools_are_sampled_apart() {
    let tool_turn = Sampling { temperature: Some(0.1), top_p: Some(0.2), ..Sampling::default() };
    let sampling =
        SamplingByTurn { tool_turn, talk_turn: Sampling { temperature: Some(0.7), top_p: Some(0.9), ..Sampling::default() } };
    let options = ModelOptions { top_p: Some(0.5), ..ModelOptions::default() };
    let mut world = World::started(AgentProfile { sampling, options, max_rounds: 1, ..AgentProfile::default() });
    let sampled = |world: &World| {
        let options = &world.asked.as_ref().unwrap().options;
        (options.temperature, options.top_p)
    };
    assert_eq!(sampled(&world), (Some(0.1), Some(0.5)));
    works(&mut world, 0);
    assert_eq!(sampled(&world), (Some(0.7), Some(0.5)));
    world.feed(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
}

#[test]
fn answers_before_a_success_are_judged_where_the_agent_wants_it() {
    for before_success in [false, true] {
        let response_analysis = StopAnalysisSettings { before_success, ..analysing(3, 3).response_analysis };
        let profile = AgentProfile { response_analysis, ..AgentProfile::default() };
        let mut world = World::started(profile.clone());
        world.says_text("I can't do that.");
        assert_eq!(world.ending.is_none(), before_success, "as the first answer");
        let mut world = World::started(profile);
        world.calls(&[call("write", &json!({}))]);
        world.tool_fails(0);
        for n in 0..3 {
            world.says_text(ASKS);
            assert_eq!(world.ending.is_none(), before_success, "after a failed call, {n}");
            if !before_success {
                break;
            }
        }
        if before_success {
            world.says_text(ASKS);
            assert_eq!(world.ended().status, RunStatus::Completed, "three times at most");
        }
    }
}
