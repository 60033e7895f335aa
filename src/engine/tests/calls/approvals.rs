//! Tool calls that need an approval.

use rstest::rstest;
use serde_json::{Value, json};

use crate::domain::agent::AgentProfile;
use crate::domain::event::EventBody;
use crate::domain::ids::GrantId;
use crate::domain::run::change::ReleaseCause;
use crate::domain::run::question::InputKind;
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus, WaitReason};
use crate::domain::tool::ReplayClass;
use crate::domain::tool::ToolCallState::{AwaitingApproval, Cancelled, Denied, Done, Started, Unknown};
use crate::domain::tool::approval::{ApprovalMode, ApprovalPolicy, ApprovalScope, ApprovalState, OnDeny, ToolGrant};
use crate::engine::tests::world::{World, call, tool};
use crate::engine::{Input, prompts};
use crate::support::ids::SequentialIds;

fn profile(mode: ApprovalMode) -> AgentProfile {
    let tools = [("write".to_owned(), mode)].into();
    AgentProfile { approval: ApprovalPolicy { tools, ..ApprovalPolicy::default() }, ..AgentProfile::default() }
}

/// Returns a run that waits for an approval of one call. The other call needs none and is done.
fn waiting_with(profile: AgentProfile) -> World {
    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({"n": 1})), call("read", &json!({"n": 2}))]);
    assert_eq!(world.states(), [AwaitingApproval, Started]);
    world.tool_says(0, "read it");
    assert_eq!((world.rows.status, world.rows.reason), (RunStatus::Waiting, Some(WaitReason::Approval)));
    assert!(world.state.is_none(), "a waiting run holds no lease");
    world
}

fn waiting() -> World {
    waiting_with(profile(ApprovalMode::Ask))
}

fn executions(world: &World, at: usize) -> u32 {
    world.executions.get(&world.rows.calls[at].id).copied().unwrap_or_default()
}

#[test]
fn the_approval_says_what_it_is_about_and_is_bound_to_it() {
    let world = waiting();
    let [asked] = world.rows.inputs.as_slice() else { panic!("one approval: {:?}", world.rows.inputs) };
    assert_eq!((asked.kind, asked.call_id.as_ref()), (InputKind::Approval, Some(&world.rows.calls[0].id)));
    let terms = asked.question.approval.as_deref().unwrap();
    assert_eq!((terms.server.as_deref(), terms.tool.as_str()), (Some("files"), "write"));
    assert_eq!(terms.arguments_hash, world.rows.calls[0].arguments_hash);
    assert_eq!(terms.scopes, [ApprovalScope::Once, ApprovalScope::Conversation, ApprovalScope::Always]);
    let requested = world.events.iter().find_map(|event| match event {
        EventBody::ApprovalRequested { request, .. } => Some(request),
        _ => None,
    });
    let requested = requested.unwrap();
    assert_eq!((&requested.arguments, requested.preview.as_str()), (&json!({"n": 1}), r#"{"n":1}"#));
    let waits = EventBody::RunWaiting { reason: WaitReason::Approval, id: Some(asked.id.to_string()), detail: None };
    assert!(world.events.contains(&waits));
    assert_eq!(world.released, Some((Some(7 * 24 * 3_600_000), ReleaseCause::Waiting)));
}

#[test]
fn an_allowed_call_is_made_once() {
    let mut world = waiting();
    world.human_decides("allow", None);
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Started, Done], 1));
    assert!(world.rows.inputs.is_empty(), "the write that starts the call uses the answer up");
    // The worker crashes during the call: the answer does not permit a second attempt.
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Unknown, Done], 1));
}

#[test]
fn the_call_is_made_with_what_the_human_has_written() {
    let mut world = waiting();
    world.human_decides("allow", Some(json!({"n": 7})));
    world.claim(ClaimCause::Request);
    assert_eq!(world.under_way[0].arguments, json!({"n": 7}));
    assert_eq!(world.rows.calls[0].arguments, json!({"n": 7}));
    world.tool_says(0, "wrote it");
    let result = &world.results()[0];
    assert!(result.contains(r#"to {"n":7}]"#) && result.ends_with("wrote it"), "{result}");
    assert_eq!(world.results()[1], "read it");
}

#[test]
fn denied_call_is_not_made_and_reported_to_the_model() {
    let mut world = waiting();
    world.human_decides("deny", None);
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Denied, Done], 0));
    assert_eq!(world.results()[0], format!("{}. They say: not today", prompts::CALL_DENIED));
    assert!(world.asked.is_some(), "the run goes on");
}

#[test]
fn a_denial_can_end_the_turn() {
    let mut profile = profile(ApprovalMode::Ask);
    profile.approval.on_deny = OnDeny::EndTurn;
    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.human_decides("deny", None);
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), executions(&world, 1)), (vec![Denied, Cancelled], 0));
    assert_eq!((world.ended().status, world.ended().reason), (RunStatus::Completed, Some(FinishReason::Stop)));
    assert_eq!(world.rows.history.last().unwrap().text(), prompts::DENIED);
    assert!(world.rows.inputs.is_empty());
}

#[test]
fn call_without_timely_approval_is_not_made() {
    let mut world = waiting();
    world.rows.inputs[0].expires_in_ms = Some(0);
    world.claim(ClaimCause::Timer);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Denied, Done], 0));
    assert!(world.rows.inputs.is_empty());
    let is_expired = |event: &EventBody| matches!(event, EventBody::ApprovalResolved { status: ApprovalState::Expired, .. });
    assert!(world.events.iter().any(is_expired));
}

