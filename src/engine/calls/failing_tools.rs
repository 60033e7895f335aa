//! The circuit breaker of a run's tools: a tool that fails too often is dropped, or forces the final answer.
//!
//! Owns the count of failures. Must not know how an outcome is stored.

use std::sync::Arc;

use crate::domain::agent::BreakerAction;
use crate::domain::conversation::ToolContent;
use crate::domain::event::EventBody;
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;

/// Drops a tool when the failure that is about to be stored reaches the limit.
pub(super) fn drop_failing_tool(decision: &mut DecisionBuilder<'_>, name: &str, outcome: &mut ToolOutcome) {
    let profile = decision.profile();
    let exists = tool_exists(decision, name);
    let failures = if exists { failures(decision, name) } else { unknown_names(decision) }.saturating_add(1);
    if profile.breaker_failures == 0 || failures < profile.breaker_failures {
        return;
    }
    // An unknown name has no tool to drop, so the answer is forced.
    let action = if exists { profile.breaker_action } else { BreakerAction::ForceFinal };
    let was_open = if exists { is_broken(decision, name) } else { failures > profile.breaker_failures };
    if !was_open {
        let name = exists.then(|| name.to_owned());
        decision.event(EventBody::ToolBreakerOpened { name, failures, action });
    }
    match action {
        BreakerAction::DropTool => {
            let dropped = &mut decision.counters().dropped_tools;
            if !dropped.iter().any(|known| known == name) {
                dropped.push(name.to_owned());
                outcome.content.push(ToolContent::text(prompts::last_failure(name, failures)));
            }
        }
        // `forces_final` checks this after the outcomes of all calls of the step.
        BreakerAction::ForceFinal => {}
    }
}

/// Returns whether the next model call must be the last one: a tool failed too often, or the model called too many unknown names.
pub fn forces_final(decision: &DecisionBuilder<'_>) -> bool {
    let limit = decision.profile().breaker_failures;
    let has_broken = || match decision.profile().breaker_action {
        BreakerAction::DropTool => false,
        BreakerAction::ForceFinal => decision.before.tools.iter().flatten().any(|tool| is_broken(decision, &tool.name)),
    };
    limit > 0 && (unknown_names(decision) >= limit || has_broken())
}

/// Counts the failed calls of unknown tool names since the newest user message.
fn unknown_names(decision: &DecisionBuilder<'_>) -> u32 {
    let record = &decision.progress;
    let is_counted = |call: &&Arc<ToolCall>| {
        call.state == ToolCallState::Failed && call.step > record.counters.step_at_restart && !tool_exists(decision, &call.name)
    };
    u32::try_from(record.calls.iter().filter(is_counted).count()).unwrap_or(u32::MAX)
}

fn tool_exists(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    decision.before.tools.iter().flatten().any(|tool| tool.name == name)
}

/// Counts the failures of a tool in this run, and those before the run if no call of this run succeeded. Calls that the loop
/// refused are `Cancelled`, not `Failed`.
fn failures(decision: &DecisionBuilder<'_>, name: &str) -> u32 {
    let in_state =
        |state: ToolCallState| decision.progress.calls.iter().filter(move |call| call.name == name && call.state == state).count();
    let before = decision.progress.counters.earlier_failures.get(name).filter(|_| in_state(ToolCallState::Done) == 0);
    let failed = u32::try_from(in_state(ToolCallState::Failed)).unwrap_or(u32::MAX);
    failed.saturating_add(before.copied().unwrap_or(0))
}

/// Returns whether a tool has failed too often, with at least one failure in this run. The cause of earlier failures may be
/// repaired since then, and only another call can show that.
fn is_broken(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let limit = decision.profile().breaker_failures;
    let fails_now = |call: &Arc<ToolCall>| call.name == name && call.state == ToolCallState::Failed;
    limit > 0 && failures(decision, name) >= limit && decision.progress.calls.iter().any(fails_now)
}
