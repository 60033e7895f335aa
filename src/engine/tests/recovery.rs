//! Recovery from the stored rows, after any failure of the worker.

use std::sync::Arc;

use rstest::rstest;
use serde_json::json;

use crate::domain::agent::{AgentProfile, OnInterrupt, OnUnknown};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId};
use crate::domain::model::{ModelErrorKind, ModelFinish};
use crate::domain::run::RunStatus;
use crate::domain::run::call_handle::Handle;
use crate::domain::run::change::{ReleaseCause, StepStatus};
use crate::domain::run::question::{Elicitation, InputKind, InputRequest, InputState, Question};
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::ToolCallState::{AwaitingApproval, Cancelled, Done, Failed, Planned, Started, Unknown};
use crate::domain::tool::approval::{ApprovalMode, ApprovalPolicy};
use crate::domain::tool::{Reconciled, ToolOutcome};
use crate::engine::tests::world::{Say, World, call, done, tools};
use crate::engine::{Command, Decision, Input, prompts};

fn kinds(decision: &Decision) -> Vec<&'static str> {
    decision.events.iter().map(EventBody::kind).collect()
}

#[rstest]
#[case(ClaimCause::Crash, "crash")]
#[case(ClaimCause::HandedBack, "handed_back")]
fn a_model_step_without_an_answer_begins_again(#[case] cause: ClaimCause, #[case] word: &str) {
    let mut world = World::started(AgentProfile::default());
    world.die();
    let resumed = world.claim(cause);
    assert_eq!(kinds(&resumed), ["run.resumed", "step.reset", "step.started"]);
    assert_eq!(resumed.events[0], EventBody::RunResumed { cause: cause.as_str().to_owned() });
    assert_eq!(resumed.events[1], EventBody::StepReset { step: 1, reason: word.to_owned() });
    assert!(matches!(resumed.commands[..], [Command::CallModel(_)]));
    assert_eq!(world.rows.steps.len(), 1);
}

#[test]
fn a_crash_before_the_first_commit_is_a_first_start() {
    let mut world = World::new(AgentProfile { on_interrupt: OnInterrupt::Fail, ..AgentProfile::default() });
    let started = world.claim(ClaimCause::Crash);
    assert_eq!(kinds(&started)[0], "run.started");
}

