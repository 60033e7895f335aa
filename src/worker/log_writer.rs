//! Group commit: persist, then publish. Must not know which decisions it writes.
//!
//! A process has one writer. While a commit is pending, items accumulate, and deltas of one part merge into one event. Then one
//! transaction writes all of them, and they are published. Urgent writes have no artificial delay at low load. Under load the
//! writer waits about as long as its last commit took, at most [`super::WorkerOptions::gather`]. So batches grow instead of the
//! number of commits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::event::{EventBody, NewEvent, SharedEvent, part_delta_data};
use crate::domain::ids::{PartId, RunId};
use crate::domain::run::{Change, Fence, RunWrite};
use crate::engine::StreamItem;
use crate::live::Hub;
use crate::store::{CommitReceipt, LogStore, StoreError, WorkerStore, WriteRejection};
use crate::support::clock::{SharedClock, UnixMillis};
use crate::support::locks::lock;
use crate::support::{failpoint, text};

/// How long a write without a waiter is delayed: usually the next write follows sooner, and both are committed together.
const SOON: Duration = Duration::from_millis(2);

/// A batch of this size shows that the load is high enough for gathering.
const LOADED_BATCH: usize = 16;

/// Why a write was not made, or may not have been made.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Another worker has the run. The caller must write no more.
    #[error("another worker has the run")]
    Fenced,
    /// A message joined that the ending run has not read. All items before this write are written.
    #[error("a message joined the run and is not processed yet")]
    MessageJoined,
    /// The outcome of the write is unknown: the caller must reload the run.
    #[error("the log could not be written")]
    Store(#[source] Arc<StoreError>),
    #[error("the log writer has stopped")]
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A task waits for the write.
    Now,
    /// With the next write of any run, and within milliseconds.
    Soon,
}

enum Item {
    Event(NewEvent),
    Delta { part_id: PartId, text: String, attempt: u32, at: UnixMillis },
}

/// Reports failed writes to a driver that does not wait for them. Later items are not written either, because a log must not have gaps.
struct RunWriteState {
    /// The run is fenced: the driver must stop and write no more.
    lost: CancellationToken,
    /// The store failed: the driver must reload the run.
    broken: CancellationToken,
    /// Whether the failure was other than an unavailable store, so another attempt may not help.
    is_permanent: AtomicBool,
    /// The sequence number of the last event that is known to be stored.
    newest: AtomicI64,
    /// The run's span, for log lines of the writer.
    span: tracing::Span,
}

impl RunWriteState {
    fn is_void(&self) -> bool {
        self.lost.is_cancelled() || self.broken.is_cancelled()
    }
}

struct Entry {
    fence: Fence,
    write_state: Arc<RunWriteState>,
    items: Vec<Item>,
    changes: Vec<Change>,
    reply: Reply,
}

#[derive(Default)]
struct Pending {
    entries: Vec<Entry>,
    /// The entry of each run that may still grow, because it has no reply yet.
    open: HashMap<RunId, usize>,
    /// The pending items of each run, in all of its entries.
    pending_sizes: HashMap<RunId, PendingSize>,
    stopped: bool,
}

#[derive(Default)]
struct PendingSize {
    items: usize,
    bytes: usize,
}

struct Shared {
    pending: Mutex<Pending>,
    wake: Notify,
    /// Wakes the writer after [`SOON`].
    wake_soon: Notify,
    /// Notified when the pending entries were taken, so that capacity is free again.
    taken: Notify,
    max_delta_bytes: usize,
    gather: Duration,
}

impl Shared {
    fn wake(&self, urgency: Urgency) {
        match urgency {
            Urgency::Now => self.wake.notify_one(),
            Urgency::Soon => self.wake_soon.notify_one(),
        }
    }
}

#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

impl LogWriter {
    /// Returns a writer that writes no item until [`LogWriter::run`] is called.
    pub fn new(gather: Duration, max_delta_bytes: usize) -> Self {
        let shared = Shared {
            pending: Mutex::default(),
            wake: Notify::new(),
            wake_soon: Notify::new(),
            taken: Notify::new(),
            max_delta_bytes,
            gather,
        };
        Self { shared: Arc::new(shared) }
    }

