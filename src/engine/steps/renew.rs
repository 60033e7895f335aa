//! The restart of a run's limits when a message joins.

use crate::domain::run::change::RunCounters;
use crate::engine::machine::DecisionBuilder;
use crate::engine::strategy;

/// Restarts the counters of rounds, empty replies and the like, if a message has joined that the model has not read. Bounded by the
/// number of messages that users send.
pub fn renew(decision: &mut DecisionBuilder<'_>) {
    if !decision.progress.has_unseen_messages() {
        return;
    }
    strategy::of(decision.profile()).joined(decision);
    let heard = decision.progress.joined;
    let heard_step = decision.progress.steps.last().map_or(0, |row| row.step);
    let counters = decision.counters();
    *counters = RunCounters {
        heard,
        heard_step,
        // These are facts of the provider and of tools, which a message does not change.
        model_failures: counters.model_failures,
        fallback: counters.fallback,
        left_alone_ms: counters.left_alone_ms,
        halved: counters.halved,
        unsigned: counters.unsigned,
        quarantined_tools: std::mem::take(&mut counters.quarantined_tools),
        dropped_tools: std::mem::take(&mut counters.dropped_tools),
        plan: counters.plan.take(),
        failed_before: std::mem::take(&mut counters.failed_before),
        ..RunCounters::default()
    };
}
