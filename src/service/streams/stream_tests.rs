//! Stream readers beside writers: every interleaving of commits, notifications and reads yields the whole log.

use std::collections::VecDeque;
use std::sync::{Mutex, Weak};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;
use crate::domain::ids::UserId;
use crate::domain::run::record::RunWrite;
use crate::live::{Hub, HubLimits};
use crate::service::streams::follower::relay_news;
use crate::store::{CommitReceipt, LogStore, StoreResult, WriteRejection};
use crate::support::clock::UnixMillis;

fn conversation() -> ConversationId {
    ConversationId::parse("conv_01980000000070008000000000000003").unwrap()
}

fn owner() -> UserId {
    UserId::from_stored("user_1".to_owned())
}

fn run(number: u8) -> RunId {
    RunId::parse(&format!("run_0198000000007000800000000000000{number}")).unwrap()
}

/// An event that can happen beside a reader.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Commits events without publishing them.
    Commit(u8),
    /// Publishes this many of them, in order.
    Publish(u8),
    /// Marks this many as written by another node, which are not published here.
    Elsewhere(u8),
    /// Notifies subscribers that there may be news.
    Hint,
    /// Polls the log for all subscribers.
    Follow,
    /// Polls the reader once, and drops the read if nothing is ready.
    Read,
}

/// A log in memory. Further operations happen during its reads.
struct Log {
    this: Weak<Log>,
    hub: Arc<Hub>,
    events: Mutex<Vec<SharedEvent>>,
    announced: Mutex<usize>,
    meanwhile: Mutex<VecDeque<Op>>,
    deleted: Mutex<bool>,
    /// How often its pages were read.
    reads: Mutex<usize>,
    /// The lowest next sequence number of the log.
    lifted: Mutex<i64>,
    last: i64,
}

impl Log {
    fn new(last: i64, meanwhile: Vec<Op>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            hub: Hub::new(HubLimits { max_events: 4, max_bytes: 1_000 }),
            events: Mutex::default(),
            announced: Mutex::default(),
            meanwhile: Mutex::new(meanwhile.into()),
            deleted: Mutex::new(false),
            reads: Mutex::default(),
            lifted: Mutex::default(),
            last,
        })
    }

    /// Returns an event. Every third one belongs to another run, and the event `last` ends run number 1.
    fn event(&self, seq: i64) -> SharedEvent {
        let of_run = seq % 3 != 0 || seq == self.last;
        let kind = if seq == self.last { "run.completed" } else { "part.delta" };
        Arc::new(StoredEvent {
            seq,
            kind: kind.into(),
            conversation_id: conversation(),
            run_id: Some(if of_run { run(1) } else { run(2) }),
            attempt: 1,
            at: UnixMillis(0),
            data: "{}".into(),
        })
    }

    fn apply(&self, op: Op) {
        match op {
            Op::Commit(count) => {
                for _ in 0..count {
                    let event = self.event(self.head() + 1);
                    self.events.lock().unwrap().push(event);
                }
            }
            Op::Publish(count) => {
                let batch = self.announce(count);
                self.hub.publish(&conversation(), &batch);
            }
            Op::Elsewhere(count) => drop(self.announce(count)),
            Op::Hint => self.hub.hint(&conversation()),
            Op::Follow => {
                let logs = [(conversation(), self.hub.published(&conversation()))];
                relay_news(self, &self.hub, &logs).now_or_never().unwrap().unwrap();
            }
            Op::Read => {}
        }
    }

    fn announce(&self, count: u8) -> Vec<SharedEvent> {
        let events = self.events.lock().unwrap();
        let mut announced = self.announced.lock().unwrap();
        let until = events.len().min(*announced + usize::from(count));
        let batch = events[*announced..until].to_vec();
        *announced = until;
        batch
    }

    fn head(&self) -> i64 {
        let newest = self.events.lock().unwrap().last().map_or(0, |event| event.seq);
        newest.max(*self.lifted.lock().unwrap())
    }

    fn reader(&self, scope: Scope, cursor: i64) -> Reader {
        let tail = self.hub.subscribe(&conversation());
        Reader::new(OwnedLog::new(self.this.upgrade().unwrap(), owner()), tail, scope, cursor, Restart::From(0))
    }
}

#[async_trait]
impl LogStore for Log {
    async fn commit(&self, _: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
        Ok(Vec::new())
    }

    async fn events(&self, _: &UserId, _: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        *self.reads.lock().unwrap() += 1;
        let page = {
            let events = self.events.lock().unwrap();
            events.iter().filter(|event| event.seq > after).take(limit as usize).map(|event| (**event).clone()).collect()
        };
        let op = self.meanwhile.lock().unwrap().pop_front();
        op.into_iter().for_each(|op| self.apply(op));
        Ok(page)
    }

    async fn log_bounds(&self, _: &UserId, _: &ConversationId) -> StoreResult<Option<LogBounds>> {
        Ok((!*self.deleted.lock().unwrap()).then(|| LogBounds { oldest: 1, head: self.head() }))
    }

