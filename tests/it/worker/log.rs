//! Group commit.

use std::sync::Arc;
use std::time::Duration;

use capstan::domain::ids::{NodeId, PartId};
use capstan::engine::StreamItem;
use capstan::live::Tail;
use capstan::support::clock::SystemClock;
use capstan::worker::{LogError, LogWriter, Urgency};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::harness::Harness;

/// W-15.
#[tokio::test]
async fn gathered_deltas_are_one_event_published_after_commit() {
    let h = Harness::new().await;
    let (conversation, _) = h.say("go").await;
    let node = NodeId::generate(h.ids.as_ref());
    let claim = h.store.claim_runs(&node, 1, 10_000).await.unwrap().remove(0);
    let listener = h.hub.subscribe(&conversation);
    let writer = LogWriter::new(Duration::from_millis(25), 10);
    let log = writer.for_run(claim.fence, 1, CancellationToken::new(), Arc::new(SystemClock));
    let part = PartId::generate(h.ids.as_ref());
    for word in ["aaaa", "bbbb", "cccc"] {
        log.push(vec![StreamItem::Delta(part.clone(), word.to_owned())], Urgency::Now);
    }
    let head = h.store.log_bounds(&h.owner, &conversation).await.unwrap().unwrap().head;
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let (store, hub, token) = (h.store.clone(), h.hub.clone(), stop.clone());
    tasks.spawn(async move { writer.run(store, hub, token).await });
    let Tail::Events(events) = listener.next().await else { panic!("events were expected") };
    // A delta has at most 10 bytes here: two words fit, and the third starts another event.
    let data: Vec<String> = events.iter().map(|event| event.data.clone()).collect();
    assert!(data[0].contains("aaaabbbb") && data[1].contains("cccc"), "{data:?}");
    assert_eq!(events[0].seq, head + 1);
    assert_eq!(h.store.events(&h.owner, &conversation, head, 10).await.unwrap().len(), 2, "a published event is stored");
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    assert!(matches!(log.commit(&[], Vec::new()).await, Err(LogError::Stopped)));
}

#[tokio::test]
async fn a_fenced_write_says_so_and_leaves_nothing() {
    let h = Harness::new().await;
    let (conversation, _) = h.say("go").await;
    let node = NodeId::generate(h.ids.as_ref());
    let claim = h.store.claim_runs(&node, 1, 10_000).await.unwrap().remove(0);
    let other = NodeId::generate(h.ids.as_ref());
    h.store.expire_foreign_leases(&other).await.unwrap();
    assert_eq!(h.store.claim_runs(&other, 1, 10_000).await.unwrap().len(), 1);
    let writer = LogWriter::new(Duration::from_millis(25), 10);
    let lost = CancellationToken::new();
    let log = writer.for_run(claim.fence, 1, lost.clone(), Arc::new(SystemClock));
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let (store, hub, token) = (h.store.clone(), h.hub.clone(), stop.clone());
    tasks.spawn(async move { writer.run(store, hub, token).await });
    let before = h.store.log_bounds(&h.owner, &conversation).await.unwrap();
    let body = capstan::domain::event::EventBody::StepReset { step: 1, reason: "test".to_owned() };
    assert!(matches!(log.commit(&[body], Vec::new()).await, Err(LogError::Fenced)));
    assert!(lost.is_cancelled());
    assert_eq!(h.store.log_bounds(&h.owner, &conversation).await.unwrap(), before);
    stop.cancel();
}
