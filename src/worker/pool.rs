//! The worker: its tasks, the claim loop, and the drain.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::domain::run::{Fence, FirstClaim, RunRecord};
use crate::domain::trace::TraceId;
use crate::live::HandedRun;
use crate::store::{Claim, SUSPECT_CRASHES, StoreError};
use crate::support::{failpoint, trace};
use crate::worker::context::{Profiles, WorkerContext};
use crate::worker::effects::titles::Titles;
use crate::worker::effects::withhold_changed_tools;
use crate::worker::leases::registry::Registry;
use crate::worker::leases::{control_signals, expired_leases};
use crate::worker::leases::{heartbeat, orphaned_claims};
use crate::worker::log_writer::LogWriter;
use crate::worker::ranking::Ranker;
use crate::worker::run::driver;
use crate::worker::{WorkerDeps, WorkerOptions};

/// The maximum number of runs of one claim.
const CLAIM_BATCH: u32 = 64;

/// How long the worker's own tasks may take to end, including the log writer with its pending writes. A database that does not
/// answer must not delay the end of the process: the next claims load the stored rows.
const TASKS_GRACE: Duration = Duration::from_secs(5);

/// How long the drain waits for the last claim and for hand-offs under way.
const CLAIMS_END: Duration = Duration::from_secs(4);

/// Claims runs and drives them until it is drained.
pub struct Worker {
    context: WorkerContext,
    registry: Registry,
    /// Each run holds a permit.
    slots: Arc<Semaphore>,
    runs: TaskTracker,
    tasks: TaskTracker,
    /// Ends claiming and sweeping.
    stop_claiming: CancellationToken,
    /// Cancelled when no further run will begin.
    claimed_all: CancellationToken,
    /// Ends heartbeat and control.
    stop_tasks: CancellationToken,
    /// Ends the log writer, after all other tasks.
    stop_writer: CancellationToken,
    /// Cancelled when a task of the worker has ended unexpectedly.
    failed: CancellationToken,
}

impl Worker {
    /// Takes over the runs of an earlier process of this node, then starts the tasks.
    pub async fn start(deps: WorkerDeps, options: WorkerOptions) -> Result<Arc<Self>, StoreError> {
        let recovered = deps.store.expire_foreign_leases(&options.node).await?;
        if recovered > 0 {
            metrics::counter!("capstan_lease_takeovers_total").increment(recovered);
            tracing::info!(runs = recovered, "took over the runs of an earlier process");
        }
        let writer = LogWriter::new(options.gather, options.max_delta_bytes);
        let context = WorkerContext {
            attachments: Arc::default(),
            ranker: Arc::new(Ranker::new(deps.embeddings.clone())),
            deps,
            options,
            writer,
            titles: Titles::default(),
            accepted: withhold_changed_tools::new_cache(),
            profiles: Profiles::default(),
            drain: CancellationToken::new(),
            stop_now: CancellationToken::new(),
        };
        let slots = Arc::new(Semaphore::new(context.options.slots as usize));
        let worker = Arc::new(Self {
            context,
            registry: Registry::default(),
            slots,
            runs: TaskTracker::new(),
            tasks: TaskTracker::new(),
            stop_claiming: CancellationToken::new(),
            claimed_all: CancellationToken::new(),
            stop_tasks: CancellationToken::new(),
            stop_writer: CancellationToken::new(),
            failed: CancellationToken::new(),
        });
        worker.spawn_tasks();
        Ok(worker)
    }

    fn spawn_tasks(self: &Arc<Self>) {
        let WorkerContext { deps, writer, .. } = self.context.clone();
        let (store, hub, stop) = (deps.store.clone(), deps.hub.clone(), self.stop_writer.clone());
        self.spawn("log writer", &self.stop_writer, async move { writer.run(store, hub, stop).await });

        let this = Arc::clone(self);
        self.spawn("heartbeat", &self.stop_tasks, async move {
            heartbeat::run(&this.context.deps, &this.context.options, &this.registry, this.stop_tasks.clone()).await;
        });

        let this = Arc::clone(self);
        self.spawn("control", &self.stop_tasks, async move {
            control_signals::run(&this.context.deps, &this.context.options, &this.registry, this.stop_tasks.clone()).await;
        });

        let this = Arc::clone(self);
        self.spawn("sweeper", &self.stop_claiming, async move {
            expired_leases::run(&this.context.deps, &this.context.options, this.stop_claiming.clone()).await;
        });

        let this = Arc::clone(self);
        let lease = heartbeat::millis(this.context.options.lease);
        let for_queue = this.slots.available_permits() / 2;
        let handed = deps.hub.hand_off().open(this.context.options.node.clone(), lease, Arc::clone(&this.slots), for_queue);
        self.spawn("claim", &self.stop_claiming, async move {
            futures_util::future::join(this.claim_loop(), this.start_handed_runs(handed)).await;
            this.claimed_all.cancel();
        });
    }

