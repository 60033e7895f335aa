//! The event log: sequence numbers, fences and batches.

use std::collections::HashMap;
use std::sync::Arc;

use capstan::domain::conversation::message::{Message, Part, ToolCallPart};
use capstan::domain::conversation::{AgentChoice, ConversationStatus};
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{ConversationId, PartId, UserId};
use capstan::domain::model::Usage;
use capstan::domain::run::change::{Change, StepKind, StepStatus};
use capstan::domain::run::record::{Fence, RunWrite};
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::store::{AcceptRun, CommitReceipt, ConversationChange, LogBounds, PAGE_BYTES, WriteRejection, is_full_page};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::{
    NOW, World, assistant, changes, completed, conversation, delta, deltas, failed, hello, page, planned_call, started, updated,
    user, write,
};

contract! {
    a_fenced_write_leaves_nothing_and_its_neighbours_go_through,
    writes_of_one_run_are_carried_out_in_order,
    write_after_the_end_in_a_batch_is_fenced,
    a_write_that_breaks_a_rule_spares_its_neighbours,
    a_log_that_has_lost_what_was_written_is_not_written_to,
    numbers_have_no_gaps_under_concurrent_writers,
    events_come_back_as_they_were_written,
    pages_of_events_end_when_they_are_large,
    bounds_and_heads,
    conversation_facts_match_the_stored_rows,
    an_end_is_complete_in_one_transaction,
    an_empty_batch_is_nothing,
    unchanged_status_keeps_updated_at,
    ;
    step_end_without_usage_keeps_usage,
    deleting_a_conversation_fences_its_writer,
    unreadable_value_is_not_written,
}

/// Returns the fence of the previous claim.
fn stale(fence: &Fence) -> Fence {
    Fence { epoch: fence.epoch - 1, ..fence.clone() }
}

async fn a_fenced_write_leaves_nothing_and_its_neighbours_go_through(world: &World) {
    let owner = user();
    let (one, two, three) = (world.claimed(&owner).await, world.claimed(&owner).await, world.claimed(&owner).await);
    let late = RunWrite {
        fence: stale(&two),
        events: vec![delta(&two, "late"), delta(&two, "later")],
        changes: vec![
            Change::SetStatus(RunStatus::ToolLoop, None),
            Change::AddMessage(assistant(&two, "late")),
            Change::StartStep { step: 1, kind: StepKind::Model, request: None },
        ],
        after: 0,
    };
    let missing = Fence { conversation_id: conversation(), ..three.clone() };
    let borrowed = Fence { conversation_id: one.conversation_id.clone(), ..three.clone() };
    let batch = [deltas(&one, 2), late, deltas(&missing, 1), deltas(&borrowed, 1), deltas(&three, 1), deltas(&two, 1)];
    let answers = world.commit_all(&batch).await;
    assert_eq!(
        answers,
        [Ok(4), Err(WriteRejection::Fenced), Err(WriteRejection::Fenced), Err(WriteRejection::Fenced), Ok(4), Ok(4)]
    );
    assert_eq!((world.log(&owner, &one.conversation_id).await.len(), world.log(&owner, &two.conversation_id).await.len()), (5, 4));
    let record = world.load(&two).await;
    assert_eq!((record.status, record.history.len(), record.steps.len()), (RunStatus::Queued, 1, 0));
    assert_eq!(world.status(&owner, &two.conversation_id).await, "queued");
}

