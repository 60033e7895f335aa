//! Decides which calls of an answer are executed, and gives the others their outcome. Must not know when a call starts.

use std::sync::Arc;

use crate::domain::conversation::message::{Message, ToolContent};
use crate::domain::model::ModelTurn;
use crate::domain::tool::{Repair, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::engine::calls::tool_names::{self, Meant};
use crate::engine::calls::{arguments, duplicates, json_repair};
use crate::engine::machine::DecisionBuilder;
use crate::engine::offer::usable::callable;
use crate::engine::prompts;
use crate::engine::request::tool_results;
use crate::engine::strategy::plan::progress;
use crate::support::json;

/// Characters of an earlier result that are quoted for a duplicate call.
const QUOTED_CHARS: usize = 500;

/// Whether the answer with the calls is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    Whole,
    /// It reached the output limit. Which call was cut is unknown, and one that parses may still lack its end.
    Cut,
}

/// A call, with its outcome if it is not executed.
pub struct PlannedCall {
    pub call: ToolCall,
    pub outcome: Option<ToolOutcome>,
}

/// Returns the calls of an answer as rows of the step that follows it.
pub fn planned(
    decision: &DecisionBuilder<'_>,
    message: &Message,
    turn: &ModelTurn,
    step: u32,
    completeness: Completeness,
) -> Vec<PlannedCall> {
    let mut raw = turn.arguments.iter();
    // A tool that was narrowed down, not taken away, may be called by a model that knows it.
    let callable = callable(decision.before.tools.as_deref().unwrap_or_default(), decision.before);
    let calls = message.tool_calls().zip(0_u32..);
    let mut planned: Vec<PlannedCall> = Vec::new();
    for (part, position) in calls {
        // The turn has the model's own text; without it, the part's arguments are used.
        let (parsed, fixes) = match raw.next() {
            Some(text) => read_arguments(decision, text, completeness),
            None => (arguments::Arguments { value: part.arguments.clone(), fault: None }, Vec::new()),
        };
        let known = tool_names::named(&part.name, decision.before.tools.as_deref().unwrap_or_default());
        let meant = match known {
            // A tool that was taken away is not mistaken for another one.
            Some(known) => match callable.iter().find(|tool| tool.name == known.name) {
                Some(tool) => Meant::Tool(tool, (tool.name != part.name).then_some("spelling")),
                None => Meant::None(Vec::new()),
            },
            None => tool_names::meant(&part.name, &callable, &decision.profile().repair),
        };
        let (definition, matched_by) = match &meant {
            Meant::Tool(tool, matched_by) => (Some(*tool), *matched_by),
            Meant::None(_) => (None, None),
        };
        let repair = Repair {
            name: matched_by.map(|_| part.name.clone()),
            matched_by: matched_by.map(str::to_owned),
            arguments: fixes.into_iter().map(str::to_owned).collect(),
        };
        let name = definition.or(known.map(|tool| &**tool)).map_or(&part.name, |tool| &tool.name).clone();
        let replay = definition.map_or(ReplayClass::Unsafe, |tool| tool.replay.clone());
        let arguments_hash = json::hash(&parsed.value);
        let call = ToolCall {
            id: part.call_id.clone(),
            run_id: message.run_id.clone(),
            message_id: message.id.clone(),
            step,
            position,
            provider_call_id: part.provider_call_id.clone().unwrap_or_default(),
            // Two calls of one answer have two keys.
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
        let outcome = refused(decision, &call, &planned, &callable, &meant, parsed.fault.as_deref(), completeness);
        planned.push(PlannedCall { call, outcome });
    }
    planned
}

/// Parses arguments, and repairs them if the agent allows it and they cannot be cut. Returns the repairs.
fn read_arguments(
    decision: &DecisionBuilder<'_>,
    text: &str,
    completeness: Completeness,
) -> (arguments::Arguments, Vec<&'static str>) {
    let parsed = arguments::parse(text);
    let may_be_mended = decision.profile().repair.arguments && completeness == Completeness::Whole;
    match json_repair::mend(text).filter(|_| may_be_mended && parsed.fault.is_some()) {
        Some(mended) => (arguments::Arguments { value: mended.value, fault: None }, mended.fixes),
        None => (parsed, Vec::new()),
    }
}

/// Returns the outcome of a call that is refused. Rules of the loop give `Cancelled`, which is no failure of a tool; faults of the
/// call give `Failed`.
fn refused(
    decision: &DecisionBuilder<'_>,
    call: &ToolCall,
    before: &[PlannedCall],
    callable: &[&Arc<ToolDefinition>],
    meant: &Meant<'_>,
    fault: Option<&str>,
    completeness: Completeness,
) -> Option<ToolOutcome> {
    let profile = decision.profile();
    let by_rule = |text: String| Some(ToolOutcome { state: ToolCallState::Cancelled, ..ToolOutcome::failed(text, 0) });
    if completeness == Completeness::Cut {
        return by_rule(prompts::CUT_CALL.to_owned());
    }
    if callable.is_empty() {
        return by_rule(prompts::NO_TOOLS.to_owned());
    }
    if let Meant::None(near) = meant {
        if decision.before.counters.dropped_tools.contains(&call.name) {
            return by_rule(prompts::dropped_tool(&call.name));
        }
        let offered = decision.source_before().offered_in_step();
        let listed = if offered.is_empty() { callable } else { &offered };
        let names: Vec<&str> = listed.iter().map(|tool| tool.name.as_str()).collect();
        return Some(ToolOutcome::failed(prompts::unknown_tool(&call.name, near, &names), 0));
    }
    // A step of a plan is one call.
    let most = if progress::phase(decision.before).is_some() { 1 } else { profile.max_parallel_calls.max(1) };
    if call.position >= most {
        return by_rule(prompts::too_many_calls(most));
    }
    if let Some(reason) = fault {
        return Some(ToolOutcome::failed(prompts::bad_arguments(reason), 0));
    }
    let beside = || before.iter().filter(|planned| planned.outcome.is_none()).map(|planned| &planned.call);
    if profile.duplicate_calls > 0 && beside().any(|other| duplicates::is_same(other, call)) {
        return by_rule(prompts::TWIN_CALL.to_owned());
    }
    let earlier = duplicates::answered_before((profile, decision.tools(), &decision.progress), beside(), call)?;
    if earlier.state == ToolCallState::Unknown {
        return by_rule(prompts::UNKNOWN_BEFORE.to_owned());
    }
    let content = earlier.outcome.as_ref().map_or(&[][..], |outcome| &outcome.content);
    // Where older results are compressed, the first answer may be gone, and only the quotation shows it.
    let most = if profile.context.compress_results { profile.tool_result_chars } else { QUOTED_CHARS };
    let text = prompts::duplicate_call(&tool_results::gist(content, most));
    Some(ToolOutcome { state: ToolCallState::Done, content: vec![ToolContent::text(text)], is_error: false, duration_ms: 0 })
}
