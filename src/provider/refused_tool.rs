//! Finds the tool that made a provider refuse a whole request.
//!
//! Mistral and Moonshot report a wrong schema without its tool, which cannot be found here.

use std::sync::Arc;

use super::error_facts::error_facts;
use crate::domain::tool::ToolDefinition;

/// Returns the refused tool of a request by these texts: paths of fields, then words. Of several, the first.
pub(super) fn find<'a>(texts: impl Iterator<Item = &'a str> + Clone, tools: &[Arc<ToolDefinition>]) -> Option<String> {
    let at = |index: usize| tools.get(index).map(|tool| tool.name.clone());
    texts.clone().find_map(index_in).and_then(at).or_else(|| texts.clone().find_map(|text| name_in(text, tools)))
}

/// Finds the index in `tools[2].function.parameters`, `tools.2.custom.input_schema`, `tools[0].function_declarations[2].name`.
fn index_in(text: &str) -> Option<usize> {
    error_facts()
        .refused_tool
        .lists
        .iter()
        .find_map(|list| text.match_indices(list.as_str()).find_map(|(at, _)| index_at(text, at, list)))
}

fn index_at(text: &str, at: usize, list: &str) -> Option<usize> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.get(..at)?.ends_with(is_of_name) {
        return None;
    }
    let rest = text.get(at + list.len()..)?;
    let rest = rest.strip_prefix(['[', '.'])?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| rest.split_at(end).0);
    digits.parse().ok()
}

fn name_in(text: &str, tools: &[Arc<ToolDefinition>]) -> Option<String> {
    // Has the byte positions of the text, because only ASCII letters change.
    let lower = text.to_ascii_lowercase();
    error_facts().refused_tool.names.iter().find_map(|[before, after]| {
        lower.match_indices(before.as_str()).find_map(|(at, _)| {
            let from = at + before.len();
            let length = lower.get(from..)?.find(after.as_str())?;
            let name = text.get(from..from + length)?;
            // Gemini's names may have an underscore before ours.
            let is_named = |tool: &&Arc<ToolDefinition>| tool.name == name || name.strip_prefix('_') == Some(tool.name.as_str());
            tools.iter().find(is_named).map(|tool| tool.name.clone())
        })
    })
}
