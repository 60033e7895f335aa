//! Budgets: the engine's own decisions, and those that follow from the store's answers.

use serde_json::json;

use super::world::*;
use crate::domain::agent::AgentProfile;
use crate::domain::event::EventBody;
use crate::domain::model::cost::Usd;
use crate::domain::model::{ModelError, ModelErrorKind, ModelOptions, Usage};
use crate::domain::run::budget::{Allowance, Amount, Budget, BudgetScope, OnDaySpent, ReservationOutcome};
use crate::domain::run::change::ReleaseCause;
use crate::domain::run::context::Capacity;
use crate::domain::run::plan::Strategy;
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus, WaitReason};
use crate::engine::{Command, Durability, Input};

fn usd(dollars: f64) -> Option<Usd> {
    serde_json::from_value(json!(dollars)).ok()
}

fn of_day(budget: Budget) -> AgentProfile {
    let budget = Budget { day: Allowance { tokens: Some(9_000), usd: None }, ..budget };
    let options = ModelOptions { max_output_tokens: Some(100), ..ModelOptions::default() };
    AgentProfile { budget, options, ..AgentProfile::default() }
}

fn spent(resets_in_ms: Option<u64>) -> ReservationOutcome {
    let of = if resets_in_ms.is_some() { BudgetScope::Day } else { BudgetScope::Conversation };
    ReservationOutcome::Spent { of, spent: Amount { tokens: 8_950, ..Amount::default() }, resets_in_ms }
}

/// Returns a run whose store gives these answers.
fn with(profile: AgentProfile, answers: &[ReservationOutcome]) -> World {
    let mut world = World::new(profile);
    world.reservations.extend(answers);
    world.claim(ClaimCause::First);
    world
}

