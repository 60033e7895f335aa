//! Narrows down the tools on offer. Must not know how tools are ranked: that may ask a model outside, and comes as an input.

use super::categories::named_by;
use super::pick::best;
use super::query::said_in;
use super::usable::{Missing, usable};
use crate::domain::tool::tool_filter::{ChosenBy, ChosenTools, RankedTools};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::strategy::hooks::Answer;

/// Takes in the order of the tools.
pub fn ranked(decision: &mut DecisionBuilder<'_>, ranked: RankedTools) -> Next {
    // An open model step is one whose worker died: it begins again. No call is under way while its tools are not selected.
    if decision.open_tool_step().is_some() || decision.source().missing() != Missing::Ranking {
        return Next::Wait;
    }
    let filter = &decision.profile().tool_filter;
    let said = said_in(decision.before);
    let names = best(filter, &usable(decision.tools(), &decision.progress), &said, &ranked.names);
    decision.counters().chosen_tools = Some(ChosenTools { by: ranked.by, names });
    Next::ModelStep
}

/// Takes in the categories that a model named. The answer is not kept as a message.
pub fn categories_named(decision: &mut DecisionBuilder<'_>, answer: &Answer) -> Next {
    let names = named_by(&answer.message, &usable(decision.tools(), &decision.progress));
    let counters = decision.counters();
    counters.named_no_category = names.is_none();
    counters.chosen_tools = names.map(|names| ChosenTools { by: ChosenBy::Categories, names });
    decision.complete_step(answer.step, Some(answer.turn.usage));
    Next::ModelStep
}
