//! Accepting messages: keys, busy conversations, the hand-off, and limits.

use std::sync::Arc;

use capstan::domain::conversation::ConversationStatus;
use capstan::domain::conversation::message::Part;
use capstan::domain::ids::{ConversationId, NodeId, RunId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::run::record::Fence;
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::store::{AcceptOutcome, AcceptRun, AcceptingWorker, CancelRun, ConversationChange, IdempotentOutcome, WriteRejection};
use capstan::support::ids::UuidIds;

use super::fixture::{
    LONG, NOW, World, assistant, changes, completed, conversation, fresh, hello, key, page, started, stored, text, user,
};

contract! {
    accepted_message_stores_run_and_first_event,
    a_title_is_made_from_the_first_message,
    many_requests_with_one_key_make_one_run,
    a_key_with_another_request_is_a_mismatch,
    request_that_stores_nothing_keeps_no_idempotency_key,
    a_busy_conversation_queues,
    a_busy_conversation_rejects,
    a_busy_conversation_is_steered,
    a_run_is_taken_on_as_it_is_accepted,
    ending_run_accepts_no_message,
    a_busy_conversation_is_interrupted,
    owners_have_a_limit_of_runs,
    an_interruption_makes_room_within_the_limit,
    of_messages_that_come_at_once_one_becomes_the_active_run,
    ;
    the_database_itself_knows_one_active_run_of_a_conversation,
    nothing_that_a_user_writes_breaks_the_store,
}

async fn accepted_message_stores_run_and_first_event(world: &World) {
    let (owner, id) = (user(), conversation());
    let accept = hello(&owner, &id);
    let stored = world.accept(accept.clone()).await;

    assert_eq!(stored.run.id, accept.run_id);
    assert_eq!((stored.run.status, stored.run.attempt, &stored.run.started_at), (RunStatus::Queued, 0, &None));
    assert_eq!(stored.message.parts, accept.parts);
    assert_eq!(world.log(&owner, &id).await, stored.events);
    assert_eq!(world.kinds(&owner, &id).await, ["message.created", "run.queued", "conversation.updated"]);
    assert_eq!(stored.first_seq, 1);
    assert_eq!(json(&stored.events[0].data), serde_json::json!({"message": stored.message}));
    assert_eq!(stored.events[1].data, r#"{"position":0}"#);
    assert_eq!(stored.events[2].run_id, None);

    let view = world.view(&owner, &stored.run.id).await;
    assert_eq!((view.run, view.first_seq, view.last_seq), (stored.run.clone(), 1, None));
    assert_eq!(world.store.active_run(&owner, &id).await.unwrap(), Some(stored.run.clone()));
    let shown = world.store.conversation(&owner, &id).await.unwrap().unwrap();
    assert_eq!((shown.title.as_str(), shown.status, shown.last_seq), ("A title", ConversationStatus::Queued, 3));
    assert_eq!(shown.active_run_id, Some(stored.run.id.clone()));
    let messages = world.store.messages(&owner, &id, &page(10, None)).await.unwrap().unwrap();
    assert_eq!(messages.items, [stored.message]);
    assert_eq!(messages.next, None);
}

async fn a_title_is_made_from_the_first_message(world: &World) {
    let (owner, id) = (user(), conversation());
    let accept = AcceptRun { create_with_title: Some(String::new()), parts: text(" What\ntime? "), ..hello(&owner, &id) };
    world.accept(accept).await;
    assert_eq!(world.store.conversation(&owner, &id).await.unwrap().unwrap().title, "What time?");
}

async fn many_requests_with_one_key_make_one_run(world: &World) {
    let (owner, id) = (user(), conversation());
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (store, accept, key) = (world.store.clone(), hello(&owner, &id), key(&owner, "k", "f"));
        requests.spawn(async move { store.accept_run(accept, key).await.unwrap() });
    }
    let mut fresh = 0;
    let mut runs = std::collections::HashSet::new();
    for answer in requests.join_all().await {
        let accepted = match answer {
            IdempotentOutcome::Fresh(accepted) => {
                fresh += 1;
                accepted
            }
            IdempotentOutcome::Replayed(accepted) => accepted,
            IdempotentOutcome::Mismatch => panic!("same key, same request"),
        };
        let stored = stored(accepted);
        runs.insert((stored.run.id, stored.message.id));
    }
    assert_eq!((fresh, runs.len()), (1, 1));
    assert_eq!(world.kinds(&owner, &id).await.len(), 3);
}

async fn a_key_with_another_request_is_a_mismatch(world: &World) {
    let (owner, id) = (user(), conversation());
    let first = stored(fresh(world.store.accept_run(hello(&owner, &id), key(&owner, "k", "one")).await.unwrap()));
    let again = world.store.accept_run(hello(&owner, &id), key(&owner, "k", "two")).await.unwrap();
    assert_eq!(again, IdempotentOutcome::Mismatch);
    // The same key of another owner is another key.
    let other = user();
    let theirs = world.store.accept_run(hello(&other, &conversation()), key(&other, "k", "two")).await.unwrap();
    assert_ne!(stored(fresh(theirs)).run.id, first.run.id);
    // An expired key can be used again.
    assert_eq!(world.store.remove_expired_idempotency(3_600_000).await.unwrap(), 0);
    let counted = world.store.count_expired(0, None).await.unwrap();
    assert!(counted.records >= 2 && counted.audit == 0, "{counted:?}");
    assert_eq!(world.store.remove_expired_idempotency(0).await.unwrap(), 2);
    assert_eq!(world.store.count_expired(0, None).await.unwrap().records, counted.records - 2);
    fresh(world.store.accept_run(hello(&owner, &id), key(&owner, "k", "two")).await.unwrap());
}

async fn request_that_stores_nothing_keeps_no_idempotency_key(world: &World) {
    let (owner, id) = (user(), conversation());
    let mut accept = AcceptRun { create_with_title: None, ..hello(&owner, &id) };
    let none = fresh(world.store.accept_run(accept.clone(), key(&owner, "k", "f")).await.unwrap());
    assert_eq!(none, AcceptOutcome::NoConversation);
    world.run(&owner).await;
    accept.create_with_title = Some("Now".to_owned());
    accept.max_active_runs = 1;
    let many = fresh(world.store.accept_run(accept.clone(), key(&owner, "k", "f")).await.unwrap());
    assert_eq!(many, AcceptOutcome::TooManyRuns);
    assert_eq!(world.store.conversation(&owner, &id).await.unwrap(), None, "nothing is stored");
    accept.max_active_runs = 2;
    stored(fresh(world.store.accept_run(accept, key(&owner, "k", "f")).await.unwrap()));
}

async fn a_busy_conversation_queues(world: &World) {
    let (owner, id) = (user(), conversation());
    let first = world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    world.commit_one(started(&fence)).await.unwrap();
    let second = world.accept(hello(&owner, &id)).await;
    let third = world.accept(hello(&owner, &id)).await;

    assert_eq!(second.events.iter().map(|event| event.kind.as_ref()).collect::<Vec<_>>(), ["message.created", "run.queued"]);
    assert_eq!((second.events[1].data.as_str(), third.events[1].data.as_str()), (r#"{"position":1}"#, r#"{"position":2}"#));
    assert_eq!(world.status(&owner, &id).await, "processing");
    assert_eq!(world.store.active_run(&owner, &id).await.unwrap().unwrap().id, first.run.id);
    assert_eq!(world.claim(10).await, [], "queued runs cannot be claimed");

    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.status(&owner, &id).await, "queued");
    let fence = world.claim_one().await;
    assert_eq!(fence.run_id, second.run.id, "the oldest run goes first");
    world.commit_one(completed(&fence)).await.unwrap();
    let fence = world.claim_one().await;
    assert_eq!(fence.run_id, third.run.id);
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.status(&owner, &id).await, "idle");
}

async fn a_busy_conversation_rejects(world: &World) {
    let (owner, id) = (user(), conversation());
    let reject = || AcceptRun { on_busy: OnBusy::Reject, ..hello(&owner, &id) };
    let first = world.accept(reject()).await;
    let busy = fresh(world.store.accept_run(reject(), key(&owner, "k", "f")).await.unwrap());
    assert_eq!(busy, AcceptOutcome::Busy { run_id: first.run.id });
    assert_eq!(world.kinds(&owner, &id).await.len(), 3);
    let fence = world.claim_one().await;
    world.commit_one(completed(&fence)).await.unwrap();
    stored(fresh(world.store.accept_run(reject(), key(&owner, "k", "f")).await.unwrap()));
}

async fn a_run_is_taken_on_as_it_is_accepted(world: &World) {
    let (owner, id, node) = (user(), conversation(), NodeId::generate(&UuidIds));
    let mut epoch = 0;
    for _ in 0..2 {
        let taker = Some(AcceptingWorker { node: node.clone(), lease_ms: LONG });
        // The title is part of an event that the database composes.
        let accept = AcceptRun { taker, parts: text("\"quoted\" \\ \u{1}\u{7f} / wörd \u{2028} \u{1f600}"), ..hello(&owner, &id) };
        let AcceptOutcome::Run { run, claim, events, .. } = fresh(world.store.accept_run(accept, None).await.unwrap()) else {
            panic!("a run was expected")
        };
        // A store may leave the run to the queue, where it can be claimed like any other.
        let log = world.log(&owner, &id).await;
        assert_eq!(log[log.len() - events.len()..], events, "the returned events are the stored ones");
        let fence = match claim {
            Some(claim) => {
                let record = claim.record.unwrap();
                assert_eq!(claim.fence, record.fence);
                assert_eq!(world.load(&record.fence).await, *record, "the returned record is the one that a load returns");
                assert!(world.store.claim_runs(&node, 1, LONG).await.unwrap().is_empty(), "the run is already claimed");
                let fences = [record.fence.clone()];
                let renewed = world.store.renew_leases(&node, &fences, LONG, 0).await.unwrap().renewed;
                assert_eq!(renewed, std::slice::from_ref(&run.id));
                let other = NodeId::generate(&UuidIds);
                assert!(world.store.renew_leases(&other, &fences, LONG, 0).await.unwrap().renewed.is_empty());
                record.fence
            }
            None => world.claim_one().await,
        };
        assert!(fence.epoch > epoch);
        epoch = fence.epoch;
        world.commit_one(started(&fence)).await.unwrap();
        // A run that queues behind it is left to the queue.
        let taker = Some(AcceptingWorker { node: node.clone(), lease_ms: LONG });
        let AcceptOutcome::Run { run: behind, claim, .. } =
            fresh(world.store.accept_run(AcceptRun { taker, ..hello(&owner, &id) }, None).await.unwrap())
        else {
            panic!("a run was expected")
        };
        assert!(claim.is_none());
        fresh(world.store.cancel_run(CancelRun { owner: &owner, id: &behind.id, by: "user", now: NOW }, None).await.unwrap());
        world.commit_one(changes(&fence, vec![Change::AddMessage(assistant(&fence, "an answer"))])).await.unwrap();
        world.commit_one(completed(&fence)).await.unwrap();
    }
}

async fn a_busy_conversation_is_steered(world: &World) {
    let (owner, id) = (user(), conversation());
    let first = world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    world.commit_one(started(&fence)).await.unwrap();
    let accept = AcceptRun { on_busy: OnBusy::Steer, parts: text("also \0 this"), ..hello(&owner, &id) };
    let steered = fresh(world.store.accept_run(accept, key(&owner, "k", "f")).await.unwrap());
    let AcceptOutcome::Steered { run, message, first_seq, events } = steered else { panic!("expected to join: {steered:?}") };
    assert_eq!((&run.id, &message.run_id), (&first.run.id, &first.run.id));
    assert_eq!(world.log(&owner, &id).await[4..], events);
    assert_eq!((events[0].kind.as_ref(), events[0].seq, events[0].attempt), ("message.created", first_seq, 1));
    assert!(matches!(&message.parts[0], Part::Text(text) if text.text == "also \u{fffd} this"));

    // The worker keeps writing, unaware of the message.
    assert_eq!(world.commit_one(super::fixture::deltas(&fence, 1)).await, Ok(first_seq + 1));
    let signals = world.store.control_signals(std::slice::from_ref(&first.run.id)).await.unwrap();
    assert_eq!(signals.len(), 1);
    assert_eq!((&signals[0].cancel_by, &signals[0].joined), (&None, &vec![message.clone()]));
    let record = world.load(&fence).await;
    assert_eq!((record.history, record.joined), (vec![first.message, message], 1));

    // The run cannot complete without the message, and a refused attempt loses nothing else.
    let end = |joined| {
        let mut write = completed(&fence);
        for change in &mut write.changes {
            if let Change::Finish { joined: heard, .. } = change {
                *heard = Some(joined);
            }
        }
        write
    };
    let neighbour = world.claimed(&owner).await;
    let batch = [super::fixture::deltas(&fence, 1), end(0), super::fixture::deltas(&neighbour, 1)];
    let answers = world.commit_all(&batch).await;
    assert_eq!(answers, [Ok(first_seq + 2), Err(WriteRejection::MessageJoined), Ok(4)]);
    assert_eq!(world.view(&owner, &fence.run_id).await.last_seq, None);
    assert_eq!(world.commit_one(end(1)).await, Ok(first_seq + 3));
    assert_eq!(world.commit_one(end(1)).await, Err(WriteRejection::Fenced));

    // Without an active run, the message starts one.
    world.accept(AcceptRun { on_busy: OnBusy::Steer, ..hello(&owner, &id) }).await;
}

async fn ending_run_accepts_no_message(world: &World) {
    let (owner, id) = (user(), conversation());
    let active = world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    world.commit_one(started(&fence)).await.unwrap();
    fresh(world.store.cancel_run(CancelRun { owner: &owner, id: &active.run.id, by: "user", now: NOW }, None).await.unwrap());
    let next = world.accept(AcceptRun { on_busy: OnBusy::Steer, ..hello(&owner, &id) }).await;
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.claim_one().await.run_id, next.run.id);
}

