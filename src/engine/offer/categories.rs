//! The call in which a model is asked which kinds of tools it needs. A kind is a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::approval::ToolSafety;
use crate::domain::message::Message;
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::domain::tool_filter::ToolFilter;
use crate::engine::prompts;
use crate::support::text;

/// The one tool of that call.
const SELECTOR: &str = "select_categories";

/// What the tools of this process are called together.
const OWN: &str = "general";

/// How many tools of a category are named where nobody has said what it is for.
const NAMED: usize = 8;

/// How much of a category's line the model reads, in characters.
const MAX_LINE: usize = 200;

/// The category of a tool: the half of its name that is its server's.
pub(super) fn place(tool: &ToolDefinition) -> &str {
    match &tool.server {
        Some(server) => tool.name.split_once("__").map_or(server.as_str(), |(place, _)| place),
        None => OWN,
    }
}

/// The tools by category.
pub(super) fn categories<'t>(usable: &[&'t Arc<ToolDefinition>]) -> BTreeMap<&'t str, Vec<&'t Arc<ToolDefinition>>> {
    let mut all: BTreeMap<&str, Vec<&Arc<ToolDefinition>>> = BTreeMap::new();
    for tool in usable {
        all.entry(place(tool)).or_default().push(tool);
    }
    all
}

/// What there are tools for: a line for each category.
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

/// The tool by which a model says which categories it needs.
pub fn selector(filter: &ToolFilter, usable: &[&Arc<ToolDefinition>]) -> ToolDefinition {
    let categories = categories(usable);
    let description = format!("{}{}", prompts::SELECTOR, areas(filter, usable));
    let names: Vec<&str> = categories.into_keys().collect();
    let items = json!({ "type": "string", "enum": names });
    ToolDefinition {
        name: SELECTOR.to_owned(),
        server: None,
        tool: SELECTOR.to_owned(),
        description,
        parameters: json!({
            "type": "object",
            "properties": { "categories": { "type": "array", "items": items, "minItems": 1 } },
            "required": ["categories"],
        })
        .into(),
        replay: ReplayClass::Read,
        definition_hash: String::new(),
        safety: ToolSafety::default(),
        destination: None,
        undo: None,
        preview: None,
        original: None,
    }
}

fn own_name(tool: &ToolDefinition) -> &str {
    tool.name.split_once("__").map_or(tool.name.as_str(), |(_, own)| own)
}

/// The categories that an answer names; `None` if it names none that there is. A model that calls a tool right away means its
/// category.
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

/// All texts in the arguments, which models nest as they like, and names that stand in one text.
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

fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
