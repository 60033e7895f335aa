//! Questions: a write of the run asks, one answer resolves, and the end of the run closes.

use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{CallId, ConversationId, GrantId, InputId, UserId};
use capstan::domain::run::change::{Change, ReleaseCause};
use capstan::domain::run::question::{InputAnswer, InputChoice, InputKind, InputRecord, InputRequest, InputState, Question};
use capstan::domain::run::record::{ClaimCause, Fence, RunWrite};
use capstan::domain::run::{RunStatus, WaitReason};
use capstan::domain::tool::approval::ApprovalScope;
use capstan::store::{
    CancelRun, IdempotentOutcome, InputFilter, NewGrant, PageRequest, QuestionFilterKind, ResolveInput, ResolveOutcome, ResumeKind,
    ResumeOutcome, ToolResults, ToolResultsOutcome,
};
use capstan::support::ids::UuidIds;

use super::fixture::{LONG, NOW, World, changes, fresh, key, released, resume_request, started, user};

contract! {
    an_answer_wakes_the_run_once,
    an_answer_before_the_wait_is_not_forgotten,
    a_question_is_its_owners_alone,
    a_run_that_waits_for_an_answer_is_not_resumed_by_hand,
    a_question_is_open_for_a_time,
    a_run_wakes_when_its_first_question_expires,
    questions_are_listed_page_by_page,
    an_approval_may_hold_for_later_calls,
    ;
    a_closed_question_takes_no_answer,
    an_answer_is_forgotten_by_the_next_claim,
    late_question_is_closed_with_its_run,
    a_question_goes_with_its_conversation,
    results_are_new_until_the_run_applies_them,
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
            ..Question::default()
        },
        state: InputState::Pending,
        answer: None,
        expires_in_ms: None,
    }
}

fn filter(owner: &UserId, kind: QuestionFilterKind, state: Option<InputState>) -> InputFilter<'_> {
    InputFilter { owner, kind, state, conversation: None }
}

fn asks(request: &InputRequest) -> Vec<Change> {
    vec![Change::RequestInput(request.clone())]
}

fn waits(fence: &Fence) -> RunWrite {
    let status = Change::SetStatus(RunStatus::Waiting, Some(WaitReason::Input));
    let release = Change::Release { after_ms: None, cause: ReleaseCause::Waiting };
    changes(fence, vec![status, release])
}

fn answer(owner: &UserId, id: &InputId) -> ResolveInput {
    let answer = InputAnswer::new("yes", Some("I \"looked\"".to_owned()));
    ResolveInput { owner: owner.clone(), id: id.clone(), answer, grant: None, now: NOW }
}

/// Starts a run that waits for the answer to a question.
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
    assert_eq!(explained.questions, [(asked.id.clone(), asked.kind, asked.question.text.clone())]);
    let before = world.log(&owner, &fence.conversation_id).await;

    let first = world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "f")).await.unwrap();
    let ResolveOutcome::Answered { record, events } = fresh(first) else { panic!("it was answered") };
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
    assert_eq!(world.log(&owner, &fence.conversation_id).await, [before, events].concat());

    // The repeated request, another request with the key, and another answer.
    let again = world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(again, IdempotentOutcome::Replayed(ResolveOutcome::Answered { record: record.clone(), events: Vec::new() }));
    let other = world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "other")).await.unwrap();
    assert_eq!(other, IdempotentOutcome::Mismatch);
    let second = world.store.resolve_input(answer(&owner, &asked.id), None).await.unwrap();
    assert_eq!(fresh(second), ResolveOutcome::Closed { record: record.clone() });

    let claims = world.claim(10).await;
    assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Request));
    let next = &claims[0].fence;
    assert_eq!(world.load(next).await.inputs, [answered]);
    let applied = Change::CloseInput { id: asked.id.clone(), state: InputState::Applied };
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
    // In one batch, as the log writer may combine them.
    let writes = [started(&fence), changes(&fence, asks(&asked))];
    assert!(world.commit_all(&writes).await.iter().all(Result::is_ok));
    let resolved = world.store.resolve_input(answer(&owner, &asked.id), None).await.unwrap();
    assert!(matches!(fresh(resolved), ResolveOutcome::Answered { .. }));
    assert_eq!(world.claim(10).await, [], "its worker has it");
    // The answer does not end a later wait for something else.
    world.commit_one(waits(&fence)).await.unwrap();
    let next = world.claim_one().await;
    let status = Change::SetStatus(RunStatus::Waiting, Some(WaitReason::Backoff));
    let release = Change::Release { after_ms: Some(LONG), cause: ReleaseCause::Waiting };
    world.commit_one(changes(&next, vec![status, release])).await.unwrap();
    assert_eq!(world.claim(10).await, []);
}

