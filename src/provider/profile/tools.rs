//! The tools of a request in a form that a model accepts.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::limitation::Limitation;
use super::model_profile::ModelProfile;
use crate::domain::conversation::Message;
use crate::domain::model::{ModelRequest, ToolChoice};
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::provider::request::schema::{plain_object, projected, schema_profiles};
use crate::support::json;
use crate::support::text::prefix_chars;

/// The longest description in the simplest form of a tool, in characters: OpenAI and Azure accept 1,024.
const MAX_DESCRIPTION: usize = 1_000;

const LOOK_AROUND: [&str; 4] = ["(?=", "(?!", "(?<=", "(?<!"];

/// Returns the key of a tool's definition. Another definition of the same tool has another key.
pub(super) fn key(tool: &ToolDefinition) -> String {
    let hash = if tool.definition_hash.is_empty() { json::hash(&tool.parameters) } else { tool.definition_hash.clone() };
    format!("{} {hash}", tool.name)
}

/// Leaves out tools, and parts of their schemas.
pub(super) fn apply(profile: &ModelProfile, request: &mut Cow<'_, ModelRequest>) {
    if request.tools.is_empty() {
        return;
    }
    if profile.has(&Limitation::NoTools) {
        request.to_mut().tools.clear();
        return;
    }
    if profile.limitations().iter().any(|limitation| matches!(limitation, Limitation::NoTool(_))) {
        request.to_mut().tools.retain(|tool| !profile.has(&Limitation::NoTool(key(tool))));
    }
    limit(profile.max_tools(), request);
    let keywords: Vec<&str> = profile
        .limitations()
        .iter()
        .filter_map(|limitation| if let Limitation::NoKeyword(keyword) = limitation { Some(keyword.as_str()) } else { None })
        .collect();
    let (has_simple, all_simple) = (
        profile.limitations().iter().any(|limitation| matches!(limitation, Limitation::SimpleTool(_))),
        profile.has(&Limitation::SimpleTools),
    );
    let no_look_around = profile.has(&Limitation::NoLookAround);
    if !(has_simple || all_simple || no_look_around || !keywords.is_empty()) {
        return;
    }
    let is_refused =
        |keyword: &str, value: &Value| keywords.contains(&keyword) || (no_look_around && is_look_around(keyword, value));
    for tool in &mut request.to_mut().tools {
        let is_simple = all_simple || (has_simple && profile.has(&Limitation::SimpleTool(key(tool))));
        let parameters = if is_simple { simple(&tool.parameters) } else { without(&tool.parameters, &is_refused) };
        let short =
            is_simple.then(|| prefix_chars(&tool.description, MAX_DESCRIPTION).len()).filter(|end| *end < tool.description.len());
        if parameters != *tool.parameters {
            Arc::make_mut(tool).parameters = Arc::new(parameters);
        }
        if let Some(end) = short {
            Arc::make_mut(tool).description.truncate(end);
        }
    }
    if let Some(output) = &mut request.to_mut().options.output_schema {
        output.schema = without(&output.schema, &is_refused);
    }
}

/// Keeps at most this many tools: first those that the messages call and the chosen one, then the others in their order.
fn limit(most: Option<usize>, request: &mut Cow<'_, ModelRequest>) {
    let Some(most) = most.filter(|most| request.tools.len() > *most) else { return };
    let request = request.to_mut();
    let called: HashSet<&str> = request.messages.iter().flat_map(Message::tool_calls).map(|call| call.name.as_str()).collect();
    let chosen = |tool: &Arc<ToolDefinition>| match &request.options.tool_choice {
        Some(ToolChoice::Tool(name)) => *name == tool.name,
        Some(ToolChoice::Auto | ToolChoice::None | ToolChoice::Required) | None => false,
    };
    let (first, optional_tools): (Vec<_>, Vec<_>) =
        request.tools.drain(..).partition(|tool| called.contains(tool.name.as_str()) || chosen(tool));
    request.tools = first.into_iter().chain(optional_tools).take(most).collect();
}

/// Declares the tools of a history whose request offers none, and forbids their calls: some providers refuse calls of tools that
/// have no definition.
pub(super) fn declare_former(request: &mut Cow<'_, ModelRequest>) {
    if !request.tools.is_empty() {
        return;
    }
    let names: BTreeSet<String> = request.messages.iter().flat_map(Message::tool_calls).map(|call| call.name.clone()).collect();
    if names.is_empty() {
        return;
    }
    let former = |name: String| {
        let parameters = json!({ "type": "object", "properties": {} });
        Arc::new(ToolDefinition::new(&name, "No longer on offer.", parameters, ReplayClass::Read))
    };
    let request = request.to_mut();
    request.tools = names.into_iter().map(former).collect();
    request.options.tool_choice = Some(ToolChoice::None);
}

