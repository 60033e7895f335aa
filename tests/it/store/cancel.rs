//! Cancelling and resuming runs, and explaining why a run does not move.

use capstan::domain::ids::RunId;
use capstan::domain::run::change::{Change, ReleaseCause, StepKind, StepStatus};
use capstan::domain::run::record::ClaimCause;
use capstan::domain::run::{FinishReason, Run, RunStatus, WaitReason};
use capstan::store::{CancelOutcome, CancelRun, IdempotentOutcome, ResumeKind, ResumeOutcome, ResumeRun};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{
    LONG, NOW, World, assistant, changes, completed, conversation, failed, fresh, hello, key, planned_call, released,
    resume_request, started, user,
};

contract! {
    a_run_that_has_not_started_is_over_at_once,
    a_queued_run_is_taken_out_of_the_line,
    a_leased_run_is_only_marked,
    a_waiting_run_is_woken_to_end,
    a_cancel_between_decision_and_wait_is_not_forgotten,
    a_run_that_is_over_stays_as_it_is,
    a_waiting_run_is_woken,
    a_failed_run_is_continued_by_a_new_one,
    run_that_cannot_be_resumed_is_refused,
    ;
    why_a_run_does_not_move,
    ended_active_run_keeps_updated_at_of_unchanged_status,
}

async fn cancel(world: &World, owner: &capstan::domain::ids::UserId, id: &RunId) -> CancelOutcome {
    fresh(world.store.cancel_run(CancelRun { owner, id, by: "user", now: NOW }, None).await.unwrap())
}

fn requested(cancelled: CancelOutcome) -> Run {
    match cancelled {
        CancelOutcome::Requested { run } => run,
        CancelOutcome::Over { .. } | CancelOutcome::NoRun => panic!("expected a request: {cancelled:?}"),
    }
}

async fn a_run_that_has_not_started_is_over_at_once(world: &World) {
    let owner = user();
    let stored = world.run(&owner).await;
    let id = &stored.run.conversation_id;
    let cancel = CancelRun { owner: &owner, id: &stored.run.id, by: "user", now: NOW };
    let first = world.store.cancel_run(cancel, key(&owner, "k", "f")).await.unwrap();
    let CancelOutcome::Over { run, events } = fresh(first) else { panic!("it is over") };
    assert_eq!((run.status, run.finish_reason), (RunStatus::Cancelled, Some(FinishReason::Cancelled)));
    assert!(run.finished_at.is_some());
    assert_eq!(events.iter().map(|event| event.kind.as_ref()).collect::<Vec<_>>(), ["run.cancelled", "conversation.updated"]);
    assert_eq!(events[0].data, r#"{"by":"user"}"#);
    assert_eq!(world.log(&owner, id).await[3..], events);
    assert_eq!(world.view(&owner, &run.id).await.last_seq, Some(events[0].seq));
    assert_eq!(world.status(&owner, id).await, "idle");
    assert_eq!(world.claim(10).await, []);
    let again = world.store.cancel_run(cancel, key(&owner, "k", "f")).await.unwrap();
    assert_eq!(again, IdempotentOutcome::Replayed(CancelOutcome::Over { run, events: Vec::new() }));
}

async fn a_queued_run_is_taken_out_of_the_line(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    let second = world.accept(hello(&owner, &id)).await;
    let third = world.accept(hello(&owner, &id)).await;
    let CancelOutcome::Over { events, .. } = cancel(world, &owner, &second.run.id).await else { panic!("it is over") };
    assert_eq!(events.len(), 1, "the conversation's status is that of its active run");
    let fence = world.claim_one().await;
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.claim_one().await.run_id, third.run.id);

    // When an unclaimed active run is cancelled, the next one can start.
    let other = conversation();
    let active = world.accept(hello(&owner, &other)).await;
    let next = world.accept(hello(&owner, &other)).await;
    assert!(matches!(cancel(world, &owner, &active.run.id).await, CancelOutcome::Over { .. }));
    assert_eq!(world.status(&owner, &other).await, "queued");
    assert_eq!(world.claim_one().await.run_id, next.run.id);
}

