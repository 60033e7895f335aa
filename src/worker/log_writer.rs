//! Group commit: persist, then publish.
//!
//! One writer per process. While a commit is in flight, what its runs have to say gathers; deltas of one part merge into one
//! event. Then one transaction writes it all, then it is published. There is no artificial delay at low load; under load the
//! writer waits about as long as its commits take, at most [`super::WorkerOptions::gather`], so that batches grow instead of
//! commits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::change::Change;
use crate::domain::event::{EventBody, NewEvent, SharedEvent, StoredEvent, part_delta_data};
use crate::domain::ids::{PartId, RunId};
use crate::domain::record::{Fence, RunWrite};
use crate::engine::StreamItem;
use crate::live::Hub;
use crate::store::{Committed, LogStore, Refused, StoreError, WorkerStore};
use crate::support::clock::{SharedClock, UnixMillis};
use crate::support::{failpoint, text};

/// How long a write waits that nobody waits for: the next one most often follows sooner and takes it along.
const SOON: Duration = Duration::from_millis(2);

/// A batch this large is a sign of load: gathering pays.
const LOADED_BATCH: usize = 16;

/// Why a write did not happen, or may not have happened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Another worker has the run. Write nothing more.
    #[error("another worker has the run")]
    Fenced,
    /// The run would have ended without having heard a message that joined it. Everything pushed before the write is written.
    #[error("a message joined the run and has not been heard")]
    Unheard,
    /// The store failed. Whether the write happened is known only to the store: load the run again.
    #[error("the log could not be written")]
    Store(#[source] Arc<StoreError>),
    /// The writer has stopped.
    #[error("the log writer has stopped")]
    Stopped,
}

/// How soon something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for it.
    Now,
    /// With whatever is written next, by any run, and within milliseconds.
    Soon,
}

enum Item {
    Event(NewEvent),
    Delta { part_id: PartId, text: String, attempt: u32, at: UnixMillis },
}

/// How a driver learns that something it pushed without waiting was not written. What it pushed after that is not written
/// either: a log with a hole would be worse than a short one.
struct Tokens {
    /// The run is fenced: stop and write nothing.
    lost: CancellationToken,
    /// The store failed: load the run again.
    broken: CancellationToken,
    /// Not because it was away: trying again may not help.
    for_good: AtomicBool,
    /// The number of the last event that is known to be stored.
    newest: AtomicI64,
    /// The run's span: the writer speaks of runs from outside of them.
    span: tracing::Span,
}

impl Tokens {
    fn is_void(&self) -> bool {
        self.lost.is_cancelled() || self.broken.is_cancelled()
    }
}

struct Entry {
    fence: Fence,
    tokens: Arc<Tokens>,
    items: Vec<Item>,
    changes: Vec<Change>,
    reply: Reply,
}

#[derive(Default)]
struct Pending {
    entries: Vec<Entry>,
    /// The entry of each run that may still grow: it has no reply yet.
    open: HashMap<RunId, usize>,
    /// What each run has pushed, whether the entry may still grow or not.
    loads: HashMap<RunId, Load>,
    stopped: bool,
}

/// How much of something is pending.
#[derive(Default)]
struct Load {
    items: usize,
    bytes: usize,
}