    #[cfg(test)]
    pub fn pending_data(&self) -> Vec<String> {
        let pending = lock(&self.shared.pending);
        let items = pending.entries.iter().flat_map(|entry| &entry.items);
        let data = items.map(|item| match item {
            Item::Event(event) => event.data.clone(),
            Item::Delta { text, .. } => text.clone(),
        });
        data.collect()
    }

    /// Returns the log of a claimed run. `lost` is cancelled when a write finds the run fenced.
    pub fn for_run(&self, fence: Fence, attempt: u32, lost: CancellationToken, clock: SharedClock) -> RunLog {
        let write_state = Arc::new(RunWriteState {
            lost,
            broken: CancellationToken::new(),
            is_permanent: AtomicBool::new(false),
            newest: AtomicI64::new(0),
            span: tracing::Span::current(),
        });
        RunLog { shared: Arc::clone(&self.shared), fence, attempt, write_state, clock }
    }

    /// Writes until `stop`, then writes the pending items.
    pub async fn run(&self, store: Arc<dyn WorkerStore>, hub: Arc<Hub>, stop: CancellationToken) {
        let mut pause = Duration::ZERO;
        loop {
            let stopping = tokio::select! {
                biased;
                () = self.shared.wake.notified() => false,
                () = self.urgent_wakeup() => false,
                () = stop.cancelled() => true,
            };
            if !pause.is_zero() && !stopping {
                tokio::time::sleep(pause).await;
            }
            let ready = store.ready().await;
            let entries = {
                let mut pending = lock(&self.shared.pending);
                pending.open.clear();
                pending.pending_sizes.clear();
                pending.stopped = stopping;
                std::mem::take(&mut pending.entries)
            };
            self.shared.taken.notify_waiters();
            if !entries.is_empty() {
                let began = Instant::now();
                let size = entries.len();
                match ready {
                    Ok(()) => write(store.as_ref(), &hub, entries).await,
                    Err(error) => fail_all(entries.into_iter().map(|entry| (entry.write_state, entry.reply)), error),
                }
                let took = began.elapsed();
                metrics::histogram!("capstan_commit_seconds").record(took.as_secs_f64());
                #[expect(clippy::cast_precision_loss, reason = "a batch never has 2^52 writes")]
                metrics::histogram!("capstan_commit_batch_writes").record(size as f64);
                pause = if size >= LOADED_BATCH { took.min(self.shared.gather) } else { Duration::ZERO };
            }
            if stopping {
                return;
            }
            // Tasks that waited for this batch continue first, so that their writes are in the next batch.
            tokio::task::yield_now().await;
        }
    }

    async fn urgent_wakeup(&self) {
        self.shared.wake_soon.notified().await;
        tokio::time::sleep(SOON).await;
    }
}

/// Commits a batch. If the commit fails for a reason that may concern a single write, each write is repeated separately. So a run
/// with damaged rows, or with rows that are locked for long, does not affect other runs.
async fn write(store: &dyn LogStore, hub: &Hub, entries: Vec<Entry>) {
    let mut writes = Vec::with_capacity(entries.len());
    let mut waiting: Vec<(Arc<RunWriteState>, Reply)> = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.write_state.is_void() {
            fail(entry.reply, LogError::Stopped);
            continue;
        }
        let events = entry.items.into_iter().map(|item| render(item, &entry.fence.run_id)).collect();
        let after = entry.write_state.newest.load(Ordering::Relaxed);
        writes.push(RunWrite { fence: entry.fence, events, changes: entry.changes, after });
        waiting.push((entry.write_state, entry.reply));
    }
    if writes.is_empty() {
        return;
    }
    let shows_deltas =
        cfg!(feature = "failpoints") && writes.iter().any(|write| write.events.iter().any(|e| e.kind == "part.delta"));
    // The lease is not checked any more: from here on only the fence rejects a late write.
    if shows_deltas {
        failpoint::hit("outgoing-deltas");
    } else if cfg!(feature = "failpoints") && writes.iter().any(tells_outcome) {
        failpoint::hit("outgoing-outcome");
    }
    match store.commit(&writes).await {
        Ok(answers) => {
            if shows_deltas {
                failpoint::hit("C07");
            }
            for ((write, (write_state, reply)), answer) in writes.into_iter().zip(waiting).zip(answers) {
                settle(hub, write, &write_state, reply, answer);
            }
        }
        Err(error) if writes.len() > 1 && may_be_of_one(&error) => {
            tracing::error!(error = &error as &dyn std::error::Error, writes = writes.len(), "a batch failed, writing one by one");
            let mut locked: Vec<Arc<StoreError>> = Vec::new();
            for (write, (write_state, reply)) in writes.into_iter().zip(waiting) {
                // An earlier write of the same run has failed, so this one would leave a gap.
                if write_state.is_void() {
                    fail(reply, LogError::Stopped);
                    continue;
                }
                // Two locked runs show that the database is slow, and waiting for all others would take too long.
                if let [_, error, ..] = locked.as_slice() {
                    fail_entry(&write_state, reply, error);
                    continue;
                }
                match store.commit(std::slice::from_ref(&write)).await.map(|mut answers| answers.pop()) {
                    Ok(Some(answer)) => settle(hub, write, &write_state, reply, answer),
                    Ok(None) => fail(reply, LogError::Stopped),
                    Err(error) => {
                        let why = &error as &dyn std::error::Error;
                        write_state.span.in_scope(|| tracing::error!(error = why, "a write failed"));
                        let error = Arc::new(error);
                        fail_entry(&write_state, reply, &error);
                        locked.extend(is_contended(&error).then_some(error));
                    }
                }
            }
        }
        Err(error) => fail_all(waiting.into_iter(), error),
    }
}

