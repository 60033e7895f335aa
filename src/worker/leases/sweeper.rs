//! Returns runs with expired leases to the queue.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::trace::TraceId;
use crate::store::Taken;
use crate::worker::{WorkerDeps, WorkerOptions};

const PER_PASS: u32 = 50;

/// Sweeps every `sweep` until `stop`, and again at once after a pass that may have left some.
///
/// After an outage of the database every lease looks expired, although its worker may be alive and about to renew. So unless this
/// node was in touch with the database for a whole lease without a gap, a pass that finds most leases expired takes nothing.
pub async fn run(deps: &WorkerDeps, options: &WorkerOptions, stop: CancellationToken) {
    let mut in_touch_since = Instant::now();
    let mut last_contact = Instant::now();
    let own = own_pace(options);
    let mut pause = own;
    let mut was_away = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        if last_contact.elapsed() > pause.max(options.sweep) + options.sweep * 2 {
            // The process was stopped, or starved: it does not know what happened meanwhile.
            in_touch_since = Instant::now();
        }
        pause = own;
        let despite_outage = in_touch_since.elapsed() >= options.lease;
        let asked_at = Instant::now();
        // The first pass after an outage takes nothing: workers that are alive have to report the runs that they gave up, or these
        // would count as crashes.
        let most = if was_away { 0 } else { PER_PASS };
        match deps.store.sweep(most, despite_outage).await {
            Ok(sweep) => {
                last_contact = Instant::now();
                let is_slow = asked_at.elapsed() > options.renew;
                if is_slow {
                    // The database stood still, and no worker could renew: those alive get time for it.
                    in_touch_since = Instant::now();
                }
                if std::mem::take(&mut was_away) {
                    pause = options.renew * 2;
                    continue;
                }
                if sweep.outage_suspected {
                    tracing::warn!("most leases look expired at once, waiting one more lease before taking runs over");
                }
                if sweep.taken.len() >= PER_PASS as usize {
                    pause = Duration::ZERO;
                }
                if !sweep.taken.is_empty() {
                    metrics::counter!("capstan_lease_takeovers_total").increment(sweep.taken.len() as u64);
                    for Taken { run_id, trace } in &sweep.taken {
                        let trace = trace.as_ref().map(TraceId::as_str);
                        tracing::warn!(run.id = %run_id, trace.id = trace, "lease expired, run put back into the queue");
                    }
                    deps.hub.queue_signal().notify();
                }
                if is_slow {
                    pause = options.renew * 2;
                }
            }
            Err(error) => {
                in_touch_since = Instant::now();
                was_away = true;
                tracing::warn!(error = &error as &dyn std::error::Error, "expired leases could not be looked for");
            }
        }
    }
}

/// Returns 0.75 to 1.0 of the interval, by the node's id, so that nodes do not sweep in step and detection keeps its promised time.
fn own_pace(options: &WorkerOptions) -> Duration {
    let sum = options.node.as_str().bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    options.sweep.mul_f64(0.75 + f64::from(sum) / 1024.0)
}