async fn a_busy_conversation_is_interrupted(world: &World) {
    let (owner, id) = (user(), conversation());
    let active = world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    world.commit_one(started(&fence)).await.unwrap();
    let queued = world.accept(hello(&owner, &id)).await;
    let interrupt = || AcceptRun { on_busy: OnBusy::Interrupt, ..hello(&owner, &id) };
    let next = world.accept(interrupt()).await;

    assert_eq!(next.interrupted, std::slice::from_ref(&active.run.id));
    assert_eq!(world.view(&owner, &queued.run.id).await.run.status, RunStatus::Cancelled, "the run had not started");
    let signals = world.store.control_signals(std::slice::from_ref(&active.run.id)).await.unwrap();
    assert_eq!(signals[0].cancel_by.as_deref(), Some("interrupt"));
    assert_eq!(world.claim(10).await, []);
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.claim_one().await.run_id, next.run.id);

    // An unclaimed run ends at once, and the new one can start.
    let other = conversation();
    let unclaimed = world.accept(hello(&owner, &other)).await;
    let next = world.accept(AcceptRun { on_busy: OnBusy::Interrupt, ..hello(&owner, &other) }).await;
    assert_eq!(next.interrupted, [] as [RunId; 0]);
    assert_eq!(world.view(&owner, &unclaimed.run.id).await.run.status, RunStatus::Cancelled);
    assert_eq!(next.events[0].kind, "run.cancelled");
    assert_eq!(world.log(&owner, &other).await.last(), next.events.last());
    assert_eq!(world.view(&owner, &next.run.id).await.first_seq, next.first_seq);
    assert_eq!(world.log(&owner, &other).await[usize::try_from(next.first_seq).unwrap() - 1].kind, "message.created");
    assert_eq!(world.claim_one().await.run_id, next.run.id);
    assert_eq!(world.status(&owner, &other).await, "queued");
}

