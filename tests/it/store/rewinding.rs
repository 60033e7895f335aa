//! Rewinding a conversation to an earlier message.

use capstan::domain::conversation::ConversationStatus;
use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::ids::{ConversationId, MessageId, RunId, UserId};
use capstan::domain::run::OnBusy;
use capstan::domain::run::change::Change;
use capstan::store::{
    AcceptOutcome, AcceptRun, EditOutcome, IdempotentOutcome, ResumeKind, ResumeOutcome, Rewind, RewindFrom, RewindOutcome,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{
    NOW, World, assistant, changes, completed, conversation, earlier, failed, fresh, hello, key, page, resume_request, user,
};

const LATER: UnixMillis = UnixMillis(NOW.0 + 7);

contract! {
    later_messages_are_taken_out,
    nothing_is_taken_out_where_that_cannot_be,
    rewound_run_cannot_be_resumed,
    an_earlier_turn_is_answered_again,
    a_retry_that_was_taken_out_stands_in_nobodys_way,
    message_is_replaced_in_one_transaction,
}

fn request(owner: &UserId, id: &ConversationId, from: RewindFrom) -> Rewind {
    Rewind { owner: owner.clone(), conversation_id: id.clone(), from, now: LATER }
}

async fn rewind(world: &World, owner: &UserId, id: &ConversationId, from: RewindFrom) -> RewindOutcome {
    fresh(world.store.rewind_conversation(request(owner, id, from), None).await.unwrap())
}

fn taken(rewound: &RewindOutcome) -> &[MessageId] {
    let RewindOutcome::Conversation { superseded, .. } = rewound else { panic!("it is rewound: {rewound:?}") };
    superseded
}

async fn listed(world: &World, owner: &UserId, id: &ConversationId) -> Vec<MessageId> {
    let page = world.store.messages(owner, id, &page(100, None)).await.unwrap().unwrap();
    let newest = world.store.earlier_messages(owner, id, earlier(100, None)).await.unwrap().unwrap();
    assert_eq!(newest.into_page().items, page.items);
    page.items.into_iter().map(|message| message.id).collect()
}

/// Runs a message to its answer. Returns both.
async fn turn(world: &World, owner: &UserId, id: &ConversationId) -> (MessageId, Message) {
    let asked = world.accept(hello(owner, id)).await.message.id;
    let fence = world.claim_one().await;
    let answer = assistant(&fence, "answer");
    world.commit_one(changes(&fence, vec![Change::AddMessage(answer.clone())])).await.unwrap();
    world.commit_one(completed(&fence)).await.unwrap();
    (asked, answer)
}

async fn go_on(world: &World, owner: &UserId, run: &RunId, how: ResumeKind) -> ResumeOutcome {
    fresh(world.store.resume_run(resume_request(owner, run, how), None).await.unwrap())
}

async fn later_messages_are_taken_out(world: &World) {
    let (owner, id) = (user(), conversation());
    let (first, first_answer) = turn(world, &owner, &id).await;
    let (second, second_answer) = turn(world, &owner, &id).await;
    let before = world.log(&owner, &id).await;

    // A rewind to the last message changes nothing.
    let none = rewind(world, &owner, &id, RewindFrom::After(second_answer.id.clone())).await;
    assert_eq!((taken(&none).len(), world.log(&owner, &id).await.len()), (0, before.len()));

    let again = request(&owner, &id, RewindFrom::After(first_answer.id.clone()));
    let rewound = fresh(world.store.rewind_conversation(again.clone(), key(&owner, "k", "f")).await.unwrap());
    assert_eq!(taken(&rewound), [second.clone(), second_answer.id.clone()]);
    let RewindOutcome::Conversation { conversation, superseded, events } = rewound else { unreachable!() };
    assert_eq!(world.store.conversation(&owner, &id).await.unwrap().as_ref(), Some(&*conversation));
    assert_eq!((conversation.status, &conversation.updated_at), (ConversationStatus::Idle, &LATER.to_rfc3339()));
    let log = world.log(&owner, &id).await;
    assert_eq!((&log[..before.len()], &log[before.len()..]), (&before[..], &events[..]), "the log keeps its events");
    let data = format!(r#"{{"title":"A title","status":"idle","supersedes":["{second}","{}"]}}"#, second_answer.id);
    assert_eq!((events[0].kind.as_ref(), &events[0].data), ("conversation.updated", &data));
    assert_eq!(listed(world, &owner, &id).await, [first.clone(), first_answer.id.clone()]);
    let replayed = world.store.rewind_conversation(again.clone(), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(replayed, IdempotentOutcome::Replayed(RewindOutcome::Conversation { conversation, superseded, events: Vec::new() }));
    assert_eq!(world.store.rewind_conversation(again, key(&owner, "k", "g")).await.unwrap(), IdempotentOutcome::Mismatch);
    assert_eq!(
        rewind(world, &owner, &id, RewindFrom::After(second.clone())).await,
        RewindOutcome::NoMessage,
        "the message is gone"
    );

    // The model of the next run reads the remaining messages.
    let third = world.accept(hello(&owner, &id)).await.message.id;
    let fence = world.claim_one().await;
    let read: Vec<_> = world.load(&fence).await.history.into_iter().map(|message| message.id).collect();
    assert_eq!(read, [first.clone(), first_answer.id.clone(), third.clone()]);
    world.commit_one(failed(&fence)).await.unwrap();

    // To before the first message.
    let all = rewind(world, &owner, &id, RewindFrom::At(first.clone())).await;
    assert_eq!(taken(&all), [first, first_answer.id, third]);
    assert_eq!(listed(world, &owner, &id).await, []);
}

async fn nothing_is_taken_out_where_that_cannot_be(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let id = fence.conversation_id.clone();
    let asked = listed(world, &owner, &id).await.remove(0);
    let active = RewindOutcome::Active { run_id: fence.run_id.clone() };
    assert_eq!(rewind(world, &owner, &id, RewindFrom::At(asked.clone())).await, active);
    let answer = assistant(&fence, "calls");
    let result = |text| Message { role: Role::Tool, ..assistant(&fence, text) };
    let (one, two) = (result("one"), result("two"));
    for message in [&answer, &one, &two] {
        world.commit_one(changes(&fence, vec![Change::AddMessage(message.clone())])).await.unwrap();
    }
    world.commit_one(completed(&fence)).await.unwrap();
    let log = world.log(&owner, &id).await;
    for from in [RewindFrom::After(answer.id.clone()), RewindFrom::At(one.id.clone()), RewindFrom::After(one.id.clone())] {
        assert_eq!(rewind(world, &owner, &id, from).await, RewindOutcome::PartsCalls);
    }
    let other = world.run(&owner).await.message.id;
    assert_eq!(
        rewind(world, &owner, &id, RewindFrom::At(other)).await,
        RewindOutcome::NoMessage,
        "a message of another conversation"
    );
    let unknown = MessageId::generate(&UuidIds);
    assert_eq!(rewind(world, &owner, &id, RewindFrom::At(unknown)).await, RewindOutcome::NoMessage);
    assert_eq!(rewind(world, &user(), &id, RewindFrom::At(asked.clone())).await, RewindOutcome::NoConversation, "another owner");
    assert_eq!(rewind(world, &owner, &conversation(), RewindFrom::At(asked.clone())).await, RewindOutcome::NoConversation);
    assert_eq!((world.log(&owner, &id).await, listed(world, &owner, &id).await.len()), (log, 4));
    assert_eq!(taken(&rewind(world, &owner, &id, RewindFrom::After(asked)).await), [answer.id, one.id, two.id]);
}

async fn rewound_run_cannot_be_resumed(world: &World) {
    let (owner, id) = (user(), conversation());
    let go_on = async |run: &RunId, how: ResumeKind| go_on(world, &owner, run, how).await;
    let (_, first_answer) = turn(world, &owner, &id).await;
    let second = world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    world.commit_one(changes(&fence, vec![Change::AddMessage(assistant(&fence, "half"))])).await.unwrap();
    world.commit_one(failed(&fence)).await.unwrap();

    // To the run's own message: it can be answered again.
    assert_eq!(taken(&rewind(world, &owner, &id, RewindFrom::After(second.message.id.clone())).await).len(), 1);
    let ResumeOutcome::Run { run, .. } = go_on(&second.run.id, ResumeKind::Turn).await else {
        panic!("its message is still there")
    };
    let fence = world.claim_one().await;
    assert_eq!((&fence.run_id, world.load(&fence).await.history.len()), (&run.id, 3));
    world.commit_one(failed(&fence)).await.unwrap();

    // To before it: no message is left to answer.
    assert_eq!(taken(&rewind(world, &owner, &id, RewindFrom::After(first_answer.id.clone())).await).len(), 1);
    for how in [ResumeKind::Turn, ResumeKind::Resume] {
        let refused = go_on(&run.id, how).await;
        assert!(matches!(refused, ResumeOutcome::NotResumable { .. }), "{refused:?}");
    }
}

/// The first of two runs remains.
async fn an_earlier_turn_is_answered_again(world: &World) {
    for from_answer in [false, true] {
        let (owner, id) = (user(), conversation());
        let (asked, answer) = turn(world, &owner, &id).await;
        let (_, later) = turn(world, &owner, &id).await;
        let refused = go_on(world, &owner, &answer.run_id, ResumeKind::Turn).await;
        assert!(matches!(refused, ResumeOutcome::NotResumable { .. }), "a later run exists: {refused:?}");
        // A retry of a removed run is removed with it, although it has no message.
        let ResumeOutcome::Run { run: silent, .. } = go_on(world, &owner, &later.run_id, ResumeKind::Turn).await else {
            panic!("the newest")
        };
        world.commit_one(failed(&world.claim_one().await)).await.unwrap();
        let to = if from_answer { &answer.id } else { &asked };
        rewind(world, &owner, &id, RewindFrom::After(to.clone())).await;
        for run in [&later.run_id, &silent.id] {
            for how in [ResumeKind::Turn, ResumeKind::Resume] {
                let refused = go_on(world, &owner, run, how).await;
                assert!(matches!(refused, ResumeOutcome::NotResumable { .. }), "its message is gone: {refused:?}");
            }
        }

        let resumed = go_on(world, &owner, &answer.run_id, ResumeKind::Turn).await;
        let ResumeOutcome::Run { run, events } = resumed else { panic!("it is the newest turn that is left: {resumed:?}") };
        assert_eq!(events[0].data.contains(answer.id.as_str()), from_answer, "the old answer is not beside the new one");
        let fence = world.claim_one().await;
        assert_eq!(fence.run_id, run.id);
        let read: Vec<_> = world.load(&fence).await.history.into_iter().map(|message| message.id).collect();
        assert_eq!(read, [asked]);
        // It failed before its first message. It can be resumed, and no other run can.
        world.commit_one(failed(&fence)).await.unwrap();
        for run in [&answer.run_id, &later.run_id, &silent.id] {
            let refused = go_on(world, &owner, run, ResumeKind::Turn).await;
            assert!(matches!(refused, ResumeOutcome::NotResumable { .. }), "it has been retried: {refused:?}");
        }
        let resumable = world.store.explain_run(&owner, &run.id).await.unwrap().unwrap().resumable;
        assert!(resumable, "the view says so");
        let resumed = go_on(world, &owner, &run.id, ResumeKind::Resume).await;
        assert!(matches!(resumed, ResumeOutcome::Run { .. }), "{resumed:?}");
        let fence = world.claim_one().await;
        world.commit_one(changes(&fence, vec![Change::AddMessage(assistant(&fence, "better"))])).await.unwrap();
        world.commit_one(completed(&fence)).await.unwrap();

        // And again after a later run.
        let better = listed(world, &owner, &id).await.pop().unwrap();
        turn(world, &owner, &id).await;
        rewind(world, &owner, &id, RewindFrom::After(better.clone())).await;
        let resumed = go_on(world, &owner, &fence.run_id, ResumeKind::Turn).await;
        let ResumeOutcome::Run { events, .. } = resumed else { panic!("it is the newest again: {resumed:?}") };
        assert!(events[0].data.contains(better.as_str()), "{}", events[0].data);
        world.commit_one(failed(&world.claim_one().await)).await.unwrap();
    }
}

/// The message row names only the first run that answered it.
async fn a_retry_that_was_taken_out_stands_in_nobodys_way(world: &World) {
    let (owner, id) = (user(), conversation());
    let (asked, answer) = turn(world, &owner, &id).await;
    assert!(matches!(go_on(world, &owner, &answer.run_id, ResumeKind::Turn).await, ResumeOutcome::Run { .. }));
    let fence = world.claim_one().await;
    let again = assistant(&fence, "again");
    world.commit_one(changes(&fence, vec![Change::AddMessage(again.clone())])).await.unwrap();
    world.commit_one(completed(&fence)).await.unwrap();
    let refused = go_on(world, &owner, &answer.run_id, ResumeKind::Turn).await;
    assert!(matches!(refused, ResumeOutcome::NotResumable { .. }), "it has been retried: {refused:?}");
    turn(world, &owner, &id).await;
    assert_eq!(taken(&rewind(world, &owner, &id, RewindFrom::After(asked.clone())).await).len(), 3);
    let resumed = go_on(world, &owner, &answer.run_id, ResumeKind::Turn).await;
    assert!(matches!(resumed, ResumeOutcome::Run { .. }), "{resumed:?}");
    let refused = go_on(world, &owner, &fence.run_id, ResumeKind::Turn).await;
    assert!(matches!(refused, ResumeOutcome::NotResumable { .. }), "one answer at a time: {refused:?}");
    let read: Vec<_> = world.load(&world.claim_one().await).await.history.into_iter().map(|message| message.id).collect();
    assert_eq!(read, [asked]);
}

async fn edit(
    world: &World,
    owner: &UserId,
    id: &ConversationId,
    message: &MessageId,
    claim: Option<&str>,
) -> IdempotentOutcome<EditOutcome> {
    let accept = AcceptRun { create_with_title: None, on_busy: OnBusy::Reject, now: LATER, ..hello(owner, id) };
    let claim = claim.and_then(|claim| key(owner, claim, "f"));
    world.store.edit_message(accept, message, claim).await.unwrap()
}

async fn message_is_replaced_in_one_transaction(world: &World) {
    let (owner, id) = (user(), conversation());
    let (first, first_answer) = turn(world, &owner, &id).await;
    let (second, second_answer) = turn(world, &owner, &id).await;
    let before = world.log(&owner, &id).await;

    let edited = edit(world, &owner, &id, &second, Some("k")).await;
    let EditOutcome::Accepted(edited) = fresh(edited) else { panic!("it is said anew") };
    let AcceptOutcome::Run { run, message, first_seq, events, .. } = *edited else { panic!("it has a run") };
    let log = world.log(&owner, &id).await;
    assert_eq!((&log[..before.len()], &log[before.len()..]), (&before[..], &events[..]));
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_ref()).collect();
    assert_eq!(kinds, ["conversation.updated", "message.created", "run.queued", "conversation.updated"]);
    assert!(events[0].data.contains(&format!(r#""supersedes":["{second}","{}"]"#, second_answer.id)), "{}", events[0].data);
    assert_eq!(first_seq, events[1].seq, "the run begins with its message");
    assert_eq!(listed(world, &owner, &id).await, [first.clone(), first_answer.id.clone(), message.id.clone()]);

    // The repeated request gets its answer, and another one finds that its message is gone.
    let replayed = edit(world, &owner, &id, &second, Some("k")).await;
    let IdempotentOutcome::Replayed(EditOutcome::Accepted(replayed)) = replayed else {
        panic!("it is what came of it: {replayed:?}")
    };
    assert!(matches!(&*replayed, AcceptOutcome::Run { run: same, .. } if *same == run), "{replayed:?}");
    let busy = IdempotentOutcome::Fresh(EditOutcome::Accepted(Box::new(AcceptOutcome::Busy { run_id: run.id.clone() })));
    assert_eq!(edit(world, &owner, &id, &first, None).await, busy);
    let fence = world.claim_one().await;
    let read: Vec<_> = world.load(&fence).await.history.into_iter().map(|message| message.id).collect();
    assert_eq!(read, [first.clone(), first_answer.id.clone(), message.id]);
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(fresh(edit(world, &owner, &id, &second, None).await), EditOutcome::NoMessage);

    // A refused request leaves nothing.
    let (log, messages) = (world.log(&owner, &id).await, listed(world, &owner, &id).await);
    assert_eq!(fresh(edit(world, &owner, &id, &first_answer.id, Some("other")).await), EditOutcome::NotTheUsers);
    let nobodys = EditOutcome::Accepted(Box::new(AcceptOutcome::NoConversation));
    assert_eq!(fresh(edit(world, &user(), &id, &first, None).await), nobodys);
    world.run(&owner).await;
    let full = AcceptRun { create_with_title: None, max_active_runs: 1, ..hello(&owner, &id) };
    let full = fresh(world.store.edit_message(full, &first, key(&owner, "other", "f")).await.unwrap());
    assert_eq!(full, EditOutcome::Accepted(Box::new(AcceptOutcome::TooManyRuns)));
    assert_eq!((world.log(&owner, &id).await, listed(world, &owner, &id).await), (log, messages));
}
