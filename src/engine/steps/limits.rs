//! Limits of a run that several rules ask for, and the jitter of waits.

use crate::domain::agent::AgentProfile;
use crate::domain::budget::Amount;
use crate::domain::ids::RunId;
use crate::domain::model::Usage;
use crate::domain::problem::ProblemCode;
use crate::engine::machine::{DecisionBuilder, Next};

/// Returns whether a run has spent what it may spend by itself.
pub fn is_run_over(profile: &AgentProfile, usage: Usage) -> bool {
    let (limit, spent) = (profile.max_run_tokens, Amount::of(&usage));
    (limit > 0 && spent.tokens >= limit) || profile.budget.run_usd.is_some_and(|most| spent.cost >= most.cost())
}

/// Ends a run whose time is up.
pub fn fail_for_time(decision: &DecisionBuilder<'_>) -> Next {
    Next::fail(ProblemCode::RunTimeout, format!("the run's limit of {} ms is reached", decision.profile().max_run_ms))
}

/// The most by which a wait is drawn out, in milliseconds.
const MAX_SPREAD_MS: u64 = 5_000;

/// How much longer a run waits than it says: up to an eighth, by its id. Runs that have failed together, because their provider was
/// overloaded, do not come back to it together.
pub fn spread(run: &RunId, wait_ms: u64) -> u64 {
    let most = (wait_ms / 8).min(MAX_SPREAD_MS);
    // FNV-1a, 64 bits: ids that are made one after the other differ in their last characters only.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    run.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix) % (most + 1)
}
