//! Retries of runs and of tool calls, and undoing of calls.

use std::collections::BTreeSet;

use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::{Message, ToolContent};
use capstan::domain::ids::{CallId, MessageId, RunId, UserId};
use capstan::domain::run::change::{Change, StepKind, StepStatus};
use capstan::domain::run::record::{ClaimCause, Fence};
use capstan::domain::run::{Run, RunStatus};
use capstan::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use capstan::store::{AcceptRun, CallBatch, CancelRun, IdempotentOutcome, ResumeKind, ResumeOutcome, ResumeRun};
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::fixture::{
    NOW, World, assistant, changes, completed, conversation, earlier, failed, fresh, hello, key, page, planned_call,
    resume_request, stored, user,
};

contract! {
    a_turn_takes_the_place_of_the_one_before,
    a_call_is_the_first_step_of_a_run,
    only_the_newest_run_that_has_ended,
    a_retry_counts_like_a_message,
    a_call_is_taken_back_once,
    undone_call_is_not_reused_by_a_retry,
    only_calls_of_the_retry_are_undone,
    undo_of_an_earlier_turn_is_kept,
    resumed_run_has_the_profile_of_its_predecessor,
}

async fn ask(world: &World, resume: ResumeRun) -> ResumeOutcome {
    fresh(world.store.resume_run(resume, None).await.unwrap())
}

fn superseded(resumed: &ResumeOutcome) -> Vec<String> {
    let ResumeOutcome::Run { events, .. } = resumed else { panic!("it goes on: {resumed:?}") };
    let queued: Value = serde_json::from_str(&events[0].data).unwrap();
    serde_json::from_value(queued["supersedes"].clone()).unwrap_or_default()
}

async fn listed(world: &World, owner: &UserId, fence: &Fence) -> Vec<MessageId> {
    let id = &fence.conversation_id;
    let page = world.store.messages(owner, id, &page(100, None)).await.unwrap().unwrap();
    let newest = world.store.earlier_messages(owner, id, earlier(100, None)).await.unwrap().unwrap();
    assert_eq!(newest.into_page().items, page.items);
    page.items.into_iter().map(|message| message.id).collect()
}

async fn a_turn_takes_the_place_of_the_one_before(world: &World) {
    let owner = user();
    let first = world.claimed(&owner).await;
    let hint = Message { role: capstan::domain::conversation::message::Role::User, internal: true, ..assistant(&first, "a hint") };
    let answer = assistant(&first, "half");
    world.commit_one(changes(&first, vec![Change::AddMessage(hint.clone())])).await.unwrap();
    world.commit_one(changes(&first, vec![Change::AddMessage(answer.clone())])).await.unwrap();
    world.commit_one(failed(&first)).await.unwrap();
    // A run that resumed it belongs to the same message.
    let resumed = ask(world, resume_request(&owner, &first.run_id, ResumeKind::Resume)).await;
    assert_eq!(superseded(&resumed), Vec::<String>::new());
    let second = world.claim_one().await;
    let rest = assistant(&second, "the rest");
    let hinted = Message { id: MessageId::generate(&UuidIds), run_id: second.run_id.clone(), ..hint.clone() };
    world.commit_one(changes(&second, vec![Change::AddMessage(hinted.clone())])).await.unwrap();
    world.commit_one(changes(&second, vec![Change::AddMessage(rest.clone())])).await.unwrap();
    world.commit_one(completed(&second)).await.unwrap();

    let request = resume_request(&owner, &second.run_id, ResumeKind::Turn);
    let again = fresh(world.store.resume_run(request.clone(), key(&owner, "k", "f")).await.unwrap());
    let gone = [&hint.id, &answer.id, &hinted.id, &rest.id];
    assert_eq!(superseded(&again), gone.map(MessageId::as_str));
    let ResumeOutcome::Run { run, .. } = again else { unreachable!() };
    assert_eq!((&run.id, run.status, run.finish_reason), (&request.new_run_id, RunStatus::Queued, None));
    assert_eq!(run.trace_id.as_ref(), Some(&request.trace), "it has the trace of the request that asked for it");
    assert_eq!(world.view(&owner, &run.id).await.run, run);
    let replayed = world.store.resume_run(request, key(&owner, "k", "f")).await.unwrap();
    assert_eq!(replayed, IdempotentOutcome::Replayed(ResumeOutcome::Run { run: run.clone(), events: Vec::new() }));
    assert_eq!(world.view(&owner, &second.run_id).await.run.status, RunStatus::Completed, "an ended run does not change");

    let third = world.claim_one().await;
    let record = world.load(&third).await;
    assert_eq!((record.cause, record.tools.is_none()), (ClaimCause::First, true));
    assert!(record.history.iter().all(|message| !gone.contains(&&message.id)));
    assert_eq!(record.history.len(), 1, "the user's message only");
    let better = assistant(&third, "better");
    world.commit_one(changes(&third, vec![Change::AddMessage(better.clone())])).await.unwrap();
    world.commit_one(completed(&third)).await.unwrap();
    let left = listed(world, &owner, &third).await;
    assert!(left.contains(&better.id) && gone.iter().all(|id| !left.contains(*id)), "{left:?}");
    // Another retry: the message is still the first run's.
    assert_eq!(superseded(&ask(world, resume_request(&owner, &third.run_id, ResumeKind::Turn)).await), [better.id.as_str()]);
}

