//! The worker: its tasks, the claim loop, and the orderly end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::driver::{self, Surround};
use super::log_writer::LogWriter;
use super::profiles::Profiles;
use super::ranking::Ranker;
use super::registry::Registry;
use super::titles::Titles;
use super::{WorkerDeps, WorkerOptions, control, heartbeat, pins, sweeper};
use crate::domain::record::{Fence, FirstClaim, RunRecord};
use crate::domain::trace::TraceId;
use crate::live::TakenRun;
use crate::store::{Claim, SUSPECT_CRASHES, StoreError};
use crate::support::failpoint;

/// Runs claimed by one statement.
const CLAIM_BATCH: u32 = 64;

/// How long the worker's own tasks get to end, the writer with what is still pending among them. A database that does not answer
/// any more must not keep the process: what it may not have stored is loaded by whoever takes the runs up.
const TASKS_GRACE: Duration = Duration::from_secs(5);

/// How long the database may go on with a claim whose answer nobody waits for any more. It ends each statement earlier than that.
const CARRIED_OUT_WITHIN: Duration = Duration::from_secs(15);

/// How much older than by this process's clock a lease may be by the database's, on the way of a question.
const UNHEARD_SLACK: Duration = Duration::from_secs(1);

/// How long requests that were to bring their runs are waited for at the end: longer than they bear a database that is silent.
const REQUESTS_END: Duration = Duration::from_secs(2);

/// How long is waited at the end until no run comes any more: for requests, and for a last look at what was lost.
const CLAIMS_END: Duration = Duration::from_secs(4);

/// Claims runs and drives them until it is told to stop.
pub struct Worker {
    surround: Surround,
    registry: Registry,
    /// Room for runs; each holds a permit.
    slots: Arc<Semaphore>,
    runs: TaskTracker,
    tasks: TaskTracker,
    /// Ends claiming and sweeping.
    stop_claiming: CancellationToken,
    /// No run will be begun any more.
    claimed_all: CancellationToken,
    /// Ends heartbeat and control.
    stop_tasks: CancellationToken,
    /// Ends the log writer, after everything else.
    stop_writer: CancellationToken,
    /// A task has ended that nobody has told to.
    failed: CancellationToken,
}

