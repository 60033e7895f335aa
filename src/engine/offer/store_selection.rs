//! Selects the tools on offer from a ranking and the user's message, and stores them in the run's counters. Must not know how tools are ranked: a ranking may need a model
//! call, so it arrives as an input.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::domain::tool::{RankedTools, SelectionMethod, ToolDefinition, ToolFilter, ToolSelection};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::offer::categories::{categories_in_answer, category};
use crate::engine::offer::query::user_text;
use crate::engine::offer::usable::{Prerequisite, filters_tools, usable_tools};
use crate::engine::strategy::hooks::Answer;
use crate::support::search_words::{contains_phrase, joined, words};

/// Stores the selection that follows from a ranking.
pub fn store_ranked_tools(decision: &mut DecisionBuilder<'_>, ranked: RankedTools) -> Next {
    // Only a model step needs a ranking. If a model step is open, its worker crashed, and the step begins again.
    if decision.open_tool_step().is_some() || decision.source().missing_prerequisite() != Prerequisite::Ranking {
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

/// The maximum number of tools of mentioned servers, if `whole_servers` is set and `k` is not larger. Some providers accept at most
/// 128 tools, and the tools that were called are on offer too.
const MAX_NAMED: usize = 100;

/// Selects the tools of servers that the user mentions, then the best others up to `k`. `order` begins with the best match; tools that it
/// omits are last, sorted by name.
pub fn select_tools(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>], user_text: &str, order: &[String]) -> Vec<String> {
    let user_text = (words(user_text), joined(user_text));
    let rank: HashMap<&str, usize> = order.iter().enumerate().rev().map(|(at, name)| (name.as_str(), at)).collect();
    let mut tools = usable.to_vec();
    tools.sort_by_key(|tool| (rank.get(tool.name.as_str()).copied().unwrap_or(usize::MAX), tool.name.as_str()));
    let servers: HashSet<&str> = tools.iter().filter(|tool| tool.server.is_some()).map(|tool| category(tool)).collect();
    let mentioned: HashSet<&str> = servers.into_iter().filter(|server| is_mentioned(filter, server, &user_text)).collect();
    let (of_mentioned, others): (Vec<_>, Vec<_>) =
        tools.into_iter().partition(|tool| tool.server.is_some() && mentioned.contains(category(tool)));
    let most = if filter.whole_servers { MAX_NAMED.max(filter.k) } else { filter.k };
    let mut names: Vec<String> = of_mentioned.into_iter().take(most).map(|tool| tool.name.clone()).collect();
    let remaining = filter.k.saturating_sub(names.len());
    names.extend(others.into_iter().take(remaining).map(|tool| tool.name.clone()));
    names
}

/// Returns whether the user mentions a server, by its name or by one of its configured words.
fn is_mentioned(filter: &ToolFilter, server: &str, (user_text, uncut): &(Vec<String>, Vec<String>)) -> bool {
    let hints = filter.servers.get(server).map(|hint| hint.words.as_slice()).unwrap_or_default();
    // Compares names also without word boundaries, so that `GitHub` matches `github`.
    let is_in_message = |name: &str| {
        let name_words = words(name);
        contains_phrase(user_text, &name_words)
            || contains_phrase(user_text, &joined(name))
            || (name_words.len() == 1 && uncut.contains(&name_words[0]))
    };
    std::iter::once(server).chain(hints.iter().map(String::as_str)).any(is_in_message)
}