async fn a_leased_run_is_only_marked(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let before = world.log(&owner, &fence.conversation_id).await;
    assert_eq!(requested(cancel(world, &owner, &fence.run_id).await).status, RunStatus::Queued);
    assert_eq!(world.log(&owner, &fence.conversation_id).await, before);
    let signals = world.store.control_signals(std::slice::from_ref(&fence.run_id)).await.unwrap();
    assert_eq!(signals[0].cancel_by.as_deref(), Some("user"));
    assert_eq!(world.load(&fence).await.cancel_requested_by.as_deref(), Some("user"));
    // The first request is kept.
    fresh(world.store.cancel_run(CancelRun { owner: &owner, id: &fence.run_id, by: "interrupt", now: NOW }, None).await.unwrap());
    assert_eq!(world.load(&fence).await.cancel_requested_by.as_deref(), Some("user"));
    assert_eq!(world.claim(10).await, []);
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.store.control_signals(&[fence.run_id]).await.unwrap(), [], "the run has ended");
}

async fn a_waiting_run_is_woken_to_end(world: &World) {
    let owner = user();
    for after_ms in [Some(LONG), None] {
        let fence = world.claimed(&owner).await;
        world.commit_one(started(&fence)).await.unwrap();
        let release = Change::Release { after_ms, cause: ReleaseCause::Waiting };
        let wait = vec![Change::SetStatus(RunStatus::Waiting, Some(WaitReason::Backoff)), release];
        world.commit_one(changes(&fence, wait)).await.unwrap();
        requested(cancel(world, &owner, &fence.run_id).await);
        let claims = world.claim(10).await;
        assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Request));
        assert_eq!(world.load(&claims[0].fence).await.cancel_requested_by.as_deref(), Some("user"));
        world.commit_one(completed(&claims[0].fence)).await.unwrap();
    }
}

async fn a_cancel_between_decision_and_wait_is_not_forgotten(world: &World) {
    let owner = user();
    for cause in [ReleaseCause::Waiting, ReleaseCause::Drain] {
        let fence = world.claimed(&owner).await;
        world.commit_one(started(&fence)).await.unwrap();
        requested(cancel(world, &owner, &fence.run_id).await);
        world.commit_one(released(&fence, None, cause)).await.unwrap();
        let claims = world.claim(10).await;
        assert_eq!((claims.len(), &claims[0].fence.run_id), (1, &fence.run_id));
        assert_eq!(claims[0].cause, ClaimCause::Request, "the cancellation is the claim's cause, however the run was released");
        world.commit_one(completed(&claims[0].fence)).await.unwrap();
    }
}

async fn ended_active_run_keeps_updated_at_of_unchanged_status(world: &World) {
    let (owner, id) = (user(), conversation());
    let changed_at = async || world.store.conversation(&owner, &id).await.unwrap().unwrap().updated_at;
    let now = UnixMillis(NOW.0 + 1);
    for ends_by_request in [true, false] {
        world.accept(hello(&owner, &id)).await;
        let active = world.store.active_run(&owner, &id).await.unwrap().unwrap();
        world.accept(hello(&owner, &id)).await;
        assert_eq!(changed_at().await, NOW.to_rfc3339());
        if ends_by_request {
            let cancelled =
                world.store.cancel_run(CancelRun { owner: &owner, id: &active.id, by: "user", now }, None).await.unwrap();
            assert!(matches!(fresh(cancelled), CancelOutcome::Over { .. }));
        } else {
            let fence = world.claim_one().await;
            world.commit_one(completed(&fence)).await.unwrap();
        }
        assert_eq!(world.status(&owner, &id).await, "queued", "unchanged: the next run is queued");
        assert_eq!(changed_at().await, NOW.to_rfc3339());
    }
}

async fn a_run_that_is_over_stays_as_it_is(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.commit_one(completed(&fence)).await.unwrap();
    let run = world.view(&owner, &fence.run_id).await.run;
    assert_eq!(cancel(world, &owner, &fence.run_id).await, CancelOutcome::Over { run, events: Vec::new() });
    assert_eq!(world.view(&owner, &fence.run_id).await.run.status, RunStatus::Completed);
    assert_eq!(cancel(world, &owner, &RunId::generate(&UuidIds)).await, CancelOutcome::NoRun);
}