/// Of four calls, two are done and stay, one was started and is judged by its class, and one is planned and runs.
#[rstest]
#[case("write", OnUnknown::TellModel, Unknown)]
#[case("write", OnUnknown::Rerun, Started)]
#[case("read", OnUnknown::TellModel, Started)]
#[case("read", OnUnknown::Fail, Started)]
fn started_calls_are_judged_by_their_class(
    #[case] name: &'static str,
    #[case] on_unknown: OnUnknown,
    #[case] after: crate::domain::tool::ToolCallState,
) {
    let mut world = World::started(AgentProfile { tool_parallelism: 1, on_unknown, ..AgentProfile::default() });
    world.calls(&[
        call("write", &json!({"n": 1})),
        call("write", &json!({"n": 2})),
        call(name, &json!({"n": 3})),
        call("write", &json!({"n": 4})),
    ]);
    world.tool_says(0, "1");
    world.tool_says(0, "2");
    let started = world.rows.calls[2].clone();
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.states()[..3], [Done, Done, after]);
    if after == Unknown {
        assert_eq!(world.under_way.len(), 1, "the planned call runs");
        assert!(world.kinds().contains(&"tool.outcome_unknown"));
        assert_eq!(world.executions[&started.id], 1);
        world.tool_says(0, "4");
        assert_eq!(world.results(), ["1", "2", prompts::UNKNOWN_AFTER_CRASH, "4"]);
    } else {
        assert_eq!(world.under_way[0].arguments, started.arguments);
        assert_eq!(world.executions[&started.id], 2);
        world.tool_says(0, "3");
        world.tool_says(0, "4");
        assert_eq!(world.results(), ["1", "2", "3", "4"]);
    }
    world.says_text("Done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

/// M-31: for any class, and after any number of crashes.
#[rstest]
#[case("read")]
#[case("write")]
#[case("pay")]
fn a_call_that_its_server_works_on_is_followed(#[case] name: &'static str) {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call(name, &json!({"n": 1}))]);
    Arc::make_mut(&mut world.rows.calls[0]).handle = Some(Handle::Task("task-1".to_owned()));
    for _ in 0..2 {
        world.die();
        let resumed = world.claim(ClaimCause::Crash);
        assert_eq!(kinds(&resumed), ["run.resumed"], "clients see no second start");
        let [Command::RunTool(followed)] = resumed.commands.as_slice() else { panic!("{:?}", resumed.commands) };
        assert_eq!(
            (followed.id.clone(), followed.handle.as_ref().and_then(Handle::task)),
            (world.rows.calls[0].id.clone(), Some("task-1"))
        );
        assert!(world.in_question.is_empty());
    }
    world.tool_says(0, "built");
    assert_eq!((world.states(), world.results()), (vec![Done], vec!["built".to_owned()]));
}

#[test]
fn a_server_is_asked_what_became_of_a_call() {
    let started = || {
        let mut world = World::started(AgentProfile { tool_parallelism: 1, ..AgentProfile::default() });
        world.calls(&[call("pay", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
        world.die();
        world.claim(ClaimCause::Crash);
        assert_eq!(world.states(), [Started, Planned], "the next call waits for the reconciliation");
        assert!(world.under_way.is_empty());
        assert_eq!(world.in_question.len(), 1);
        world
    };
    let mut world = started();
    world.server_says(0, Reconciled::Happened(done("paid")));
    world.tool_says(0, "written");
    assert_eq!((world.states(), world.results()), (vec![Done, Done], vec!["paid".to_owned(), "written".to_owned()]));
    assert_eq!(world.executions.values().copied().max(), Some(1));

    // The worker crashes during reconciliation, and the next one asks again.
    let mut world = started();
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.in_question.len(), 1);
    world.server_says(0, Reconciled::DidNotHappen);
    assert_eq!(world.executions[&world.rows.calls[0].id], 2);
    // This attempt may have taken effect.
    world.die();
    world.load(ClaimCause::HandedBack);
    world.feed(Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() });
    assert_eq!(world.in_question.len(), 1);
    world.server_says(0, Reconciled::Unclear("who knows".to_owned()));
    assert_eq!(world.states(), [Unknown, Started]);
    world.tool_says(0, "written");
    assert_eq!(world.results()[0], prompts::unknown_after_asking("who knows"));

    let mut world = started();
    let id = world.in_question[0].id.clone();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped: Vec::new() });
    assert_eq!(world.states(), [Unknown, Cancelled]);
    assert!(world.state.is_none());

    // An answer without a question changes nothing.
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1}))]);
    for id in [world.rows.calls[0].id.clone(), id] {
        assert_eq!(world.decide(Input::Reconciled(id, Reconciled::DidNotHappen)), Decision::default());
    }
}