async fn owners_have_a_limit_of_runs(world: &World) {
    let owner = user();
    let limited = || AcceptRun { max_active_runs: 2, ..hello(&owner, &conversation()) };
    world.accept(limited()).await;
    world.accept(limited()).await;
    assert_eq!(fresh(world.store.accept_run(limited(), None).await.unwrap()), AcceptOutcome::TooManyRuns);
    let claims = world.store.claim_runs(&world.node, 1, LONG).await.unwrap();
    assert_eq!(fresh(world.store.accept_run(limited(), None).await.unwrap()), AcceptOutcome::TooManyRuns);
    world.commit_one(completed(&claims[0].fence)).await.unwrap();
    world.accept(limited()).await;
}

/// Runs that the message itself ends do not count toward the limit.
async fn an_interruption_makes_room_within_the_limit(world: &World) {
    let owner = user();
    let id = conversation();
    let limited = |on_busy| AcceptRun { max_active_runs: 2, on_busy, ..hello(&owner, &id) };
    let active = world.accept(limited(OnBusy::Queue)).await;
    let queued = world.accept(limited(OnBusy::Queue)).await;
    assert_eq!(fresh(world.store.accept_run(limited(OnBusy::Queue), None).await.unwrap()), AcceptOutcome::TooManyRuns);
    let next = world.accept(limited(OnBusy::Interrupt)).await;
    for ended in [&active, &queued] {
        assert_eq!(world.view(&owner, &ended.run.id).await.run.status, RunStatus::Cancelled);
    }
    // A claimed run counts until it has ended: the message is refused and stores nothing.
    assert_eq!(world.claim_one().await.run_id, next.run.id);
    let one = |on_busy| AcceptRun { max_active_runs: 1, ..limited(on_busy) };
    let before = world.log(&owner, &id).await.len();
    assert_eq!(fresh(world.store.accept_run(one(OnBusy::Interrupt), None).await.unwrap()), AcceptOutcome::TooManyRuns);
    assert_eq!(world.log(&owner, &id).await.len(), before);
    assert_eq!(world.store.control_signals(std::slice::from_ref(&next.run.id)).await.unwrap(), [], "the run is not cancelled");
}

