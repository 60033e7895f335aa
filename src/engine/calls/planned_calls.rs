//! Decides which calls of an answer are executed, and returns the outcome of each call that is not executed. Must not know when a call
//! starts.

use std::sync::Arc;

use crate::domain::conversation::{Message, ToolContent};
use crate::domain::model::ModelTurn;
use crate::domain::tool::{Repair, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::engine::calls::name_repair::{self, NameMatch};
use crate::engine::calls::{arguments, duplicates, json_repair};
use crate::engine::machine::DecisionBuilder;
use crate::engine::offer::usable::{callable_tools, is_client_tool, server_calls_left};
use crate::engine::prompts;
use crate::engine::request::tool_results;
use crate::engine::strategy::plan::progress;
use crate::support::json;

/// Characters of an earlier result that are quoted for a duplicate call.
const QUOTED_CHARS: usize = 500;

/// Whether an answer with calls is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    Whole,
    /// The output limit ended the answer inside a tool call. Any call can be the cut one, because cut arguments may still parse.
    Cut,
}

/// A call, with its outcome if it is not executed.
pub struct PlannedCall {
    pub call: ToolCall,
    pub outcome: Option<ToolOutcome>,
}

/// Converts the calls of an answer into planned calls of the next step.
pub fn plan_calls(
    decision: &DecisionBuilder<'_>,
    message: &Message,
    turn: &ModelTurn,
    step: u32,
    completeness: Completeness,
) -> Vec<PlannedCall> {
    let mut raw = turn.arguments.iter();
    // The model may call a usable tool that this step did not offer. It may not call a dropped tool.
    let callable = callable_tools(decision.before.tools.as_deref().unwrap_or_default(), decision.before);
    let calls = message.tool_calls().zip(0_u32..);
    let mut planned: Vec<PlannedCall> = Vec::new();
    for (part, position) in calls {
        // The turn has the arguments as the model wrote them. Without them, the part's arguments are used.
        let (mut parsed, mut fixes) = match raw.next() {
            Some(text) => read_arguments(decision, text, completeness),
            None => (arguments::Arguments { value: part.arguments.clone(), fault: None }, Vec::new()),
        };
        let known_tool = name_repair::named(&part.name, decision.before.tools.as_deref().unwrap_or_default());
        let name_match = match known_tool {
            // The name of a dropped tool is not repaired into the name of another one.
            Some(known_tool) => match callable.iter().find(|tool| tool.name == known_tool.name) {
                Some(tool) => NameMatch::Tool(tool, (tool.name != part.name).then_some("spelling")),
                None => NameMatch::None(Vec::new()),
            },
            None => name_repair::match_name(&part.name, &callable, &decision.profile().repair),
        };
        let (definition, matched_by) = match &name_match {
            NameMatch::Tool(tool, matched_by) => (Some(*tool), *matched_by),
            NameMatch::None(_) => (None, None),
        };
        // Nulls may also be removed from cut arguments, because no call of a cut answer is executed.
        if decision.profile().repair.arguments
            && let Some(tool) = definition
            && arguments::leave_out_nulls(&mut parsed.value, &tool.parameters)
        {
            fixes.push(arguments::NULL);
        }
        let repair = Repair {
            name: matched_by.map(|_| part.name.clone()),
            matched_by: matched_by.map(str::to_owned),
            arguments: fixes.into_iter().map(str::to_owned).collect(),
        };
        let name = definition.or(known_tool.map(|tool| &**tool)).map_or(&part.name, |tool| &tool.name).clone();
        let replay = definition.map_or(ReplayClass::Unsafe, |tool| tool.replay.clone());
        let arguments_hash = json::hash(&parsed.value);
        let call = ToolCall {
            id: part.call_id.clone(),
            run_id: message.run_id.clone(),
            message_id: message.id.clone(),
            step,
            position,
            provider_call_id: part.provider_call_id.clone().unwrap_or_default(),
            // Two identical calls in one answer get different idempotency keys.
            key: duplicates::key_to_keep(decision.before, &name, &arguments_hash, &replay)
                .filter(|key| planned.iter().all(|other| other.call.key() != key)),
            name,
            repair: (repair != Repair::default()).then_some(repair),
            server: definition.and_then(|tool| tool.server.clone()),
            undoes: None,
            handle: None,
            arguments_hash,
            arguments: parsed.value,
            replay,
            state: ToolCallState::Planned,
            outcome: None,
        };
        let outcome =
            outcome_without_execution(decision, &call, &planned, &callable, &name_match, parsed.fault.as_deref(), completeness);
        planned.push(PlannedCall { call, outcome });
    }
    planned
}

