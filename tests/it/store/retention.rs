//! Delta compaction.

use capstan::domain::conversation::delta_compaction::{CompactedDelta, compact_deltas, covers_cursor};
use capstan::domain::event::{EventBody, NewEvent, StoredEvent};
use capstan::domain::ids::{ConversationId, PartId};
use capstan::domain::run::OnBusy;
use capstan::domain::run::record::{Fence, RunWrite};
use capstan::service::{CompactionMode, CompactionStep, DeltaCompactor};
use capstan::support::ids::UuidIds;
use serde_json::Value;

use super::fixture::*;

contract! {
    ;
    compacted_run_has_the_same_text,
    runs_that_are_young_or_not_over_are_left_alone,
    a_pass_that_was_cut_short_is_gone_on_with,
    two_at_once_do_it_once,
    a_fold_of_events_that_are_no_more_changes_nothing,
}

/// Writes the words of one part.
async fn say(world: &World, fence: &Fence, part_id: &PartId, words: &[&str]) {
    let event = |word: &&str| {
        let body = EventBody::PartDelta { part_id: part_id.clone(), delta: (*word).to_owned() };
        NewEvent::new(&body, Some(fence.run_id.clone()), 1, NOW)
    };
    let write = RunWrite { fence: fence.clone(), events: words.iter().map(event).collect(), changes: Vec::new(), after: 0 };
    world.commit_one(write).await.unwrap();
}

/// Returns an ended run with one part of this many words.
async fn talkative(world: &World, words: usize) -> Fence {
    let fence = world.claimed(&user()).await;
    let words: Vec<String> = (0..words).map(|n| format!("{n} ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    say(world, &fence, &PartId::generate(&UuidIds), &words).await;
    world.commit_one(completed(&fence)).await.unwrap();
    fence
}

async fn whole_log(world: &World, conversation: &ConversationId) -> Vec<StoredEvent> {
    let owner = world.owner_of(conversation).await;
    let mut log: Vec<StoredEvent> = Vec::new();
    loop {
        let after = log.last().map_or(0, |event| event.seq);
        let page = world.store.events(&owner, conversation, after, 1_000).await.unwrap();
        if page.is_empty() {
            return log;
        }
        log.extend(page);
    }
}

/// Returns the text of each part, in order.
fn text(log: &[StoredEvent]) -> Vec<(String, String)> {
    let mut parts: Vec<(String, String)> = Vec::new();
    for event in log.iter().filter(|event| event.kind == "part.delta") {
        let data: Value = serde_json::from_str(&event.data).unwrap();
        let (part, delta) = (data["part_id"].as_str().unwrap(), data["delta"].as_str().unwrap());
        match parts.last_mut().filter(|(last, _)| last == part) {
            Some((_, text)) => text.push_str(delta),
            None => parts.push((part.to_owned(), delta.to_owned())),
        }
    }
    parts
}

fn folder(world: &World, mode: CompactionMode) -> DeltaCompactor {
    DeltaCompactor::new(world.store.clone(), 0, mode)
}

/// Runs a pass to its end. Returns the numbers of runs and events.
async fn finish(mut folder: DeltaCompactor) -> (u64, u64) {
    while folder.step().await.unwrap() == CompactionStep::Compacted {}
    (folder.runs, folder.events)
}

async fn compacted_run_has_the_same_text(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let parts = [PartId::generate(&UuidIds), PartId::generate(&UuidIds)];
    say(world, &fence, &parts[0], &["a\"", "b\\", "c\u{1F600}"]).await;
    // A queued message is stored between the words.
    world.accept(hello(&owner, &fence.conversation_id)).await;
    say(world, &fence, &parts[0], &["d", "e"]).await;
    say(world, &fence, &parts[1], &["f", "g", "h\u{0}"]).await;
    world.commit_one(completed(&fence)).await.unwrap();
    let before = whole_log(world, &fence.conversation_id).await;

    assert_eq!(finish(folder(world, CompactionMode::Count)).await, (1, 5));
    assert_eq!(whole_log(world, &fence.conversation_id).await, before, "counting changes nothing");
    assert_eq!(finish(folder(world, CompactionMode::Write)).await, (1, 5));
    let after = whole_log(world, &fence.conversation_id).await;
    assert_eq!(text(&after), text(&before));
    assert_eq!(after.len(), before.len() - 5);
    for event in &after {
        let was = before.iter().find(|was| was.seq == event.seq).expect("no event gets a new number");
        assert_eq!((&event.kind, &event.run_id, event.attempt, event.at), (&was.kind, &was.run_id, was.attempt, was.at));
        assert!(event.kind == "part.delta" || event.data == was.data);
    }
    // A remaining event is a valid cursor, and a removed one is not.
    for cursor in before.iter().map(|event| event.seq) {
        let next = world.store.events(&owner, &fence.conversation_id, cursor, 1).await.unwrap();
        let is_there = after.iter().any(|event| event.seq == cursor);
        assert_eq!(next.first().is_some_and(|next| covers_cursor(next, cursor)), !is_there, "{cursor}");
    }
    let bounds = world.store.log_bounds(&owner, &fence.conversation_id).await.unwrap().unwrap();
    assert_eq!((bounds.oldest, Some(bounds.head)), (1, before.last().map(|event| event.seq)));
    assert_eq!(finish(folder(world, CompactionMode::Write)).await, (0, 0), "a second pass finds nothing");
    assert_eq!(folder(world, CompactionMode::Write).runs_left().await.unwrap(), 0);
}

async fn runs_that_are_young_or_not_over_are_left_alone(world: &World) {
    let fence = world.claimed(&user()).await;
    say(world, &fence, &PartId::generate(&UuidIds), &["a", "b"]).await;
    assert_eq!(world.store.runs_to_compact(0, None, 10).await.unwrap(), []);
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.store.runs_to_compact(60_000, None, 10).await.unwrap(), []);
    let due = world.store.runs_to_compact(0, None, 10).await.unwrap();
    assert_eq!(
        due.iter().map(|run| (&run.id, &run.conversation_id)).collect::<Vec<_>>(),
        [(&fence.run_id, &fence.conversation_id)]
    );
    assert_eq!(world.store.runs_to_compact(0, due.last(), 10).await.unwrap(), []);
    assert!(world.store.compact_deltas(&fence.conversation_id, &[], Some(&fence.run_id)).await.unwrap());
    assert_eq!(world.store.runs_to_compact(0, None, 10).await.unwrap(), []);

    // A run under way is not affected by the end of the previous run in its conversation.
    let owner = user();
    let first = world.claimed(&owner).await;
    world.accept(capstan::store::AcceptRun { on_busy: OnBusy::Queue, ..hello(&owner, &first.conversation_id) }).await;
    say(world, &first, &PartId::generate(&UuidIds), &["a", "b"]).await;
    world.commit_one(completed(&first)).await.unwrap();
    let second = world.claim_one().await;
    say(world, &second, &PartId::generate(&UuidIds), &["c", "d"]).await;
    assert_eq!(finish(folder(world, CompactionMode::Write)).await, (1, 1));
    let said: Vec<String> = text(&whole_log(world, &first.conversation_id).await).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["ab", "cd"]);
    say(world, &second, &PartId::generate(&UuidIds), &["e"]).await;
    world.commit_one(completed(&second)).await.unwrap();
}