/// Concurrent messages.
const AT_ONCE: usize = 12;

/// Accepts [`AT_ONCE`] messages concurrently. Every other one comes with a worker for the hand-off.
async fn at_once(world: &World, owner: &UserId, id: &ConversationId, on_busy: OnBusy) -> Vec<AcceptOutcome> {
    let start = Arc::new(tokio::sync::Barrier::new(AT_ONCE));
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..AT_ONCE {
        let taker = (number % 2 == 0).then(|| AcceptingWorker { node: world.node.clone(), lease_ms: LONG });
        let accept = AcceptRun { taker, on_busy, ..hello(owner, id) };
        let (store, start) = (world.store.clone(), Arc::clone(&start));
        requests.spawn(async move {
            start.wait().await;
            fresh(store.accept_run(accept, None).await.unwrap())
        });
    }
    requests.join_all().await
}

/// Returns the only claim of the accepted runs: from the hand-off, or made now.
async fn only_claim(world: &World, accepted: &[AcceptOutcome]) -> Fence {
    let handed = accepted.iter().filter_map(|accepted| {
        let AcceptOutcome::Run { claim, .. } = accepted else { return None };
        Some(claim.as_ref()?.fence.clone())
    });
    match &handed.collect::<Vec<_>>()[..] {
        [] => world.claim_one().await,
        [fence] => {
            assert_eq!(world.claim(10).await, [], "queued runs cannot be claimed");
            fence.clone()
        }
        several => panic!("of one conversation {several:?} were claimed"),
    }
}