async fn a_closed_question_takes_no_answer(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let (first, second) = (request(&fence), request(&fence));
    let close = |request: &InputRequest| Change::CloseInput { id: request.id.clone(), state: InputState::Cancelled };
    // Asked and closed in one batch, and in two.
    let writes = [changes(&fence, [asks(&first), asks(&second)].concat()), changes(&fence, vec![close(&first)])];
    assert!(world.commit_all(&writes).await.iter().all(Result::is_ok));
    world.commit_one(changes(&fence, vec![close(&second)])).await.unwrap();
    for asked in [first, second] {
        let refused = fresh(world.store.resolve_input(answer(&owner, &asked.id), key(&owner, "k", "f")).await.unwrap());
        let ResolveOutcome::Closed { record } = refused else { panic!("it is closed: {refused:?}") };
        assert_eq!(record.request.state, InputState::Cancelled);
    }
    let late = request(&fence);
    world.commit_one(changes(&fence, asks(&late))).await.unwrap();
    world.database.rows(&format!("UPDATE input_requests SET expires_at = 5 WHERE id = '{}'", late.id)).await;
    let refused = fresh(world.store.resolve_input(answer(&owner, &late.id), None).await.unwrap());
    let ResolveOutcome::Closed { record } = refused else { panic!("its time is over: {refused:?}") };
    assert_eq!(record.expires_at.as_deref(), Some("1970-01-01T00:00:00.005Z"));
}

/// An MCP server may ask while its run is being cancelled, unknown to the worker that ends the run.
async fn late_question_is_closed_with_its_run(world: &World) {
    let owner = user();
    let (fence, other) = (world.claimed(&owner).await, world.claimed(&owner).await);
    let (before, within, elsewhere) = (request(&fence), request(&fence), request(&other));
    let given = request(&fence);
    world.commit_one(changes(&other, asks(&elsewhere))).await.unwrap();
    world.commit_one(changes(&fence, [asks(&given), asks(&before)].concat())).await.unwrap();
    fresh(world.store.resolve_input(answer(&owner, &given.id), None).await.unwrap());
    // One of them is asked in the same batch as the end.
    let ends = Change::Finish { status: RunStatus::Cancelled, finish_reason: None, error: None, joined: None };
    let writes = [changes(&fence, asks(&within)), changes(&fence, vec![ends])];
    assert!(world.commit_all(&writes).await.iter().all(Result::is_ok));
    for (asked, state) in [
        (&before, InputState::Cancelled),
        (&within, InputState::Cancelled),
        (&given, InputState::Answered),
        (&elsewhere, InputState::Pending),
    ] {
        let kept = world.store.input_request(&owner, &asked.id).await.unwrap().unwrap();
        assert_eq!(kept.request.state, state);
        assert_eq!(kept.resolved_at.is_some(), state != InputState::Pending);
    }
    let page = PageRequest { after: None, limit: 10 };
    let open =
        world.store.input_requests(filter(&owner, QuestionFilterKind::Questions, Some(InputState::Pending)), &page).await.unwrap();
    assert_eq!(open.items.iter().map(|record| &record.request.id).collect::<Vec<_>>(), [&elsewhere.id]);
}

/// An answer that arrived under an earlier claim and was loaded by the next one does not end a later wait.
async fn an_answer_is_forgotten_by_the_next_claim(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let asked = request(&fence);
    world.commit_all(&[started(&fence), changes(&fence, asks(&asked))]).await;
    world.store.resolve_input(answer(&owner, &asked.id), None).await.unwrap();
    world.store.give_up_leases(std::slice::from_ref(&fence)).await.unwrap();
    let next = world.claim_one().await;
    let applied = Change::CloseInput { id: asked.id.clone(), state: InputState::Applied };
    let again = request(&next);
    world.commit_one(changes(&next, [vec![applied], asks(&again)].concat())).await.unwrap();
    world.commit_one(waits(&next)).await.unwrap();
    assert_eq!(world.claim(10).await, [], "the second question has no answer");
}

