//! Questions to a human: asked by a run's write, answered once, and closed with their run.

use capstan::domain::change::{Change, ReleaseCause};
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{CallId, InputId, UserId};
use capstan::domain::input::{InputAnswer, InputChoice, InputKind, InputRequest, InputState, Question};
use capstan::domain::record::{ClaimCause, Fence, RunWrite};
use capstan::domain::run::{RunStatus, WaitReason};
use capstan::domain::trace::TraceId;
use capstan::store::{Keyed, ResolveInput, Resolved, ResumeRun, Resumed};
use capstan::support::ids::UuidIds;

use super::fixture::{LONG, NOW, World, changes, fresh, key, released, started, user};

contract! {
    an_answer_wakes_the_run_once,
    an_answer_before_the_wait_is_not_forgotten,
    a_question_is_its_owners_alone,
    a_run_that_waits_for_an_answer_is_not_resumed_by_hand,
    ;
    a_closed_question_takes_no_answer,
    a_question_goes_with_its_conversation,
}

fn request(fence: &Fence) -> InputRequest {
    InputRequest {
        id: InputId::generate(&UuidIds),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        call_id: Some(CallId::generate(&UuidIds)),
        kind: InputKind::UnknownOutcome,
        question: Question {
            text: "Did it \u{1F600}?".to_owned(),
            choices: vec![InputChoice { value: "yes".to_owned(), label: "Yes".to_owned() }],
            tool: Some("files__write".to_owned()),
            arguments: Some(serde_json::json!({"a": [1]})),
        },
        state: InputState::Pending,
        answer: None,
    }
}

fn asks(request: &InputRequest) -> Vec<Change> {
    vec![Change::AskInput(request.clone())]
}

fn waits(fence: &Fence) -> RunWrite {
    let status = Change::Status(RunStatus::Waiting, Some(WaitReason::Input));
    let release = Change::Release { after_ms: None, cause: ReleaseCause::Waiting };
    changes(fence, vec![status, release])
}

fn answer(owner: &UserId, id: &InputId) -> ResolveInput {
    let answer = InputAnswer { choice: "yes".to_owned(), text: Some("I \"looked\"".to_owned()) };
    ResolveInput { owner: owner.clone(), id: id.clone(), answer, now: NOW }
}

/// A run that waits for the answer to a question.
async fn waiting(world: &World, owner: &UserId) -> (Fence, InputRequest) {
    let fence = world.claimed(owner).await;
    let asked = request(&fence);
    world.commit_one(started(&fence)).await.unwrap();
    world.commit_one(changes(&fence, asks(&asked))).await.unwrap();
    assert_eq!(world.load(&fence).await.inputs, std::slice::from_ref(&asked));
    world.commit_one(waits(&fence)).await.unwrap();
    assert_eq!(world.claim(10).await, []);
    (fence, asked)
}

async fn an_answer_wakes_the_run_once(world: &World) {
    let owner = user();
    let (fence, asked) = waiting(world, &owner).await;
    let explained = world.store.explain_run(&owner, &fence.run_id).await.unwrap().unwrap();
    assert_eq!(explained.questions, [(asked.id.clone(), asked.question.text.clone())]);
    let before = world.log(&fence.conversation_id).await;

    let first = world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "f")).await.unwrap();
    let Resolved::Answered { record, events } = fresh(first) else { panic!("it was answered") };
    let given = answer(&owner, &asked.id).answer;
    let answered = InputRequest { state: InputState::Answered, answer: Some(given.clone()), ..asked.clone() };
    assert_eq!((&record.request, record.resolved_by.as_deref()), (&answered, Some(owner.as_str())));
    assert!(record.resolved_at.is_some() && record.expires_at.is_none());
    let resolved = EventBody::InputResolved {
        id: asked.id.clone(),
        state: InputState::Answered,
        answer: Some(given),
        by: Some(owner.clone()),
    };
    assert_eq!(events[0].data, NewEvent::new(&resolved, None, 0, NOW).data);
    assert_eq!((events[0].run_id.as_ref(), events[0].attempt), (Some(&fence.run_id), 1));
    assert_eq!(world.log(&fence.conversation_id).await, [before, events].concat());

    // The same request again, another request with the key, and another answer.
    let again = world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(again, Keyed::Replayed(Resolved::Answered { record: record.clone(), events: Vec::new() }));
    let other = world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "other")).await.unwrap();
    assert_eq!(other, Keyed::Mismatch);
    let second = world.store.resolve_input(answer(&owner, &asked.id), None).await.unwrap();
    assert_eq!(fresh(second), Resolved::Closed { record: record.clone() });

    let claims = world.claim(10).await;
    assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Request));
    let next = &claims[0].fence;
    assert_eq!(world.load(next).await.inputs, [answered]);
    let applied = Change::InputClosed { id: asked.id.clone(), state: InputState::Applied };
    world.commit_one(changes(next, vec![applied])).await.unwrap();
    assert_eq!(world.load(next).await.inputs, []);
    let kept = world.store.input_request(&owner, &asked.id).await.unwrap().unwrap();
    assert_eq!((kept.request.state, &kept.request.answer), (InputState::Applied, &record.request.answer));
    assert_eq!(kept.resolved_at, record.resolved_at);
}