/// In a new and in an idle conversation: one message is accepted as if it were alone, and the others see it.
async fn of_messages_that_come_at_once_one_becomes_the_active_run(world: &World) {
    let owner = user();
    for is_new in [true, false] {
        for on_busy in [OnBusy::Queue, OnBusy::Reject, OnBusy::Steer] {
            let id = match is_new {
                true => conversation(),
                false => {
                    let fence = world.claimed(&owner).await;
                    world.commit_one(completed(&fence)).await.unwrap();
                    fence.conversation_id
                }
            };
            let accepted = at_once(world, &owner, &id, on_busy).await;
            let what = format!("new: {is_new}, {on_busy:?}: {accepted:#?}");
            let active = world.store.active_run(&owner, &id).await.unwrap().expect("one is active").id;
            let mut queued = Vec::new();
            let mut others = 0;
            for accepted in &accepted {
                match accepted {
                    AcceptOutcome::Run { run, events, .. } => {
                        let event = events.iter().find(|event| event.kind == "run.queued").unwrap();
                        queued.push((json(&event.data)["position"].as_u64().unwrap(), run.id.clone()));
                    }
                    AcceptOutcome::Busy { run_id } if on_busy == OnBusy::Reject && *run_id == active => others += 1,
                    AcceptOutcome::Steered { run, message, .. } if on_busy == OnBusy::Steer => {
                        assert_eq!((&run.id, &message.run_id), (&active, &active), "{what}");
                        others += 1;
                    }
                    other => panic!("{other:?} in {what}"),
                }
            }
            queued.sort();
            let runs = if on_busy == OnBusy::Queue { AT_ONCE } else { 1 };
            assert_eq!((queued.len(), others), (runs, AT_ONCE - runs), "{what}");
            let positions: Vec<u64> = queued.iter().map(|(position, _)| *position).collect();
            assert_eq!(positions, (0_u64..).take(runs).collect::<Vec<_>>(), "each has its own position: {what}");
            assert_eq!(queued[0].1, active, "{what}");
            let said = world.kinds(&owner, &id).await.iter().filter(|kind| *kind == "message.created").count();
            let (before, rejected) = (usize::from(!is_new), if on_busy == OnBusy::Reject { others } else { 0 });
            assert_eq!(said, before + AT_ONCE - rejected, "{what}");

            // The runs are claimed one after the other, in the order of their positions.
            let mut fence = only_claim(world, &accepted).await;
            for (position, run) in &queued {
                assert_eq!(fence.run_id, *run, "the run at {position} in {what}");
                world.commit_one(started(&fence)).await.unwrap();
                assert_eq!(world.claim(10).await, [], "{what}");
                world.commit_one(completed(&fence)).await.unwrap();
                if *position + 1 < runs as u64 {
                    fence = world.claim_one().await;
                }
            }
            assert_eq!(world.claim(10).await, []);
            assert_eq!(world.status(&owner, &id).await, "idle");
        }
    }
}