#[test]
fn each_call_is_reserved_before_it_and_settled_after_it() {
    let mut world = with(of_day(Budget::default()), &[]);
    world.calls(&[call("read", &json!({}))]);
    world.tool_says(0, "more");
    world.says_text("There is more.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    let [first, second] = world.reserved.as_slice() else { panic!("one for each call: {:?}", world.reserved) };
    assert!(first.tokens > 100 && second.tokens > first.tokens, "the request and the longest answer: {:?}", world.reserved);
    let sum = world.settled.iter().copied().fold(Amount::default(), Amount::plus);
    assert_eq!((world.settled.len(), sum), (2, Amount::of(&world.rows.usage)));
}

#[test]
fn a_failed_call_settles_what_it_has_used_and_is_reserved_again() {
    let mut world = with(of_day(Budget::default()), &[]);
    world.spent = Usage { input_tokens: 7, ..Usage::default() };
    world.feed(Input::ModelFailed(ModelError::new(ModelErrorKind::Overloaded, "")));
    assert_eq!(world.settled, [Amount { tokens: 7, ..Amount::default() }]);
    world.claim(ClaimCause::Timer);
    assert_eq!(world.reserved.len(), 2);
    world.says_text("Now.");
    assert_eq!(world.settled.len(), 2);
}

#[test]
fn a_run_waits_for_the_next_day() {
    let mut world = with(of_day(Budget::default()), &[spent(Some(3_600_000))]);
    assert_eq!((world.rows.status, world.rows.reason), (RunStatus::Waiting, Some(WaitReason::Budget)));
    let (after, cause) = world.released.unwrap();
    assert_eq!(cause, ReleaseCause::Waiting);
    assert!((3_600_000..3_606_000).contains(&after.unwrap()), "{after:?}");
    let told = world.events.iter().find_map(|event| match event {
        EventBody::RunWaiting { reason: WaitReason::Budget, detail, .. } => detail.clone(),
        _ => None,
    });
    let told = told.unwrap();
    assert!(
        told.starts_with("the budget of the day is used up: 8950 of 9000 tokens are used, and the next call may need "),
        "{told}"
    );
    assert!(world.asked.is_none());
    world.claim(ClaimCause::Timer);
    world.says_text("Good morning.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn reservation_blocked_by_others_is_retried_soon() {
    let mut world = with(of_day(Budget::default()), &[ReservationOutcome::Busy]);
    assert_eq!(world.rows.reason, Some(WaitReason::Budget));
    assert!(world.released.unwrap().0.unwrap() < 6_000);
    world.claim(ClaimCause::Timer);
    assert!(world.asked.is_some());
}

#[test]
fn a_run_fails_that_cannot_wait() {
    let fails = Budget { on_day_spent: OnDaySpent::Fail, ..Budget::default() };
    let world = with(of_day(fails), &[spent(Some(3_600_000))]);
    assert_eq!(world.error_code(), "budget_spent");
    let impatient = AgentProfile { max_run_ms: 60_000, ..of_day(Budget::default()) };
    let world = with(impatient, &[spent(Some(3_600_000))]);
    assert!(world.ended().error.as_ref().unwrap().detail.ends_with("the run's time limit leaves no time to wait"));
    let talk = Budget { conversation: Allowance { tokens: Some(8_960), usd: None }, ..Budget::default() };
    let world = with(of_day(talk), &[spent(None)]);
    let detail = &world.ended().error.as_ref().unwrap().detail;
    assert!(detail.starts_with("the budget of the conversation is used up: 8950 of 8960 tokens"), "{detail}");
}

#[test]
fn takeover_reserves_again() {
    let mut world = with(AgentProfile { max_crashes: 100, ..of_day(Budget::default()) }, &[]);
    world.die();
    world.claim(ClaimCause::Crash);
    let lost = world.reserved[0];
    assert_eq!((world.settled.as_slice(), world.reserved.len()), ([lost].as_slice(), 2), "the estimated usage of the lost call");
    // The worker crashes between the reservation and the call.
    world.die();
    world.load(ClaimCause::Crash);
    let decision = world.decide(Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() });
    assert!(matches!(decision.commands.as_slice(), [Command::Reserve(_)]), "{:?}", decision.commands);
    world.commit(&decision);
    world.die();
    world.claim(ClaimCause::Crash);
    world.says_text("At last.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    let sum = world.settled.iter().copied().fold(Amount::default(), Amount::plus);
    assert_eq!((sum, world.held), (Amount::of(&world.rows.usage), None));
    let Usage { model_calls, abandoned_calls, estimated, .. } = world.rows.usage;
    assert!(model_calls == u64::from(abandoned_calls) + 1 && abandoned_calls >= 2 && estimated, "{:?}", world.rows.usage);
}

#[test]
fn a_lost_call_is_charged_as_far_as_it_is_known() {
    let lost_by = |profile: AgentProfile| {
        let mut world = World::started(profile);
        world.die();
        world.claim(ClaimCause::Crash);
        world.rows.usage
    };
    let options = ModelOptions { max_output_tokens: Some(100), ..ModelOptions::default() };
    let free = lost_by(AgentProfile { options: options.clone(), max_run_tokens: 0, ..AgentProfile::default() });
    assert!(free.input_tokens > 0 && free.output_tokens == 0 && free.abandoned_calls == 1, "the request was sent: {free:?}");
    let limited = lost_by(AgentProfile { options, max_run_tokens: 50_000, ..AgentProfile::default() });
    assert_eq!(limited, Usage { output_tokens: 100, ..free }, "a limit counts the longest answer");
}

#[test]
fn release_before_the_call_returns_the_reservation() {
    let mut world = with(of_day(Budget::default()), &[]);
    world.feed(Input::ModelFailed(ModelError::new(ModelErrorKind::Overloaded, "")));
    assert_eq!((world.settled.as_slice(), world.held), ([Amount::default()].as_slice(), None));
    world.claim(ClaimCause::Timer);
    assert_eq!(world.rows.usage, Usage::default(), "no call was lost");
}

#[test]
fn a_message_that_joins_meanwhile_is_reserved_too() {
    let mut world = World::new(of_day(Budget::default()));
    world.load(ClaimCause::First);
    let decision = world.decide(Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() });
    let [Command::Reserve(reserve)] = decision.commands.as_slice() else { panic!("{:?}", decision.commands) };
    world.commit(&decision);
    world.join("And what is in the other one, which has a longer name?");
    world.feed(Input::Reserved(*reserve, ReservationOutcome::Granted { day: 1 }));
    let [again] = world.reserved.as_slice() else { panic!("once more: {:?}", world.reserved) };
    assert!(again.tokens > reserve.amount.tokens && world.asked.is_some());
}

#[test]
fn plans_are_reserved_like_any_call_and_say_their_room() {
    let mut world = World::new(AgentProfile { strategy: Strategy::PlanExecute, ..of_day(Budget::default()) });
    let capacity = Capacity { window: Some(9_000), ..Capacity::default() };
    world.capacities = vec![(world.rows.model().to_owned(), capacity)];
    world.claim(ClaimCause::First);
    world.says_text("[step(\"files\", \"read it\")] [done()]");
    world.calls(&[call("read", &json!({}))]);
    world.tool_says(0, "words");
    world.says_text("It holds words.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(world.reserved.len(), 3, "planner, router and report");
    let rooms: Vec<u64> = world
        .events
        .iter()
        .filter_map(|event| match event {
            EventBody::ContextBudget { used, window: 9_000, .. } => Some(*used),
            _ => None,
        })
        .collect();
    assert_eq!(rooms.len(), 3);
    assert!(rooms.iter().all(|used| *used > 0), "{rooms:?}");
    assert!(
        rooms.iter().zip(&world.reserved).all(|(used, reserved)| used + 100 == reserved.tokens),
        "{rooms:?} {:?}",
        world.reserved
    );
}

#[test]
fn money_that_a_run_has_spent_ends_it() {
    let prices = serde_json::from_value(json!({"input": 1.0, "output": 1.0})).ok();
    let profile = AgentProfile { budget: Budget { run_usd: usd(0.00001), ..Budget::default() }, ..AgentProfile::default() };
    let mut world = World::new(profile.clone());
    world.capacities = vec![(world.rows.model().to_owned(), Capacity { prices, ..Capacity::default() })];
    world.rows.usage.cost = Some(usd(0.00001).unwrap().cost());
    world.claim(ClaimCause::First);
    assert!(world.asked.as_ref().unwrap().tools.is_empty(), "the last call");
    assert!(world.reserved.is_empty(), "no reservation is needed");
    world.says_text("That was all.");
    assert_eq!(world.ended().reason, Some(FinishReason::Budget));

    let world = World::started(profile);
    assert_eq!(world.error_code(), "unpriced_model");
    assert!(world.ended().error.as_ref().unwrap().detail.contains("the model demo/demo has no known prices"));
}

#[test]
fn usage_beside_a_read_result_is_committed_first() {
    let profile = AgentProfile::default();
    for (spent, durability) in
        [(Usage::default(), Durability::Behind), (Usage { input_tokens: 7, ..Usage::default() }, Durability::Before)]
    {
        let mut world = World::started(profile.clone());
        world.calls(&[call("read", &json!({}))]);
        // Sampling during the call had this usage, and no other attempt would charge it.
        world.spent = spent;
        let decision = world.tool_says(0, "words");
        assert!(matches!(decision.commands[..], [Command::CallModel(_)]));
        assert_eq!(decision.durability, durability);
        assert_eq!(world.rows.usage.input_tokens, 10 + spent.input_tokens);
    }
}

#[test]
fn decision_with_an_effect_is_committed_first() {
    let mut world = World::started(AgentProfile::default());
    let calls = world.calls(&[call("write", &json!({}))]);
    assert_eq!((calls.commands.len(), calls.durability), (1, Durability::Before));
    let result = world.tool_says(0, "written");
    assert_eq!((result.commands.len(), result.durability), (1, Durability::Before));
    let answer = world.says_text("It is written.");
    assert_eq!((&answer.commands[..], answer.durability), (&[Command::Stop][..], Durability::Before));
}