async fn a_question_is_open_for_a_time(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let (over, open) =
        (InputRequest { expires_in_ms: Some(0), ..request(&fence) }, InputRequest { expires_in_ms: Some(LONG), ..request(&fence) });
    world.commit_all(&[started(&fence), changes(&fence, [asks(&over), asks(&open)].concat())]).await;
    let loaded = world.load(&fence).await.inputs;
    let left = |id: &InputId| loaded.iter().find(|asked| asked.id == *id).unwrap().expires_in_ms;
    assert_eq!(left(&over.id), Some(0));
    assert!(left(&open.id).is_some_and(|left| left > LONG / 2 && left <= LONG), "{loaded:?}");
    let refused = fresh(world.store.resolve_input(answer(&owner, &over.id), None).await.unwrap());
    let ResolveOutcome::Closed { record } = refused else { panic!("its time is over: {refused:?}") };
    assert!(record.expires_at.is_some());
    let close = Change::CloseInput { id: over.id.clone(), state: InputState::Expired };
    world.commit_one(changes(&fence, vec![close])).await.unwrap();
    assert_eq!(world.load(&fence).await.inputs.len(), 1);
    let kept = world.store.input_request(&owner, &over.id).await.unwrap().unwrap();
    assert_eq!((kept.request.state, kept.request.answer), (InputState::Expired, None));
    let answered = fresh(world.store.resolve_input(answer(&owner, &open.id), None).await.unwrap());
    assert!(matches!(answered, ResolveOutcome::Answered { .. }));
}

/// The run wakes at the expiry, however long before the wait it was asked.
async fn a_run_wakes_when_its_first_question_expires(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let expires = |left: u64| InputRequest { expires_in_ms: Some(left), ..request(&fence) };
    let asked = [expires(LONG / 2), expires(LONG), request(&fence), expires(1)];
    world.commit_one(started(&fence)).await.unwrap();
    world.commit_one(changes(&fence, asked.iter().flat_map(asks).collect())).await.unwrap();
    let status = Change::SetStatus(RunStatus::Waiting, Some(WaitReason::Input));
    let release = Change::Release { after_ms: Some(LONG * 2), cause: ReleaseCause::Waiting };
    let over = Change::CloseInput { id: asked[3].id.clone(), state: InputState::Expired };
    world.commit_one(changes(&fence, vec![over, status, release])).await.unwrap();
    let wakes = world.store.explain_run(&owner, &fence.run_id).await.unwrap().unwrap().claimable_in_ms.unwrap();
    assert!((1..=i64::try_from(LONG / 2).unwrap()).contains(&wakes), "{wakes}");
}

async fn questions_are_listed_page_by_page(world: &World) {
    let (owner, other) = (user(), user());
    let fence = world.claimed(&owner).await;
    let mut asked: Vec<InputRequest> = (0..5).map(|_| request(&fence)).collect();
    world.commit_one(started(&fence)).await.unwrap();
    world.commit_one(changes(&fence, asked.iter().flat_map(asks).collect())).await.unwrap();
    world.store.resolve_input(answer(&owner, &asked[2].id), None).await.unwrap();
    // With equal times, by id, newest first.
    asked.sort_by(|one, another| another.id.cmp(&one.id));
    let ids = |records: &[InputRecord]| records.iter().map(|record| record.request.id.clone()).collect::<Vec<_>>();
    let wanted: Vec<InputId> = asked.iter().map(|asked| asked.id.clone()).collect();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = world
            .store
            .input_requests(filter(&owner, QuestionFilterKind::Questions, None), &PageRequest { limit: 2, after })
            .await
            .unwrap();
        seen.extend(ids(&page.items));
        after = match page.next {
            Some(next) => Some(next.parse().unwrap()),
            None => break,
        };
    }
    assert_eq!(seen, wanted);
    let all = PageRequest { limit: 10, after: None };
    let pending =
        world.store.input_requests(filter(&owner, QuestionFilterKind::Questions, Some(InputState::Pending)), &all).await.unwrap();
    assert_eq!((pending.items.len(), pending.next), (4, None));
    let answered = world
        .store
        .input_requests(filter(&owner, QuestionFilterKind::Questions, Some(InputState::Answered)), &all)
        .await
        .unwrap()
        .items;
    assert_eq!((answered.len(), answered[0].resolved_by.as_deref()), (1, Some(owner.as_str())));
    assert_eq!(world.store.input_requests(filter(&other, QuestionFilterKind::Questions, None), &all).await.unwrap().items, []);
}

async fn a_question_is_its_owners_alone(world: &World) {
    let (owner, other) = (user(), user());
    let (_, asked) = waiting(world, &owner).await;
    assert_eq!(world.store.input_request(&other, &asked.id).await.unwrap(), None);
    for (who, id) in [(&other, &asked.id), (&owner, &InputId::generate(&UuidIds))] {
        let refused = world.store.resolve_input(answer(who, id), None).await.unwrap();
        assert_eq!(fresh(refused), ResolveOutcome::NoRequest);
    }
    assert_eq!(world.claim(10).await, []);
    let kept = world.store.input_request(&owner, &asked.id).await.unwrap().unwrap();
    assert_eq!(kept.request, asked);
}