/// The index `runs_one_active` refuses a second active run, even if the code does not.
async fn the_database_itself_knows_one_active_run_of_a_conversation(world: &World) {
    let (owner, id) = (user(), conversation());
    let first = world.accept(hello(&owner, &id)).await.run.id;
    let second = world.accept(hello(&owner, &id)).await.run.id;
    let refused = world.database.refusal(&format!("UPDATE runs SET active = true WHERE id = '{second}'")).await;
    assert!(refused.as_database_error().is_some_and(|error| error.is_unique_violation()), "{refused:?}");
    assert_eq!(world.store.active_run(&owner, &id).await.unwrap().map(|run| run.id), Some(first.clone()));
    // Other changes of the row are possible.
    let change = |run: &RunId, active: bool| format!("UPDATE runs SET active = {active} WHERE id = '{run}'");
    world.database.rows(&change(&first, false)).await;
    world.database.rows(&change(&second, true)).await;
    assert_eq!(world.store.active_run(&owner, &id).await.unwrap().map(|run| run.id), Some(second));
}

async fn nothing_that_a_user_writes_breaks_the_store(world: &World) {
    let owner = user();
    let nasty =
        ["\0", "\\u0000", "\u{1F9D1}\u{200D}\u{1F680}", "'; DROP TABLE runs; --", "\u{202e}", "\u{feff}\r\n\t\u{1b}[0m", "\"\\"];
    for title in nasty {
        let id = conversation();
        let accept = AcceptRun { create_with_title: Some(title.to_owned()), parts: text(title), ..hello(&owner, &id) };
        let stored = world.accept(accept).await;
        let clean = title.replace('\0', "\u{fffd}");
        let shown = world.store.conversation(&owner, &id).await.unwrap().unwrap();
        assert_eq!(shown.title, clean);
        let messages = world.store.messages(&owner, &id, &page(10, None)).await.unwrap().unwrap();
        assert!(matches!(&messages.items[0].parts[0], Part::Text(part) if part.text == clean), "{messages:?}");
        assert_eq!(messages.items, std::slice::from_ref(&stored.message));
        assert_eq!(json(&world.log(&owner, &id).await[0].data), serde_json::json!({"message": stored.message}));
        let (renamed, events) =
            world.store.change_conversation(&owner, &id, &ConversationChange::title(title), NOW).await.unwrap().unwrap();
        assert_eq!(renamed.title, clean);
        assert_eq!(world.log(&owner, &id).await.last(), events.last());
    }
    let big = "ß".repeat(1 << 20);
    let id = conversation();
    world.accept(AcceptRun { parts: text(&big), run_id: RunId::generate(&UuidIds), ..hello(&owner, &id) }).await;
    let messages = world.store.messages(&owner, &id, &page(1, None)).await.unwrap().unwrap();
    assert_eq!(messages.items[0].text(), big);
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}
