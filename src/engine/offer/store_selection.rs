//! Stores the selection of the tools on offer in the run's counters. Must not know how tools are ranked: a ranking may need a model
//! call, so it arrives as an input.

use std::collections::BTreeSet;

use super::categories::categories_in_answer;
use super::query::user_text;
use super::select_ranked::select_tools;
use super::usable::{Prerequisite, filters_tools, usable_tools};
use crate::domain::tool::tool_filter::{RankedTools, SelectionMethod, ToolFilter, ToolSelection};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::strategy::hooks::Answer;

/// Stores the selection that follows from a ranking.
pub fn store_ranked_tools(decision: &mut DecisionBuilder<'_>, ranked: RankedTools) -> Next {
    // Only a model step needs a ranking. If a model step is open, its worker crashed, and the step begins again.
    if decision.open_tool_step().is_some() || decision.source().missing() != Prerequisite::Ranking {
        return Next::Wait;
    }
    let filter = limited_filter(decision);
    let query = user_text(decision.before);
    let names = select_tools(&filter, &usable_tools(decision.tools(), &decision.progress), &query, &ranked.names);
    decision.counters().chosen_tools = Some(ToolSelection { by: ranked.by, names });
    Next::ModelStep
}

/// Returns the profile's filter, with `k` limited to the number of tools that the model accepts.
fn limited_filter(decision: &DecisionBuilder<'_>) -> ToolFilter {
    let filter = decision.profile().tool_filter.clone();
    let Some(limit) = decision.source().capacity().max_tools.and_then(|limit| usize::try_from(limit).ok()) else { return filter };
    // Tools that were called stay on offer, and so does `ask_user`.
    let called: BTreeSet<&str> = decision.progress.calls.iter().map(|call| call.name.as_str()).collect();
    let k = limit.saturating_sub(called.len() + 1).max(1);
    ToolFilter { k: if filters_tools(&decision.progress) { filter.k.min(k) } else { k }, ..filter }
}

/// Stores the categories that a model named. The answer does not become a message.
pub fn store_categories(decision: &mut DecisionBuilder<'_>, answer: &Answer) -> Next {
    let names = categories_in_answer(&answer.message, &usable_tools(decision.tools(), &decision.progress));
    let counters = decision.counters();
    counters.named_no_category = names.is_none();
    counters.chosen_tools = names.map(|names| ToolSelection { by: SelectionMethod::Categories, names });
    decision.complete_step(answer.step, Some(answer.turn.usage));
    Next::ModelStep
}