/// Returns a schema in the simplest form, which every provider accepts.
fn simple(schema: &Value) -> Value {
    let simple = projected(&plain_object(schema), &schema_profiles().simple);
    without(&simple, &|keyword, _| keyword == "nullable")
}

/// Returns whether a tool differs from its simplest form.
pub(super) fn can_be_simpler(tool: &ToolDefinition) -> bool {
    simple(&tool.parameters) != *tool.parameters || tool.description.chars().count() > MAX_DESCRIPTION
}

pub(super) fn is_look_around(keyword: &str, value: &Value) -> bool {
    let has = |text: &str| LOOK_AROUND.iter().any(|begin| text.contains(begin));
    match keyword {
        "pattern" => value.as_str().is_some_and(has),
        "patternProperties" => value.as_object().is_some_and(|properties| properties.keys().any(|name| has(name))),
        _ => false,
    }
}

/// Returns a schema without the keywords that are refused.
fn without(schema: &Value, is_refused: &dyn Fn(&str, &Value) -> bool) -> Value {
    match schema {
        Value::Object(keywords) => {
            let accepted = keywords.iter().filter(|(keyword, value)| !is_refused(keyword, value));
            accepted
                .map(|(keyword, value)| {
                    let value = match (keyword.as_str(), value) {
                        // The keys of these objects are names, not keywords.
                        (
                            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                            Value::Object(named),
                        ) => {
                            let named = named.iter().map(|(name, schema)| (name.clone(), without(schema, is_refused)));
                            Value::Object(named.collect::<Map<_, _>>())
                        }
                        ("enum" | "const" | "default" | "examples" | "required", value) => value.clone(),
                        (_, value) => without(value, is_refused),
                    };
                    (keyword.clone(), value)
                })
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.iter().map(|item| without(item, is_refused)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// Returns whether one of the schemas of a request has a keyword that is refused.
pub(super) fn has_keyword(request: &ModelRequest, is_refused: &dyn Fn(&str, &Value) -> bool) -> bool {
    let output = request.options.output_schema.as_ref().map(|output| &output.schema);
    let mut schemas = request.tools.iter().map(|tool| tool.parameters.as_ref()).chain(output);
    schemas.any(|schema| without(schema, is_refused) != *schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Arc<ToolDefinition> {
        let parameters = json!({"type": "object", "properties": {
            "pattern": {"type": "string", "pattern": "^(?!x)a"}, "n": {"type": ["integer", "null"], "format": "int64", "minimum": 1}}});
        Arc::new(ToolDefinition::new(name, "", parameters, ReplayClass::Read))
    }

    fn applied(limitations: Vec<Limitation>) -> ModelRequest {
        let request = ModelRequest { tools: ["a", "b", "c"].map(tool).to_vec(), ..ModelRequest::default() };
        let mut profile = ModelProfile::default();
        profile.add(limitations);
        profile.apply(&request, true).into_owned()
    }

    #[test]
    fn refused_schema_parts_are_left_out() {
        let request = applied(vec![Limitation::NoLookAround]);
        assert_eq!(request.tools[0].parameters["properties"]["pattern"], json!({"type": "string"}));
        let request = applied(vec![Limitation::NoKeyword("format".to_owned())]);
        assert_eq!(request.tools[0].parameters["properties"]["n"], json!({"type": ["integer", "null"], "minimum": 1}));
        let request = applied(vec![Limitation::SimpleTool(key(&tool("b")))]);
        assert_eq!(request.tools[0].parameters, tool("a").parameters);
        let simple = json!({"type": "object", "properties": {"pattern": {"type": "string"}, "n": {"type": "integer"}}});
        assert_eq!(*request.tools[1].parameters, simple);
    }

    #[test]
    fn simplest_form_has_a_short_description() {
        let long = |name: &str| {
            let parameters = json!({"type": "object", "properties": {}});
            Arc::new(ToolDefinition::new(name, "\u{e9}".repeat(2_000), parameters, ReplayClass::Read))
        };
        let request = ModelRequest { tools: vec![long("a"), long("b")], ..ModelRequest::default() };
        let mut profile = ModelProfile::default();
        profile.add([Limitation::SimpleTool(key(&long("a")))]);
        let sent = profile.apply(&request, true);
        let sizes = sent.tools.iter().map(|tool| tool.description.chars().count()).collect::<Vec<_>>();
        assert_eq!((sizes.as_slice(), can_be_simpler(&long("a"))), (&[MAX_DESCRIPTION, 2_000][..], true));
    }

    #[test]
    fn refused_tools_are_left_out() {
        let names = |request: ModelRequest| request.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(applied(vec![Limitation::NoTool(key(&tool("b")))])), ["a", "c"]);
        assert_eq!(names(applied(vec![Limitation::MaxTools(2)])), ["a", "b"]);
        assert!(names(applied(vec![Limitation::NoTools])).is_empty());
    }
}