async fn a_call_is_the_first_step_of_a_run(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let before = assistant(&fence, "before");
    world.commit_one(changes(&fence, vec![Change::AddMessage(before.clone())])).await.unwrap();
    let message = assistant(&fence, "calls");
    let calls = vec![planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1)];
    let work = vec![
        Change::FreezeTools(Vec::new()),
        Change::StartStep { step: 1, kind: StepKind::Model, request: None },
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(message.clone()),
        Change::AddToolCalls(calls.clone()),
    ];
    world.commit_one(changes(&fence, work)).await.unwrap();
    let after = assistant(&fence, "after");
    world.commit_one(changes(&fence, vec![Change::AddMessage(after.clone())])).await.unwrap();
    world.commit_one(failed(&fence)).await.unwrap();

    let read = async |owner: &UserId, call: &CallId| world.store.call_batch(owner, &fence.run_id, call).await.unwrap();
    let batch = read(&owner, &calls[1].id).await.unwrap();
    assert_eq!((&batch.original, &batch.message, &batch.calls), (&message.id, &message, &calls));
    assert_eq!(batch.twin, None, "none of them ran");
    assert_eq!(read(&user(), &calls[1].id).await, None, "another owner");
    assert_eq!(read(&owner, &CallId::generate(&UuidIds)).await, None);

    let new = RunId::generate(&UuidIds);
    let copy = Message { id: MessageId::generate(&UuidIds), run_id: new.clone(), ..message.clone() };
    let of_new = |call: &ToolCall, state, key| ToolCall {
        id: CallId::generate(&UuidIds),
        run_id: new.clone(),
        message_id: copy.id.clone(),
        step: 1,
        state,
        key,
        arguments: json!({"n": "\u{0}ä"}),
        ..call.clone()
    };
    let again =
        vec![of_new(&calls[0], ToolCallState::Planned, None), of_new(&calls[1], ToolCallState::Planned, Some(calls[1].id.clone()))];
    let taken_over =
        CallBatch { original: message.id.clone(), message: copy.clone(), calls: again.clone(), tools: Vec::new(), twin: None };
    let resume =
        ResumeRun { new_run_id: new.clone(), ..resume_request(&owner, &fence.run_id, ResumeKind::Call(Box::new(taken_over))) };
    let resumed = ask(world, resume).await;
    assert_eq!(superseded(&resumed), [message.id.as_str(), after.id.as_str()]);
    let ResumeOutcome::Run { run, events } = resumed else { unreachable!() };
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_ref()).collect();
    assert_eq!(kinds, ["run.queued", "conversation.updated", "message.started", "message.completed"]);
    assert!(world.log(&owner, &fence.conversation_id).await.ends_with(&events));

    let claimed = world.claim_one().await;
    assert_eq!(claimed.run_id, run.id);
    let record = world.load(&claimed).await;
    assert_eq!((record.cause, record.tools.as_deref(), record.elapsed_ms), (ClaimCause::First, Some(&[][..]), 0));
    let [step] = &record.steps[..] else { panic!("one step: {:?}", record.steps) };
    assert_eq!((step.step, step.kind, step.status), (1, StepKind::Tools, StepStatus::Started));
    let keys: Vec<_> = record.calls.iter().map(|call| (call.id.clone(), call.key.clone(), call.state)).collect();
    assert_eq!(keys, again.iter().map(|call| (call.id.clone(), call.key.clone(), call.state)).collect::<Vec<_>>());
    let history: Vec<_> = record.history[1..].iter().map(|message| message.id.clone()).collect();
    assert_eq!(history, [before.id.clone(), copy.id.clone()]);
    assert_eq!(listed(world, &owner, &claimed).await[1..], history);
}