fn tells_outcome(write: &RunWrite) -> bool {
    write.changes.iter().any(|change| matches!(change, Change::FinishCall(..)))
}

type Reply = Option<oneshot::Sender<Result<(), LogError>>>;

/// Reports that a batch could not be written.
fn fail_all(waiting: impl ExactSizeIterator<Item = (Arc<RunWriteState>, Reply)>, error: StoreError) {
    tracing::warn!(error = &error as &dyn std::error::Error, writes = waiting.len(), "a batch could not be written");
    let error = Arc::new(error);
    for (write_state, reply) in waiting {
        fail_entry(&write_state, reply, &error);
    }
}

fn may_be_of_one(error: &StoreError) -> bool {
    // Damaged pages of the database may concern only some of the runs.
    !error.is_transient() || is_contended(error) || matches!(error, StoreError::Damaged(_))
}

fn is_contended(error: &StoreError) -> bool {
    matches!(error, StoreError::Contended(_))
}

fn settle(hub: &Hub, write: RunWrite, write_state: &RunWriteState, reply: Reply, answer: Result<CommitReceipt, WriteRejection>) {
    match answer {
        Ok(CommitReceipt { first_seq, has_next_run, completed }) => {
            let conversation_id = write.fence.conversation_id;
            let mut events = write.events;
            let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
            write_state.newest.fetch_max(first_seq.saturating_add(count - 1), Ordering::Relaxed);
            for (place, data) in completed {
                if let Some(event) = events.get_mut(place) {
                    event.data = data;
                }
            }
            let numbered = events.into_iter().zip(first_seq..);
            let events: Vec<SharedEvent> =
                numbered.map(|(event, seq)| Arc::new(event.stored(conversation_id.clone(), seq))).collect();
            hub.publish(&conversation_id, &events);
            // A released run is in the queue again.
            if has_next_run || write.changes.iter().any(|change| matches!(change, Change::Release { .. })) {
                hub.notify_queue();
            }
            if let Some(reply) = reply {
                // A driver that has ended needs no answer.
                let _ = reply.send(Ok(()));
            }
        }
        Err(WriteRejection::Fenced) => {
            write_state.lost.cancel();
            fail(reply, LogError::Fenced);
        }
        Err(WriteRejection::MessageJoined) => fail(reply, LogError::MessageJoined),
    }
}

fn fail_entry(write_state: &RunWriteState, reply: Reply, error: &Arc<StoreError>) {
    write_state.is_permanent.fetch_or(!error.is_transient(), Ordering::Relaxed);
    write_state.broken.cancel();
    fail(reply, LogError::Store(Arc::clone(error)));
}

fn fail(reply: Reply, error: LogError) {
    if let Some(reply) = reply {
        let _ = reply.send(Err(error));
    }
}