fn resume(owner: &capstan::domain::ids::UserId, id: &RunId) -> ResumeRun {
    resume_request(owner, id, ResumeKind::Resume)
}

async fn a_waiting_run_is_woken(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let release = Change::Release { after_ms: Some(LONG), cause: ReleaseCause::Waiting };
    let wait = vec![Change::SetStatus(RunStatus::Waiting, Some(WaitReason::Backoff)), release];
    world.commit_one(changes(&fence, wait)).await.unwrap();
    let ResumeOutcome::Run { run, .. } = fresh(world.store.resume_run(resume(&owner, &fence.run_id), None).await.unwrap()) else {
        panic!("it goes on")
    };
    assert_eq!(run.id, fence.run_id);
    let claims = world.claim(10).await;
    assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Request));
}

async fn a_failed_run_is_continued_by_a_new_one(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let id = fence.conversation_id.clone();
    let answer = assistant(&fence, "half");
    world.commit_one(changes(&fence, vec![Change::AddMessage(answer.clone())])).await.unwrap();
    world.commit_one(failed(&fence)).await.unwrap();
    let request = resume(&owner, &fence.run_id);
    let resumed = fresh(world.store.resume_run(request.clone(), key(&owner, "k", "f")).await.unwrap());
    let ResumeOutcome::Run { run, events } = resumed else { panic!("it goes on: {resumed:?}") };
    assert_eq!((&run.id, run.status, run.attempt), (&request.new_run_id, RunStatus::Queued, 0));
    assert_eq!(events.iter().map(|event| event.kind.as_ref()).collect::<Vec<_>>(), ["run.queued", "conversation.updated"]);
    assert_eq!(world.log(&owner, &id).await.last(), events.last());
    assert_eq!(world.view(&owner, &run.id).await.first_seq, events[0].seq);
    assert_eq!(world.status(&owner, &id).await, "queued");
    let old = world.view(&owner, &fence.run_id).await.run;
    assert_eq!(old.status, RunStatus::Failed, "an ended run does not change");
    let again = world.store.resume_run(resume(&owner, &fence.run_id), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(again, IdempotentOutcome::Replayed(ResumeOutcome::Run { run: run.clone(), events: Vec::new() }));
    let claim = world.claim(1).await.remove(0);
    assert_eq!(claim.trace, Some(request.trace), "the new run belongs to the trace of its request");
    let next = claim.fence;
    assert_eq!(next.run_id, run.id);
    let record = world.load(&next).await;
    assert_eq!((record.cause, record.attempt, record.history.len()), (ClaimCause::First, 1, 2));
    assert_eq!(record.history[1], answer);
}

async fn run_that_cannot_be_resumed_is_refused(world: &World) {
    let owner = user();
    let refused = |resumed: IdempotentOutcome<ResumeOutcome>| match fresh(resumed) {
        ResumeOutcome::NotResumable { run } => run,
        other @ (ResumeOutcome::Run { .. } | ResumeOutcome::TakenBack | ResumeOutcome::TooManyRuns | ResumeOutcome::NoRun) => {
            panic!("expected a refusal: {other:?}")
        }
    };
    let queued = world.run(&owner).await.run;
    assert_eq!(refused(world.store.resume_run(resume(&owner, &queued.id), None).await.unwrap()), queued);
    let fence = world.claim_one().await;
    world.commit_one(completed(&fence)).await.unwrap();
    refused(world.store.resume_run(resume(&owner, &queued.id), None).await.unwrap());
    // A failed run cannot be resumed while a later run is under way.
    let fence = world.claimed(&owner).await;
    world.accept(hello(&owner, &fence.conversation_id)).await;
    world.commit_one(failed(&fence)).await.unwrap();
    assert_eq!(world.status(&owner, &fence.conversation_id).await, "queued", "the next run sets the status");
    refused(world.store.resume_run(resume(&owner, &fence.run_id), key(&owner, "k", "f")).await.unwrap());
    let next = world.claim_one().await;
    world.commit_one(failed(&next)).await.unwrap();
    // It cannot be resumed after a later run has ended either.
    let old = refused(world.store.resume_run(resume(&owner, &fence.run_id), None).await.unwrap());
    assert_eq!(old.id, fence.run_id);
    let newest = world.store.resume_run(resume(&owner, &next.run_id), key(&owner, "k", "f")).await.unwrap();
    let ResumeOutcome::Run { run, .. } = fresh(newest) else { panic!("a refusal keeps no key") };
    assert_eq!(world.claim_one().await.run_id, run.id);
    // A run can be resumed once only.
    refused(world.store.resume_run(resume(&owner, &next.run_id), None).await.unwrap());
    let missing = world.store.resume_run(resume(&owner, &RunId::generate(&UuidIds)), None).await.unwrap();
    assert_eq!(fresh(missing), ResumeOutcome::NoRun);
}

async fn why_a_run_does_not_move(world: &World) {
    let (owner, id) = (user(), conversation());
    let active = world.accept(hello(&owner, &id)).await;
    let behind = world.accept(hello(&owner, &id)).await;
    let second = world.run(&owner).await;
    let explain = |id: RunId| {
        let owner = owner.clone();
        async move { world.store.explain_run(&owner, &id).await.unwrap().unwrap() }
    };

    let first = explain(active.run.id.clone()).await;
    assert_eq!((first.queue_position, first.behind_run, first.lease_node, first.crashes), (Some(0), None, None, 0));
    assert!(first.claimable_in_ms.unwrap() <= 0);
    assert_eq!(explain(second.run.id.clone()).await.queue_position, Some(1));
    let waits = explain(behind.run.id.clone()).await;
    assert_eq!((waits.queue_position, waits.claimable_in_ms), (None, None));
    assert_eq!(waits.behind_run.as_ref(), Some(&active.run.id));

    let fence = world.claim(1).await.remove(0).fence;
    assert_eq!(fence.run_id, active.run.id);
    let message = assistant(&fence, "calls");
    let calls = vec![planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1)];
    let work = vec![
        Change::StartStep { step: 1, kind: StepKind::Model, request: None },
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(message),
        Change::AddToolCalls(calls.clone()),
        Change::StartCall(calls[1].id.clone()),
    ];
    world.commit_one(changes(&fence, work)).await.unwrap();
    cancel(world, &owner, &fence.run_id).await;
    let works = explain(fence.run_id.clone()).await;
    assert_eq!(works.lease_node.as_ref(), Some(&world.node));
    assert!(works.lease_expires_in_ms.unwrap() > 0 && works.lease_age_ms.unwrap() >= 0);
    assert_eq!((works.queue_position, works.claimable_in_ms), (None, None));
    let (step, kind, status, age) = works.step.unwrap();
    assert_eq!((step, kind.as_str(), status.as_str()), (2, "tools", "started"));
    assert!(age >= 0);
    assert_eq!(works.tools_under_way, ["files__read"]);
    assert_eq!(works.cancel_requested_by.as_deref(), Some("user"));
    assert_eq!(world.store.run_counts().await.unwrap(), [("queued".to_owned(), 3)]);

    // A run that waits for its timer is not in the queue yet. A step's age counts from its end.
    let fence = world.claim(1).await.remove(0).fence;
    let step = [
        changes(&fence, vec![Change::StartStep { step: 1, kind: StepKind::Model, request: None }]),
        changes(&fence, vec![Change::EndStep { step: 1, status: StepStatus::Completed, usage: None }]),
        released(&fence, Some(LONG), ReleaseCause::Waiting),
    ];
    for write in step {
        world.commit_one(write).await.unwrap();
    }
    let columns = "UPDATE run_steps SET started_at = started_at - 3600000 WHERE run_id";
    world.database.rows(&format!("{columns} = '{}'", fence.run_id)).await;
    let later = explain(fence.run_id.clone()).await;
    assert_eq!((later.queue_position, later.claimable_in_ms.is_some_and(|wait| wait > 0)), (None, true));
    let (.., age) = later.step.unwrap();
    assert!((0..60_000).contains(&age), "{age}");
}