    /// Starts a task that ends at `stop`. If it ends earlier, the worker has failed: without one of its tasks, runs would hang or be lost.
    fn spawn(&self, name: &'static str, stop: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        let watch = TaskEndGuard { name, stop: stop.clone(), failed: self.failed.clone() };
        let watched = async move {
            let _watch = watch;
            task.await;
        };
        self.tasks.spawn(watched.instrument(tracing::info_span!("worker", task = name)));
    }

    /// Waits until a task of the worker has failed: the process must end, so that another one claims its runs.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    pub fn active(&self) -> usize {
        self.registry.len()
    }

    async fn claim_loop(self: &Arc<Self>) {
        let mut failed_claims = 0;
        while !self.stop_claiming.is_cancelled() {
            let mut wait = self.context.options.poll;
            if let Some(mut slots) = self.free_slots() {
                let deps = &self.context.deps;
                let lease = heartbeat::millis(self.context.options.lease);
                let batch_size = u32::try_from(slots.num_permits()).unwrap_or(CLAIM_BATCH);
                match deps.store.claim_runs(&self.context.options.node, batch_size, lease).await {
                    Ok(claims) => {
                        let has_none = claims.is_empty();
                        for claim in claims {
                            let Some(slot) = slots.split(1) else { break };
                            let Claim { fence, queued_ms, trace, crashes, claimed_at, .. } = claim;
                            let claimed_at = claimed_at.into();
                            self.begin(ClaimedRunStart { fence, queued_ms, trace, claimed_at, slot, crashes, record: None });
                        }
                        if slots.num_permits() == 0 {
                            continue;
                        }
                        drop(slots);
                        let next = self.until_next_timer().await;
                        // If due runs cannot be claimed, because other workers claim them or a suspected run is tried alone, the interval
                        // grows.
                        failed_claims = if has_none && next.is_zero() { failed_claims + 1 } else { 0 };
                        wait = next.max(Duration::from_millis(5) * 2_u32.saturating_pow(failed_claims.min(16))).min(wait);
                    }
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "no runs could be claimed");
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.stop_claiming.cancelled() => return,
                () = self.context.deps.hub.queue_signal().notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Starts runs that were handed off, until the last slot reserved for them is used or dropped.
    async fn start_handed_runs(self: &Arc<Self>, mut handed: mpsc::UnboundedReceiver<HandedRun>) {
        let closed = async {
            self.stop_claiming.cancelled().await;
            self.context.deps.hub.hand_off().close();
        };
        let started = async {
            while let Some(HandedRun { claim, trace, slot }) = handed.recv().await {
                let FirstClaim { fence, claimed_at, record } = claim;
                let claimed_at: Instant = claimed_at.into();
                // The claim may have been released as orphaned. Loading the run detects that: a void fence loads no run.
                let record = record.filter(|_| claimed_at.elapsed() < self.context.options.orphan_age());
                self.begin(ClaimedRunStart { fence, queued_ms: 0, trace: Some(trace), claimed_at, slot, crashes: 0, record });
            }
        };
        futures_util::future::join(closed, started).await;
    }

    /// Acquires all free slots, up to the size of one claim. `None` if all are taken.
    fn free_slots(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX).min(CLAIM_BATCH);
            if free == 0 {
                return None;
            }
            // Fails only if a slot was taken at this moment.
            if let Ok(slots) = Arc::clone(&self.slots).try_acquire_many_owned(free) {
                return Some(slots);
            }
        }
    }

    /// Returns the time until a run becomes claimable, at most `poll`.
    async fn until_next_timer(&self) -> Duration {
        match self.context.deps.store.next_claimable_in().await {
            Ok(Some(millis)) => Duration::from_millis(millis).min(self.context.options.poll),
            Ok(None) | Err(_) => self.context.options.poll,
        }
    }

    fn begin(self: &Arc<Self>, begin: ClaimedRunStart) {
        let ClaimedRunStart { fence, queued_ms, trace, claimed_at, slot, crashes, record } = begin;
        failpoint::hit("C04");
        #[expect(clippy::cast_precision_loss, reason = "no queue is 2^52 milliseconds long")]
        metrics::histogram!("capstan_queue_wait_seconds").record(queued_ms as f64 / 1000.0);
        metrics::gauge!("capstan_runs_active").increment(1.0);
        let traceparent = trace.as_ref().map(|trace| trace.traceparent(&fence.run_id));
        let trace = trace.as_ref().map(TraceId::as_str);
        // Has the highest level, so that every log line contains it.
        let span = tracing::error_span!("run", run.id = %fence.run_id, trace.id = trace, epoch = fence.epoch);
        let (mut guard, mailbox) = self.registry.add(fence, claimed_at, span.clone());
        let this = Arc::clone(self);
        let run = async move {
            let _active = ActiveRun;
            driver::drive(&this.context, &mut guard, mailbox, crashes, record).await;
            let was_full = this.slots.available_permits() == 0;
            drop((guard, slot));
            // In all other cases no claimable run waits, so the queue needs no wake-up.
            if was_full || crashes >= SUSPECT_CRASHES || this.context.deps.store.caps_owners() {
                this.context.deps.hub.queue_signal().notify_one();
            }
        };
        self.runs.spawn(trace::within(traceparent, run).instrument(span));
    }

    /// Stops claiming, lets steps under way finish within `grace`, hands the runs back, and ends.
    pub async fn drain(&self, grace: Duration) {
        self.stop_claiming.cancel();
        self.context.drain.cancel();
        // Requests that are being accepted hand over their runs within moments; otherwise the lease expires.
        let _ = tokio::time::timeout(CLAIMS_END, self.claimed_all.cancelled()).await;
        self.runs.close();
        if tokio::time::timeout(grace, self.runs.wait()).await.is_err() {
            tracing::warn!(runs = self.registry.len(), "aborting the steps still under way");
        }
        self.context.stop_now.cancel();
        // Tools under way are stopped and get two seconds; the hand-back is one more commit.
        if tokio::time::timeout(Duration::from_secs(4), self.runs.wait()).await.is_err() {
            tracing::error!(runs = self.registry.len(), "some runs could not be handed back, their leases will expire");
        }
        // The heartbeat, which otherwise releases these claims, may not run again.
        let released = orphaned_claims::release_all(&self.context.deps, &self.context.options, &self.registry);
        if tokio::time::timeout(Duration::from_secs(2), released).await.is_err() {
            tracing::error!("dropped runs could not be reported to the database, their leases will expire");
        }
        self.stop_tasks.cancel();
        self.stop_writer.cancel();
        if tokio::time::timeout(TASKS_GRACE, self.context.titles.end()).await.is_err() {
            tracing::warn!("some title requests did not end in time");
        }
        self.tasks.close();
        if tokio::time::timeout(TASKS_GRACE, self.tasks.wait()).await.is_err() {
            tracing::error!("the worker's tasks did not end in time, some writes may be missing in the database");
        }
    }

    /// Aborts the steps that a drain waits for.
    pub fn stop_now(&self) {
        self.context.stop_now.cancel();
    }
}

/// Detects the end of a task, also by a panic.
struct TaskEndGuard {
    name: &'static str,
    stop: CancellationToken,
    failed: CancellationToken,
}

impl Drop for TaskEndGuard {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            tracing::error!(task = self.name, "a task of the worker ended unexpectedly");
            self.failed.cancel();
        }
    }
}

struct ClaimedRunStart {
    fence: Fence,
    queued_ms: u64,
    trace: Option<TraceId>,
    /// A time before the lease began.
    claimed_at: Instant,
    slot: OwnedSemaphorePermit,
    /// The run's crash count.
    crashes: u32,
    /// The loaded run, if it is known.
    record: Option<Box<RunRecord>>,
}

/// Counts an active run, also if its driver panics.
struct ActiveRun;

impl Drop for ActiveRun {
    fn drop(&mut self) {
        metrics::gauge!("capstan_runs_active").decrement(1.0);
    }
}