fn render(item: Item, run_id: &RunId) -> NewEvent {
    match item {
        Item::Event(event) => event,
        Item::Delta { part_id, text, attempt, at } => {
            NewEvent { kind: "part.delta", run_id: Some(run_id.clone()), attempt, at, data: part_delta_data(&part_id, &text) }
        }
    }
}

/// Writes the log of one claimed run.
#[derive(Clone)]
pub struct RunLog {
    shared: Arc<Shared>,
    fence: Fence,
    attempt: u32,
    write_state: Arc<RunWriteState>,
    clock: SharedClock,
}

impl RunLog {
    /// Returns the token that is cancelled when an item could not be written: the run must be reloaded.
    pub fn broken(&self) -> &CancellationToken {
        &self.write_state.broken
    }

    /// Drops the unwritten items, because the run is reloaded.
    pub fn give_up(&self) {
        self.write_state.broken.cancel();
    }

    /// Returns whether the failure was other than an unavailable store, so another attempt may not help.
    pub fn is_broken_permanently(&self) -> bool {
        self.write_state.is_permanent.load(Ordering::Relaxed)
    }

    /// Adds items of an answer, to be written soon. Never waits: the caller waits for [`RunLog::wait_for_capacity`] before the next call.
    pub fn push(&self, items: Vec<StreamItem>, urgency: Urgency) {
        if items.is_empty() {
            return;
        }
        let at = self.clock.now();
        let mut pending = lock(&self.shared.pending);
        if pending.stopped {
            return;
        }
        let entry = self.open_entry(&mut pending);
        let before = entry.items.len();
        let mut bytes = 0;
        for item in items {
            match item {
                StreamItem::Event(body) => {
                    let event = self.event(&body, at);
                    bytes += event.data.len();
                    entry.items.push(Item::Event(event));
                }
                StreamItem::Delta(part_id, text) => {
                    bytes += text.len();
                    push_delta(entry, part_id, text, self.attempt, at, self.shared.max_delta_bytes);
                }
            }
        }
        let items = entry.items.len() - before;
        let load = pending.pending_sizes.entry(self.fence.run_id.clone()).or_default();
        load.items += items;
        load.bytes += bytes;
        drop(pending);
        self.shared.wake(urgency);
    }

    /// Waits until few items of this run are pending, so that a fast model cannot fill the memory while the database is slow.
    pub async fn wait_for_capacity(&self) {
        loop {
            let taken = self.shared.taken.notified();
            tokio::pin!(taken);
            taken.as_mut().enable();
            {
                let pending = lock(&self.shared.pending);
                let load = pending.pending_sizes.get(&self.fence.run_id);
                let crowded = load.is_some_and(|load| load.items > 64 || load.bytes > 4 * self.shared.max_delta_bytes);
                if !crowded || pending.stopped {
                    return;
                }
            }
            taken.await;
        }
    }

    /// Adds a decision to be written soon, after all earlier items. If it cannot be written, the run is lost or broken, and no later item
    /// is written either.
    pub fn append(&self, events: &[EventBody], changes: Vec<Change>) {
        let at = self.clock.now();
        let mut pending = lock(&self.shared.pending);
        if pending.stopped || self.write_state.is_void() {
            return;
        }
        let entry = self.open_entry(&mut pending);
        entry.items.extend(events.iter().map(|body| Item::Event(self.event(body, at))));
        entry.changes = changes;
        pending.open.remove(&self.fence.run_id);
        drop(pending);
        self.shared.wake(Urgency::Soon);
    }

    /// Writes a decision after all earlier items. When this returns `Ok`, it is durable and published.
    pub async fn commit(&self, events: &[EventBody], changes: Vec<Change>) -> Result<(), LogError> {
        let (reply, answer) = oneshot::channel();
        {
            let at = self.clock.now();
            let mut pending = lock(&self.shared.pending);
            if pending.stopped || self.write_state.broken.is_cancelled() {
                return Err(LogError::Stopped);
            }
            if changes.iter().any(|change| matches!(change, Change::Finish { joined: Some(_), .. })) {
                // The write may be refused because of an unprocessed message, but earlier items must be written.
                pending.open.remove(&self.fence.run_id);
            }
            let entry = self.open_entry(&mut pending);
            entry.items.extend(events.iter().map(|body| Item::Event(self.event(body, at))));
            entry.changes = changes;
            entry.reply = Some(reply);
            pending.open.remove(&self.fence.run_id);
        }
        self.shared.wake(Urgency::Now);
        answer.await.unwrap_or(Err(LogError::Stopped))
    }

