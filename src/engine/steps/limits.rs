//! Limits of a run that several rules ask for.

use crate::domain::agent::AgentProfile;
use crate::domain::budget::Amount;
use crate::domain::model::Usage;
use crate::domain::problem::ProblemCode;
use crate::engine::machine::{DecisionBuilder, Next};

/// Returns whether a run has spent what it may spend by itself.
pub(in crate::engine) fn is_run_over(profile: &AgentProfile, usage: Usage) -> bool {
    let (limit, spent) = (profile.max_run_tokens, Amount::of(&usage));
    (limit > 0 && spent.tokens >= limit) || profile.budget.run_usd.is_some_and(|most| spent.cost >= most.cost())
}

/// Ends a run whose time is up.
pub(in crate::engine) fn fail_for_time(decision: &DecisionBuilder<'_>) -> Next {
    Next::fail(ProblemCode::RunTimeout, format!("the run's limit of {} ms is reached", decision.profile().max_run_ms))
}