/// A retry is no approval, and neither is the server's answer.
#[rstest]
#[case(ApprovalMode::Auto)]
#[case(ApprovalMode::AlwaysAsk)]
fn a_call_of_an_earlier_run_is_asked_about_when_it_may_begin(#[case] mode: ApprovalMode) {
    let taken_over = |parallel: u32| {
        let mut world = World::started(AgentProfile { tool_parallelism: parallel, ..AgentProfile::default() });
        world.calls(&[call("pay", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
        world.die();
        let policy = ApprovalPolicy { tools: [("pay".to_owned(), mode)].into(), ..ApprovalPolicy::default() };
        let profile = AgentProfile { approval: policy, ..(*world.rows.profile).clone() };
        world.rows.profile = Arc::new(profile);
        for call in &mut world.rows.calls {
            let call = Arc::make_mut(call);
            (call.state, call.key) = (Planned, Some(CallId::from_stored(format!("call_of_{}", call.name))));
        }
        world.executions.clear();
        world.claim(ClaimCause::HandedBack);
        if mode == ApprovalMode::AlwaysAsk {
            assert_eq!((world.states()[0], world.in_question.len()), (AwaitingApproval, 0), "it is not allowed yet");
            world.tool_says(0, "written");
            assert!(world.human_decides("allow", None));
            world.claim(ClaimCause::Request);
        }
        assert_eq!((world.states()[0], world.in_question.len()), (Started, 1));
        assert!(!world.executions.contains_key(&world.rows.calls[0].id), "its server is asked first");
        world
    };
    let pay = |world: &World| world.executions.get(&world.rows.calls[0].id).copied().unwrap_or_default();

    let mut world = taken_over(4);
    world.server_says(0, Reconciled::Happened(done("paid")));
    assert_eq!((world.states()[0], pay(&world)), (Done, 0));

    let mut world = taken_over(4);
    world.server_says(0, Reconciled::DidNotHappen);
    assert_eq!((world.states()[0], pay(&world)), (Started, 1));

    // The call occupies one of the parallel call slots, and a worker that takes over asks the server again.
    let mut world = taken_over(1);
    let other = if mode == ApprovalMode::Auto { Planned } else { Done };
    assert_eq!(world.states(), [Started, other]);
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.in_question.len(), 1);
    world.server_says(0, Reconciled::Unclear("who knows".to_owned()));
    assert_eq!((world.states()[0], pay(&world)), (Unknown, 0));
}

/// The earlier call may have taken effect, and its outcome does not belong to the arguments that are allowed now.
#[test]
fn a_call_that_is_allowed_with_other_arguments_is_another_call() {
    let policy = ApprovalPolicy { tools: [("pay".to_owned(), ApprovalMode::AlwaysAsk)].into(), ..ApprovalPolicy::default() };
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("pay", &json!({"n": 1}))]);
    world.die();
    world.rows.profile = Arc::new(AgentProfile { approval: policy, ..(*world.rows.profile).clone() });
    let row = Arc::make_mut(&mut world.rows.calls[0]);
    (row.state, row.key) = (Planned, Some(CallId::from_stored("call_before".to_owned())));
    world.executions.clear();
    world.claim(ClaimCause::HandedBack);
    assert!(world.human_decides("allow", Some(json!({"n": 2}))));
    world.claim(ClaimCause::Request);
    let row = &world.rows.calls[0];
    assert_eq!((row.state, &row.arguments, row.key(), world.in_question.len()), (Started, &json!({"n": 2}), &row.id, 0));
    assert_eq!(world.executions.get(&row.id), Some(&1));
}

#[test]
fn draining_worker_asks_no_model() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("pay", &json!({"n": 1}))]);
    world.die();
    world.load(ClaimCause::Crash);
    world.state.as_mut().unwrap().learn(&Input::Draining);
    world.feed(Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() });
    assert!(world.in_question.is_empty());
    assert_eq!(world.released, Some((Some(0), ReleaseCause::Drain)));
    assert_eq!(world.states(), [Started]);
}

#[test]
fn an_unknown_outcome_can_fail_the_run() {
    let profile = AgentProfile { tool_parallelism: 1, on_unknown: OnUnknown::Fail, ..AgentProfile::default() };
    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.error_code(), "tool_outcome_unknown");
    assert_eq!(world.states(), [Unknown, Cancelled]);
    world.check_next_turn();
}

#[test]
fn a_run_that_kills_its_workers_is_given_up() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({}))]);
    for _ in 0..2 {
        world.die();
        world.load(ClaimCause::Crash);
    }
    world.die();
    let last = world.claim(ClaimCause::Crash);
    assert_eq!(world.error_code(), "poison");
    assert_eq!(world.states(), [Unknown]);
    assert!(last.commands.iter().all(|command| *command == Command::Stop));
    world.check_next_turn();
}

#[test]
fn an_agent_can_refuse_to_resume() {
    let mut world = World::started(AgentProfile { on_interrupt: OnInterrupt::Fail, ..AgentProfile::default() });
    world.calls(&[call("write", &json!({}))]);
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.error_code(), "interrupted");
    assert_eq!(world.states(), [Unknown]);
    world.check_next_turn();

    let mut world = World::started(AgentProfile { on_interrupt: OnInterrupt::Fail, ..AgentProfile::default() });
    world.feed(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
    world.claim(ClaimCause::HandedBack);
    assert!(world.ending.is_none(), "a hand-back is no interruption");
}

