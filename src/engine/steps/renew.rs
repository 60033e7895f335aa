//! The new beginning that a message which joins gives a run.

use crate::domain::change::RunCounters;
use crate::engine::machine::DecisionBuilder;
use crate::engine::strategy;

/// A message that the model has not heard gives the run a new beginning, of which the message is the first word: whatever
/// counts rounds, empty replies and the like counts from here. Bounded by the number of messages that users send.
pub fn renew(decision: &mut DecisionBuilder<'_>) {
    if !decision.progress.has_unseen_messages() {
        return;
    }
    strategy::of(decision.profile()).joined(decision);
    let heard = decision.progress.record.joined;
    let heard_step = decision.progress.record.steps.last().map_or(0, |row| row.step);
    let counters = decision.counters();
    *counters = RunCounters {
        heard,
        heard_step,
        // These belong to the model's provider and to tools, which a message does not mend.
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
