//! Selects the tools on offer from a ranking and the user's message. Must not know how tools are ranked.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::domain::tool::ToolDefinition;
use crate::domain::tool::tool_filter::ToolFilter;
use crate::engine::offer::categories::category;
use crate::support::search_words::{contains_phrase, joined, words};

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