/// Parses arguments, and repairs them if the agent allows it and they cannot have been cut. Returns the arguments and the names of the
/// repairs.
fn read_arguments(
    decision: &DecisionBuilder<'_>,
    text: &str,
    completeness: Completeness,
) -> (arguments::Arguments, Vec<&'static str>) {
    let parsed = arguments::parse(text);
    let may_be_repaired = decision.profile().repair.arguments && completeness == Completeness::Whole;
    match json_repair::repair(text).filter(|_| may_be_repaired && parsed.fault.is_some()) {
        Some(repaired) => (arguments::Arguments { value: repaired.value, fault: None }, repaired.fixes),
        None => (parsed, Vec::new()),
    }
}

/// Returns the outcome of a call that is not executed, or `None` for a call that is executed.
///
/// A call that breaks a rule of the loop is `Cancelled`; this does not count as a failure of the tool. A faulty call is `Failed`, and a
/// call that an earlier result answers is `Done`.
fn outcome_without_execution(
    decision: &DecisionBuilder<'_>,
    call: &ToolCall,
    earlier_calls: &[PlannedCall],
    callable: &[&Arc<ToolDefinition>],
    name_match: &NameMatch<'_>,
    fault: Option<&str>,
    completeness: Completeness,
) -> Option<ToolOutcome> {
    let profile = decision.profile();
    let by_rule = |text: String| Some(ToolOutcome { state: ToolCallState::Cancelled, ..ToolOutcome::failed(text, 0) });
    if completeness == Completeness::Cut {
        return by_rule(prompts::CUT_CALL.to_owned());
    }
    let is_of_server = |call: &ToolCall| !is_client_tool(decision.before, &call.name);
    if let Some(left) = server_calls_left(decision.before).filter(|_| is_of_server(call)) {
        let planned = earlier_calls.iter().filter(|planned| planned.outcome.is_none() && is_of_server(&planned.call)).count();
        if planned >= usize::try_from(left).unwrap_or(usize::MAX) {
            return by_rule(prompts::NO_CALLS_LEFT.to_owned());
        }
    }
    if callable.is_empty() {
        return by_rule(prompts::NO_TOOLS.to_owned());
    }
    if let NameMatch::None(near) = name_match {
        if decision.before.counters.dropped_tools.contains(&call.name) {
            return by_rule(prompts::dropped_tool(&call.name));
        }
        let offered = decision.source_before().offered_in_step();
        let listed = if offered.is_empty() { callable } else { &offered };
        let names: Vec<&str> = listed.iter().map(|tool| tool.name.as_str()).collect();
        return Some(ToolOutcome::failed(prompts::unknown_tool(&call.name, near, &names), 0));
    }
    // While a plan runs, an answer may contain one call, because each plan step makes one call.
    let max_calls = if progress::phase(decision.before).is_some() { 1 } else { profile.max_parallel_calls.max(1) };
    if call.position >= max_calls {
        return by_rule(prompts::too_many_calls(max_calls));
    }
    if let Some(reason) = fault {
        return Some(ToolOutcome::failed(prompts::bad_arguments(reason), 0));
    }
    let planned_without_outcome = || earlier_calls.iter().filter(|planned| planned.outcome.is_none()).map(|planned| &planned.call);
    if profile.duplicate_calls > 0 && planned_without_outcome().any(|other| duplicates::is_same(other, call)) {
        return by_rule(prompts::DUPLICATE_IN_ANSWER.to_owned());
    }
    let earlier = duplicates::answered_before((profile, decision.tools(), &decision.progress), planned_without_outcome(), call)?;
    if earlier.state == ToolCallState::Unknown {
        return by_rule(prompts::UNKNOWN_BEFORE.to_owned());
    }
    let content = earlier.outcome.as_ref().map_or(&[][..], |outcome| &outcome.content);
    // If the agent compresses older results, the request may lack the earlier result. Only this quotation then shows the result to the
    // model.
    let max_quoted_chars = if profile.context.compress_results { profile.tool_result_chars } else { QUOTED_CHARS };
    let text = prompts::duplicate_call(&tool_results::cut_text(content, max_quoted_chars));
    Some(ToolOutcome { state: ToolCallState::Done, content: vec![ToolContent::text(text)], is_error: false, duration_ms: 0 })
}
