//! Time limits that several rules check, waits, and the jitter of waits.

use crate::domain::event::EventBody;
use crate::domain::ids::RunId;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{ReleaseCause, RunStatus, WaitReason};
use crate::engine::machine::{DecisionBuilder, Next};

pub fn fail_for_time(decision: &DecisionBuilder<'_>) -> Next {
    Next::fail(ProblemCode::RunTimeout, format!("the run's limit of {} ms is reached", decision.profile().max_run_ms))
}

/// Releases the run for a time. An open model step begins again afterwards.
pub fn wait(decision: &mut DecisionBuilder<'_>, after_ms: u64, reason: WaitReason, detail: Option<String>) -> Next {
    if let Some(step) = decision.open_model_step() {
        decision.abandon_step(step);
    }
    decision.event(EventBody::RunWaiting { reason, id: None, detail });
    decision.set_status(RunStatus::Waiting, Some(reason));
    let spread = jitter_ms(&decision.before.fence.run_id, after_ms);
    Next::Release(Some(after_ms.saturating_add(spread)), ReleaseCause::Waiting)
}

/// The maximum jitter.
const MAX_JITTER_MS: u64 = 5_000;

/// Returns the jitter of a wait: up to an eighth of it, derived from the run's id. Runs that failed together, because their provider was
/// overloaded, do not retry together.
pub fn jitter_ms(run: &RunId, wait_ms: u64) -> u64 {
    let most = (wait_ms / 8).min(MAX_JITTER_MS);
    // FNV-1a, 64 bits, because consecutive ids differ in their last characters only.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    run.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix) % (most + 1)
}