async fn only_the_newest_run_that_has_ended(world: &World) {
    let owner = user();
    let refused = |resumed: ResumeOutcome| match resumed {
        ResumeOutcome::NotResumable { run } => run,
        other @ (ResumeOutcome::Run { .. } | ResumeOutcome::TakenBack | ResumeOutcome::TooManyRuns | ResumeOutcome::NoRun) => {
            panic!("expected a refusal: {other:?}")
        }
    };
    let again = async |run: &Run| ask(world, resume_request(&owner, &run.id, ResumeKind::Turn)).await;
    let run = world.run(&owner).await.run;
    assert_eq!(refused(again(&run).await), run, "it waits for a worker");
    let fence = world.claim_one().await;
    // The newest ended run is followed by one under way.
    let behind = world.accept(hello(&owner, &fence.conversation_id)).await.run;
    fresh(world.store.cancel_run(CancelRun { owner: &owner, id: &behind.id, by: "user", now: NOW }, None).await.unwrap());
    refused(again(&behind).await);
    world.commit_one(completed(&fence)).await.unwrap();
    refused(again(&run).await);
    let ResumeOutcome::Run { run: next, .. } = again(&behind).await else { panic!("the newest goes on") };
    refused(again(&behind).await);
    refused(again(&next).await);
    assert_eq!(ask(world, resume_request(&user(), &behind.id, ResumeKind::Turn)).await, ResumeOutcome::NoRun, "another owner");
}

async fn a_retry_counts_like_a_message(world: &World) {
    let owner = user();
    let ended = world.claimed(&owner).await;
    world.commit_one(failed(&ended)).await.unwrap();
    world.claimed(&owner).await;
    let with_room = |max_active_runs, how| ResumeRun { max_active_runs, ..resume_request(&owner, &ended.run_id, how) };
    for how in [ResumeKind::Turn, ResumeKind::Resume] {
        assert_eq!(ask(world, with_room(1, how)).await, ResumeOutcome::TooManyRuns);
    }
    assert!(matches!(ask(world, with_room(2, ResumeKind::Turn)).await, ResumeOutcome::Run { .. }));
}

/// Returns a run that undoes a call of another run.
fn undo(owner: &UserId, (run, message, call): (&RunId, &Message, &ToolCall), confirmed: bool) -> ResumeRun {
    let new = RunId::generate(&UuidIds);
    let copy = Message { id: MessageId::generate(&UuidIds), run_id: new.clone(), ..message.clone() };
    let undoing = ToolCall {
        id: CallId::generate(&UuidIds),
        run_id: new.clone(),
        message_id: copy.id.clone(),
        step: 1,
        undoes: Some(call.id.clone()),
        ..call.clone()
    };
    let batch =
        Box::new(CallBatch { original: message.id.clone(), message: copy, calls: vec![undoing], tools: Vec::new(), twin: None });
    ResumeRun { new_run_id: new, ..resume_request(owner, run, ResumeKind::Undo { batch, confirmed }) }
}