async fn writes_of_one_run_are_carried_out_in_order(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let step = |step, status| Change::EndStep { step, status, usage: None };
    let batch = [
        started(&fence),
        changes(&fence, vec![Change::StartStep { step: 1, kind: StepKind::Model, request: None }]),
        deltas(&fence, 3),
        changes(&fence, vec![step(1, StepStatus::Completed), Change::AddMessage(assistant(&fence, "one"))]),
        RunWrite {
            fence: fence.clone(),
            events: vec![delta(&fence, "a"), delta(&fence, "b")],
            changes: vec![Change::AddMessage(assistant(&fence, "two")), Change::AddMessage(assistant(&fence, "three"))],
            after: 0,
        },
        changes(&fence, vec![Change::SetStatus(RunStatus::ToolLoop, None)]),
    ];
    let answers = world.commit_all(&batch).await;
    assert_eq!(answers, [Ok(4), Ok(5), Ok(6), Ok(9), Ok(10), Ok(12)]);
    let record = world.load(&fence).await;
    assert_eq!(record.status, RunStatus::ToolLoop);
    assert_eq!(record.history.iter().map(|message| message.text()).collect::<Vec<_>>(), ["hello", "one", "two", "three"]);
    assert_eq!(record.steps[0].status, StepStatus::Completed);
    assert_eq!(world.log(&owner, &fence.conversation_id).await.len(), 12);
}

async fn write_after_the_end_in_a_batch_is_fenced(world: &World) {
    let owner = user();
    let (one, two) = (world.claimed(&owner).await, world.claimed(&owner).await);
    let batch = [deltas(&one, 1), completed(&one), deltas(&two, 1), deltas(&one, 1), failed(&one)];
    let answers = world.commit_all(&batch).await;
    assert_eq!(answers, [Ok(4), Ok(5), Ok(4), Err(WriteRejection::Fenced), Err(WriteRejection::Fenced)]);
    assert_eq!(world.view(&owner, &one.run_id).await.run.status, RunStatus::Completed);
    assert_eq!(world.kinds(&owner, &one.conversation_id).await.last().unwrap(), "run.completed");
    assert_eq!(world.commit_one(deltas(&one, 1)).await, Err(WriteRejection::Fenced));
}

async fn a_write_that_breaks_a_rule_spares_its_neighbours(world: &World) {
    let owner = user();
    let (one, two) = (world.claimed(&owner).await, world.claimed(&owner).await);
    let message = assistant(&one, "twice");
    world.commit_one(changes(&one, vec![Change::AddMessage(message.clone())])).await.unwrap();
    let again = changes(&one, vec![Change::SetStatus(RunStatus::ToolLoop, None), Change::AddMessage(message)]);
    // Earlier writes of the same run stay. Later ones would leave a gap, so they are refused.
    let answers = world.commit_all(&[deltas(&one, 1), deltas(&two, 1), again, deltas(&one, 1), deltas(&two, 1)]).await;
    assert_eq!(answers, [Ok(5), Ok(4), Err(WriteRejection::Fenced), Err(WriteRejection::Fenced), Ok(5)]);
    assert_eq!(world.load(&one).await.status, RunStatus::Queued);
    assert_eq!(world.log(&owner, &one.conversation_id).await.len(), 5);

    // The same for a rule that is checked without the rows.
    let wrong = changes(&one, vec![Change::SetStatus(RunStatus::Completed, None)]);
    let answers = world.commit_all(&[deltas(&one, 1), wrong, deltas(&one, 1), deltas(&two, 1)]).await;
    assert_eq!(answers, [Ok(6), Err(WriteRejection::Fenced), Err(WriteRejection::Fenced), Ok(6)]);
}