#[test]
fn a_request_to_cancel_is_found_when_claiming() {
    let mut world = World::started(AgentProfile::default());
    world.die();
    world.rows.cancel_requested_by = Some("user".to_owned());
    let decision = world.claim(ClaimCause::Crash);
    assert_eq!(kinds(&decision), ["step.reset", "conversation.updated", "run.cancelled"]);
    assert_eq!(world.rows.steps[0].status, StepStatus::Abandoned);

    let mut world = World::new(AgentProfile::default());
    world.rows.cancel_requested_by = Some("user".to_owned());
    world.claim(ClaimCause::First);
    assert_eq!(world.ended().status, RunStatus::Cancelled);
    world.check_next_turn();
}

#[test]
fn a_finished_answer_without_its_end_is_not_asked_for_again() {
    let mut world = World::started(AgentProfile::default());
    let Input::ModelFinished { message, .. } = world.answer(&[Say::Text("Nothing.")], ModelFinish::Stop) else { unreachable!() };
    world.rows.history.push(message);
    world.rows.steps[0].status = StepStatus::Completed;
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn a_continuation_of_another_run_asks_the_model() {
    let mut world = World::new(AgentProfile::default());
    world.rows.history[0].run_id = crate::domain::ids::RunId::generate(&world.ids);
    world.claim(ClaimCause::Request);
    assert!(world.asked.is_some());
}

#[test]
fn draining_hands_back_and_nothing_is_shown_twice() {
    let mut world = World::started(AgentProfile::default());
    let drained = world.feed(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
    assert_eq!(kinds(&drained), ["step.reset"]);
    assert_eq!(world.released, Some((Some(0), ReleaseCause::Drain)));
    let resumed = world.claim(ClaimCause::HandedBack);
    assert_eq!(kinds(&resumed), ["run.resumed", "step.started"]);
    world.says_text("Nothing.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn a_draining_run_keeps_results_and_starts_nothing() {
    let mut world = World::started(AgentProfile { tool_parallelism: 1, ..AgentProfile::default() });
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.state.as_mut().unwrap().learn(&Input::Draining);
    world.tool_says(0, "1");
    assert_eq!(world.released, Some((Some(0), ReleaseCause::Drain)));
    world.claim(ClaimCause::HandedBack);
    assert_eq!(world.states(), [Done, Started]);
    world.state.as_mut().unwrap().learn(&Input::Draining);
    world.tool_says(0, "2");
    assert!(world.released.is_some() && world.asked.is_none());
    world.claim(ClaimCause::HandedBack);
    world.state.as_mut().unwrap().learn(&Input::Draining);
    world.calls(&[call("write", &json!({"n": 3})), call("nothing", &json!({}))]);
    assert!(world.released.is_some());
    world.claim(ClaimCause::HandedBack);
    world.tool_says(0, "3");
    world.says_text("Done.");
    assert!(world.executions.values().all(|count| *count == 1));
    assert_eq!(world.executions.len(), 3);
}

#[test]
fn call_that_ended_while_cancelled_keeps_its_outcome() {
    let two = [call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))];
    let mut world = World::started(AgentProfile::default());
    world.calls(&two);
    let first = world.under_way[0].id.clone();
    world.feed(Input::Drain { stopped: vec![(first, done("1"))], paused: Vec::new() });
    assert_eq!(world.released, Some((Some(0), ReleaseCause::Drain)));
    world.claim(ClaimCause::HandedBack);
    assert_eq!(world.states(), [Done, Unknown], "an unsafe call does not run again, and an ended one is not unknown");

    let mut world = World::started(AgentProfile::default());
    world.calls(&two);
    let first = world.under_way[0].id.clone();
    world.feed(Input::TimedOut { partial: None, stopped: vec![(first, done("1"))] });
    assert_eq!(world.states()[0], Done);
    assert_eq!(world.ended().status, RunStatus::Failed);
}

#[test]
fn late_and_foreign_outcomes_change_nothing() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    let id = world.under_way[0].id.clone();
    world.tool_says(0, "1");
    let foreign = crate::domain::ids::CallId::generate(&world.ids);
    assert_eq!(world.feed(Input::ToolFinished(id, done("again"))), Decision::default());
    assert_eq!(world.feed(Input::ToolFinished(foreign, done("?"))), Decision::default());
    assert_eq!(world.fails(ModelErrorKind::Network), Decision::default());
    assert_eq!(world.says_text("?"), Decision::default());
}