fn outcome(state: ToolCallState) -> ToolOutcome {
    ToolOutcome { state, content: vec![ToolContent::text("said")], is_error: state != ToolCallState::Done, duration_ms: 1 }
}

/// Runs a message with a call. Returns the message of the call and the call.
async fn turn_with_a_call(world: &World, fence: &Fence) -> (Message, ToolCall) {
    let message = assistant(fence, "calls");
    let call = planned_call(fence, &message.id, 0);
    let work = vec![
        Change::FreezeTools(Vec::new()),
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(message.clone()),
        Change::AddToolCalls(vec![call.clone()]),
        Change::StartCall(call.id.clone()),
        Change::FinishCall(call.id.clone(), outcome(ToolCallState::Done)),
    ];
    world.commit_one(changes(fence, work)).await.unwrap();
    world.commit_one(completed(fence)).await.unwrap();
    (message, call)
}

async fn undo_of_an_earlier_turn_is_kept(world: &World) {
    let owner = user();
    let first = world.claimed(&owner).await;
    let (said, early) = turn_with_a_call(world, &first).await;
    world.accept(hello(&owner, &first.conversation_id)).await;
    let second = world.claim_one().await;
    let (answer, late) = turn_with_a_call(world, &second).await;
    let mut undone = Vec::new();
    for (run, message, call) in [(&first, &said, &early), (&second, &answer, &late)] {
        assert!(matches!(ask(world, undo(&owner, (&run.run_id, message, call), false)).await, ResumeOutcome::Run { .. }));
        let undoing = world.claim_one().await;
        let id = world.load(&undoing).await.calls[0].id.clone();
        let ended = vec![Change::StartCall(id.clone()), Change::FinishCall(id, outcome(ToolCallState::Done))];
        world.commit_one(changes(&undoing, ended)).await.unwrap();
        world.commit_one(completed(&undoing)).await.unwrap();
        undone.push(listed(world, &owner, &undoing).await.pop().unwrap());
    }
    let again = ask(world, resume_request(&owner, &second.run_id, ResumeKind::Turn)).await;
    let gone = superseded(&again);
    assert_eq!(gone, [answer.id.to_string(), undone[1].to_string()], "an undo of the retried run is removed with it");
    let read: Vec<_> = world.load(&world.claim_one().await).await.history.into_iter().map(|message| message.id).collect();
    assert!(read.contains(&undone[0]) && read.contains(&said.id), "{read:?}");
}

/// The first attempt was cancelled before the call began. The retry has the call's key, and is undone.
async fn only_calls_of_the_retry_are_undone(world: &World) {
    let owner = user();
    let first = world.claimed(&owner).await;
    let message = assistant(&first, "calls");
    let call = planned_call(&first, &message.id, 0);
    let work = vec![
        Change::FreezeTools(Vec::new()),
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(message.clone()),
        Change::AddToolCalls(vec![call.clone()]),
        Change::FinishCall(call.id.clone(), outcome(ToolCallState::Cancelled)),
    ];
    world.commit_one(changes(&first, work)).await.unwrap();
    world.commit_one(failed(&first)).await.unwrap();
    let new = RunId::generate(&UuidIds);
    let copy = Message { id: MessageId::generate(&UuidIds), run_id: new.clone(), ..message.clone() };
    let again = ToolCall {
        id: CallId::generate(&UuidIds),
        run_id: new.clone(),
        message_id: copy.id.clone(),
        step: 1,
        key: Some(call.id.clone()),
        ..call.clone()
    };
    let batch =
        CallBatch { original: message.id.clone(), message: copy, calls: vec![again.clone()], tools: Vec::new(), twin: None };
    let resume = ResumeRun { new_run_id: new, ..resume_request(&owner, &first.run_id, ResumeKind::Call(Box::new(batch))) };
    assert!(matches!(ask(world, resume).await, ResumeOutcome::Run { .. }));
    let second = world.claim_one().await;
    let made = vec![Change::StartCall(again.id.clone()), Change::FinishCall(again.id, outcome(ToolCallState::Done))];
    world.commit_one(changes(&second, made)).await.unwrap();
    world.commit_one(completed(&second)).await.unwrap();
    let undone = ask(world, undo(&owner, (&second.run_id, &message, &call), false)).await;
    assert!(matches!(undone, ResumeOutcome::Run { .. }), "{undone:?}");
}