    async fn heads(&self, _: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        Ok(vec![(conversation(), self.head())])
    }

    async fn events_after(
        &self,
        after: &[(ConversationId, i64)],
        limit: u32,
    ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        let page = self.events(&owner(), &conversation(), after[0].1, limit).await?;
        Ok(vec![(conversation(), page)])
    }
}

/// Reads the available items. Returns `false` at the end of the stream.
fn drain(reader: &mut Reader, into: &mut Vec<StreamItem>) -> bool {
    loop {
        match reader.next().now_or_never() {
            None => return true,
            Some(Ok(Some(items))) => {
                assert!(!items.is_empty());
                into.extend(items);
            }
            Some(Ok(None)) => return false,
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

fn seqs(items: &[StreamItem]) -> Vec<i64> {
    items.iter().filter_map(|item| if let StreamItem::Event(event) = item { Some(event.seq) } else { None }).collect()
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (1_u8..6).prop_map(Op::Commit),
        (1_u8..6).prop_map(Op::Publish),
        (1_u8..3).prop_map(Op::Elsewhere),
        Just(Op::Hint),
        Just(Op::Follow),
        Just(Op::Read),
    ];
    prop::collection::vec(op, 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// W-05.
    #[test]
    fn every_interleaving_gives_the_whole_log(before in ops(8), after in ops(30), meanwhile in ops(10), behind in 0_i64..6) {
        let log = Log::new(i64::MAX, meanwhile);
        before.into_iter().for_each(|op| log.apply(op));
        let cursor = (log.head() - behind).max(0);
        let mut reader = log.reader(Scope::Conversation(conversation()), cursor);
        let mut said = Vec::new();
        for op in after {
            if matches!(op, Op::Read) {
                drain(&mut reader, &mut said);
            } else {
                log.apply(op);
            }
        }
        // Operations during reads are finite. Then the poller looks once more.
        for _ in 0..12 {
            log.apply(Op::Publish(u8::MAX));
            log.apply(Op::Hint);
            prop_assert!(drain(&mut reader, &mut said));
        }
        prop_assert_eq!(seqs(&said), (cursor + 1..=log.head()).collect::<Vec<_>>());
        prop_assert_eq!(reader.cursor, log.head());
    }

    #[test]
    fn a_run_stream_has_its_events_and_ends_once(before in ops(6), after in ops(30), meanwhile in ops(10), last in 1_i64..20) {
        let log = Log::new(last, meanwhile);
        before.into_iter().for_each(|op| log.apply(op));
        let last_seq = (log.head() >= last).then_some(last);
        let scope = Scope::Run { conversation_id: conversation(), run_id: run(1), last_seq };
        let mut reader = log.reader(scope, 0);
        let mut said = Vec::new();
        for op in after {
            if matches!(op, Op::Read) {
                drain(&mut reader, &mut said);
            } else {
                log.apply(op);
            }
        }
        log.apply(Op::Commit(20));
        for _ in 0..12 {
            log.apply(Op::Publish(u8::MAX));
            log.apply(Op::Hint);
            drain(&mut reader, &mut said);
        }
        let expected: Vec<i64> = (1..=last).filter(|seq| seq % 3 != 0 || *seq == last).collect();
        prop_assert_eq!(seqs(&said), expected);
        prop_assert_eq!(said.last(), Some(&StreamItem::End { last_seq: last }));
        prop_assert!(!drain(&mut reader, &mut said), "no item follows the end");
    }
}

#[tokio::test]
async fn long_logs_are_read_page_by_page() {
    let log = Log::new(i64::MAX, Vec::new());
    for _ in 0..13 {
        log.apply(Op::Commit(100));
    }
    let mut reader = log.reader(Scope::Conversation(conversation()), 0);
    // The first page is small, so that a reader that stops early costs little.
    let sizes = [100, 200, 400, 500, 100];
    for size in sizes {
        assert_eq!(reader.next().await.unwrap().unwrap().len(), size);
    }
}

/// W-12: each of many readers reads the store once at its start. Events of other processes are then read once for all, unless
/// they exceed the queues. Events of this process cost no read, for any number of readers.
#[tokio::test]
async fn many_readers_of_one_log_ask_the_store_as_often_as_they_begin() {
    const READERS: usize = 50;
    let log = Log::new(i64::MAX, Vec::new());
    log.apply(Op::Commit(20));
    drop(log.announce(20));
    let mut readers: Vec<_> = (0..READERS).map(|_| (log.reader(Scope::Conversation(conversation()), 0), Vec::new())).collect();
    let everybody_reads = |readers: &mut Vec<(Reader, Vec<StreamItem>)>| {
        for (reader, said) in readers {
            assert!(drain(reader, said));
        }
        *log.reads.lock().unwrap()
    };
    assert_eq!(everybody_reads(&mut readers), READERS);
    for _ in 0..100 {
        log.apply(Op::Commit(3));
        log.apply(Op::Publish(3));
        assert_eq!(everybody_reads(&mut readers), READERS, "published events are not read from the store");
    }
    for round in 1..=10 {
        log.apply(Op::Commit(3));
        log.apply(Op::Elsewhere(3));
        log.apply(Op::Follow);
        assert_eq!(everybody_reads(&mut readers), READERS + round, "one read serves all");
    }
    // More than the queues hold: each reader reads the store.
    log.apply(Op::Commit(5));
    log.apply(Op::Elsewhere(5));
    log.apply(Op::Follow);
    assert_eq!(everybody_reads(&mut readers), 2 * READERS + 11);
    let all: Vec<i64> = (1..=355).collect();
    assert!(readers.iter().all(|(_, said)| seqs(said) == all));
}

#[tokio::test]
async fn a_closed_conversation_ends_the_stream_after_its_last_event() {
    let log = Log::new(i64::MAX, Vec::new());
    let mut reader = log.reader(Scope::Conversation(conversation()), 0);
    let mut said = Vec::new();
    assert!(drain(&mut reader, &mut said));
    log.apply(Op::Commit(2));
    log.apply(Op::Publish(2));
    log.hub.deleted(&owner(), &conversation());
    assert!(!drain(&mut reader, &mut said));
    assert_eq!(seqs(&said), [1, 2]);
    assert_eq!(said.last(), Some(&StreamItem::Deleted { last_seq: 2 }));
}

#[tokio::test]
async fn unnoticed_deletion_of_the_log_ends_its_stream() {
    let log = Log::new(i64::MAX, Vec::new());
    log.apply(Op::Commit(2));
    let mut reader = log.reader(Scope::Conversation(conversation()), 2);
    // Another node deletes the log, and its notification is lost.
    log.events.lock().unwrap().clear();
    *log.deleted.lock().unwrap() = true;
    let mut said = Vec::new();
    assert!(!drain(&mut reader, &mut said));
    assert_eq!(said, [StreamItem::Deleted { last_seq: 2 }]);
}

/// D-01, W-19: a failover to a replica that was behind, under an open stream.
#[tokio::test]
async fn log_with_lower_head_starts_a_new_snapshot() {
    let log = Log::new(i64::MAX, Vec::new());
    log.apply(Op::Commit(5));
    let mut reader = log.reader(Scope::Conversation(conversation()), 0);
    let mut said = Vec::new();
    assert!(drain(&mut reader, &mut said));
    assert_eq!(seqs(&said), [1, 2, 3, 4, 5]);
    log.events.lock().unwrap().truncate(3);
    *log.announced.lock().unwrap() = 3;
    log.hub.log_truncated(&conversation(), 3);
    said.clear();
    assert!(drain(&mut reader, &mut said));
    assert_eq!(said[0], StreamItem::Reset { reason: ResetReason::CursorInFuture, oldest: 1, head: 3 });
    log.apply(Op::Commit(2));
    log.apply(Op::Publish(2));
    assert!(drain(&mut reader, &mut said));
    assert_eq!(seqs(&said), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_server_that_ends_says_nothing_of_the_conversation() {
    let log = Log::new(i64::MAX, Vec::new());
    let mut reader = log.reader(Scope::Conversation(conversation()), 0);
    log.hub.close_all();
    let mut said = Vec::new();
    assert!(!drain(&mut reader, &mut said));
    assert_eq!(said, []);
}

/// W-19: the log was restored from a copy with three events, and continued at 100.
#[test]
fn a_log_goes_on_under_higher_numbers() {
    let log = Log::new(0, Vec::new());
    log.apply(Op::Commit(3));
    *log.lifted.lock().unwrap() = 100;
    let readers = || [0, 3, 4, 99, 100].map(|cursor| log.reader(Scope::Conversation(conversation()), cursor));
    let say = |reader: &mut Reader| {
        let mut said = Vec::new();
        assert!(drain(reader, &mut said));
        let seqs = said.iter().map(|item| match item {
            StreamItem::Event(event) => event.seq,
            StreamItem::Reset { reason, oldest: 1, head: _ } if *reason == ResetReason::CursorExpired => -1,
            other => panic!("{other:?}"),
        });
        seqs.collect::<Vec<_>>()
    };
    let mut early = readers();
    let begins: [&[i64]; 5] = [&[1, 2, 3], &[], &[-1, 1, 2, 3], &[-1, 1, 2, 3], &[]];
    assert_eq!(early.each_mut().map(say), begins);
    log.apply(Op::Commit(2));
    log.apply(Op::Publish(5));
    assert_eq!(early.each_mut().map(say), [[101, 102]; 5]);
    let all: [&[i64]; 5] = [&[1, 2, 3, 101, 102], &[101, 102], &[-1, 1, 2, 3, 101, 102], &[-1, 1, 2, 3, 101, 102], &[101, 102]];
    assert_eq!(readers().each_mut().map(say), all);
}