async fn a_run_that_waits_for_an_answer_is_not_resumed_by_hand(world: &World) {
    let owner = user();
    let (fence, _) = waiting(world, &owner).await;
    let resume = resume_request(&owner, &fence.run_id, ResumeKind::Resume);
    let resumed = fresh(world.store.resume_run(resume, None).await.unwrap());
    assert!(matches!(&resumed, ResumeOutcome::NotResumable { run } if run.reason == Some(WaitReason::Input)), "{resumed:?}");
    assert_eq!(world.claim(10).await, []);
    // Cancelling the run is possible.
    world.store.cancel_run(CancelRun { owner: &owner, id: &fence.run_id, by: "user", now: NOW }, None).await.unwrap();
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

async fn an_approval_may_hold_for_later_calls(world: &World) {
    let (owner, other) = (user(), user());
    let fence = world.claimed(&owner).await;
    world.commit_one(started(&fence)).await.unwrap();
    let asked: Vec<_> = (0..3).map(|_| InputRequest { kind: InputKind::Approval, ..request(&fence) }).collect();
    world.commit_one(changes(&fence, asked.iter().flat_map(asks).collect())).await.unwrap();
    let all = PageRequest { limit: 10, after: None };
    let found = world.store.input_requests(filter(&owner, QuestionFilterKind::Approvals, None), &all).await.unwrap();
    assert_eq!(found.items.len(), 3);
    assert_eq!(world.store.input_requests(filter(&owner, QuestionFilterKind::Questions, None), &all).await.unwrap().items, []);

    let grant = |conversation: Option<&ConversationId>| NewGrant {
        id: GrantId::generate(&UuidIds),
        conversation: conversation.cloned(),
        server: Some("files".to_owned()),
        tool: "write".to_owned(),
        definition_hash: "h".to_owned(),
    };
    let given = [grant(Some(&fence.conversation_id)), grant(None), grant(None)];
    for (asked, grant) in asked.iter().zip(given.clone()) {
        let allow = InputAnswer { scope: Some(ApprovalScope::Always), ..InputAnswer::new("allow", None) };
        let resolve = ResolveInput { answer: allow, grant: Some(grant), ..answer(&owner, &asked.id) };
        let ResolveOutcome::Answered { events, .. } = fresh(world.store.resolve_input(resolve, None).await.unwrap()) else {
            panic!("it was answered")
        };
        assert_eq!(events[0].kind, "approval.resolved");
    }
    let here = world.store.tool_grants(&owner, Some(&fence.conversation_id)).await.unwrap();
    assert_eq!(here.len(), 2, "a repeated grant changes nothing: {here:?}");
    assert!(here.iter().all(|grant| grant.covers(Some("files"), "write", "h") && !grant.covers(None, "write", "h")));
    let elsewhere = world.store.tool_grants(&owner, Some(&ConversationId::generate(&UuidIds))).await.unwrap();
    assert_eq!(elsewhere.iter().map(|grant| &grant.id).collect::<Vec<_>>(), [&given[1].id]);
    assert_eq!(world.store.tool_grants(&other, None).await.unwrap(), []);
    assert!(!world.store.delete_tool_grant(&other, &given[1].id).await.unwrap());
    assert!(world.store.delete_tool_grant(&owner, &given[1].id).await.unwrap());
    assert_eq!(world.store.tool_grants(&owner, None).await.unwrap().len(), 1);
}

async fn results_are_new_until_the_run_applies_them(world: &World) {
    let (owner, stranger) = (user(), user());
    let fence = world.claimed(&owner).await;
    let asked = InputRequest { kind: InputKind::ClientTool, ..request(&fence) };
    world.commit_one(started(&fence)).await.unwrap();
    world.commit_one(changes(&fence, asks(&asked))).await.unwrap();
    world.commit_one(waits(&fence)).await.unwrap();
    let is_new = async |of: &UserId| world.store.has_new_results(of, &fence.run_id).await.unwrap();
    assert!(!is_new(&owner).await);
    let results = vec![(asked.call_id.clone().unwrap(), InputAnswer::new("result", None))];
    let results = ToolResults { owner: owner.clone(), run_id: fence.run_id.clone(), results };
    assert_eq!(fresh(world.store.store_tool_results(results, None).await.unwrap()), ToolResultsOutcome::Stored);
    assert_eq!((is_new(&owner).await, is_new(&stranger).await), (true, false));
    let next = world.claim(10).await.remove(0).fence;
    assert!(is_new(&owner).await, "the worker has not applied them");
    let applied = Change::CloseInput { id: asked.id.clone(), state: InputState::Applied };
    world.commit_one(changes(&next, vec![applied])).await.unwrap();
    assert!(!is_new(&owner).await);
}
