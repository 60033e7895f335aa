//! The first decision about a claimed run: first start, recovery, or the end. Must not know how a step begins.

use std::sync::Arc;

use crate::domain::agent::{AgentProfile, OnInterrupt, ProvidedContext, ServerNote};
use crate::domain::conversation::{Message, MessageStatus, Role};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{Change, ClaimCause, FinishReason};
use crate::domain::tool::{MAX_NESTING, ToolDefinition, ToolOutcome};
use crate::engine::calls::outcome::{mark_started, record_outcome};
use crate::engine::calls::unknown_outcome;
use crate::engine::machine::{DecisionBuilder, Next, RunEnd};
use crate::engine::prompts;
use crate::engine::steps::time_limits;
use crate::engine::strategy::stop_analysis;
use crate::support::json::is_deeper_than;

/// Begins or continues the run, unless it ends here.
pub fn begin_claim(
    decision: &mut DecisionBuilder<'_>,
    tools: Vec<Arc<ToolDefinition>>,
    contexts: Option<Vec<ProvidedContext>>,
) -> Next {
    let record = decision.before;
    let profile = decision.profile();
    // A run that takes over a call of another run has that run's tools already at its first start.
    let is_first_start = record.tools.is_none() || record.cause == ClaimCause::First;
    if let Some(by) = &record.cancel_requested_by {
        end_lost_step(decision);
        return Next::End(RunEnd::Cancelled(by.clone()));
    }
    if record.is_poison() {
        end_lost_step(decision);
        let detail = format!("the run's workers crashed {} times; the run is not claimed again", record.crashes);
        return Next::fail(ProblemCode::Poison, detail);
    }
    if record.cause == ClaimCause::Crash && profile.on_interrupt == OnInterrupt::Fail && !is_first_start {
        end_lost_step(decision);
        return Next::fail(
            ProblemCode::Interrupted,
            "the run's worker crashed and the agent's `on_interrupt` is `fail`; resume the run by hand",
        );
    }
    if let Some(contexts) = contexts {
        decision.change(Change::StoreContexts(contexts));
    }
    if is_first_start {
        decision.event(EventBody::RunStarted {
            model: profile.model.clone(),
            agent: profile.name.clone(),
            agent_version: profile.version,
            left_out: servers_with_omitted_tools(decision),
        });
        decision.change(Change::Start);
        for name in &decision.facts.withheld_tools {
            decision.event(EventBody::ToolQuarantined { name: name.clone(), reason: prompts::CHANGED_TOOL.to_owned() });
        }
        if record.tools.is_none() {
            decision.change(Change::FreezeTools(frozen_tools(tools, profile)));
            stop_analysis::correct_claim(decision);
        }
        return continue_from_rows(decision);
    }
    decision.change(Change::Start);
    decision.event(EventBody::RunResumed { cause: record.cause.as_str().to_owned() });
    if decision.is_out_of_time() {
        end_lost_step(decision);
        return time_limits::fail_for_time(decision);
    }
    void_lost_step(decision);
    continue_from_rows(decision)
}

/// Returns the servers of which the run gets only some tools. A run that begins with the tools of another run keeps those tools.
fn servers_with_omitted_tools(decision: &DecisionBuilder<'_>) -> Vec<String> {
    if decision.before.tools.is_some() {
        return Vec::new();
    }
    let wanted = decision.profile().tools.as_ref();
    let may_use = |note: &&ServerNote| wanted.is_none_or(|names| names.iter().any(|name| name.starts_with(&note.prefix)));
    let notes = decision.facts.servers.iter().filter(|note| note.left_out).filter(may_use);
    notes.map(|note| note.name.clone()).collect()
}

/// Returns the tools that the agent may use, each name once. A schema that is nested too deeply to be stored becomes a schema for any
/// object: the tool's server still validates arguments.
fn frozen_tools(tools: Vec<Arc<ToolDefinition>>, profile: &AgentProfile) -> Vec<Arc<ToolDefinition>> {
    let mut usable: Vec<Arc<ToolDefinition>> = Vec::with_capacity(tools.len());
    for mut tool in tools {
        if is_deeper_than(&tool.parameters, MAX_NESTING) {
            Arc::make_mut(&mut tool).parameters = Arc::new(serde_json::json!({ "type": "object" }));
        }
        // A client tool is accepted before the server's tools are listed, so its name wins.
        let is_taken = usable.iter().any(|known| known.name == tool.name)
            || profile.client_tools.iter().any(|client| client.name == tool.name);
        if profile.may_use(&tool) && !is_taken {
            usable.push(tool);
        }
    }
    usable.extend(profile.client_tools.iter().map(|tool| Arc::new(tool.definition())));
    usable
}

/// Continues a run from its rows.
fn continue_from_rows(decision: &DecisionBuilder<'_>) -> Next {
    if decision.open_tool_step().is_some() {
        return Next::ResumeCalls;
    }
    // An answer is committed together with its consequences, so it is rare that an answer did not end the run. Another model call
    // would then show the user two answers.
    let newest = decision.newest_message().filter(|_| decision.open_model_step().is_none());
    match newest.and_then(answer_end) {
        Some(reason) => Next::EndTurn(reason),
        None => Next::ModelStep,
    }
}

/// Returns the finish reason of an answer; `None` for any other message. An answer that the client has sent has none.
fn answer_end(message: &Message) -> Option<FinishReason> {
    let is_answer = message.role == Role::Assistant
        && message.status == MessageStatus::Complete
        && message.tool_calls().next().is_none()
        && message.shows_something();
    message.finish_reason.filter(|_| is_answer)
}

/// Voids the parts that a crashed attempt has shown in a model step. The step stays open and begins again.
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

/// Voids the parts of a lost model step, and closes the step, because the run ends here.
fn end_lost_step(decision: &mut DecisionBuilder<'_>) {
    if let Some(step) = void_lost_step(decision) {
        decision.abandon_step(step);
    }
}

/// Stores outcomes that this worker could not store before. If the database lost confirmed commits, the start of such a call may be
/// missing. The start is then stored again, and the call is not repeated.
pub fn apply_unsaved_outcomes(decision: &mut DecisionBuilder<'_>, finished: Vec<(CallId, ToolOutcome)>) {
    for (id, outcome) in finished {
        if decision.progress.call(&id).is_some_and(|call| call.has_not_begun()) {
            mark_started(decision, &id);
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
