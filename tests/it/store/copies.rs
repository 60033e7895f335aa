//! Forks and imports of conversations.

use std::sync::Arc;

use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::ForkedFrom;
use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::ids::{ConversationId, RunId, UserId};
use capstan::domain::run::RunStatus;
use capstan::domain::run::change::Change;
use capstan::store::{
    AcceptRun, CopyConversation, CopyLimits, CopyOutcome, CopySource, CopyUntil, IdempotentOutcome, ResumeKind, ResumeOutcome,
    ResumeRun, UsageFilter,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{
    NOW, World, assistant, changes, completed, conversation, failed, fresh, hello, key, page, resume_request, user,
};

contract! {
    @databases
    a_fork_says_the_same_with_ids_of_its_own,
    fork_ends_at_the_given_message,
    copied_runs_keep_the_crash_limit,
}

const LATER: UnixMillis = UnixMillis(NOW.0 + 7);

fn fork(owner: &UserId, source: &ConversationId, until: CopyUntil) -> CopyConversation {
    CopyConversation {
        id: conversation(),
        owner: owner.clone(),
        title: None,
        source: CopySource::Conversation { id: source.clone(), until },
        limits: CopyLimits { messages: 100, bytes: 100_000 },
        max_conversations: 0,
        ids: Arc::new(UuidIds),
        now: LATER,
    }
}

async fn forked(world: &World, request: CopyConversation) -> CopyOutcome {
    fresh(world.store.copy_conversation(request, None).await.unwrap())
}

async fn listed(world: &World, owner: &UserId, id: &ConversationId) -> Vec<Message> {
    world.store.messages(owner, id, &page(100, None)).await.unwrap().unwrap().items
}

/// Runs a message to its answer.
async fn turn(world: &World, owner: &UserId, id: &ConversationId) -> RunId {
    let run = world.accept(hello(owner, id)).await.run.id;
    let fence = world.claim_one().await;
    world.commit_one(changes(&fence, vec![Change::AddMessage(assistant(&fence, "answer"))])).await.unwrap();
    world.commit_one(completed(&fence)).await.unwrap();
    run
}

async fn a_fork_says_the_same_with_ids_of_its_own(world: &World) {
    let (owner, id) = (user(), conversation());
    turn(world, &owner, &id).await;
    world.accept(hello(&owner, &id)).await;
    world.commit_one(failed(&world.claim_one().await)).await.unwrap();
    let (before, log) = (listed(world, &owner, &id).await, world.log(&owner, &id).await);

    let request = fork(&owner, &id, CopyUntil::End);
    let copy_id = request.id.clone();
    let copied = fresh(world.store.copy_conversation(request.clone(), key(&owner, "k", "f")).await.unwrap());
    let CopyOutcome::Conversation(made) = copied.clone() else { panic!("it is made: {copied:?}") };
    assert_eq!(world.store.conversation(&owner, &copy_id).await.unwrap().as_ref(), Some(&*made));
    assert_eq!((made.title.as_str(), made.status.as_str(), &made.created_at), ("A title", "failed", &LATER.to_rfc3339()));
    let last = before.last().unwrap().id.clone();
    assert_eq!(made.forked_from, Some(ForkedFrom { conversation_id: id.clone(), message_id: Some(last) }));

    let after = listed(world, &owner, &copy_id).await;
    let said = |messages: &[Message]| -> Vec<_> {
        messages.iter().map(|message| (message.role, message.text(), message.model.clone(), message.created_at.clone())).collect()
    };
    assert_eq!(said(&after), said(&before));
    assert!(after.iter().all(|copy| copy.conversation_id == copy_id && before.iter().all(|old| old.id != copy.id)));
    assert!(after.iter().zip(&before).all(|(copy, old)| copy.parts[0].id() != old.parts[0].id()));

    // The log of the copy contains each run with its first and last event.
    let answered = ["message.created", "run.queued", "message.created", "run.completed"];
    let unanswered = ["message.created", "run.queued", "run.failed", "conversation.updated"];
    assert_eq!(world.kinds(&owner, &copy_id).await, [answered, unanswered].concat());
    let bounds = [(&after[0].run_id, RunStatus::Completed, 1, 4), (&after[2].run_id, RunStatus::Failed, 5, 7)];
    for (run, status, first, last) in bounds {
        let view = world.view(&owner, run).await;
        assert_eq!((view.run.status, view.first_seq, view.last_seq), (status, first, Some(last)));
        assert_eq!(view.run.usage, None);
    }
    assert_eq!((listed(world, &owner, &id).await, world.log(&owner, &id).await), (before, log), "the source is unchanged");
    assert!(world.claim(10).await.is_empty(), "no run is queued");
    let used = UsageFilter::by_day_and_model(Some(owner.clone()), UnixMillis(0));
    let used = world.store.usage(&used, &page(10, None)).await.unwrap().items;
    assert_eq!(used.iter().map(|row| row.runs).sum::<u64>(), 2, "and no usage is counted");

    let replayed = world.store.copy_conversation(request.clone(), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(replayed, IdempotentOutcome::Replayed(copied));
    assert_eq!(world.store.copy_conversation(request, key(&owner, "k", "g")).await.unwrap(), IdempotentOutcome::Mismatch);

    // The fork can continue and outlives its source.
    assert!(world.store.delete_conversation(&owner, &id).await.unwrap().is_some());
    let next = world.accept(hello(&owner, &copy_id)).await.message.id;
    let read: Vec<_> = world.load(&world.claim_one().await).await.history.into_iter().map(|message| message.id).collect();
    assert_eq!(read, after.into_iter().map(|message| message.id).chain([next]).collect::<Vec<_>>());
}

async fn fork_ends_at_the_given_message(world: &World) {
    let (owner, id) = (user(), conversation());
    let first_run = turn(world, &owner, &id).await;
    world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    let result = |text| Message { role: Role::Tool, ..assistant(&fence, text) };
    for message in [assistant(&fence, "calls"), result("one"), assistant(&fence, "answer")] {
        world.commit_one(changes(&fence, vec![Change::AddMessage(message)])).await.unwrap();
    }
    world.commit_one(completed(&fence)).await.unwrap();
    let said = listed(world, &owner, &id).await;
    let ids: Vec<_> = said.iter().map(|message| message.id.clone()).collect();
    let [after, before] = [CopyUntil::After, CopyUntil::Before];
    for (until, count, status) in [
        (CopyUntil::End, 6, RunStatus::Completed),
        (CopyUntil::Run(first_run.clone()), 2, RunStatus::Completed),
        (before(ids[2].clone()), 2, RunStatus::Completed),
        (after(ids[0].clone()), 1, RunStatus::Cancelled),
        (after(ids[2].clone()), 3, RunStatus::Cancelled),
        (after(ids[4].clone()), 5, RunStatus::Cancelled),
        (before(ids[3].clone()), 3, RunStatus::Cancelled),
    ] {
        let copied = forked(world, fork(&owner, &id, until.clone())).await;
        let CopyOutcome::Conversation(made) = copied else { panic!("{until:?}: {copied:?}") };
        let copy = listed(world, &owner, &made.id).await;
        assert_eq!((copy.len(), made.status.as_str()), (count, "idle"), "{until:?}");
        assert_eq!(made.forked_from.unwrap().message_id.as_ref(), ids.get(count - 1), "{until:?}");
        assert_eq!(world.view(&owner, &copy.last().unwrap().run_id).await.run.status, status, "{until:?}");
    }
    let none = forked(world, fork(&owner, &id, before(ids[0].clone()))).await;
    let CopyOutcome::Conversation(none) = none else { panic!("an empty one: {none:?}") };
    assert_eq!((listed(world, &owner, &none.id).await.len(), none.forked_from.unwrap().message_id), (0, None));

    assert_eq!(forked(world, fork(&owner, &id, after(ids[3].clone()))).await, CopyOutcome::PartsCalls);
    assert_eq!(forked(world, fork(&owner, &id, before(ids[4].clone()))).await, CopyOutcome::PartsCalls);
    assert_eq!(forked(world, fork(&user(), &id, CopyUntil::End)).await, CopyOutcome::NoConversation, "another owner");
    assert_eq!(
        forked(world, fork(&owner, &none.id, after(ids[0].clone()))).await,
        CopyOutcome::NoPoint,
        "a message of another conversation"
    );
    assert_eq!(forked(world, fork(&owner, &none.id, CopyUntil::Run(first_run))).await, CopyOutcome::NoPoint);
    let mut few = fork(&owner, &id, CopyUntil::End);
    few.limits.messages = 5;
    assert_eq!(forked(world, few.clone()).await, CopyOutcome::TooLarge);
    few.source = CopySource::Conversation { id: id.clone(), until: after(ids[4].clone()) };
    assert!(matches!(forked(world, few.clone()).await, CopyOutcome::Conversation(_)));
    few.id = conversation();
    few.limits.bytes = 1_000;
    assert_eq!(forked(world, few).await, CopyOutcome::TooLarge);

    // A run under way is not copied, and neither are the messages after it.
    let third = world.accept(hello(&owner, &id)).await;
    let copied = forked(world, fork(&owner, &id, CopyUntil::End)).await;
    let CopyOutcome::Conversation(made) = copied else { panic!("{copied:?}") };
    assert_eq!(listed(world, &owner, &made.id).await.len(), 6);
    let active = CopyOutcome::Active { run_id: third.run.id.clone() };
    assert_eq!(forked(world, fork(&owner, &id, after(third.message.id.clone()))).await, active);
    assert_eq!(forked(world, fork(&owner, &id, CopyUntil::Run(third.run.id))).await, active);
    let CopyOutcome::Conversation(made) = forked(world, fork(&owner, &id, before(third.message.id))).await else { unreachable!() };
    assert_eq!(listed(world, &owner, &made.id).await.len(), 6);
}

/// A copied run was never claimed. A run that continues it has the full crash limit.
async fn copied_runs_keep_the_crash_limit(world: &World) {
    let (owner, id) = (user(), conversation());
    let message = hello(&owner, &id);
    let profile = AgentProfile { max_crashes: 7, ..message.profile.clone() };
    world.accept(AcceptRun { profile, ..message }).await;
    world.commit_one(failed(&world.claim_one().await)).await.unwrap();
    let request = fork(&owner, &id, CopyUntil::End);
    let copy = request.id.clone();
    assert!(matches!(forked(world, request).await, CopyOutcome::Conversation(_)));

    let run_id = listed(world, &owner, &copy).await[0].run_id.clone();
    let resume = ResumeRun { now: LATER, ..resume_request(&owner, &run_id, ResumeKind::Turn) };
    let ResumeOutcome::Run { run, .. } = fresh(world.store.resume_run(resume, None).await.unwrap()) else { panic!("it goes on") };
    let limits = format!("SELECT CAST(max_crashes AS text) FROM runs WHERE conversation_id = '{copy}' AND id {{}} '{}'", run.id);
    for run in ["=", "<>"] {
        assert_eq!(world.database.count(&limits.replace("{}", run)).await, 7, "{run}");
    }
}
