//! The first decision about a claimed run: first start, recovery, or the end. Must not know how a step begins.

use std::sync::Arc;

use crate::domain::agent::OnInterrupt;
use crate::domain::agent::prompt::{ProvidedContext, ServerNote};
use crate::domain::conversation::message::{Message, MessageStatus, Role};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::problem::ProblemCode;
use crate::domain::run::FinishReason;
use crate::domain::run::change::Change;
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::{MAX_NESTING, ToolDefinition, ToolOutcome};
use crate::engine::calls::outcome::{record_outcome, was_made};
use crate::engine::calls::unknown_outcome;
use crate::engine::machine::{DecisionBuilder, End, Next};
use crate::engine::prompts;
use crate::engine::steps::limits;
use crate::engine::strategy::stop_analysis;
use crate::support::json::is_deeper_than;

/// Begins or continues the run, unless it ends here.
pub fn claimed(
    decision: &mut DecisionBuilder<'_>,
    tools: Vec<Arc<ToolDefinition>>,
    contexts: Option<Vec<ProvidedContext>>,
) -> Next {
    let record = decision.before;
    let profile = decision.profile();
    // A run that continues from a call of another one begins with that one's tools.
    let is_first_start = record.tools.is_none() || record.cause == ClaimCause::First;
    if let Some(by) = &record.cancel_requested_by {
        end_lost_step(decision);
        return Next::End(End::Cancelled(by.clone()));
    }
    if record.is_poison() {
        end_lost_step(decision);
        let detail = format!("the run's worker died {} times; the run was given up", record.crashes);
        return Next::fail(ProblemCode::Poison, detail);
    }
    if record.cause == ClaimCause::Crash && profile.on_interrupt == OnInterrupt::Fail && !is_first_start {
        end_lost_step(decision);
        return Next::fail(ProblemCode::Interrupted, "the run's worker died and the agent does not resume; resume the run by hand");
    }
    if let Some(contexts) = contexts {
        decision.change(Change::KeepContexts(contexts));
    }
    if is_first_start {
        decision.event(EventBody::RunStarted {
            model: profile.model.clone(),
            agent: profile.name.clone(),
            agent_version: profile.version,
            left_out: left_out(decision),
        });
        decision.change(Change::Started);
        for name in &decision.facts.held {
            decision.event(EventBody::ToolQuarantined { name: name.clone(), reason: prompts::CHANGED_TOOL.to_owned() });
        }
        if record.tools.is_none() {
            decision.change(Change::FreezeTools(frozen(tools, profile.tools.as_deref())));
            stop_analysis::correct_claim(decision);
        }
        return go_on(decision);
    }
    decision.change(Change::Started);
    decision.event(EventBody::RunResumed { cause: record.cause.as_str().to_owned() });
    if decision.is_out_of_time() {
        end_lost_step(decision);
        return limits::fail_for_time(decision);
    }
    void_lost_step(decision);
    go_on(decision)
}

/// Returns the servers whose tools the run is about to get incompletely. A run that continues another one keeps that one's tools.
fn left_out(decision: &DecisionBuilder<'_>) -> Vec<String> {
    if decision.before.tools.is_some() {
        return Vec::new();
    }
    let wanted = decision.profile().tools.as_ref();
    let may_use = |note: &&ServerNote| wanted.is_none_or(|names| names.iter().any(|name| name.starts_with(&note.prefix)));
    let notes = decision.facts.servers.iter().filter(|note| note.left_out).filter(may_use);
    notes.map(|note| note.name.clone()).collect()
}

/// Returns the tools that the agent may use, each name once. A schema that is nested too deeply to be stored is replaced by any
/// object: the tool's server still validates arguments.
fn frozen(tools: Vec<Arc<ToolDefinition>>, wanted: Option<&[String]>) -> Vec<Arc<ToolDefinition>> {
    let mut kept: Vec<Arc<ToolDefinition>> = Vec::with_capacity(tools.len());
    for mut tool in tools {
        if is_deeper_than(&tool.parameters, MAX_NESTING) {
            Arc::make_mut(&mut tool).parameters = Arc::new(serde_json::json!({ "type": "object" }));
        }
        let is_wanted = wanted.is_none_or(|names| names.contains(&tool.name));
        if is_wanted && kept.iter().all(|known| known.name != tool.name) {
            kept.push(tool);
        }
    }
    kept
}

/// Continues a run from its rows.
fn go_on(decision: &DecisionBuilder<'_>) -> Next {
    if decision.open_tool_step().is_some() {
        return Next::ResumeCalls;
    }
    // An answer is committed with its consequences, so an answer without an end is rare; but asking the model again would give the
    // user two.
    match decision.newest_message().filter(|_| decision.open_model_step().is_none()).filter(|message| is_answer(message)) {
        Some(answer) => Next::EndTurn(answer.finish_reason.unwrap_or(FinishReason::Stop)),
        None => Next::ModelStep,
    }
}

fn is_answer(message: &Message) -> bool {
    message.role == Role::Assistant
        && message.status == MessageStatus::Complete
        && message.tool_calls().next().is_none()
        && !message.text().trim().is_empty()
}

/// Voids what a dead attempt has shown of a model step, which stays open and begins again.
fn void_lost_step(decision: &mut DecisionBuilder<'_>) -> Option<u32> {
    let step = decision.open_model_step()?;
    let reason = match decision.before.cause {
        ClaimCause::First | ClaimCause::Crash | ClaimCause::Reload => "crash",
        ClaimCause::HandedBack => "handed_back",
        ClaimCause::Timer | ClaimCause::Request => "retry",
    };
    decision.reset(step, reason);
    Some(step)
}

/// Also closes the step, because the run ends here.
fn end_lost_step(decision: &mut DecisionBuilder<'_>) {
    if let Some(step) = void_lost_step(decision) {
        decision.abandon_step(step);
    }
}

/// Takes in outcomes that this worker could not store. If the database lost confirmed commits, a call may have been made that has
/// not begun by the rows: its start is stored again, and the call is not repeated.
pub fn take_up(decision: &mut DecisionBuilder<'_>, finished: Vec<(CallId, ToolOutcome)>) {
    for (id, outcome) in finished {
        if decision.progress.call(&id).is_some_and(|call| call.has_not_begun()) {
            was_made(decision, &id);
        }
        if !unknown_outcome::is_asked_about(decision, &outcome) {
            record_outcome(decision, &id, outcome);
        }
    }
}

pub fn record_outcomes(decision: &mut DecisionBuilder<'_>, stopped: Vec<(CallId, ToolOutcome)>) {
    for (id, outcome) in stopped {
        record_outcome(decision, &id, outcome);
    }
}
