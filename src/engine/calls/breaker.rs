//! The breaker of a run: a tool that fails too often is taken away, or ends the use of tools.
//!
//! Owns counting failures. Must not know what a run does without its tools.

use std::sync::Arc;

use crate::domain::agent::BreakerAction;
use crate::domain::message::ToolContent;
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;

/// Returns whether a tool is broken, so that the next model call is the last one.
pub(in crate::engine) fn forces_final(decision: &DecisionBuilder<'_>) -> bool {
    match decision.profile().breaker_action {
        BreakerAction::DropTool => false,
        BreakerAction::ForceFinal => decision.before.tools.iter().flatten().any(|tool| is_broken(decision, &tool.name)),
    }
}

/// Takes a tool away whose failure about to be stored is one too many.
pub(in crate::engine) fn trip(decision: &mut DecisionBuilder<'_>, name: &str, outcome: &mut ToolOutcome) {
    let profile = decision.profile();
    let failures = failures(decision, name).saturating_add(1);
    let is_real = decision.before.tools.iter().flatten().any(|tool| tool.name == name);
    if profile.breaker_failures == 0 || failures < profile.breaker_failures || !is_real {
        return;
    }
    match profile.breaker_action {
        BreakerAction::DropTool => {
            let dropped = &mut decision.counters().dropped_tools;
            if !dropped.iter().any(|known| known == name) {
                dropped.push(name.to_owned());
                outcome.content.push(ToolContent::text(prompts::last_failure(name, failures)));
            }
        }
        // Judged when the whole batch has its outcomes.
        BreakerAction::ForceFinal => {}
    }
}

/// How often a tool has failed by now: in this run, and before it as far as that counts. Calls that the loop itself did not let
/// through are `Cancelled`, not `Failed`.
fn failures(decision: &DecisionBuilder<'_>, name: &str) -> u32 {
    let in_state = |state: ToolCallState| {
        decision.progress.record.calls.iter().filter(move |call| call.name == name && call.state == state).count()
    };
    let before = decision.progress.record.counters.failed_before.get(name).filter(|_| in_state(ToolCallState::Done) == 0);
    let failed = u32::try_from(in_state(ToolCallState::Failed)).unwrap_or(u32::MAX);
    failed.saturating_add(before.copied().unwrap_or(0))
}

/// Whether a tool has failed once too often. One that has failed in this run only has: what has broken before may have been mended,
/// and nobody would know if it were never called again.
fn is_broken(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let limit = decision.profile().breaker_failures;
    let fails_now = |call: &Arc<ToolCall>| call.name == name && call.state == ToolCallState::Failed;
    limit > 0 && failures(decision, name) >= limit && decision.progress.record.calls.iter().any(fails_now)
}