    fn open_entry<'a>(&self, pending: &'a mut Pending) -> &'a mut Entry {
        let open = pending.open.get(&self.fence.run_id).copied();
        // An entry of an earlier attempt is void, and must not grow.
        let index = match open.filter(|index| Arc::ptr_eq(&pending.entries[*index].write_state, &self.write_state)) {
            Some(index) => index,
            None => {
                pending.entries.push(Entry {
                    fence: self.fence.clone(),
                    write_state: Arc::clone(&self.write_state),
                    items: Vec::new(),
                    changes: Vec::new(),
                    reply: None,
                });
                let index = pending.entries.len() - 1;
                pending.open.insert(self.fence.run_id.clone(), index);
                index
            }
        };
        &mut pending.entries[index]
    }

    fn event(&self, body: &EventBody, at: UnixMillis) -> NewEvent {
        // The conversation's own events belong to no run: a stream of one run ends with the run's terminal event.
        let of_run = !matches!(body, EventBody::ConversationUpdated { .. });
        let run_id = of_run.then(|| self.fence.run_id.clone());
        let attempt = if of_run { self.attempt } else { 0 };
        NewEvent::new(body, run_id, attempt, at)
    }
}

/// Adds a delta: to the previous one, or as new events. None exceeds `max_bytes`, even if a provider sends an answer in one piece.
fn push_delta(entry: &mut Entry, part_id: PartId, text: String, attempt: u32, at: UnixMillis, max_bytes: usize) {
    if let Some(Item::Delta { part_id: last, text: merged, .. }) = entry.items.last_mut()
        && *last == part_id
        && merged.len() + text.len() <= max_bytes
    {
        merged.push_str(&text);
        return;
    }
    if text.len() <= max_bytes {
        entry.items.push(Item::Delta { part_id, text, attempt, at });
        return;
    }
    let pieces = text::pieces(&text, max_bytes);
    entry.items.extend(pieces.map(|text| Item::Delta { part_id: part_id.clone(), text: text.to_owned(), attempt, at }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ConversationId;
    use crate::support::clock::SystemClock;

    #[test]
    fn large_delta_is_split_between_characters() {
        let writer = LogWriter::new(Duration::ZERO, 1_000);
        let conversation_id = ConversationId::from_stored("conv_1".to_owned());
        let fence = Fence { run_id: RunId::from_stored("run_1".to_owned()), conversation_id, epoch: 1 };
        let log = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        let text = format!("x{}", "é".repeat(2_000));
        log.push(vec![StreamItem::Delta(PartId::from_stored("part_1".to_owned()), text.clone())], Urgency::Now);
        let pieces = writer.pending_data();
        assert_eq!((pieces.len(), pieces.concat()), (5, text));
        assert!(pieces.iter().all(|piece| piece.len() <= 1_000));
    }

    #[tokio::test]
    async fn appended_write_holds_queue_space_until_taken() {
        let writer = LogWriter::new(Duration::ZERO, 1024);
        let conversation_id = ConversationId::from_stored("conv_1".to_owned());
        let fence = Fence { run_id: RunId::from_stored("run_1".to_owned()), conversation_id, epoch: 1 };
        let log = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        let part = PartId::from_stored("part_1".to_owned());
        for n in 0..5 {
            assert!(futures_util::FutureExt::now_or_never(log.wait_for_capacity()).is_some(), "after {n} pieces");
            log.push(vec![StreamItem::Delta(part.clone(), "x".repeat(1_000))], Urgency::Now);
            log.append(&[], Vec::new());
        }
        assert!(futures_util::FutureExt::now_or_never(log.wait_for_capacity()).is_none());
        // Another run has capacity.
        let conversation_id = ConversationId::from_stored("conv_2".to_owned());
        let fence = Fence { run_id: RunId::from_stored("run_2".to_owned()), conversation_id, epoch: 1 };
        let other = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        assert!(futures_util::FutureExt::now_or_never(other.wait_for_capacity()).is_some());
    }
}
