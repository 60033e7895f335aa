//! The call in which a model names the categories of tools that it needs. A category is a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::conversation::message::Message;
use crate::domain::tool::tool_filter::ToolFilter;
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::engine::calls::tool_names::letters;
use crate::engine::prompts;
use crate::support::text;

const SELECTOR: &str = "select_categories";

/// The category of this process's own tools.
const OWN: &str = "general";

/// Tools of a category that are named where its purpose is not configured.
const NAMED: usize = 8;

/// Characters of a category's line.
const MAX_LINE: usize = 200;

/// Returns the category of a tool: the first half of its name.
pub(super) fn place(tool: &ToolDefinition) -> &str {
    match &tool.server {
        Some(server) => tool.name.split_once("__").map_or(server.as_str(), |(place, _)| place),
        None => OWN,
    }
}

pub(super) fn categories<'t>(usable: &[&'t Arc<ToolDefinition>]) -> BTreeMap<&'t str, Vec<&'t Arc<ToolDefinition>>> {
    let mut all: BTreeMap<&str, Vec<&Arc<ToolDefinition>>> = BTreeMap::new();
    for tool in usable {
        all.entry(place(tool)).or_default().push(tool);
    }
    all
}

/// Describes each category in a line.
pub fn areas(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>]) -> String {
    let mut lines = String::new();
    for (name, tools) in categories(usable) {
        let line = match filter.servers.get(name).map(|hint| hint.about.trim()).filter(|about| !about.is_empty()) {
            Some(about) => about.to_owned(),
            None => tools.iter().take(NAMED).map(|tool| own_name(tool)).collect::<Vec<_>>().join(", "),
        };
        lines.push_str(&format!("\n- {name} ({}): {}", tools.len(), text::prefix_chars(&line, MAX_LINE)));
    }
    lines
}

/// Returns the tool with which a model names categories.
pub fn selector(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>]) -> ToolDefinition {
    let categories = categories(usable);
    let description = format!("{}{}", prompts::SELECTOR, areas(filter, usable));
    let names: Vec<&str> = categories.into_keys().collect();
    let items = json!({ "type": "string", "enum": names });
    let parameters = json!({
        "type": "object",
        "properties": { "categories": { "type": "array", "items": items, "minItems": 1 } },
        "required": ["categories"],
    });
    ToolDefinition::new(SELECTOR, description, parameters, ReplayClass::Read)
}

fn own_name(tool: &ToolDefinition) -> &str {
    tool.name.split_once("__").map_or(tool.name.as_str(), |(_, own)| own)
}

/// Returns the categories that an answer names; `None` if it names no existing one. A call of a tool names its category.
pub(super) fn named_by(message: &Message, usable: &[&Arc<ToolDefinition>]) -> Option<Vec<String>> {
    let mut said = Vec::new();
    for call in message.tool_calls() {
        said.push(usable.iter().find(|tool| tool.name == call.name).map_or(call.name.as_str(), |tool| place(tool)));
        spoken(&call.arguments, &mut said);
    }
    let said: Vec<String> = said.into_iter().map(letters).collect();
    let mut names: Vec<String> = categories(usable).into_keys().map(str::to_owned).collect();
    names.retain(|name| said.contains(&letters(name)));
    (!names.is_empty()).then_some(names)
}

/// Collects all texts in the arguments, and names in lists in one text.
fn spoken<'v>(value: &'v Value, said: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => {
            said.push(text);
            said.extend(text.split([',', ';', '\n']));
        }
        Value::Array(items) => items.iter().for_each(|item| spoken(item, said)),
        Value::Object(map) => map.values().for_each(|item| spoken(item, said)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