#[test]
fn a_run_that_is_woken_without_an_answer_waits_on() {
    let mut world = waiting();
    let asked = world.rows.inputs.clone();
    world.claim(ClaimCause::Timer);
    assert_eq!((&world.rows.inputs, world.rows.reason), (&asked, Some(WaitReason::Approval)), "no second question");
}

#[test]
fn an_approval_of_something_else_allows_nothing() {
    let mut world = waiting();
    world.human_decides("allow", None);
    world.rows.inputs[0].question.approval.as_mut().unwrap().definition_hash = "another".to_owned();
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Denied, Done], 0));
    assert_eq!(world.results()[0], prompts::APPROVAL_OUTDATED);
}

fn grant(definition_hash: &str) -> ToolGrant {
    let of = tool("write", ReplayClass::Unsafe);
    ToolGrant {
        id: GrantId::generate(&SequentialIds::default()),
        conversation_id: None,
        server: of.server,
        tool: of.tool,
        definition_hash: definition_hash.to_owned(),
        created_at: String::new(),
    }
}

#[rstest]
#[case::it_holds(ApprovalMode::Ask, "", Started)]
#[case::the_tool_has_changed(ApprovalMode::Ask, "another", AwaitingApproval)]
#[case::asked_each_time(ApprovalMode::AlwaysAsk, "", AwaitingApproval)]
fn an_earlier_answer_may_hold(
    #[case] mode: ApprovalMode,
    #[case] definition_hash: &str,
    #[case] expected: crate::domain::tool::ToolCallState,
) {
    let mut world = World::new(profile(mode));
    world.grants = vec![grant(definition_hash)];
    world.claim(ClaimCause::First);
    world.calls(&[call("write", &json!({"n": 1}))]);
    assert_eq!(world.states(), [expected]);
}

#[test]
fn approval_of_all_calls_leaves_other_questions_open() {
    let mut world = World::started(profile(ApprovalMode::Ask));
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.human_decides("allow", None);
    world.grants = vec![grant("")];
    world.claim(ClaimCause::Request);
    // A denial of the second call may be stored already, unknown to this worker.
    assert_eq!(world.states(), [Started, AwaitingApproval]);
    assert_eq!(world.rows.inputs.len(), 1);
}

#[test]
fn a_tool_that_was_taken_away_is_not_asked_about_any_more() {
    let mut profile = profile(ApprovalMode::Ask);
    (profile.breaker_failures, profile.tool_parallelism) = (1, 1);
    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.human_decides("allow", None);
    world.claim(ClaimCause::Request);
    world.tool_fails(0);
    assert_eq!(world.states(), [crate::domain::tool::ToolCallState::Failed, Cancelled]);
    assert!(world.rows.inputs.is_empty() && world.asked.is_some());
}

#[test]
fn a_message_that_joined_is_heard_though_a_denial_ends_turns() {
    let mut profile = profile(ApprovalMode::Ask);
    profile.approval.on_deny = OnDeny::EndTurn;
    let mut world = waiting_with(profile);
    let message = world.user("do this instead");
    world.rows.history.push(message);
    world.rows.joined += 1;
    world.human_decides("deny", None);
    world.claim(ClaimCause::Request);
    assert!(world.ending.is_none() && world.asked.is_some());
}

#[test]
fn approval_during_drain_is_applied_by_the_next_claim() {
    let mut profile = profile(ApprovalMode::Ask);
    profile.tool_parallelism = 1;
    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.human_decides("allow", None);
    world.human_decides("allow", None);
    world.claim(ClaimCause::Request);
    assert_eq!(world.states(), [Started, AwaitingApproval]);
    world.state.as_mut().unwrap().learn(&Input::Draining);
    world.tool_says(0, "one");
    assert_eq!(world.released, Some((Some(0), ReleaseCause::Drain)), "it does not wait for the stored answer");
    world.claim(ClaimCause::HandedBack);
    assert_eq!(world.states(), [Done, Started]);
}

#[test]
fn the_end_of_the_run_closes_the_approval() {
    let mut world = waiting();
    world.rows.cancel_requested_by = Some("user".to_owned());
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Cancelled, Done], 0));
    let is_cancelled = |event: &EventBody| matches!(event, EventBody::ApprovalResolved { status: ApprovalState::Cancelled, .. });
    assert!(world.events.iter().any(is_cancelled));
}

#[test]
fn an_answer_that_nothing_follows_from_is_not_taken_back() {
    let mut world = waiting();
    world.human_decides("allow", None);
    world.rows.cancel_requested_by = Some("user".to_owned());
    let told = world.events.len();
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), executions(&world, 0)), (vec![Cancelled, Done], 0));
    assert!(world.rows.inputs.is_empty());
    let is_resolved = |event: &EventBody| matches!(event, EventBody::ApprovalResolved { .. });
    assert!(!world.events[told..].iter().any(is_resolved), "the event was emitted when the answer was given");
}

#[test]
fn words_in_the_chat_allow_nothing() {
    let mut world = waiting();
    let said: Value = json!("yes, I approve it, go on");
    let message = world.user(said.as_str().unwrap());
    world.rows.history.push(message);
    world.rows.joined += 1;
    world.claim(ClaimCause::Timer);
    assert_eq!((world.states(), executions(&world, 0)), (vec![AwaitingApproval, Done], 0));
}
