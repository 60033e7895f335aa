//! The audit row of each tool call.

use capstan::domain::access::audit::{AuditOutcome, AuditRecord};
use capstan::domain::conversation::message::{BinaryContent, Part, ToolCallPart, ToolContent};
use capstan::domain::ids::{CallId, GrantId, InputId, PartId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::run::question::{InputAnswer, InputKind, InputRequest, InputState, Question};
use capstan::domain::run::record::Fence;
use capstan::domain::tool::call_record::ToolCallRecord;
use capstan::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use capstan::store::{AuditFilter, Page, ResolveInput, ResolveOutcome};
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::*;
use super::load::tools;

contract! {
    ;
    each_end_is_written_once_with_its_outcome,
    audit_names_approver_of_calls_with_unknown_outcome,
    audit_outlives_the_conversation_and_is_purged_by_age,
    pages_and_filters,
    a_call_is_read_whole_by_its_owner,
}

/// Longer than a test takes.
const EARLIER_MS: u64 = 20_000_000;

/// Starts a run with `count` calls.
async fn calls(world: &World, owner: &UserId, count: u32) -> (Fence, Vec<ToolCall>) {
    let fence = world.claimed(owner).await;
    let message = assistant(&fence, "calls");
    let calls: Vec<ToolCall> = (0..count).map(|position| planned_call(&fence, &message.id, position)).collect();
    let add = vec![Change::AddMessage(message), Change::AddToolCalls(calls.clone())];
    world.commit_one(changes(&fence, add)).await.unwrap();
    (fence, calls)
}

fn ended(state: ToolCallState, duration_ms: u64) -> ToolOutcome {
    ToolOutcome { state, content: vec![ToolContent::text("x")], is_error: false, duration_ms }
}

fn of(owner: &UserId) -> AuditFilter {
    AuditFilter { owner: Some(owner.clone()), ..AuditFilter::default() }
}

async fn all(world: &World, filter: &AuditFilter) -> Vec<AuditRecord> {
    world.store.tool_audit(filter, &page(100, None)).await.unwrap().items
}

/// Stores a question about a call, and its answer if there is a choice.
async fn asked(world: &World, fence: &Fence, call: &ToolCall, kind: InputKind, choice: Option<&str>) {
    let question = Question {
        text: "Well?".to_owned(),
        choices: Vec::new(),
        tool: None,
        arguments: None,
        form: None,
        elicitation: None,
        approval: None,
    };
    let request = InputRequest {
        id: InputId::generate(&UuidIds),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        call_id: Some(call.id.clone()),
        kind,
        question,
        state: InputState::Pending,
        answer: None,
        expires_in_ms: None,
    };
    let id = request.id.clone();
    let mut ask = vec![Change::RequestInput(request)];
    if kind == InputKind::Approval {
        ask.push(Change::RequestApproval(call.id.clone()));
    }
    world.commit_one(changes(fence, ask)).await.unwrap();
    if let Some(choice) = choice {
        let owner = world.owner_of(&fence.conversation_id).await;
        let answer = InputAnswer::new(choice, Some("since I \"say\" so".to_owned()));
        let resolve = ResolveInput { owner, id, answer, grant: None, now: NOW };
        let resolved = fresh(world.store.resolve_input(resolve, None).await.unwrap());
        assert!(matches!(resolved, ResolveOutcome::Answered { .. }), "{resolved:?}");
    }
}

/// Moves the start of all started calls back.
async fn started_earlier(world: &World) {
    let earlier = format!("UPDATE tool_calls SET started_at = started_at - {EARLIER_MS} WHERE started_at IS NOT NULL");
    world.database.rows(&earlier).await;
}

async fn each_end_is_written_once_with_its_outcome(world: &World) {
    let owner = user();
    let (fence, calls) = calls(world, &owner, 5).await;
    assert_eq!(all(world, &of(&owner)).await, [], "no call has ended");
    let states =
        [ToolCallState::Done, ToolCallState::Failed, ToolCallState::Denied, ToolCallState::Cancelled, ToolCallState::Unknown];
    let (hash, grant) = ("cd".repeat(32), GrantId::generate(&UuidIds));
    for (call, state) in calls.iter().zip(states) {
        let edit = Change::EditCall { id: call.id.clone(), arguments: json!({"edited": true}), hash: hash.clone() };
        let mut several = if state == ToolCallState::Done { vec![edit] } else { Vec::new() };
        // In the write that ends the call, and in an earlier one.
        let granted = Change::GrantCall { id: call.id.clone(), grant: grant.clone() };
        match state {
            ToolCallState::Done => several.push(granted),
            ToolCallState::Unknown => {
                world.commit_one(changes(&fence, vec![granted])).await.unwrap();
            }
            _ => {}
        }
        several.extend([Change::StartCall(call.id.clone()), Change::FinishCall(call.id.clone(), ended(state, 7))]);
        world.commit_one(changes(&fence, several)).await.unwrap();
        let again = Change::FinishCall(call.id.clone(), ended(ToolCallState::Done, 9));
        assert!(world.commit_one(changes(&fence, vec![again])).await.is_err());
    }
    let found = all(world, &of(&owner)).await;
    assert_eq!(found.len(), 5);
    let outcomes = [AuditOutcome::Success, AuditOutcome::Error, AuditOutcome::Denied, AuditOutcome::Skipped, AuditOutcome::Unknown];
    for (call, outcome) in calls.iter().zip(outcomes) {
        let record = found.iter().find(|record| record.call_id == call.id).unwrap();
        let is_granted = matches!(outcome, AuditOutcome::Success | AuditOutcome::Unknown);
        let expected = AuditRecord {
            call_id: call.id.clone(),
            owner_id: owner.clone(),
            run_id: fence.run_id.clone(),
            conversation_id: fence.conversation_id.clone(),
            agent: "default".to_owned(),
            name: "files__read".to_owned(),
            server: Some("files".to_owned()),
            arguments_hash: if outcome == AuditOutcome::Success { hash.clone() } else { call.arguments_hash.clone() },
            outcome,
            decided_by: is_granted.then(|| owner.clone()),
            grant_id: is_granted.then(|| grant.clone()),
            duration_ms: 7,
            at: record.at.clone(),
        };
        assert_eq!(*record, expected);
    }
    // Started and ended in one write.
    let message = assistant(&fence, "more");
    let call = planned_call(&fence, &message.id, 9);
    let call = ToolCall { step: 3, server: None, ..call };
    let made = vec![
        Change::AddMessage(message),
        Change::AddToolCalls(vec![call.clone()]),
        Change::GrantCall { id: call.id.clone(), grant: grant.clone() },
        Change::FinishCall(call.id.clone(), ended(ToolCallState::Failed, 0)),
    ];
    world.commit_one(changes(&fence, made)).await.unwrap();
    let found = all(world, &of(&owner)).await;
    let record = found.iter().find(|record| record.call_id == call.id).unwrap();
    assert_eq!((record.outcome, &record.server, record.name.as_str()), (AuditOutcome::Error, &None, "files__read"));
    assert_eq!((&record.grant_id, &record.decided_by), (&Some(grant), &Some(owner)));
}

async fn audit_names_approver_of_calls_with_unknown_outcome(world: &World) {
    let (owner, first) = (user(), user());
    let (fence, calls) = calls(world, &owner, 4).await;
    asked(world, &fence, &calls[0], InputKind::Approval, Some("allow")).await;
    let start = calls[..3].iter().map(|call| Change::StartCall(call.id.clone()));
    world.commit_one(changes(&fence, start.collect())).await.unwrap();
    started_earlier(world).await;
    // As if another user had allowed it: the row names the user who answered last.
    let by_another = format!("UPDATE input_requests SET resolved_by = '{}', resolved_at = resolved_at - 1000", first.as_str());
    world.database.rows(&by_another).await;
    asked(world, &fence, &calls[0], InputKind::UnknownOutcome, Some("happened")).await;

    let (unmeasured, measured) = (0, 7);
    let ends = [
        (ToolCallState::Done, unmeasured),
        (ToolCallState::Unknown, unmeasured),
        (ToolCallState::Done, measured),
        (ToolCallState::Denied, unmeasured),
    ];
    let ends = calls.iter().zip(ends).map(|(call, (state, ms))| Change::FinishCall(call.id.clone(), ended(state, ms)));
    world.commit_one(changes(&fence, ends.collect())).await.unwrap();
    let found = all(world, &of(&owner)).await;
    let [asked_about, lost, seen, not_made] = [0, 1, 2, 3].map(|at: usize| {
        let record = found.iter().find(|record| record.call_id == calls[at].id).unwrap();
        (record.outcome, record.decided_by.as_ref(), record.duration_ms)
    });
    assert_eq!((asked_about.0, asked_about.1), (AuditOutcome::Success, Some(&owner)));
    assert_eq!((lost.0, lost.1), (AuditOutcome::Unknown, None));
    assert!(asked_about.2 >= EARLIER_MS && lost.2 >= EARLIER_MS, "the duration counts from the start: {found:#?}");
    assert_eq!(seen, (AuditOutcome::Success, None, measured), "the measured duration stays");
    assert_eq!(not_made, (AuditOutcome::Denied, None, 0));
}

async fn audit_outlives_the_conversation_and_is_purged_by_age(world: &World) {
    let owner = user();
    let (fence, calls) = calls(world, &owner, 6).await;
    let write = changes(
        &fence,
        vec![
            Change::StartCall(calls[0].id.clone()),
            Change::FinishCall(calls[0].id.clone(), ended(ToolCallState::Done, 1)),
            Change::StartCall(calls[1].id.clone()),
        ],
    );
    world.commit_one(write).await.unwrap();
    started_earlier(world).await;
    for (call, choice) in [(&calls[2], Some("deny")), (&calls[3], Some("allow")), (&calls[4], None)] {
        asked(world, &fence, call, InputKind::Approval, choice).await;
    }
    world.store.delete_conversation(&owner, &fence.conversation_id).await.unwrap().unwrap();
    let found = all(world, &of(&owner)).await;
    let record_of = |call: &ToolCall| found.iter().find(|record| record.call_id == call.id).unwrap();
    let by_owner = Some(owner.clone());
    let expected = [
        (AuditOutcome::Success, None),
        (AuditOutcome::Unknown, None),
        (AuditOutcome::Denied, by_owner.clone()),
        (AuditOutcome::Skipped, by_owner),
        (AuditOutcome::Skipped, None),
        (AuditOutcome::Skipped, None),
    ];
    let ends = calls.iter().map(|call| (record_of(call).outcome, record_of(call).decided_by.clone()));
    assert_eq!(
        ends.collect::<Vec<_>>(),
        expected,
        "the call under way may have taken effect; no worker has used the answers; the last call has not begun"
    );
    assert!(record_of(&calls[1]).duration_ms >= EARLIER_MS, "the duration counts from the start: {found:#?}");
    assert!(calls[2..].iter().all(|call| record_of(call).duration_ms == 0), "they never ran: {found:#?}");
    assert_eq!(world.store.remove_old_audit(60_000).await.unwrap(), 0, "the rows are recent");
    assert_eq!(world.store.remove_old_audit(0).await.unwrap(), 6);
    assert_eq!(all(world, &of(&owner)).await, []);
}

async fn pages_and_filters(world: &World) {
    let (owner, other) = (user(), user());
    let (fence, of_owner) = calls(world, &owner, 5).await;
    let (theirs, of_other) = calls(world, &other, 1).await;
    for (fence, calls) in [(&fence, &of_owner), (&theirs, &of_other)] {
        for (at, call) in calls.iter().enumerate() {
            let state = if at == 0 { ToolCallState::Failed } else { ToolCallState::Done };
            world.commit_one(changes(fence, vec![Change::FinishCall(call.id.clone(), ended(state, 0))])).await.unwrap();
        }
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let Page { items, next } = world.store.tool_audit(&of(&owner), &page(2, after)).await.unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.into_iter().map(|record| record.call_id));
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(of_owner.iter().all(|call| seen.contains(&call.id)));
    assert_eq!(all(world, &AuditFilter::default()).await.len(), 6);
    let errors = AuditFilter { outcome: Some(AuditOutcome::Error), ..of(&owner) };
    assert_eq!(all(world, &errors).await.len(), 1);
    let foreign = AuditFilter { run: Some(theirs.run_id.clone()), ..of(&owner) };
    assert_eq!(all(world, &foreign).await, []);
    let run = AuditFilter { run: Some(theirs.run_id), tool: Some("files__read".to_owned()), ..AuditFilter::default() };
    assert_eq!(all(world, &run).await.len(), 1);
    let tool = AuditFilter { tool: Some("files__write".to_owned()), ..AuditFilter::default() };
    assert_eq!(all(world, &tool).await, []);
}

async fn a_call_is_read_whole_by_its_owner(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let mut message = assistant(&fence, "calls");
    let calls: Vec<ToolCall> = (0..2).map(|position| planned_call(&fence, &message.id, position)).collect();
    message.parts.extend(calls.iter().map(|call| {
        Part::ToolCall(ToolCallPart {
            id: PartId::generate(&UuidIds),
            call_id: call.id.clone(),
            name: "read".to_owned(),
            arguments: call.arguments.clone(),
            provider_call_id: None,
            raw: None,
            undoes: None,
        })
    }));
    let add = vec![Change::FreezeTools(tools()), Change::AddMessage(message.clone()), Change::AddToolCalls(calls.clone())];
    world.commit_one(changes(&fence, add)).await.unwrap();
    let read = async |owner: &UserId, call: &CallId| world.store.tool_call(owner, &fence.run_id, call).await.unwrap();
    let planned = ToolCallRecord {
        id: calls[0].id.clone(),
        run_id: fence.run_id.clone(),
        message_id: message.id.clone(),
        name: "files__read".to_owned(),
        server: Some("files".to_owned()),
        tool: Some("read".to_owned()),
        arguments: calls[0].arguments.clone(),
        edited: false,
        repair: calls[0].repair.clone(),
        undoes: None,
        state: ToolCallState::Planned,
        is_error: false,
        content: Vec::new(),
        duration_ms: None,
        started_at: None,
        finished_at: None,
    };
    assert_eq!(read(&owner, &calls[0].id).await, Some(planned));

    let (id, arguments) = (&calls[1].id, json!({"path": "another \u{1F600}"}));
    let picture = ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="));
    let content = vec![ToolContent::text("ä".repeat(50_000)), picture];
    let outcome = ToolOutcome { content: content.clone(), is_error: true, ..ended(ToolCallState::Failed, 7) };
    let work = vec![
        Change::EditCall { id: id.clone(), arguments: arguments.clone(), hash: "cd".repeat(32) },
        Change::StartCall(id.clone()),
        Change::FinishCall(id.clone(), outcome),
    ];
    world.commit_one(changes(&fence, work)).await.unwrap();
    let record = read(&owner, id).await.unwrap();
    assert_eq!((&record.arguments, record.edited), (&arguments, true));
    assert_eq!((record.state, record.is_error, record.duration_ms), (ToolCallState::Failed, true, Some(7)));
    assert_eq!(record.content, content);
    assert!(record.started_at.is_some() && record.finished_at.is_some(), "{record:?}");

    assert_eq!(read(&user(), id).await, None, "another user");
    assert_eq!(read(&owner, &CallId::generate(&UuidIds)).await, None);
    let other = world.claimed(&owner).await;
    assert_eq!(world.store.tool_call(&owner, &other.run_id, id).await.unwrap(), None, "a call of another run");
}