impl Worker {
    /// Recovers what an earlier process left behind, then starts to work.
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub async fn start(deps: WorkerDeps, options: WorkerOptions) -> Result<Arc<Self>, StoreError> {
        let recovered = deps.store.expire_foreign_leases(&options.node).await?;
        if recovered > 0 {
            metrics::counter!("capstan_lease_takeovers_total").increment(recovered);
            tracing::info!(runs = recovered, "took up the runs of an earlier process");
        }
        let writer = LogWriter::new(options.gather, options.max_delta_bytes);
        let surround = Surround {
            attachments: Arc::default(),
            ranker: Arc::new(Ranker::new(deps.embeddings.clone())),
            deps,
            options,
            writer,
            titles: Titles::default(),
            accepted: pins::Accepted::default(),
            profiles: Profiles::default(),
            drain: CancellationToken::new(),
            stop_now: CancellationToken::new(),
        };
        let slots = Arc::new(Semaphore::new(surround.options.slots as usize));
        let worker = Arc::new(Self {
            surround,
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
        let Surround { deps, writer, .. } = self.surround.clone();
        let (store, hub, stop) = (deps.store.clone(), deps.hub.clone(), self.stop_writer.clone());
        self.spawn("log writer", &self.stop_writer, async move { writer.run(store, hub, stop).await });

        let this = Arc::clone(self);
        self.spawn("heartbeat", &self.stop_tasks, async move {
            heartbeat::run(&this.surround.deps, &this.surround.options, &this.registry, this.stop_tasks.clone()).await;
        });

        let this = Arc::clone(self);
        self.spawn("control", &self.stop_tasks, async move {
            control::run(&this.surround.deps, &this.surround.options, &this.registry, this.stop_tasks.clone()).await;
        });

        let this = Arc::clone(self);
        self.spawn("sweeper", &self.stop_claiming, async move {
            sweeper::run(&this.surround.deps, &this.surround.options, this.stop_claiming.clone()).await;
        });

        let this = Arc::clone(self);
        let lease = heartbeat::millis(this.surround.options.lease);
        let for_queue = this.slots.available_permits() / 2;
        let taken = deps.hub.reception().open(this.surround.options.node.clone(), lease, Arc::clone(&this.slots), for_queue);
        self.spawn("claim", &self.stop_claiming, async move {
            futures_util::future::join(this.claim_loop(), this.take_on(taken)).await;
            this.claimed_all.cancel();
        });
    }

    /// Runs a task that ends when `stop` says so. One that ends before that has failed, and the worker with it: without any of
    /// them runs would hang or be lost, silently.
    fn spawn(&self, name: &'static str, stop: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        let watch = Watch { name, stop: stop.clone(), failed: self.failed.clone() };
        let watched = async move {
            let _watch = watch;
            task.await;
        };
        self.tasks.spawn(watched.instrument(tracing::info_span!("worker", task = name)));
    }

    /// Waits until the worker cannot go on, because one of its own tasks is gone: the process is to end, so that another one
    /// takes its runs up.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Runs under way.
    #[must_use]
    pub fn active(&self) -> usize {
        self.registry.len()
    }

    async fn claim_loop(self: &Arc<Self>) {
        let mut doubt = None;
        self.claim_until_stopped(&mut doubt).await;
        // Requests that are being accepted bring their runs, or lose them; nothing is taken on behind them.
        let reception = self.surround.deps.hub.reception();
        reception.close();
        let _ = tokio::time::timeout(REQUESTS_END, reception.pause()).await;
        self.hear_of_lost(&mut doubt);
        if let Some(Doubt { since, .. }) = doubt {
            // The last look: nobody here learns of those runs any more.
            let _ = tokio::time::timeout(self.surround.options.poll, self.give_back_unheard(since)).await;
        }
    }

    async fn claim_until_stopped(self: &Arc<Self>, doubt: &mut Option<Doubt>) {
        let mut in_vain = 0;
        loop {
            self.hear_of_lost(doubt);
            self.settle(doubt).await;
            if self.stop_claiming.is_cancelled() {
                return;
            }
            let mut wait = self.surround.options.poll;
            if let Some(mut slots) = self.free_slots() {
                let deps = &self.surround.deps;
                let lease = heartbeat::millis(self.surround.options.lease);
                let wanted = u32::try_from(slots.num_permits()).unwrap_or(CLAIM_BATCH);
                let asked_at = Instant::now();
                match deps.store.claim_runs(&self.surround.options.node, wanted, lease).await {
                    Ok(claims) => {
                        let has_none = claims.is_empty();
                        for claim in claims {
                            let Some(slot) = slots.split(1) else { break };
                            let Claim { fence, queued_ms, trace, crashes, claimed_at, .. } = claim;
                            let claimed_at = claimed_at.into();
                            self.begin(Begin { fence, queued_ms, trace, claimed_at, slot, crashes, record: None });
                        }
                        if slots.num_permits() == 0 {
                            continue;
                        }
                        drop(slots);
                        let next = self.until_next_timer().await;
                        // What is due and not to be had, because others are at it or it may be the death of its worker, is asked for less and
                        // less often.
                        in_vain = if has_none && next.is_zero() { in_vain + 1 } else { 0 };
                        wait = next.max(Duration::from_millis(5) * 2_u32.saturating_pow(in_vain.min(16))).min(wait);
                    }
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "no runs could be claimed");
                        // Its answer may have been lost.
                        if matches!(error, StoreError::Unavailable(_)) {
                            Doubt::raise(doubt, asked_at);
                        }
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.stop_claiming.cancelled() => return,
                () = self.surround.deps.hub.queue_signal().wait() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Requests may have claimed runs for this worker without hearing of it.
    fn hear_of_lost(&self, doubt: &mut Option<Doubt>) {
        if let Some(since) = self.surround.deps.hub.reception().take_lost() {
            Doubt::raise(doubt, since);
        }
    }

    /// Looks again whether there is something in it, until nothing can come to light any more.
    async fn settle(&self, doubt: &mut Option<Doubt>) {
        let now = Instant::now();
        let Some(open) = doubt.as_mut().filter(|doubt| doubt.looked_at.is_none_or(|at| now - at >= self.surround.options.poll))
        else {
            return;
        };
        let outcome = self.give_back_unheard(open.since).await;
        open.looked_at = Some(Instant::now());
        if outcome == Unheard::GivenBack && now >= open.until {
            *doubt = None;
        }
    }

    /// Gives back what was claimed since then and nobody here knows of: it would wait for the end of its lease, and a death be counted that
    /// nobody has died. What was claimed before is left alone: it may have been lost by its driver, or have ended it.
    async fn give_back_unheard(&self, since: Instant) -> Unheard {
        let Surround { deps, options, .. } = &self.surround;
        // What a request has claimed for this worker is not known here either before it is handed over.
        let paused = tokio::time::timeout(options.poll, deps.hub.reception().pause()).await;
        let Ok(paused) = paused else { return Unheard::MayBeLeft };
        let age = heartbeat::millis(since.elapsed() + UNHEARD_SLACK);
        // Whoever sends a message meanwhile does not wait, but his run takes the way of the queue.
        let look = tokio::time::timeout(options.poll, deps.store.young_leases(&options.node, age)).await;
        let Ok(Ok(leases)) = look else { return Unheard::MayBeLeft };
        let unheard: Vec<Fence> = leases.into_iter().filter(|fence| self.registry.get(&fence.run_id).is_none()).collect();
        drop(paused);
        if !unheard.is_empty() {
            tracing::warn!(runs = unheard.len(), "a claim was stored and its answer lost, giving the runs back");
            self.registry.keep_given_up(unheard);
            heartbeat::give_up(deps, &self.registry).await;
        }
        Unheard::GivenBack
    }

    /// Takes runs on as they are accepted, until nobody brings any more.
    async fn take_on(self: &Arc<Self>, mut taken: mpsc::UnboundedReceiver<TakenRun>) {
        let closed = async {
            self.stop_claiming.cancelled().await;
            self.surround.deps.hub.reception().close();
        };
        let begun = async {
            while let Some(TakenRun { claim, trace, slot, unknown }) = taken.recv().await {
                let FirstClaim { fence, claimed_at, record } = claim;
                let claimed_at = claimed_at.into();
                self.begin(Begin { fence, queued_ms: 0, trace: Some(trace), claimed_at, slot, crashes: 0, record });
                drop(unknown);
            }
        };
        futures_util::future::join(closed, begun).await;
    }

    /// As many slots as there are, at most for one claim. `None` if all are taken.
    fn free_slots(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX).min(CLAIM_BATCH);
            if free == 0 {
                return None;
            }
            // Fails only if one was taken just now.
            if let Ok(slots) = Arc::clone(&self.slots).try_acquire_many_owned(free) {
                return Some(slots);
            }
        }
    }

    /// How long until a run can be claimed by time alone, at most `poll`.
    async fn until_next_timer(&self) -> Duration {
        match self.surround.deps.store.next_claimable_in().await {
            Ok(Some(millis)) => Duration::from_millis(millis).min(self.surround.options.poll),
            Ok(None) | Err(_) => self.surround.options.poll,
        }
    }

    fn begin(self: &Arc<Self>, begin: Begin) {
        let Begin { fence, queued_ms, trace, claimed_at, slot, crashes, record } = begin;
        failpoint::reached("C04");
        #[expect(clippy::cast_precision_loss, reason = "no queue is 2^52 milliseconds long")]
        metrics::histogram!("capstan_queue_wait_seconds").record(queued_ms as f64 / 1000.0);
        metrics::gauge!("capstan_runs_active").increment(1.0);
        let trace = trace.as_ref().map(TraceId::as_str);
        // Of the highest level, so that whatever is logged has it.
        let span = tracing::error_span!("run", run.id = %fence.run_id, trace.id = trace, epoch = fence.epoch);
        let (mut guard, mailbox) = self.registry.add(fence, claimed_at, span.clone());
        let this = Arc::clone(self);
        let run = async move {
            let _active = ActiveRun;
            driver::drive(&this.surround, &mut guard, mailbox, crashes, record).await;
            let was_full = this.slots.available_permits() == 0;
            drop((guard, slot));
            // Else whoever can be claimed has been.
            if was_full || crashes >= SUSPECT_CRASHES || this.surround.deps.store.caps_owners() {
                this.surround.deps.hub.queue_signal().notify();
            }
        };
        self.runs.spawn(run.instrument(span));
    }

    /// Stops claiming, lets steps under way finish within `grace`, hands the runs back, and ends.
    pub async fn drain(&self, grace: Duration) {
        self.stop_claiming.cancel();
        self.surround.drain.cancel();
        // Requests that are being accepted bring their runs within moments; one that does not leaves it to its lease.
        let _ = tokio::time::timeout(CLAIMS_END, self.claimed_all.cancelled()).await;
        self.runs.close();
        if tokio::time::timeout(grace, self.runs.wait()).await.is_err() {
            tracing::warn!(runs = self.registry.len(), "giving up the steps still under way");
        }
        self.surround.stop_now.cancel();
        // Tools under way are told to stop and get two seconds; the hand-back is one more commit.
        if tokio::time::timeout(Duration::from_secs(4), self.runs.wait()).await.is_err() {
            tracing::error!(runs = self.registry.len(), "some runs could not be handed back, their leases will expire");
        }
        // The heartbeat may not come to it any more.
        let told = heartbeat::give_up(&self.surround.deps, &self.registry);
        if tokio::time::timeout(Duration::from_secs(2), told).await.is_err() {
            tracing::error!("the database could not be told of the runs that were given up, their leases will expire");
        }
        self.stop_tasks.cancel();
        self.stop_writer.cancel();
        if tokio::time::timeout(TASKS_GRACE, self.surround.titles.end()).await.is_err() {
            tracing::warn!("some titles could not be given up in time");
        }
        self.tasks.close();
        if tokio::time::timeout(TASKS_GRACE, self.tasks.wait()).await.is_err() {
            tracing::error!("the worker's tasks did not end in time, the database may not have everything");
        }
    }

    /// Makes a drain under way give up the steps that it still waits for.
    pub fn stop_now(&self) {
        self.surround.stop_now.cancel();
    }
}

/// Claims may be stored of which nobody here has heard.
struct Doubt {
    /// Since when.
    since: Instant,
    /// A claim that was given up may be carried out until then.
    until: Instant,
    /// When it was looked for them last.
    looked_at: Option<Instant>,
}

impl Doubt {
    fn raise(doubt: &mut Option<Self>, since: Instant) {
        let until = Instant::now() + CARRIED_OUT_WITHIN;
        let open = doubt.get_or_insert(Self { since, until, looked_at: None });
        (open.since, open.until, open.looked_at) = (open.since.min(since), until, None);
    }
}

/// What became of claims whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheard {
    /// They are given back, or there were none.
    GivenBack,
    /// Nobody knows yet.
    MayBeLeft,
}

/// Sees a task of the worker end, also by a panic.
struct Watch {
    name: &'static str,
    stop: CancellationToken,
    failed: CancellationToken,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            tracing::error!(task = self.name, "a task of the worker has ended by itself");
            self.failed.cancel();
        }
    }
}

/// A run to begin.
struct Begin {
    fence: Fence,
    queued_ms: u64,
    trace: Option<TraceId>,
    /// Before the lease began.
    claimed_at: Instant,
    slot: OwnedSemaphorePermit,
    /// How many workers have died over it.
    crashes: u32,
    /// What would be loaded, if it is known.
    record: Option<Box<RunRecord>>,
}

/// Counts a run as active as long as it lives, also through a panic of its driver.
struct ActiveRun;

impl Drop for ActiveRun {
    fn drop(&mut self) {
        metrics::gauge!("capstan_runs_active").decrement(1.0);
    }
}
