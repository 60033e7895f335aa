//! Restarts a run's limits when a message joins.

use crate::domain::run::RunCounters;
use crate::engine::machine::DecisionBuilder;
use crate::engine::strategy;

/// Restarts the counters of rounds, empty replies and similar limits if a message has joined that the model has not read. Each
/// joined message restarts them at most once.
pub fn restart(decision: &mut DecisionBuilder<'_>) {
    if !decision.progress.has_unseen_messages() {
        return;
    }
    strategy::hooks_of(decision.profile()).message_joined(decision);
    let joined_at_restart = decision.progress.joined;
    let step_at_restart = decision.progress.steps.last().map_or(0, |row| row.step);
    let counters = decision.counters();
    *counters = RunCounters {
        joined_at_restart,
        step_at_restart,
        // A message changes no facts about the provider and the tools.
        model_failures: counters.model_failures,
        fallback: counters.fallback,
        breaker_wait_ms: counters.breaker_wait_ms,
        halved: counters.halved,
        unsigned: counters.unsigned,
        dropped_tools: std::mem::take(&mut counters.dropped_tools),
        plan: counters.plan.take(),
        earlier_failures: std::mem::take(&mut counters.earlier_failures),
        ..RunCounters::default()
    };
}