struct Shared {
    pending: Mutex<Pending>,
    /// Something is pending.
    wake: Notify,
    /// Something is pending that can wait for [`SOON`].
    wake_soon: Notify,
    /// The pending entries were taken: there is room again.
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

fn lock(mutex: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module documentation.
#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

impl LogWriter {
    /// A writer; nothing is written until [`LogWriter::run`] is.
    #[must_use]
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

    /// What is pending, event by event.
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

    /// The log of one claimed run. `lost` is cancelled when a write finds the run fenced.
    #[must_use]
    pub fn for_run(&self, fence: Fence, attempt: u32, lost: CancellationToken, clock: SharedClock) -> RunLog {
        let tokens = Arc::new(Tokens {
            lost,
            broken: CancellationToken::new(),
            for_good: AtomicBool::new(false),
            newest: AtomicI64::new(0),
            span: tracing::Span::current(),
        });
        RunLog { shared: Arc::clone(&self.shared), fence, attempt, tokens, clock }
    }

    /// Writes until `stop`, then what is still pending.
    pub async fn run(&self, store: Arc<dyn WorkerStore>, hub: Arc<Hub>, stop: CancellationToken) {
        let mut pause = Duration::ZERO;
        loop {
            let stopping = tokio::select! {
                biased;
                () = self.shared.wake.notified() => false,
                () = self.soon() => false,
                () = stop.cancelled() => true,
            };
            if !pause.is_zero() && !stopping {
                tokio::time::sleep(pause).await;
            }
            let ready = store.ready().await;
            let entries = {
                let mut pending = lock(&self.shared.pending);
                pending.open.clear();
                pending.loads.clear();
                pending.stopped = stopping;
                std::mem::take(&mut pending.entries)
            };
            self.shared.taken.notify_waiters();
            if !entries.is_empty() {
                let began = Instant::now();
                let size = entries.len();
                match ready {
                    Ok(()) => write(store.as_ref(), &hub, entries).await,
                    Err(error) => fail_all(entries.into_iter().map(|entry| (entry.tokens, entry.reply)), error),
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
            // Those who waited for this batch go on at once, and what they write next is in the next batch.
            tokio::task::yield_now().await;
        }
    }

    async fn soon(&self) {
        self.shared.wake_soon.notified().await;
        tokio::time::sleep(SOON).await;
    }
}

/// Commits a batch. A batch that fails for a reason that may lie in one write is repeated write by write, so that one run
/// cannot take others down: neither one whose rows are damaged, nor one whose rows somebody else holds for long.
async fn write(store: &dyn LogStore, hub: &Hub, entries: Vec<Entry>) {
    let mut writes = Vec::with_capacity(entries.len());
    let mut waiting: Vec<(Arc<Tokens>, Reply)> = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.tokens.is_void() {
            fail(entry.reply, LogError::Stopped);
            continue;
        }
        let events = entry.items.into_iter().map(|item| render(item, &entry.fence.run_id)).collect();
        let after = entry.tokens.newest.load(Ordering::Relaxed);
        writes.push(RunWrite { fence: entry.fence, events, changes: entry.changes, after });
        waiting.push((entry.tokens, entry.reply));
    }
    if writes.is_empty() {
        return;
    }
    let shows_deltas =
        cfg!(feature = "failpoints") && writes.iter().any(|write| write.events.iter().any(|e| e.kind == "part.delta"));
    // Nothing of ours looks at the lease any more: from here on only the fence keeps a late write out.
    if shows_deltas {
        failpoint::reached("outgoing-deltas");
    } else if cfg!(feature = "failpoints") && writes.iter().any(tells_outcome) {
        failpoint::reached("outgoing-outcome");
    }
    match store.commit(&writes).await {
        Ok(answers) => {
            if shows_deltas {
                failpoint::reached("C07");
            }
            for ((write, (tokens, reply)), answer) in writes.into_iter().zip(waiting).zip(answers) {
                settle(hub, write, &tokens, reply, answer);
            }
        }
        Err(error) if writes.len() > 1 && may_be_of_one(&error) => {
            tracing::error!(error = &error as &dyn std::error::Error, writes = writes.len(), "a batch failed, writing one by one");
            let mut locked: Vec<Arc<StoreError>> = Vec::new();
            for (write, (tokens, reply)) in writes.into_iter().zip(waiting) {
                // An earlier write of the same run has just failed: this one would leave a hole behind it.
                if tokens.is_void() {
                    fail(reply, LogError::Stopped);
                    continue;
                }
                // Two runs that are locked say that it is not the runs, and waiting for each of the others would take for ever.
                if let [_, error, ..] = locked.as_slice() {
                    fail_entry(&tokens, reply, error);
                    continue;
                }
                match store.commit(std::slice::from_ref(&write)).await.map(|mut answers| answers.pop()) {
                    Ok(Some(answer)) => settle(hub, write, &tokens, reply, answer),
                    Ok(None) => fail(reply, LogError::Stopped),
                    Err(error) => {
                        let why = &error as &dyn std::error::Error;
                        tokens.span.in_scope(|| tracing::error!(error = why, "a write failed"));
                        let error = Arc::new(error);
                        fail_entry(&tokens, reply, &error);
                        locked.extend(is_contended(&error).then_some(error));
                    }
                }
            }
        }
        Err(error) => fail_all(waiting.into_iter(), error),
    }
}

fn tells_outcome(write: &RunWrite) -> bool {
    write.changes.iter().any(|change| matches!(change, Change::ToolFinished(..)))
}

type Reply = Option<oneshot::Sender<Result<(), LogError>>>;

/// Tells all whose writes were in a batch that it could not be written.
fn fail_all(waiting: impl ExactSizeIterator<Item = (Arc<Tokens>, Reply)>, error: StoreError) {
    tracing::warn!(error = &error as &dyn std::error::Error, writes = waiting.len(), "a batch could not be written");
    let error = Arc::new(error);
    for (tokens, reply) in waiting {
        fail_entry(&tokens, reply, &error);
    }
}

fn may_be_of_one(error: &StoreError) -> bool {
    // Damage is in some pages of the database, and other runs may not need them.
    !error.is_transient() || is_contended(error) || matches!(error, StoreError::Damaged(_))
}

fn is_contended(error: &StoreError) -> bool {
    matches!(error, StoreError::Contended(_))
}

fn settle(hub: &Hub, write: RunWrite, tokens: &Tokens, reply: Reply, answer: Result<Committed, Refused>) {
    match answer {
        Ok(Committed { first_seq, next_waits, completed }) => {
            let conversation_id = write.fence.conversation_id;
            let mut events = write.events;
            let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
            tokens.newest.fetch_max(first_seq.saturating_add(count - 1), Ordering::Relaxed);
            for (place, data) in completed {
                if let Some(event) = events.get_mut(place) {
                    event.data = data;
                }
            }
            let events: Vec<SharedEvent> = events
                .into_iter()
                .zip(first_seq..)
                .map(|(event, seq)| {
                    Arc::new(StoredEvent {
                        seq,
                        kind: event.kind.into(),
                        conversation_id: conversation_id.clone(),
                        run_id: event.run_id,
                        attempt: event.attempt,
                        at: event.at,
                        data: event.data,
                    })
                })
                .collect();
            hub.publish(&conversation_id, &events);
            // A run that was released is in the queue again, at once or when its time has come.
            if next_waits || write.changes.iter().any(|change| matches!(change, Change::Release { .. })) {
                hub.notify_queue();
            }
            if let Some(reply) = reply {
                // A driver that is gone needs no answer.
                let _ = reply.send(Ok(()));
            }
        }
        Err(Refused::Fenced) => {
            tokens.lost.cancel();
            fail(reply, LogError::Fenced);
        }
        Err(Refused::Unheard) => fail(reply, LogError::Unheard),
    }
}

fn fail_entry(tokens: &Tokens, reply: Reply, error: &Arc<StoreError>) {
    tokens.for_good.fetch_or(!error.is_transient(), Ordering::Relaxed);
    tokens.broken.cancel();
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
    tokens: Arc<Tokens>,
    clock: SharedClock,
}

impl RunLog {
    /// Cancelled when something that was pushed could not be written: the run must be loaded again.
    #[must_use]
    pub fn broken(&self) -> &CancellationToken {
        &self.tokens.broken
    }

    /// Says that the run is loaded again, for whatever reason: nothing more is written to this log.
    pub fn give_up(&self) {
        self.tokens.broken.cancel();
    }

    /// Whether it was not because the store was away, so that trying again may not help.
    #[must_use]
    pub fn is_broken_for_good(&self) -> bool {
        self.tokens.for_good.load(Ordering::Relaxed)
    }

    /// Hands over what a model says, to be written soon. Never waits: call [`RunLog::room`] before the next.
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
        let load = pending.loads.entry(self.fence.run_id.clone()).or_default();
        load.items += items;
        load.bytes += bytes;
        drop(pending);
        self.shared.wake(urgency);
    }

    /// Waits until little of this run is pending, so that a fast model cannot fill the memory while the database is slow.
    pub async fn room(&self) {
        loop {
            let taken = self.shared.taken.notified();
            tokio::pin!(taken);
            taken.as_mut().enable();
            {
                let pending = lock(&self.shared.pending);
                let load = pending.loads.get(&self.fence.run_id);
                let crowded = load.is_some_and(|load| load.items > 64 || load.bytes > 4 * self.shared.max_delta_bytes);
                if !crowded || pending.stopped {
                    return;
                }
            }
            taken.await;
        }
    }

    /// Hands over a decision to be written soon, after everything that was pushed before it. Nobody waits for it: should it
    /// not be written, the run is lost or broken, and nothing that is handed over later is written either.
    pub fn append(&self, events: &[EventBody], changes: Vec<Change>) {
        let at = self.clock.now();
        let mut pending = lock(&self.shared.pending);
        if pending.stopped || self.tokens.is_void() {
            return;
        }
        let entry = self.open_entry(&mut pending);
        entry.items.extend(events.iter().map(|body| Item::Event(self.event(body, at))));
        entry.changes = changes;
        pending.open.remove(&self.fence.run_id);
        drop(pending);
        self.shared.wake(Urgency::Soon);
    }

    /// Writes a decision after everything that was pushed before it. When this returns `Ok`, it is durable and published.
    ///
    /// # Errors
    /// See [`LogError`].
    pub async fn commit(&self, events: &[EventBody], changes: Vec<Change>) -> Result<(), LogError> {
        let (reply, answer) = oneshot::channel();
        {
            let at = self.clock.now();
            let mut pending = lock(&self.shared.pending);
            if pending.stopped || self.tokens.broken.is_cancelled() {
                return Err(LogError::Stopped);
            }
            if changes.iter().any(|change| matches!(change, Change::Finish { joined: Some(_), .. })) {
                // It may be refused as unheard, and what was pushed before must not be refused with it.
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
        // What an earlier attempt has left open is void, and nothing may be added to it.
        let index = match open.filter(|index| Arc::ptr_eq(&pending.entries[*index].tokens, &self.tokens)) {
            Some(index) => index,
            None => {
                pending.entries.push(Entry {
                    fence: self.fence.clone(),
                    tokens: Arc::clone(&self.tokens),
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
        let run_id = match body {
            EventBody::ConversationUpdated { .. } => None,
            EventBody::RunQueued { .. }
            | EventBody::RunStarted { .. }
            | EventBody::RunResumed { .. }
            | EventBody::RunRetrying { .. }
            | EventBody::ContextBudget { .. }
            | EventBody::ContextCompacted { .. }
            | EventBody::ToolQuarantined { .. }
            | EventBody::ModelAdapted { .. }
            | EventBody::RunWaiting { .. }
            | EventBody::RunCompleted { .. }
            | EventBody::RunFailed { .. }
            | EventBody::RunCancelled { .. }
            | EventBody::MessageCreated { .. }
            | EventBody::MessageStarted { .. }
            | EventBody::StepStarted { .. }
            | EventBody::StepCompleted { .. }
            | EventBody::StepReset { .. }
            | EventBody::PartStarted { .. }
            | EventBody::PartDelta { .. }
            | EventBody::PartCompleted { .. }
            | EventBody::MessageCompleted { .. }
            | EventBody::ToolStarted { .. }
            | EventBody::ToolProgress { .. }
            | EventBody::ToolCompleted { .. }
            | EventBody::ToolOutcomeUnknown { .. }
            | EventBody::PlanCreated { .. }
            | EventBody::PlanStepStarted { .. }
            | EventBody::PlanStepCompleted { .. }
            | EventBody::ApprovalRequested { .. }
            | EventBody::ApprovalResolved { .. }
            | EventBody::InputRequested { .. }
            | EventBody::InputResolved { .. } => Some(self.fence.run_id.clone()),
        };
        let attempt = if run_id.is_some() { self.attempt } else { 0 };
        NewEvent::new(body, run_id, attempt, at)
    }
}

/// Adds a delta: to the one before, or as events of its own. None has more than `max_bytes`, even if a provider sends an answer in
/// one piece.
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
    async fn what_was_appended_takes_up_room_until_it_is_taken() {
        let writer = LogWriter::new(Duration::ZERO, 1024);
        let conversation_id = ConversationId::from_stored("conv_1".to_owned());
        let fence = Fence { run_id: RunId::from_stored("run_1".to_owned()), conversation_id, epoch: 1 };
        let log = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        let part = PartId::from_stored("part_1".to_owned());
        for n in 0..5 {
            assert!(futures_util::FutureExt::now_or_never(log.room()).is_some(), "after {n} pieces");
            log.push(vec![StreamItem::Delta(part.clone(), "x".repeat(1_000))], Urgency::Now);
            log.append(&[], Vec::new());
        }
        assert!(futures_util::FutureExt::now_or_never(log.room()).is_none());
        // Another run has room.
        let conversation_id = ConversationId::from_stored("conv_2".to_owned());
        let fence = Fence { run_id: RunId::from_stored("run_2".to_owned()), conversation_id, epoch: 1 };
        let other = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        assert!(futures_util::FutureExt::now_or_never(other.room()).is_some());
    }
}