async fn a_call_is_taken_back_once(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let message = assistant(&fence, "calls");
    let (call, repeated) = (planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1));
    let work = vec![
        Change::FreezeTools(Vec::new()),
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(message.clone()),
        Change::AddToolCalls(vec![call.clone(), repeated.clone()]),
        Change::FinishCall(repeated.id.clone(), outcome(ToolCallState::Done)),
        Change::StartCall(call.id.clone()),
        Change::FinishCall(call.id.clone(), outcome(ToolCallState::Done)),
    ];
    world.commit_one(changes(&fence, work)).await.unwrap();
    world.commit_one(completed(&fence)).await.unwrap();
    let batch = world.store.call_batch(&owner, &fence.run_id, &repeated.id).await.unwrap().unwrap();
    assert_eq!((batch.twin, batch.calls.len()), (Some(call.id.clone()), 2), "the same call ran");
    let undo = |confirmed| undo(&owner, (&fence.run_id, &message, &call), confirmed);
    let is_refused = async |resume: ResumeRun| matches!(ask(world, resume).await, ResumeOutcome::NotResumable { .. });
    // A denied undo took no effect, and a failed one may have. After a completed undo, no further one is possible.
    for (state, is_free) in [
        (ToolCallState::Denied, true),
        (ToolCallState::Failed, false),
        (ToolCallState::Unknown, false),
        (ToolCallState::Done, false),
    ] {
        let resumed = ask(world, undo(true)).await;
        assert!(superseded(&resumed).is_empty());
        assert!(is_refused(undo(true)).await, "an undo is under way");
        let undoing = world.claim_one().await;
        let record = world.load(&undoing).await;
        assert_eq!((&record.calls[0].undoes, record.tools.is_some()), (&Some(call.id.clone()), true));
        let id = record.calls[0].id.clone();
        let ended = vec![Change::StartCall(id.clone()), Change::FinishCall(id, outcome(state))];
        world.commit_one(changes(&undoing, ended)).await.unwrap();
        world.commit_one(failed(&undoing)).await.unwrap();
        for how in [ResumeKind::Turn, ResumeKind::Resume] {
            assert!(is_refused(resume_request(&owner, &undoing.run_id, how)).await, "an undo run has no message to answer");
        }
        if !is_free {
            assert!(is_refused(undo(false)).await, "{state:?}");
        }
    }
    assert!(is_refused(undo(true)).await, "the call is undone");
    // A run that only undoes a call answers nothing: the run before it is still the newest.
    assert!(matches!(ask(world, resume_request(&owner, &fence.run_id, ResumeKind::Turn)).await, ResumeOutcome::Run { .. }));
}