/// The store was unavailable while the worker stayed alive. This is no crash, and the worker knows the outcome that it could not
/// store.
#[test]
fn a_worker_that_takes_its_run_up_again_has_not_died() {
    let mut world = World::started(AgentProfile { on_interrupt: OnInterrupt::Fail, ..AgentProfile::default() });
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    let known = world.under_way[0].id.clone();
    world.die();
    world.load(ClaimCause::Reload);
    let resumed = world.feed(Input::Claimed { tools: Vec::new(), contexts: None, finished: vec![(known, done("1"))] });
    assert!(resumed.events.contains(&EventBody::RunResumed { cause: "reload".to_owned() }));
    assert_eq!(world.states(), [Done, Unknown]);
    assert_eq!(world.results(), ["1", prompts::UNKNOWN_AFTER_CRASH]);
}

/// The database lost the start of a call, and the worker knows the outcome: an unsafe call does not run again.
#[test]
fn a_known_outcome_counts_though_the_start_of_its_call_was_lost() {
    let unknown = || ToolOutcome { state: Unknown, ..ToolOutcome::failed("gone", 1) };
    for (outcome, on_unknown, state) in [
        (done("1"), OnUnknown::TellModel, Done),
        (ToolOutcome::failed("it broke", 1), OnUnknown::TellModel, Failed),
        (unknown(), OnUnknown::TellModel, Unknown),
        (unknown(), OnUnknown::Ask, Started),
    ] {
        let mut world = World::started(AgentProfile { on_unknown, tool_parallelism: 1, ..AgentProfile::default() });
        world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
        let known = world.under_way[0].id.clone();
        world.die();
        Arc::make_mut(&mut world.rows.calls[0]).state = Planned;
        world.load(ClaimCause::Reload);
        let resumed = world.feed(Input::Claimed { tools: Vec::new(), contexts: None, finished: vec![(known.clone(), outcome)] });
        let is_told = |event: &EventBody| matches!(event, EventBody::ToolStarted { call_id, .. } if *call_id == known);
        assert_eq!(resumed.events.iter().filter(|event| is_told(event)).count(), 1, "the log has its event");
        assert_eq!((world.executions[&known], world.states()[0]), (1, state));
    }
}

