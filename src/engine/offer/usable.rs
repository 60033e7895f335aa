//! The tools that a run may use, may call, and is offered. Must not know how tools are selected.

use std::collections::HashSet;
use std::sync::Arc;

use super::categories::{categories, place};
use crate::domain::agent::ToolsPolicy;
use crate::domain::conversation::message::Message;
use crate::domain::model::ToolChoice;
use crate::domain::run::record::RunRecord;
use crate::domain::tool::tool_filter::{ChosenBy, ChosenTools, ToolFilterMode};
use crate::domain::tool::{ASK_USER, ToolDefinition};
use crate::engine::strategy::plan::progress;

/// A missing prerequisite of the next model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Nothing,
    Ranking,
    /// The model's categories, for which the next call asks.
    Categories,
}

/// Returns the tools that a run may use now, on offer or not.
pub fn usable<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    let (profile, counters) = (&record.profile, &record.counters);
    let withheld = counters.force_final
        || match profile.tools_policy {
            ToolsPolicy::EveryRound => false,
            ToolsPolicy::FirstRoundOnly => counters.rounds > 0,
            ToolsPolicy::OneRoundThenText => record.calls.iter().any(|call| call.step > counters.heard_step),
            ToolsPolicy::None => true,
        };
    if withheld { Vec::new() } else { permitted(tools, record) }
}

/// Returns the tools that the model may call now. Tools that are on offer only in the first round may be called later, too.
pub fn callable<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    match record.profile.tools_policy {
        ToolsPolicy::FirstRoundOnly if !record.counters.force_final => permitted(tools, record),
        ToolsPolicy::EveryRound | ToolsPolicy::FirstRoundOnly | ToolsPolicy::OneRoundThenText | ToolsPolicy::None => {
            usable(tools, record)
        }
    }
}

/// Returns the tools that the run may use at all, without dropped and quarantined ones.
fn permitted<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    let (profile, counters) = (&record.profile, &record.counters);
    tools
        .iter()
        .filter(|tool| profile.tools.as_ref().is_none_or(|wanted| wanted.contains(&tool.name)))
        .filter(|tool| !counters.dropped_tools.contains(&tool.name))
        .filter(|tool| !counters.quarantined_tools.contains(&tool.name))
        .collect()
}

/// Returns the selection for the current model.
pub fn chosen(record: &RunRecord) -> Option<&ChosenTools> {
    let filter = &record.profile.tool_filter;
    let is_on = filter.mode != ToolFilterMode::Off && !filter.skips(record.model());
    record.counters.chosen_tools.as_ref().filter(|_| is_on)
}

/// Returns the usable tools that a model call is offered. Some providers refuse calls of undeclared tools in the history, so tools
/// called in the shown history are always among them.
pub fn offered<'t, 'm>(
    usable: Vec<&'t Arc<ToolDefinition>>,
    record: &RunRecord,
    history: impl Iterator<Item = &'m Message>,
) -> Vec<&'t Arc<ToolDefinition>> {
    let Some(chosen) = chosen(record) else { return usable };
    let own: HashSet<&str> = chosen.names.iter().map(String::as_str).collect();
    let is_chosen = |tool: &ToolDefinition| match chosen.by {
        ChosenBy::Semantic | ChosenBy::Lexical => own.contains(tool.name.as_str()),
        ChosenBy::Categories => own.contains(place(tool)),
    };
    let mut names: HashSet<&str> = HashSet::new();
    names.extend(record.calls.iter().map(|call| call.name.as_str()));
    names.extend(history.flat_map(Message::tool_calls).map(|call| call.name.as_str()));
    if let Some(ToolChoice::Tool(name)) = &record.profile.options.tool_choice {
        names.insert(name);
    }
    let asks_user = |tool: &ToolDefinition| tool.server.is_none() && tool.tool == ASK_USER;
    usable.into_iter().filter(|tool| is_chosen(tool) || asks_user(tool) || names.contains(tool.name.as_str())).collect()
}

pub fn missing(usable: &[&Arc<ToolDefinition>], record: &RunRecord) -> Missing {
    // The models of a plan have their own tools.
    if progress::phase(record).is_some() {
        return Missing::Nothing;
    }
    let filter = &record.profile.tool_filter;
    let may_call = record.profile.options.tool_choice != Some(ToolChoice::None);
    if record.counters.chosen_tools.is_some() || filter.skips(record.model()) || !may_call {
        return Missing::Nothing;
    }
    match filter.mode {
        ToolFilterMode::Off => Missing::Nothing,
        ToolFilterMode::Semantic if usable.len() > filter.k => Missing::Ranking,
        ToolFilterMode::Categories if usable.len() > filter.above => {
            // Without categories to choose among, or if none was named, the ranking decides.
            let may_choose = !record.counters.named_no_category && categories(usable).len() > 1;
            if may_choose { Missing::Categories } else { Missing::Ranking }
        }
        ToolFilterMode::Semantic | ToolFilterMode::Categories => Missing::Nothing,
    }
}