async fn an_answer_before_the_wait_is_not_forgotten(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let asked = request(&fence);
    // In one batch, as the log writer may put them.
    let writes = [started(&fence), changes(&fence, asks(&asked))];
    assert!(world.commit_all(&writes).await.iter().all(Result::is_ok));
    let resolved = world.store.resolve_input(answer(&owner, &asked.id), None).await.unwrap();
    assert!(matches!(fresh(resolved), Resolved::Answered { .. }));
    assert_eq!(world.claim(10).await, [], "its worker has it");
    // Another wait than that for the answer is not cut short.
    world.commit_one(waits(&fence)).await.unwrap();
    let next = world.claim_one().await;
    let status = Change::Status(RunStatus::Waiting, Some(WaitReason::Backoff));
    let release = Change::Release { after_ms: Some(LONG), cause: ReleaseCause::Waiting };
    world.commit_one(changes(&next, vec![status, release])).await.unwrap();
    assert_eq!(world.claim(10).await, []);
}

async fn a_closed_question_takes_no_answer(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let (first, second) = (request(&fence), request(&fence));
    let close = |request: &InputRequest| Change::InputClosed { id: request.id.clone(), state: InputState::Cancelled };
    // Asked and closed in one batch, and in two.
    let writes = [changes(&fence, [asks(&first), asks(&second)].concat()), changes(&fence, vec![close(&first)])];
    assert!(world.commit_all(&writes).await.iter().all(Result::is_ok));
    world.commit_one(changes(&fence, vec![close(&second)])).await.unwrap();
    for asked in [first, second] {
        let refused = fresh(world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "f")).await.unwrap());
        let Resolved::Closed { record } = refused else { panic!("it is closed: {refused:?}") };
        assert_eq!(record.request.state, InputState::Cancelled);
    }
    let late = request(&fence);
    world.commit_one(changes(&fence, asks(&late))).await.unwrap();
    world.database.rows(&format!("UPDATE input_requests SET expires_at = 5 WHERE id = '{}'", late.id)).await;
    let refused = fresh(world.store.resolve_input(answer(&owner, &late.id), None).await.unwrap());
    let Resolved::Closed { record } = refused else { panic!("its time is over: {refused:?}") };
    assert_eq!(record.expires_at.as_deref(), Some("1970-01-01T00:00:00.005Z"));
}

async fn a_question_is_its_owners_alone(world: &World) {
    let (owner, other) = (user(), user());
    let (_, asked) = waiting(world, &owner).await;
    assert_eq!(world.store.input_request(&other, &asked.id).await.unwrap(), None);
    for (who, id) in [(&other, &asked.id), (&owner, &InputId::generate(&UuidIds))] {
        let refused = world.store.resolve_input(answer(who, id), None).await.unwrap();
        assert_eq!(fresh(refused), Resolved::NoRequest);
    }
    assert_eq!(world.claim(10).await, []);
    let kept = world.store.input_request(&owner, &asked.id).await.unwrap().unwrap();
    assert_eq!(kept.request, asked);
}

async fn a_run_that_waits_for_an_answer_is_not_resumed_by_hand(world: &World) {
    let owner = user();
    let (fence, _) = waiting(world, &owner).await;
    let resume = ResumeRun {
        owner: owner.clone(),
        run_id: fence.run_id.clone(),
        new_run_id: capstan::domain::ids::RunId::generate(&UuidIds),
        trace: TraceId::generate(&UuidIds),
        now: NOW,
    };
    let resumed = fresh(world.store.resume_run(resume, None).await.unwrap());
    assert!(matches!(&resumed, Resumed::NotResumable { run } if run.reason == Some(WaitReason::Input)), "{resumed:?}");
    assert_eq!(world.claim(10).await, []);
    // To cancel it is another thing.
    world.store.cancel_run(&owner, &fence.run_id, "user", NOW, None).await.unwrap();
    let next = world.claim_one().await;
    world.commit_one(released(&next, Some(0), ReleaseCause::Drain)).await.unwrap();
}

async fn a_question_goes_with_its_conversation(world: &World) {
    let owner = user();
    let (fence, asked) = waiting(world, &owner).await;
    world.store.delete_conversation(&owner, &fence.conversation_id).await.unwrap().unwrap();
    assert_eq!(world.store.input_request(&owner, &asked.id).await.unwrap(), None);
    assert_eq!(world.database.count("SELECT CAST(count(*) AS text) FROM input_requests").await, 0);
}
