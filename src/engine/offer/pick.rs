use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::domain::tool::ToolDefinition;
use crate::domain::tool::tool_filter::ToolFilter;
use crate::engine::offer::categories::place;
use crate::support::words::{holds, joined, words};

/// The most tools of servers that the user names, if `k` is not larger: some providers accept no more than 128, and called tools
/// are on offer, too.
const MAX_NAMED: usize = 100;

/// Selects the tools of servers that the user names or hints at, then the best others up to `k`. `order` begins with the best
/// match; tools that it omits come last, by name.
pub fn best(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>], said: &str, order: &[String]) -> Vec<String> {
    let said = (words(said), joined(said));
    let rank: HashMap<&str, usize> = order.iter().enumerate().rev().map(|(at, name)| (name.as_str(), at)).collect();
    let mut tools = usable.to_vec();
    tools.sort_by_key(|tool| (rank.get(tool.name.as_str()).copied().unwrap_or(usize::MAX), tool.name.as_str()));
    let places: HashSet<&str> = tools.iter().filter(|tool| tool.server.is_some()).map(|tool| place(tool)).collect();
    let hinted: HashSet<&str> = places.into_iter().filter(|place| is_meant(filter, place, &said)).collect();
    let (of_hinted, others): (Vec<_>, Vec<_>) =
        tools.into_iter().partition(|tool| tool.server.is_some() && hinted.contains(place(tool)));
    let mut names: Vec<String> = of_hinted.into_iter().take(MAX_NAMED.max(filter.k)).map(|tool| tool.name.clone()).collect();
    let left = filter.k.saturating_sub(names.len());
    names.extend(others.into_iter().take(left).map(|tool| tool.name.clone()));
    names
}

/// Returns whether the user speaks of a server: by its name, or by one of its words.
fn is_meant(filter: &ToolFilter, place: &str, (said, uncut): &(Vec<String>, Vec<String>)) -> bool {
    let hints = filter.servers.get(place).map(|hint| hint.words.as_slice()).unwrap_or_default();
    // Some write `GitHub` as `github`.
    let is_said = |name: &str| {
        let wanted = words(name);
        holds(said, &wanted) || holds(said, &joined(name)) || (wanted.len() == 1 && uncut.contains(&wanted[0]))
    };
    std::iter::once(place).chain(hints.iter().map(String::as_str)).any(is_said)
}
