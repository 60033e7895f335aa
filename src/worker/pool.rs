//! The worker: its tasks, the claim loop, and the orderly end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::driver::{self, Surround};
use super::log_writer::LogWriter;
use super::registry::Registry;
use super::{WorkerDeps, WorkerOptions, control, heartbeat, sweeper};
use crate::domain::trace::TraceId;
use crate::store::{Claim, StoreError};
use crate::support::failpoint;

/// Runs claimed by one statement.
const CLAIM_BATCH: u32 = 64;

/// Claims runs and drives them until it is told to stop.
pub struct Worker {
    surround: Surround,
    registry: Registry,
    runs: TaskTracker,
    tasks: TaskTracker,
    /// Ends claiming and sweeping.
    stop_claiming: CancellationToken,
    /// Ends heartbeat and control.
    stop_tasks: CancellationToken,
    /// Ends the log writer, after everything else.
    stop_writer: CancellationToken,
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
        let surround = Surround { deps, options, writer, drain: CancellationToken::new(), stop_now: CancellationToken::new() };
        let worker = Arc::new(Self {
            surround,
            registry: Registry::default(),
            runs: TaskTracker::new(),
            tasks: TaskTracker::new(),
            stop_claiming: CancellationToken::new(),
            stop_tasks: CancellationToken::new(),
            stop_writer: CancellationToken::new(),
        });
        worker.spawn_tasks();
        Ok(worker)
    }

    fn spawn_tasks(self: &Arc<Self>) {
        let Surround { deps, writer, .. } = self.surround.clone();
        let (store, hub, stop) = (deps.store.clone(), deps.hub.clone(), self.stop_writer.clone());
        self.tasks.spawn(async move { writer.run(store, hub, stop).await }.instrument(tracing::info_span!("log_writer")));

        let this = Arc::clone(self);
        let beat = async move {
            heartbeat::run(&this.surround.deps, &this.surround.options, &this.registry, this.stop_tasks.clone()).await;
        };
        self.tasks.spawn(beat.instrument(tracing::info_span!("heartbeat")));

        let this = Arc::clone(self);
        let control = async move {
            control::run(&this.surround.deps, &this.surround.options, &this.registry, this.stop_tasks.clone()).await;
        };
        self.tasks.spawn(control.instrument(tracing::info_span!("control")));

        let this = Arc::clone(self);
        let sweep = async move { sweeper::run(&this.surround.deps, &this.surround.options, this.stop_claiming.clone()).await };
        self.tasks.spawn(sweep.instrument(tracing::info_span!("sweeper")));

        let this = Arc::clone(self);
        self.tasks.spawn(async move { this.claim_loop().await }.instrument(tracing::info_span!("claim")));
    }

    /// Runs under way.
    #[must_use]
    pub fn active(&self) -> usize {
        self.registry.len()
    }

    async fn claim_loop(self: &Arc<Self>) {
        loop {
            let mut wait = self.surround.options.poll;
            let free = self.free_slots();
            if free > 0 {
                let claimed_at = Instant::now();
                let deps = &self.surround.deps;
                let lease = heartbeat::millis(self.surround.options.lease);
                match deps.store.claim_runs(&self.surround.options.node, free.min(CLAIM_BATCH), lease).await {
                    Ok(claims) => {
                        let all = claims.len();
                        for claim in claims {
                            self.spawn_run(claim, claimed_at);
                        }
                        if all as u64 >= u64::from(free.min(CLAIM_BATCH)) {
                            continue;
                        }
                        wait = self.until_next_timer().await;
                    }
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "no runs could be claimed");
                    }
                }
            }
            tokio::select! {
                () = self.stop_claiming.cancelled() => return,
                () = self.surround.deps.hub.queue_signal().wait() => {}
                () = tokio::time::sleep(wait) => {}
            }
            if self.stop_claiming.is_cancelled() {
                return;
            }
        }
    }

    fn free_slots(&self) -> u32 {
        let busy = u32::try_from(self.registry.len()).unwrap_or(u32::MAX);
        self.surround.options.slots.saturating_sub(busy)
    }

    /// How long until a retry is due, at most `poll`.
    async fn until_next_timer(&self) -> Duration {
        match self.surround.deps.store.next_claimable_in().await {
            Ok(Some(millis)) => Duration::from_millis(millis.max(5)).min(self.surround.options.poll),
            Ok(None) | Err(_) => self.surround.options.poll,
        }
    }

    fn spawn_run(self: &Arc<Self>, claim: Claim, claimed_at: Instant) {
        failpoint::reached("C04");
        #[expect(clippy::cast_precision_loss, reason = "no queue is 2^52 milliseconds long")]
        metrics::histogram!("capstan_queue_wait_seconds").record(claim.queued_ms as f64 / 1000.0);
        metrics::gauge!("capstan_runs_active").increment(1.0);
        let trace = claim.trace.as_ref().map(TraceId::as_str);
        // Of the highest level, so that whatever is logged has it.
        let span = tracing::error_span!("run", run.id = %claim.fence.run_id, trace.id = trace, epoch = claim.fence.epoch);
        let (guard, mailbox) = self.registry.add(claim.fence, claimed_at, span.clone());
        let this = Arc::clone(self);
        let run = async move {
            let _active = ActiveRun;
            driver::drive(&this.surround, &guard.held, mailbox).await;
            let was_full = this.free_slots() == 0;
            drop(guard);
            if was_full {
                this.surround.deps.hub.queue_signal().notify();
            }
        };
        self.runs.spawn(run.instrument(span));
    }

    /// Stops claiming, lets steps under way finish within `grace`, hands the runs back, and ends.
    pub async fn drain(&self, grace: Duration) {
        self.stop_claiming.cancel();
        self.surround.drain.cancel();
        self.runs.close();
        if tokio::time::timeout(grace, self.runs.wait()).await.is_err() {
            tracing::warn!(runs = self.registry.len(), "giving up the steps still under way");
        }
        self.surround.stop_now.cancel();
        // Tools under way are told to stop and get two seconds; the hand-back is one more commit.
        if tokio::time::timeout(Duration::from_secs(4), self.runs.wait()).await.is_err() {
            tracing::error!(runs = self.registry.len(), "some runs could not be handed back, their leases will expire");
        }
        self.stop_tasks.cancel();
        self.stop_writer.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Makes a drain under way give up the steps that it still waits for.
    pub fn stop_now(&self) {
        self.surround.stop_now.cancel();
    }
}

/// Counts a run as active as long as it lives, also through a panic of its driver.
struct ActiveRun;

impl Drop for ActiveRun {
    fn drop(&mut self) {
        metrics::gauge!("capstan_runs_active").decrement(1.0);
    }
}
