//! The sweep: returns runs with expired leases to the queue.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::trace::TraceId;
use crate::store::ExpiredRun;
use crate::worker::{WorkerDeps, WorkerOptions};

const PER_PASS: u32 = 50;

/// Sweeps at each interval until `stop`, and again at once after a pass that may have left some.
///
/// After an outage of the database every lease looks expired, although its worker may be running and about to renew. So a pass that finds
/// most leases expired takes over no run, unless this node had uninterrupted contact with the database for a full lease.
pub async fn run(deps: &WorkerDeps, options: &WorkerOptions, stop: CancellationToken) {
    let mut connected_since = Instant::now();
    let mut last_contact = Instant::now();
    let own = jittered_interval(options);
    let mut pause = own;
    let mut was_unavailable = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        if last_contact.elapsed() > pause.max(options.sweep_interval) + options.sweep_interval * 2 {
            // The process was suspended, or got no processor time, and did not observe the database meanwhile.
            connected_since = Instant::now();
        }
        pause = own;
        let despite_outage = connected_since.elapsed() >= options.lease;
        let asked_at = Instant::now();
        // The first pass after an outage takes over no run. Running workers must first report the runs that they dropped; otherwise
        // these runs would count as crashes.
        let most = if was_unavailable { 0 } else { PER_PASS };
        match deps.store.sweep_expired_leases(most, despite_outage).await {
            Ok(sweep) => {
                last_contact = Instant::now();
                let is_slow = asked_at.elapsed() > options.renew;
                if is_slow {
                    // The database was blocked, and no worker could renew: running workers get time for it.
                    connected_since = Instant::now();
                }
                if std::mem::take(&mut was_unavailable) {
                    pause = options.renew * 2;
                    continue;
                }
                if sweep.outage_suspected {
                    tracing::warn!("most leases expired at once; waiting for one more lease before the takeover of their runs");
                }
                if sweep.requeued.len() >= PER_PASS as usize {
                    pause = Duration::ZERO;
                }
                if !sweep.requeued.is_empty() {
                    metrics::counter!("capstan_lease_takeovers_total").increment(sweep.requeued.len() as u64);
                    for ExpiredRun { run_id, trace } in &sweep.requeued {
                        let trace = trace.as_ref().map(TraceId::as_str);
                        tracing::warn!(run.id = %run_id, trace.id = trace, "lease expired, run put back into the queue");
                    }
                    deps.hub.queue_signal().notify_one();
                }
                if is_slow {
                    pause = options.renew * 2;
                }
            }
            Err(error) => {
                connected_since = Instant::now();
                was_unavailable = true;
                tracing::warn!(error = &error as &dyn std::error::Error, "expired leases could not be searched for");
            }
        }
    }
}

/// Returns 0.75 to 1.0 of the interval, by the node's id. So nodes do not sweep at the same time, and detection stays within its promised
/// time.
fn jittered_interval(options: &WorkerOptions) -> Duration {
    let sum = options.node.as_str().bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    options.sweep_interval.mul_f64(0.75 + f64::from(sum) / 1024.0)
}