async fn a_pass_that_was_cut_short_is_gone_on_with(world: &World) {
    let fence = talkative(world, 1_300).await;
    let before = whole_log(world, &fence.conversation_id).await;
    // Each pass stops after one piece and leaves a valid log.
    for passes in 1.. {
        let mut folder = folder(world, CompactionMode::Write);
        assert_eq!(folder.runs_left().await.unwrap(), 1, "it has not finished");
        assert_eq!(folder.step().await.unwrap(), CompactionStep::Compacted);
        let log = whole_log(world, &fence.conversation_id).await;
        assert_eq!(text(&log), text(&before));
        if log.len() == before.len() - 1_299 {
            assert!(passes > 1, "it was interrupted at least once");
            break;
        }
        assert!(passes < 10, "{} of {} events are left", log.len(), before.len());
    }
    finish(folder(world, CompactionMode::Write)).await;
    assert_eq!(world.store.runs_to_compact(0, None, 10).await.unwrap(), []);
}

async fn two_at_once_do_it_once(world: &World) {
    let mut logs = Vec::new();
    for words in [700, 30, 1, 600] {
        let fence = talkative(world, words).await;
        let log = whole_log(world, &fence.conversation_id).await;
        logs.push((fence, log));
    }
    let mut events = 0;
    // A pass that meets the other one leaves the rest to it. If both do, the next pass finishes.
    for _ in 0..10 {
        let ((_, some), (_, others)) =
            tokio::join!(finish(folder(world, CompactionMode::Write)), finish(folder(world, CompactionMode::Write)));
        events += some + others;
    }
    assert_eq!(events, 699 + 29 + 599);
    for (fence, before) in logs {
        let after = whole_log(world, &fence.conversation_id).await;
        assert_eq!(text(&after), text(&before));
        assert_eq!(after.iter().filter(|event| event.kind == "part.delta").count(), 1);
    }
}

async fn a_fold_of_events_that_are_no_more_changes_nothing(world: &World) {
    let fence = talkative(world, 4).await;
    let conversation = &fence.conversation_id;
    let before = whole_log(world, conversation).await;
    let folds = compact_deltas(&before, &fence.run_id);
    let mut none_of_them = folds.clone();
    none_of_them[0].replaced_seqs.push(999);
    let mut of_another = folds.clone();
    of_another.push(CompactedDelta { seq: 999, data: "{}".to_owned(), replaced_seqs: Vec::new() });
    for stale in [&none_of_them, &of_another] {
        assert!(!world.store.compact_deltas(conversation, stale, Some(&fence.run_id)).await.unwrap());
        assert_eq!(whole_log(world, conversation).await, before);
    }
    assert_eq!(world.store.runs_to_compact(0, None, 10).await.unwrap().len(), 1);
    assert!(world.store.compact_deltas(conversation, &folds, None).await.unwrap());
    let after = whole_log(world, conversation).await;
    assert!(!world.store.compact_deltas(conversation, &folds, None).await.unwrap());
    assert_eq!(whole_log(world, conversation).await, after);
}