/// A run that retries a call begins with that call, by the rules for all calls.
#[test]
fn a_run_can_begin_with_a_call() {
    let mut before = World::started(AgentProfile::default());
    before.calls(&[call("write", &json!({"n": 1})), call("read", &json!({"n": 2}))]);
    before.tool_says(0, "1");
    before.tool_fails(0);
    let mut world = before;
    world.die();
    // The rows as a store creates them: the answer with its calls, one of them with its outcome.
    world.rows.history.truncate(2);
    world.rows.tools = Some(tools());
    world.rows.steps.truncate(1);
    world.rows.steps[0].kind = crate::domain::run::change::StepKind::Tools;
    world.rows.steps[0].status = StepStatus::Started;
    for call in &mut world.rows.calls {
        Arc::make_mut(call).step = 1;
    }
    Arc::make_mut(&mut world.rows.calls[1]).state = Planned;
    Arc::make_mut(&mut world.rows.calls[1]).outcome = None;
    Arc::make_mut(&mut world.rows.calls[1]).arguments = json!({"n": 3});
    world.rows.counters = Default::default();
    world.rows.status = RunStatus::Queued;
    world.events.clear();
    let begun = world.claim(ClaimCause::First);
    assert_eq!(kinds(&begun), ["run.started", "conversation.updated", "tool.started"]);
    assert_eq!(world.states(), [Done, Started]);
    world.die();
    let resumed = world.claim(ClaimCause::Crash);
    assert_eq!(kinds(&resumed)[0], "run.resumed");
    assert!(
        resumed.changes.contains(&crate::domain::run::change::Change::Start),
        "the start is stored for the time limit, even after a crash"
    );
    world.tool_says(0, "3");
    let [first, second] = &world.results()[..] else { panic!("two results: {:?}", world.results()) };
    assert!(first == "1" && second.contains("{\"n\":3}") && second.ends_with('3'), "{second}");
    world.says_text("ended");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

/// A live worker loaded its run again while a call was under way. That call is neither judged nor repeated, and its outcome is
/// accepted. Questions of its server can no longer be answered.
#[rstest]
#[case("write")]
#[case("read")]
fn active_call_of_this_worker_continues(#[case] name: &'static str) {
    let mut world = World::started(AgentProfile { tool_parallelism: 2, ..AgentProfile::default() });
    world.calls(&[call(name, &json!({"n": 1})), call("write", &json!({"n": 2})), call("write", &json!({"n": 3}))]);
    let ids: Vec<CallId> = world.rows.calls.iter().map(|call| call.id.clone()).collect();
    let elicitation = Elicitation { server: "s".to_owned(), requested_schema: None, url: None };
    let question = InputRequest {
        id: InputId::generate(&world.ids),
        conversation_id: world.rows.fence.conversation_id.clone(),
        run_id: world.rows.fence.run_id.clone(),
        call_id: Some(ids[0].clone()),
        kind: InputKind::Elicitation,
        question: Question::of_server("Which colour?".to_owned(), name, elicitation),
        state: InputState::Pending,
        answer: None,
        expires_in_ms: None,
    };
    world.rows.inputs.push(question.clone());
    // The second call has ended, and its outcome could not be stored.
    world.under_way.remove(1);
    world.load(ClaimCause::Reload);
    world.state.as_mut().unwrap().facts.under_way = vec![ids[0].clone()];
    let finished = vec![(ids[1].clone(), done("two"))];
    let loaded = world.feed(Input::Claimed { tools: tools(), contexts: None, finished });
    assert_eq!(world.states(), [Started, Done, Started]);
    let made = loaded.commands.iter().filter_map(|command| match command {
        Command::RunTool(call) => Some(&call.id),
        _ => None,
    });
    assert_eq!(made.collect::<Vec<_>>(), [&ids[2]]);
    let closed = |event: &EventBody| matches!(event, EventBody::InputResolved { id, state: InputState::Cancelled, .. } if *id == question.id);
    assert!(loaded.events.iter().any(closed), "{:?}", loaded.events);
    world.tool_says(0, "one");
    world.tool_says(0, "three");
    assert_eq!(world.states(), [Done; 3]);
    assert!(world.asked.is_some(), "the model gets the results");
}

/// A draining worker also waits for calls that were under way when the run was reloaded.
#[test]
fn run_reloaded_during_drain_waits_for_calls_under_way() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1}))]);
    let id = world.rows.calls[0].id.clone();
    world.load(ClaimCause::Reload);
    let state = world.state.as_mut().unwrap();
    state.facts.under_way = vec![id.clone()];
    state.learn(&Input::Draining);
    world.feed(Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() });
    assert!(world.released.is_none());
    world.feed(Input::ToolFinished(id, done("one")));
    assert_eq!((world.states(), world.released.map(|(_, cause)| cause)), (vec![Done], Some(ReleaseCause::Drain)));
}

/// The database lost the start of a call that its worker still runs: the call continues and is not started a second time.
#[test]
fn call_under_way_with_lost_start_is_not_started_again() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1}))]);
    let id = world.rows.calls[0].id.clone();
    Arc::make_mut(&mut world.rows.calls[0]).state = Planned;
    world.load(ClaimCause::Reload);
    world.state.as_mut().unwrap().facts.under_way = vec![id];
    let loaded = world.feed(Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() });
    assert_eq!((loaded.commands.len(), world.states()), (0, vec![Started]));
    assert!(kinds(&loaded).contains(&"tool.started"), "{:?}", kinds(&loaded));
    world.tool_says(0, "one");
    assert_eq!(world.states(), [Done]);
}
