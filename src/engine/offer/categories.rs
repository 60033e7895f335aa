//! The model call that names the categories of tools for the next call. A category is a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::conversation::Message;
use crate::domain::tool::{ReplayClass, ToolDefinition, ToolFilter};
use crate::engine::calls::name_repair::normalize;
use crate::engine::prompts;
use crate::support::json;
use crate::support::text;

const SELECTOR: &str = "select_categories";

/// The category of built-in tools.
const BUILTIN: &str = "general";

/// The number of tools that are listed for a category without a configured purpose.
const LISTED_TOOLS: usize = 8;

/// The longest description of a category, in characters.
const MAX_LINE: usize = 200;

/// Returns the category of a tool: the part of its name before the divider.
pub(super) fn category(tool: &ToolDefinition) -> &str {
    match &tool.server {
        Some(server) => tool.name.split_once("__").map_or(server.as_str(), |(server_half, _)| server_half),
        None => BUILTIN,
    }
}

pub(super) fn categories<'t>(usable: &[&'t Arc<ToolDefinition>]) -> BTreeMap<&'t str, Vec<&'t Arc<ToolDefinition>>> {
    let mut all: BTreeMap<&str, Vec<&Arc<ToolDefinition>>> = BTreeMap::new();
    for tool in usable {
        all.entry(category(tool)).or_default().push(tool);
    }
    all
}

/// Returns one line of description for each category.
pub fn describe_categories(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>]) -> String {
    let mut lines = String::new();
    for (name, tools) in categories(usable) {
        let line = match filter.servers.get(name).map(|hint| hint.about.trim()).filter(|about| !about.is_empty()) {
            Some(about) => about.to_owned(),
            None => tools.iter().take(LISTED_TOOLS).map(|tool| name_at_server(tool)).collect::<Vec<_>>().join(", "),
        };
        lines.push_str(&format!("\n- {name} ({}): {}", tools.len(), text::prefix_chars(&line, MAX_LINE)));
    }
    lines
}

/// Returns the tool with which a model names categories.
pub fn selector(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>]) -> ToolDefinition {
    let categories = categories(usable);
    let description = format!("{}{}", prompts::SELECTOR, describe_categories(filter, usable));
    let names: Vec<&str> = categories.into_keys().collect();
    let items = json!({ "type": "string", "enum": names });
    let parameters = json!({
        "type": "object",
        "properties": { "categories": { "type": "array", "items": items, "minItems": 1 } },
        "required": ["categories"],
    });
    ToolDefinition::new(SELECTOR, description, parameters, ReplayClass::Read)
}

fn name_at_server(tool: &ToolDefinition) -> &str {
    tool.name.split_once("__").map_or(tool.name.as_str(), |(_, own)| own)
}

/// Returns the categories in an answer; `None` if it names no existing one. A call of a tool names the tool's category.
pub(super) fn categories_in_answer(message: &Message, usable: &[&Arc<ToolDefinition>]) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    for call in message.tool_calls() {
        texts.push(usable.iter().find(|tool| tool.name == call.name).map_or(call.name.as_str(), |tool| category(tool)));
        collect_texts(&call.arguments, &mut texts);
    }
    let texts: Vec<String> = texts.into_iter().map(normalize).collect();
    let mut names: Vec<String> = categories(usable).into_keys().map(str::to_owned).collect();
    names.retain(|name| texts.contains(&normalize(name)));
    (!names.is_empty()).then_some(names)
}

/// Collects all texts in the arguments. Models write names in lists, or all names in one text.
fn collect_texts<'v>(value: &'v Value, texts: &mut Vec<&'v str>) {
    if let Value::String(text) = value {
        texts.push(text);
        texts.extend(text.split([',', ';', '\n']));
    }
    json::children(value).for_each(|inner| collect_texts(inner, texts));
}
