//! The tools that a run may use, may call, and is offered. Must not know how tools are selected.

use std::collections::HashSet;
use std::sync::Arc;

use super::categories::{categories, category};
use crate::domain::agent::ToolsPolicy;
use crate::domain::conversation::Message;
use crate::domain::model::ToolChoice;
use crate::domain::run::RunRecord;
use crate::domain::tool::{ASK_USER, SelectionMethod, ToolCall, ToolCallState, ToolDefinition, ToolFilterMode};
use crate::engine::strategy::plan::progress;

/// A missing prerequisite of the next model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prerequisite {
    Nothing,
    Ranking,
    /// The model's categories: the next call must ask for them.
    Categories,
}

/// Returns the tools that a run may use now, on offer or not.
pub fn usable_tools<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    let (profile, counters) = (&record.profile, &record.counters);
    let withheld = counters.force_final
        || match profile.tools_policy {
            ToolsPolicy::EveryRound => false,
            ToolsPolicy::FirstRoundOnly => counters.rounds > 0,
            ToolsPolicy::OneRoundThenText => record.calls.iter().any(|call| call.step > counters.step_at_restart),
            ToolsPolicy::None => true,
        };
    if withheld { Vec::new() } else { permitted_tools(tools, record) }
}

/// Returns the tools that the model may call now. Tools that are on offer only in the first round stay callable.
pub fn callable_tools<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    match record.profile.tools_policy {
        ToolsPolicy::FirstRoundOnly if !record.counters.force_final => permitted_tools(tools, record),
        ToolsPolicy::EveryRound | ToolsPolicy::FirstRoundOnly | ToolsPolicy::OneRoundThenText | ToolsPolicy::None => {
            usable_tools(tools, record)
        }
    }
}

/// Returns all tools of the run except dropped ones, and except those of the server once their calls are used up.
fn permitted_tools<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    let (profile, dropped) = (&record.profile, &record.counters.dropped_tools);
    let is_used_up = server_calls_left(record) == Some(0);
    let is_permitted =
        |tool: &ToolDefinition| profile.may_use(tool) && !dropped.contains(&tool.name) && (tool.by_client || !is_used_up);
    tools.iter().filter(|tool| is_permitted(tool)).collect()
}

/// Returns how many calls of the server's tools may still start; `None` for any number. The count restarts after each answer with calls
/// of client tools.
pub fn server_calls_left(record: &RunRecord) -> Option<u32> {
    let limit = record.profile.max_server_calls?;
    let of_client = record.calls.iter().filter(|call| is_client_tool(record, &call.name));
    let counted_after = of_client.map(|call| call.step).max().unwrap_or(0);
    let counts = |call: &ToolCall| call.step > counted_after && call.state != ToolCallState::Cancelled;
    let made = record.calls.iter().filter(|call| counts(call)).count();
    Some(limit.saturating_sub(u32::try_from(made).unwrap_or(u32::MAX)))
}

/// Returns whether the client executes the tool with this name.
pub fn is_client_tool(record: &RunRecord, name: &str) -> bool {
    record.profile.client_tools.iter().any(|tool| tool.name == name)
}

/// Returns whether there are more tools than the model accepts.
pub fn exceed_limit(usable: &[&Arc<ToolDefinition>], limit: Option<u32>) -> bool {
    limit.is_some_and(|limit| usize::try_from(limit).is_ok_and(|limit| usable.len() > limit))
}

/// Returns whether the profile's filter selects the tools of the current model.
pub fn filters_tools(record: &RunRecord) -> bool {
    let filter = &record.profile.tool_filter;
    filter.mode != ToolFilterMode::Off && !filter.skips(record.model())
}

/// Returns the usable tools on offer in a model call. They include the tools called in the shown history, because some providers refuse
/// calls of undeclared tools.
pub fn offered_tools<'t, 'm>(
    usable: Vec<&'t Arc<ToolDefinition>>,
    record: &RunRecord,
    history: impl Iterator<Item = &'m Message>,
    limit: Option<u32>,
) -> Vec<&'t Arc<ToolDefinition>> {
    let is_on = filters_tools(record) || exceed_limit(&usable, limit);
    let Some(chosen) = record.counters.chosen_tools.as_ref().filter(|_| is_on) else { return usable };
    let own: HashSet<&str> = chosen.names.iter().map(String::as_str).collect();
    let is_chosen = |tool: &ToolDefinition| match chosen.by {
        SelectionMethod::Semantic | SelectionMethod::Lexical => own.contains(tool.name.as_str()),
        SelectionMethod::Categories => own.contains(category(tool)),
    };
    let mut names: HashSet<&str> = HashSet::new();
    names.extend(record.calls.iter().map(|call| call.name.as_str()));
    names.extend(history.flat_map(Message::tool_calls).map(|call| call.name.as_str()));
    if let Some(ToolChoice::Tool(name)) = &record.profile.options.tool_choice {
        names.insert(name);
    }
    let is_always = |tool: &ToolDefinition| tool.by_client || tool.server.is_none() && tool.tool == ASK_USER;
    usable.into_iter().filter(|tool| is_chosen(tool) || is_always(tool) || names.contains(tool.name.as_str())).collect()
}

pub fn missing_prerequisite(usable: &[&Arc<ToolDefinition>], record: &RunRecord, limit: Option<u32>) -> Prerequisite {
    // A plan selects the tools of its requests itself.
    if progress::phase(record).is_some() {
        return Prerequisite::Nothing;
    }
    let filter = &record.profile.tool_filter;
    let may_call = record.profile.options.tool_choice != Some(ToolChoice::None);
    if record.counters.chosen_tools.is_some() || !may_call {
        return Prerequisite::Nothing;
    }
    let exceeds_limit = exceed_limit(usable, limit);
    if filter.skips(record.model()) && !exceeds_limit {
        return Prerequisite::Nothing;
    }
    match filter.mode {
        ToolFilterMode::Off | ToolFilterMode::Semantic if exceeds_limit => Prerequisite::Ranking,
        ToolFilterMode::Off => Prerequisite::Nothing,
        ToolFilterMode::Semantic if usable.len() > filter.k => Prerequisite::Ranking,
        ToolFilterMode::Categories if usable.len() > filter.above || exceeds_limit => {
            // The ranking decides if there is only one category, or the model named none.
            let may_choose = !record.counters.named_no_category && categories(usable).len() > 1;
            if may_choose { Prerequisite::Categories } else { Prerequisite::Ranking }
        }
        ToolFilterMode::Semantic | ToolFilterMode::Categories => Prerequisite::Nothing,
    }
}