/// At each depth, the write is refused alone, or it can be read back.
async fn unreadable_value_is_not_written(world: &World) {
    let owner = user();
    let neighbour = world.claimed(&owner).await;
    for levels in [64, 115, 120, 122, 124, 126, 127, 200] {
        let fence = world.claimed(&owner).await;
        let message = assistant(&fence, "calls");
        let mut call = planned_call(&fence, &message.id, 0);
        call.arguments = (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
        let part = ToolCallPart {
            id: PartId::generate(&UuidIds),
            call_id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            provider_call_id: None,
            raw: None,
            undoes: None,
        };
        let message = Message { parts: vec![Part::ToolCall(part)], ..message };
        let deep = changes(&fence, vec![Change::AddMessage(message.clone()), Change::AddToolCalls(vec![call.clone()])]);
        let answers = world.commit_all(&[deltas(&neighbour, 1), deep, deltas(&neighbour, 1)]).await;
        assert!(answers[0].is_ok() && answers[2].is_ok(), "{levels}: {answers:?}");
        let record = world.load(&fence).await;
        match answers[1] {
            Ok(_) => assert_eq!((record.history.last(), record.calls), (Some(&message), vec![Arc::new(call)]), "{levels}"),
            Err(refused) => {
                assert_eq!((refused, record.history.len(), record.calls.len()), (WriteRejection::Fenced, 1, 0), "{levels}");
                assert!(levels > 115, "{levels} levels are refused");
            }
        }
        let messages = world.store.messages(&owner, &fence.conversation_id, &page(10, None)).await.unwrap().unwrap();
        assert_eq!(messages.items, record.history, "{levels}");
    }
}

async fn numbers_have_no_gaps_under_concurrent_writers(world: &World) {
    let owner = user();
    let fences = [world.claimed(&owner).await, world.claimed(&owner).await, world.claimed(&owner).await];
    let mut writers = tokio::task::JoinSet::new();
    // Two batches with the same runs in opposite orders, beside requests that append to the same logs.
    for turned in [false, true] {
        let (store, mut fences) = (world.store.clone(), fences.clone());
        if turned {
            fences.reverse();
        }
        writers.spawn(async move {
            for _ in 0..20 {
                let batch: Vec<RunWrite> = fences.iter().map(|fence| deltas(fence, 3)).collect();
                for answer in store.commit(&batch).await.unwrap() {
                    answer.unwrap();
                }
            }
        });
    }
    for fence in &fences {
        let (store, owner, id) = (world.store.clone(), owner.clone(), fence.conversation_id.clone());
        writers.spawn(async move {
            for n in 0..10 {
                store.change_conversation(&owner, &id, &ConversationChange::title(&n.to_string()), NOW).await.unwrap().unwrap();
                let steer = AcceptRun { on_busy: OnBusy::Steer, ..hello(&owner, &id) };
                store.accept_run(steer, None).await.unwrap();
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    for fence in &fences {
        assert_eq!(world.log(&owner, &fence.conversation_id).await.len(), 3 + 2 * 20 * 3 + 2 * 10);
    }
}

/// D-01. Events were lost after they were confirmed, so further writes are refused.
async fn a_log_that_has_lost_what_was_written_is_not_written_to(world: &World) {
    let owner = user();
    let (one, two) = (world.claimed(&owner).await, world.claimed(&owner).await);
    let head = world.commit_one(deltas(&one, 3)).await.unwrap() + 2;
    let next = world.commit_one(RunWrite { after: head, ..deltas(&one, 1) }).await.unwrap();
    assert_eq!(next, head + 1);
    let lost = RunWrite { after: next + 1, ..deltas(&one, 1) };
    let answers = world.store.commit(&[lost, deltas(&two, 1)]).await.unwrap();
    assert!(matches!(answers.as_slice(), [Err(WriteRejection::Fenced), Ok(_)]), "{answers:?}");
    assert_eq!(world.log(&owner, &one.conversation_id).await.last().unwrap().seq, next);

    // The end is refused as well, but not because of a joined message. With that reason the worker would retry forever.
    let end = |heard, after| {
        let mut end = RunWrite { after, ..completed(&one) };
        for change in &mut end.changes {
            if let Change::Finish { joined, .. } = change {
                *joined = Some(heard);
            }
        }
        end
    };
    for heard in [0, 1] {
        let answers = world.store.commit(&[deltas(&two, 1), end(heard, next + 1)]).await.unwrap();
        assert!(matches!(answers.as_slice(), [Ok(_), Err(WriteRejection::Fenced)]), "{heard}: {answers:?}");
    }
    assert_eq!(world.commit_one(end(1, next)).await, Err(WriteRejection::MessageJoined));
    assert_eq!(world.commit_one(end(0, next)).await, Ok(next + 1));
}

async fn events_come_back_as_they_were_written(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let texts = ["", "\0", "\\u0000", "ä\u{1F600}\n", "\"}],[\"", &"x".repeat(70_000)];
    let mut events: Vec<_> = texts.iter().map(|text| delta(&fence, text)).collect();
    // D-17: an event of a future version.
    events.push(NewEvent { kind: "future.told", data: r#"{"what":[1]}"#.to_owned(), ..delta(&fence, "") });
    let first =
        world.commit_one(RunWrite { fence: fence.clone(), events: events.clone(), changes: vec![], after: 0 }).await.unwrap();
    let log = world.store.events(&owner, &fence.conversation_id, first - 1, 1_000).await.unwrap();
    assert_eq!(log.len(), events.len());
    for ((back, event), seq) in log.iter().zip(&events).zip(first..) {
        assert_eq!((back.seq, back.kind.as_ref(), &back.run_id), (seq, event.kind, &event.run_id));
        assert_eq!((back.attempt, back.at, &back.data), (event.attempt, event.at, &event.data));
    }
    let part = world.store.events(&owner, &fence.conversation_id, first, 2).await.unwrap();
    assert_eq!(part, log[1..3]);
    assert_eq!(world.store.events(&owner, &fence.conversation_id, first + 100, 10).await.unwrap(), []);
    assert_eq!(world.store.events(&owner, &conversation(), 0, 10).await.unwrap(), []);
    assert_eq!(world.store.events(&user(), &fence.conversation_id, 0, 10).await.unwrap(), [], "another owner");
}

async fn pages_of_events_end_when_they_are_large(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    // The limit is in bytes, not in characters.
    let large = "é".repeat(PAGE_BYTES / 8);
    let events = (0..10).map(|_| delta(&fence, &large)).collect();
    world.commit_one(RunWrite { fence: fence.clone(), events, changes: Vec::new(), after: 0 }).await.unwrap();
    let end = world.store.log_bounds(&owner, &fence.conversation_id).await.unwrap().unwrap().head;
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let page = world.store.events(&owner, &fence.conversation_id, cursor, 500).await.unwrap();
        let sizes: Vec<usize> = page.iter().map(|event| event.data.len()).collect();
        let all_but_last: usize = sizes.iter().rev().skip(1).sum();
        assert!(all_but_last < PAGE_BYTES, "{sizes:?}");
        seen.extend(page.iter().map(|event| event.seq));
        if !is_full_page(&page, 500) {
            break;
        }
        assert!(sizes.iter().sum::<usize>() >= PAGE_BYTES, "{sizes:?}");
        cursor = *seen.last().unwrap();
    }
    assert_eq!(seen, (1..=end).collect::<Vec<i64>>());
    // An event that is larger than a page is a page by itself.
    let huge = delta(&fence, &"x".repeat(PAGE_BYTES * 2));
    world
        .commit_one(RunWrite { fence: fence.clone(), events: vec![huge.clone(), huge], changes: Vec::new(), after: 0 })
        .await
        .unwrap();
    for after in [end, end + 1] {
        assert_eq!(world.store.events(&owner, &fence.conversation_id, after, 500).await.unwrap().len(), 1);
    }
}

async fn bounds_and_heads(world: &World) {
    let owner = user();
    let (one, two, empty) = (world.claimed(&owner).await, world.claimed(&owner).await, conversation());
    let new = capstan::store::NewConversation {
        id: empty.clone(),
        owner: owner.clone(),
        title: String::new(),
        system_prompt: None,
        instructions: None,
        choice: AgentChoice::default(),
        max_conversations: 0,
        now: NOW,
    };
    world.store.create_conversation(new, None).await.unwrap();
    world.commit_one(deltas(&one, 2)).await.unwrap();
    let bounds = world.store.log_bounds(&owner, &one.conversation_id).await.unwrap();
    assert_eq!(bounds, Some(LogBounds { oldest: 1, head: 5 }));
    assert_eq!(world.store.log_bounds(&owner, &empty).await.unwrap(), Some(LogBounds { oldest: 1, head: 0 }));
    assert_eq!(world.store.log_bounds(&owner, &conversation()).await.unwrap(), None);
    assert_eq!(world.store.log_bounds(&user(), &one.conversation_id).await.unwrap(), None, "another owner");
    let ids: Vec<ConversationId> = vec![one.conversation_id.clone(), two.conversation_id.clone(), conversation()];
    let mut heads = world.store.heads(&ids).await.unwrap();
    heads.sort_by_key(|(_, head)| *head);
    assert_eq!(heads, [(two.conversation_id.clone(), 3), (one.conversation_id.clone(), 5)]);
    assert_eq!(world.store.heads(&[]).await.unwrap(), []);

    let after = |seqs: [i64; 3]| -> Vec<(ConversationId, i64)> { ids.iter().cloned().zip(seqs).collect() };
    let news = async |seqs, limit| {
        let news = world.store.events_after(&after(seqs), limit).await.unwrap();
        news.into_iter().map(|(id, events)| (id, events.iter().map(|event| event.seq).collect())).collect::<HashMap<_, Vec<i64>>>()
    };
    let found = news([1, 0, 0], 500).await;
    assert_eq!(
        found,
        HashMap::from([(one.conversation_id.clone(), vec![2, 3, 4, 5]), (two.conversation_id.clone(), vec![1, 2, 3])])
    );
    assert_eq!(news([2, 3, 0], 2).await, HashMap::from([(one.conversation_id.clone(), vec![3, 4])]));
    assert_eq!(world.store.events_after(&[], 2).await.unwrap(), []);
    let events = world.store.events(&owner, &one.conversation_id, 1, 500).await.unwrap();
    assert_eq!(world.store.events_after(&[(one.conversation_id.clone(), 1)], 500).await.unwrap(), [(one.conversation_id, events)]);
}

/// Commits writes with the engine's conversation event. Returns the completed events, which must equal the stored ones.
async fn told(world: &World, owner: &UserId, writes: &[(RunWrite, ConversationStatus)]) -> Vec<String> {
    let writes = writes.iter().map(|(write, status)| {
        let events = [updated(*status)].into_iter().chain(write.events.clone()).collect();
        RunWrite { events, ..write.clone() }
    });
    let writes: Vec<_> = writes.collect();
    let answers = world.store.commit(&writes).await.unwrap();
    let mut told = Vec::new();
    for (write, answer) in writes.iter().zip(answers) {
        let CommitReceipt { first_seq, completed, .. } = answer.unwrap();
        let stored = world.store.events(owner, &write.fence.conversation_id, first_seq - 1, 1).await.unwrap().remove(0);
        assert_eq!((stored.seq, stored.kind.as_ref(), stored.at, &stored.run_id), (first_seq, "conversation.updated", NOW, &None));
        assert_eq!(completed, [(0, stored.data.clone())], "the published event is the stored one");
        world.log(owner, &write.fence.conversation_id).await;
        told.push(stored.data);
    }
    told
}

async fn conversation_facts_match_the_stored_rows(world: &World) {
    use ConversationStatus::{Failed, Idle, Processing, ToolLoop};
    let owner = user();
    let (one, two, three) = (world.claimed(&owner).await, world.claimed(&owner).await, world.claimed(&owner).await);
    let status = |fence: &Fence, status| changes(fence, vec![Change::SetStatus(status, None)]);
    let title = "Ä \"new\" \\ one\n\u{7f}\u{1f}\u{2028}\u{1F600}</script>";
    world.store.change_conversation(&owner, &one.conversation_id, &ConversationChange::title(title), NOW).await.unwrap().unwrap();
    let batch = [
        (status(&one, RunStatus::Processing), Processing),
        (status(&two, RunStatus::Processing), Processing),
        // The status changes and changes back in one batch.
        (status(&one, RunStatus::ToolLoop), ToolLoop),
        (status(&one, RunStatus::Processing), Processing),
    ];
    let said = told(world, &owner, &batch).await;
    let titles: Vec<(String, String)> = said
        .iter()
        .map(|data| serde_json::from_str::<serde_json::Value>(data).unwrap())
        .map(|data| (data["title"].as_str().unwrap().to_owned(), data["status"].as_str().unwrap().to_owned()))
        .collect();
    let pair = |title: &str, status: &str| (title.to_owned(), status.to_owned());
    assert_eq!(
        titles,
        [pair(title, "processing"), pair("A title", "processing"), pair(title, "tool_loop"), pair(title, "processing")]
    );
    assert_eq!(said[1], r#"{"title":"A title","status":"processing"}"#);

    // A run queues behind the first one, and the second one's conversation is renamed meanwhile.
    world.accept(hello(&owner, &one.conversation_id)).await;
    world.store.change_conversation(&owner, &one.conversation_id, &ConversationChange::title("One"), NOW).await.unwrap().unwrap();
    world.store.change_conversation(&owner, &two.conversation_id, &ConversationChange::title("Two"), NOW).await.unwrap().unwrap();
    let batch = [
        (status(&one, RunStatus::ToolLoop), ToolLoop),
        (completed(&one), Idle),
        (failed(&two), Failed),
        (status(&three, RunStatus::Processing), Processing),
    ];
    assert_eq!(
        told(world, &owner, &batch).await,
        [
            r#"{"title":"One","status":"tool_loop"}"#,
            r#"{"title":"One","status":"queued"}"#,
            r#"{"title":"Two","status":"failed"}"#,
            r#"{"title":"A title","status":"processing"}"#
        ]
    );
    assert_eq!(world.status(&owner, &one.conversation_id).await, "queued");
    assert_eq!(world.status(&owner, &two.conversation_id).await, "failed");

    // A status without change has no event.
    let idle = RunWrite { fence: three.clone(), events: vec![updated(Idle)], changes: Vec::new(), after: 0 };
    assert_eq!(world.commit_one(idle).await, Err(WriteRejection::Fenced));
}

async fn an_end_is_complete_in_one_transaction(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.commit_one(started(&fence)).await.unwrap();
    // The terminal event counts at any position.
    let mut end = failed(&fence);
    end.events.insert(0, delta(&fence, "before"));
    end.events.push(updated(ConversationStatus::Failed));
    let first = world.commit_one(end).await.unwrap();
    let view = world.view(&owner, &fence.run_id).await;
    assert_eq!((view.run.status, view.last_seq), (RunStatus::Failed, Some(first + 1)));
    let error = view.run.error.unwrap();
    assert_eq!((error.code.as_str(), error.detail.as_str()), ("provider_auth", "the key \u{fffd} was refused"));
    assert!(view.run.started_at.is_some() && view.run.finished_at.is_some());
    assert_eq!(world.status(&owner, &fence.conversation_id).await, "failed");
    assert_eq!(world.store.active_run(&owner, &fence.conversation_id).await.unwrap(), None);
    let explained = world.store.explain_run(&owner, &fence.run_id).await.unwrap().unwrap();
    assert_eq!((explained.lease_node, explained.claimable_in_ms), (None, None));
    // The next message finds the conversation usable.
    world.accept(hello(&owner, &fence.conversation_id)).await;
    assert_eq!(world.status(&owner, &fence.conversation_id).await, "queued");
}

async fn deleting_a_conversation_fences_its_writer(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let neighbour = world.claimed(&owner).await;
    let id = fence.conversation_id.clone();
    world.accept(hello(&owner, &id)).await;
    let late = write(
        &fence,
        &EventBody::StepStarted { step: 1, kind: "model".to_owned(), tools: None },
        vec![Change::StartStep { step: 1, kind: StepKind::Model, request: None }, Change::AddMessage(assistant(&fence, "late"))],
    );
    let deleted = world.store.delete_conversation(&owner, &id).await.unwrap().unwrap();
    assert_eq!(deleted.active_run.as_ref(), Some(&fence.run_id));
    assert_eq!(world.commit_all(&[late, deltas(&neighbour, 1)]).await, [Err(WriteRejection::Fenced), Ok(4)]);
    assert_eq!(world.store.conversation(&owner, &id).await.unwrap(), None);
    assert_eq!(world.store.run(&owner, &fence.run_id).await.unwrap(), None);
    assert_eq!(world.store.messages(&owner, &id, &page(10, None)).await.unwrap(), None);
    assert_eq!(world.store.events(&owner, &id, 0, 10).await.unwrap(), []);
    assert_eq!(world.store.log_bounds(&owner, &id).await.unwrap(), None);
    assert_eq!(world.claim(10).await, []);
    assert_eq!(world.store.delete_conversation(&owner, &id).await.unwrap(), None);
    for table in ["runs", "messages", "events", "run_steps", "run_leases", "conversation_heads", "conversations"] {
        let condition = match table {
            "run_steps" | "run_leases" => format!("run_id = '{}'", fence.run_id),
            "conversations" => format!("id = '{id}'"),
            _ => format!("conversation_id = '{id}'"),
        };
        assert_eq!(world.database.count(&format!("SELECT CAST(count(*) AS text) FROM {table} WHERE {condition}")).await, 0);
    }
    // The id can be used again, and the late writer is still fenced.
    world.accept(hello(&owner, &id)).await;
    world.claim_one().await;
    assert_eq!(world.commit_one(deltas(&fence, 1)).await, Err(WriteRejection::Fenced));
}

async fn an_empty_batch_is_nothing(world: &World) {
    assert_eq!(world.commit_all(&[]).await, []);
    world.store.ping().await.unwrap();
}

async fn unchanged_status_keeps_updated_at(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    // The model's clock stands still at `NOW`.
    let before = UnixMillis(NOW.0 - 1_000);
    let status = |status| changes(&fence, vec![Change::SetStatus(status, None)]);
    let updated_at = async || world.store.conversation(&owner, &fence.conversation_id).await.unwrap().unwrap().updated_at;
    world
        .store
        .change_conversation(&owner, &fence.conversation_id, &ConversationChange::title("tea"), before)
        .await
        .unwrap()
        .unwrap();
    world.commit_one(status(RunStatus::Queued)).await.unwrap();
    assert_eq!(updated_at().await, before.to_rfc3339(), "the status was queued before");
    world.commit_one(status(RunStatus::Processing)).await.unwrap();
    let changed = updated_at().await;
    assert_ne!(changed, before.to_rfc3339());
    world.commit_one(status(RunStatus::Processing)).await.unwrap();
    assert_eq!(updated_at().await, changed);
}

async fn step_end_without_usage_keeps_usage(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let used = Usage { input_tokens: 30, ..Usage::default() };
    let end = |step, usage| Change::EndStep { step, status: StepStatus::Completed, usage };
    let begin = |step| Change::StartStep { step, kind: StepKind::Model, request: None };
    world.commit_one(changes(&fence, vec![begin(1), end(1, Some(used)), end(1, None)])).await.unwrap();
    world.commit_one(changes(&fence, vec![begin(2), end(2, Some(used))])).await.unwrap();
    world.commit_one(changes(&fence, vec![end(2, None)])).await.unwrap();
    let steps = world.database.rows(&format!("SELECT usage FROM run_steps WHERE run_id = '{}' ORDER BY step", fence.run_id)).await;
    assert!(steps.len() == 2 && steps.iter().all(|step| step[0].as_deref().is_some_and(|usage| usage.contains("30"))), "{steps:?}");
}