/// A retry of a call reuses the results of the other calls, and keeps the call's key.
async fn undone_call_is_not_reused_by_a_retry(world: &World) {
    // The undone call is the retried one or another one of its answer, with each outcome of the undo.
    for (is_itself, became, is_free) in [
        (false, ToolCallState::Done, false),
        (true, ToolCallState::Done, false),
        (true, ToolCallState::Unknown, false),
        (false, ToolCallState::Failed, false),
        (true, ToolCallState::Denied, true),
    ] {
        let owner = user();
        let fence = world.claimed(&owner).await;
        let message = assistant(&fence, "calls");
        let (moved, failing) = (planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1));
        let work = vec![
            Change::FreezeTools(Vec::new()),
            Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
            Change::AddMessage(message.clone()),
            Change::AddToolCalls(vec![moved.clone(), failing.clone()]),
            Change::StartCall(moved.id.clone()),
            Change::StartCall(failing.id.clone()),
            Change::FinishCall(moved.id.clone(), outcome(ToolCallState::Done)),
            Change::FinishCall(failing.id.clone(), outcome(ToolCallState::Failed)),
        ];
        world.commit_one(changes(&fence, work)).await.unwrap();
        world.commit_one(completed(&fence)).await.unwrap();
        let undone = if is_itself { &failing } else { &moved };
        assert!(matches!(ask(world, undo(&owner, (&fence.run_id, &message, undone), true)).await, ResumeOutcome::Run { .. }));
        let undoing = world.claim_one().await;
        let id = world.load(&undoing).await.calls[0].id.clone();
        let mut ended = vec![Change::FinishCall(id.clone(), outcome(became))];
        if became != ToolCallState::Denied {
            ended.insert(0, Change::StartCall(id));
        }
        world.commit_one(changes(&undoing, ended)).await.unwrap();
        world.commit_one(completed(&undoing)).await.unwrap();

        let new = RunId::generate(&UuidIds);
        let copy = Message { id: MessageId::generate(&UuidIds), run_id: new.clone(), ..message.clone() };
        let of_new = |call: &ToolCall, state, outcome| ToolCall {
            id: CallId::generate(&UuidIds),
            run_id: new.clone(),
            message_id: copy.id.clone(),
            step: 1,
            key: Some(call.id.clone()),
            state,
            outcome,
            ..call.clone()
        };
        let calls = vec![
            of_new(&moved, ToolCallState::Done, Some(outcome(ToolCallState::Done))),
            of_new(&failing, ToolCallState::Planned, None),
        ];
        let batch = CallBatch { original: message.id.clone(), message: copy.clone(), calls, tools: Vec::new(), twin: None };
        let log = world.log(&owner, &fence.conversation_id).await.len();
        let resume =
            ResumeRun { new_run_id: new.clone(), ..resume_request(&owner, &fence.run_id, ResumeKind::Call(Box::new(batch))) };
        let resumed = ask(world, resume).await;
        if is_free {
            assert!(matches!(resumed, ResumeOutcome::Run { .. }), "{resumed:?}");
        } else {
            assert_eq!(resumed, ResumeOutcome::TakenBack, "{is_itself} {became:?}");
            assert_eq!(world.log(&owner, &fence.conversation_id).await.len(), log, "nothing is written");
            // The message can be answered again: the undone call is superseded with its answer.
            let again = ask(world, resume_request(&owner, &fence.run_id, ResumeKind::Turn)).await;
            assert_eq!(superseded(&again).len(), 2);
        }
        world.commit_one(failed(&world.claim_one().await)).await.unwrap();
    }
}

async fn resumed_run_has_the_profile_of_its_predecessor(world: &World) {
    let owner = user();
    let groups = BTreeSet::from(["editors".to_owned(), "staff".to_owned()]);
    let profile = AgentProfile { name: "poet".to_owned(), groups, ..AgentProfile::default() };
    let accept = AcceptRun { profile: profile.clone(), ..hello(&owner, &conversation()) };
    let first = stored(fresh(world.store.accept_run(accept, None).await.unwrap())).run.id;
    let read = async |owner: &UserId, run: &RunId| world.store.run_profile(owner, run).await.unwrap();
    assert_eq!(read(&owner, &first).await.as_ref(), Some(&profile));
    assert_eq!(read(&user(), &first).await, None, "another owner");
    assert_eq!(read(&owner, &RunId::generate(&UuidIds)).await, None);

    let fence = world.claim_one().await;
    world.commit_one(failed(&fence)).await.unwrap();
    let ResumeOutcome::Run { run, .. } = ask(world, resume_request(&owner, &first, ResumeKind::Resume)).await else {
        panic!("it goes on")
    };
    assert_eq!(read(&owner, &run.id).await, Some(profile));
}
