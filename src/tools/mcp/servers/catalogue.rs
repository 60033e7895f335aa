//! Converts the tools of one server into definitions that are frozen into runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use rmcp::model::Tool;
use serde_json::{Map, Value, json};

use crate::domain::tool::approval::ToolSafety;
use crate::domain::tool::pin::Original;
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::support::json as stable;
use crate::support::text;
use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::config::identity::Identity;
use crate::tools::mcp::config::masks::Masks;
use crate::tools::visible::{self, visible};
use crate::tools::{names, schema};

/// The longest description of a tool or parameter, in characters.
const MAX_DESCRIPTION: usize = 1_024;

/// A server as its tool definitions name it.
#[derive(Clone, Copy)]
pub struct Labels<'a> {
    pub identity: &'a Identity,
    /// Its part of the names of its tools.
    pub half: &'a str,
    /// The destination of a kept server, which can change while runs are under way.
    pub destination: Option<&'a str>,
}

/// Returns the definitions of `tools`, sorted by name. A second tool with the same name is left out.
pub fn definitions(server: Labels<'_>, config: &ServerConfig, tools: &[Tool]) -> Vec<Arc<ToolDefinition>> {
    let mut seen = BTreeSet::new();
    let tools: Vec<&Tool> = tools.iter().filter(|tool| seen.insert(tool.name.to_string())).collect();
    let raws: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    let mut definitions: Vec<Arc<ToolDefinition>> = tools
        .iter()
        .zip(names::tool_names(&server.identity.key, server.half, &raws))
        .map(|(tool, name)| Arc::new(definition(server, config, tool, name)))
        .collect();
    definitions.sort_by(|one, other| one.name.cmp(&other.name));
    for name in strangers(config, &definitions) {
        tracing::warn!(mcp.server = server.identity.name, tool = name, "the entry speaks of a tool that the server does not have");
    }
    definitions
}

/// Returns tools that the entry names and the server lacks: a misspelt rule protects nothing.
fn strangers<'c>(config: &'c ServerConfig, definitions: &[Arc<ToolDefinition>]) -> BTreeSet<&'c str> {
    config.named_tools().map(|(_, name)| name).filter(|name| definitions.iter().all(|tool| tool.tool != *name)).collect()
}

fn definition(server: Labels<'_>, config: &ServerConfig, tool: &Tool, name: String) -> ToolDefinition {
    let raw_schema = Value::Object(tool.input_schema.as_ref().clone());
    let raw_description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    let (masks, mut parameters) = (&config.masks, schema::normalise(&raw_schema));
    clean_descriptions(&mut parameters, masks);
    // Hashes the server's own text with its secrets, because tool reviews compare that.
    let definition_hash = stable::hash(&json!([raw_description, raw_schema, tool.annotations]));
    let plain = visible(raw_description);
    let masked = masks.hide(&plain);
    // A secret with invisible characters inside would still be readable.
    let seen_description = if masked == plain { raw_description.to_owned() } else { masked };
    let (mut seen_schema, mut hints) = (raw_schema, json!(tool.annotations));
    masks.hide_in(&mut seen_schema);
    masks.hide_in(&mut hints);
    // Believed even of untrusted servers: it only causes questions and exclusive calls.
    let destructive = tool.annotations.as_ref().is_some_and(|hints| hints.destructive_hint == Some(true));
    let reads = tool.annotations.as_ref().is_some_and(|hints| hints.read_only_hint == Some(true));
    ToolDefinition {
        name,
        server: Some(server.identity.key.clone()),
        tool: tool.name.to_string(),
        description: description(&server.identity.name, raw_description, masks),
        definition_hash,
        parameters: parameters.into(),
        replay: replay(config, tool),
        undo: config.undo.get(tool.name.as_ref()).cloned(),
        preview: config.preview.get(tool.name.as_ref()).cloned(),
        safety: ToolSafety {
            approval: config.approval.get(tool.name.as_ref()).copied(),
            destructive,
            untrusted: !config.trusted,
            of_member: config.of_member,
            alone: destructive || config.replay.get(tool.name.as_ref()) == Some(&ReplayClass::Unsafe),
            says_it_reads: reads && !destructive && !config.replay.contains_key(tool.name.as_ref()),
        },
        destination: server.destination.map(str::to_owned),
        original: Some(Arc::new(Original {
            owner: server.identity.owner.clone(),
            description: seen_description,
            schema: match seen_schema {
                Value::Object(schema) => Arc::new(schema),
                _ => Arc::clone(&tool.input_schema),
            },
            hints,
        })),
    }
}

fn description(server: &str, raw: &str, masks: &Masks) -> String {
    let full = format!("[{}] {}", visible(server), masks.hide(&visible(raw)).trim());
    text::prefix_chars(full.trim_end(), MAX_DESCRIPTION).to_owned()
}

/// Returns the class in the entry, or else by the annotations of a trusted server.
fn replay(config: &ServerConfig, tool: &Tool) -> ReplayClass {
    if let Some(class) = config.replay.get(tool.name.as_ref()) {
        return class.clone();
    }
    let Some(hints) = tool.annotations.as_ref().filter(|_| config.trusted) else { return ReplayClass::Unsafe };
    if hints.read_only_hint == Some(true) {
        ReplayClass::Read
    } else if hints.idempotent_hint == Some(true) {
        ReplayClass::Idempotent
    } else {
        ReplayClass::Unsafe
    }
}

/// Keywords of JSON Schema with names, patterns or values, in which every character counts.
const EXACT: [&str; 16] = [
    "enum",
    "const",
    "default",
    "required",
    "dependentRequired",
    "type",
    "format",
    "pattern",
    "$ref",
    "$dynamicRef",
    "$id",
    "$schema",
    "$anchor",
    "$dynamicAnchor",
    "contentEncoding",
    "contentMediaType",
];
/// Keywords with schemas by names that the server chooses.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Cleans, cuts and redacts texts for people and models, also under unknown keywords, because some providers get the whole schema. A
/// default does not restrict values, and may contain a secret of the entry.
fn clean_descriptions(schema: &mut Value, masks: &Masks) {
    match schema {
        Value::String(said) => *said = text::prefix_chars(&masks.hide(&visible(said)), MAX_DESCRIPTION).to_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| clean_descriptions(item, masks)),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::Object(schemas) if NAMED.contains(&key.as_str()) => {
                        schemas.values_mut().for_each(|schema| clean_descriptions(schema, masks));
                    }
                    value if key == "default" => masks.hide_in(value),
                    value if !EXACT.contains(&key.as_str()) => clean_descriptions(value, masks),
                    _ => {}
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns an invisible character of a tool's schema that cannot be removed without changing what the tool accepts: in the name or
/// the allowed values of an argument.
pub fn hidden_in(tool: &Tool) -> Option<char> {
    hidden_in_schemas(&tool.input_schema)
}

/// Cleans the schema of a form for people. `None` if a secret or an invisible character is in the name or the allowed values of a field,
/// where it cannot be removed.
pub fn shown_form(mut schema: Value, masks: &Masks) -> Option<Value> {
    clean_descriptions(&mut schema, masks);
    (hidden_in_schema(&schema).is_none() && find_in_texts(&schema, &|text| masks.are_in(text).then_some(())).is_none())
        .then_some(schema)
}

fn hidden_in_schemas(map: &Map<String, Value>) -> Option<char> {
    map.iter().find_map(|(key, value)| {
        let inside = || match value {
            Value::Object(schemas) if NAMED.contains(&key.as_str()) => {
                schemas.iter().find_map(|(name, schema)| visible::hidden_in(name).or_else(|| hidden_in_schema(schema)))
            }
            value if EXACT.contains(&key.as_str()) => find_in_texts(value, &visible::hidden_in),
            value => hidden_in_schema(value),
        };
        visible::hidden_in(key).or_else(inside)
    })
}

fn hidden_in_schema(schema: &Value) -> Option<char> {
    match schema {
        Value::Object(map) => hidden_in_schemas(map),
        Value::Array(items) => items.iter().find_map(hidden_in_schema),
        // Texts are cleaned.
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Returns the first finding in the texts and names of a value.
fn find_in_texts<T>(value: &Value, find: &impl Fn(&str) -> Option<T>) -> Option<T> {
    match value {
        Value::String(text) => find(text),
        Value::Array(items) => items.iter().find_map(|item| find_in_texts(item, find)),
        Value::Object(map) => map.iter().find_map(|(name, value)| find(name).or_else(|| find_in_texts(value, find))),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::domain::ids::McpServerId;
    use crate::tools::mcp::McpConfig;

    fn config(capstan: &Value) -> ServerConfig {
        let document = json!({"mcpServers": {"s": {"command": "x", "capstan": capstan}}}).to_string();
        McpConfig::parse(&document, &|_| None).unwrap().servers.remove("s").unwrap().unwrap_or_else(|error| panic!("{error}"))
    }

    fn server() -> Labels<'static> {
        static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
            let (key, name) = ("s".to_owned(), "s".to_owned());
            Identity { key, id: McpServerId::from_stored("s".to_owned()), name, owner: None }
        });
        Labels { identity: &IDENTITY, half: "s", destination: None }
    }

    fn tools() -> Vec<Tool> {
        serde_json::from_value(json!([
            {"name": "b", "description": "Re\u{200b}ads\u{e0041} things", "inputSchema": {"properties": {
                "x": {"type": "string", "description": "a\u{2060}b", "enum": ["c\u{2060}"]}}},
                "annotations": {"readOnlyHint": true}},
            {"name": "a", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": true, "destructiveHint": true}},
            {"name": "a", "description": "again", "inputSchema": {"type": "object"}},
        ]))
        .unwrap()
    }

    #[test]
    fn definitions_are_clean_sorted_and_unique() {
        let definitions = definitions(server(), &config(&json!({})), &tools());
        let seen: Vec<(&str, &str)> = definitions.iter().map(|tool| (tool.name.as_str(), tool.description.as_str())).collect();
        assert_eq!(seen, [("s__a", "[s]"), ("s__b", "[s] Reads things")]);
        let parameters =
            json!({"type": "object", "properties": {"x": {"type": "string", "description": "ab", "enum": ["c\u{2060}"]}}});
        assert_eq!(*definitions[1].parameters, parameters);
        assert!(definitions.iter().all(|tool| tool.replay == ReplayClass::Unsafe), "hints of strangers count for nothing");
        assert_ne!(definitions[0].definition_hash, definitions[1].definition_hash);
        // It stays as it is: during an upgrade runs compare it that began under an earlier version, and pins in the database do.
        let known = "36a13cb05d61d46337ccc3e3e53854ba5fa90b7711eb10f530628b4045c563c3";
        assert_eq!(definitions[0].definition_hash, known, "no tool would be called by runs that have begun");
    }

    /// A server may well say what it was started with. Models and people do not read it, and what is compared is what the server wrote.
    #[test]
    fn secrets_of_the_entry_are_not_in_what_is_said_of_a_tool() {
        let tools: Vec<Tool> = serde_json::from_value(json!([{
            "name": "t", "description": "Asks with token-ca\u{200b}nary-1", "annotations": {"title": "token-canary-1"},
            "inputSchema": {"type": "object", "title": "token-canary-1", "examples": ["token-canary-1"], "properties": {
                "key": {"type": "string", "description": "such as token-canary-1", "default": "token-canary-1"},
                "mode": {"enum": ["fast"], "default": "fast"}}}}]))
        .unwrap();
        let mut keeps = config(&json!({}));
        keeps.masks.add("API_TOKEN", "token-canary-1");
        let (masked, plain) = (definitions(server(), &keeps, &tools), definitions(server(), &config(&json!({})), &tools));
        let original = masked[0].original.as_ref().unwrap();
        for seen in [
            masked[0].description.clone(),
            masked[0].parameters.to_string(),
            original.description.clone(),
            json!(original.schema).to_string(),
            original.hints.to_string(),
        ] {
            assert!(!seen.contains("canary"), "{seen}");
        }
        let property = |name: &str| &masked[0].parameters["properties"][name]["default"];
        assert_eq!((property("key"), property("mode")), (&json!("[redacted:API_TOKEN]"), &json!("fast")));
        assert_eq!(masked[0].definition_hash, plain[0].definition_hash, "what was looked at is not looked at anew");
    }

    #[test]
    fn the_operator_is_believed_before_the_hints_of_a_trusted_server() {
        let class = |capstan: &Value| -> Vec<ReplayClass> {
            definitions(server(), &config(capstan), &tools()).iter().map(|tool| tool.replay.clone()).collect()
        };
        assert_eq!(class(&json!({"trusted": true})), [ReplayClass::Idempotent, ReplayClass::Read]);
        assert_eq!(class(&json!({"trusted": true, "replay": {"b": "unsafe"}})), [ReplayClass::Idempotent, ReplayClass::Unsafe]);
        assert_eq!(class(&json!({"replay": {"a": "read"}})), [ReplayClass::Read, ReplayClass::Unsafe]);
        let reads = |capstan: &Value| definitions(server(), &config(capstan), &tools())[1].safety.says_it_reads;
        assert!(reads(&json!({})) && !reads(&json!({"replay": {"b": "unsafe"}})));
    }

    #[test]
    fn rules_for_tools_that_there_are_not_are_noticed() {
        let config = config(&json!({"approval": {"a": "ask", "A": "ask"}, "replay": {"b": "read", "c": "read"}}));
        assert_eq!(strangers(&config, &definitions(server(), &config, &tools())), BTreeSet::from(["A", "c"]));
    }

    /// M-21.
    #[test]
    fn what_cannot_be_cleaned_is_found_wherever_it_stands() {
        let hidden = |schema: Value| {
            let tool = json!({"name": "t", "inputSchema": schema});
            hidden_in(&serde_json::from_value(tool).unwrap())
        };
        let property = |schema: Value| json!({"properties": {"x": schema}});
        for schema in [
            property(json!({"enum": ["fine", "c\u{2060}"]})),
            property(json!({"const": {"deep": ["c\u{2060}"]}})),
            property(json!({"default": {"c\u{2060}": 1}})),
            property(json!({"anyOf": [{"type": "string", "pattern": "^c\u{2060}$"}]})),
            json!({"properties": {"c\u{2060}": {}}}),
            json!({"required": ["c\u{2060}"]}),
            json!({"$defs": {"c\u{2060}": {"type": "string"}}}),
            json!({"x-\u{2060}": 1}),
        ] {
            assert_eq!(hidden(schema.clone()), Some('\u{2060}'), "{schema}");
        }
        for schema in [
            property(json!({"description": "c\u{2060}", "title": "c\u{2060}", "examples": ["c\u{2060}"]})),
            property(json!({"enum": ["\u{2764}\u{fe0f}\u{200d}\u{1f525}"]})),
            json!({"properties": {"default": {"description": "c\u{2060}"}}}),
        ] {
            assert_eq!(hidden(schema.clone()), None, "{schema}");
        }
    }

    /// M-21.
    #[test]
    fn long_descriptions_are_cut() {
        assert_eq!(description("s", &"ä".repeat(2_000), &Masks::default()).chars().count(), MAX_DESCRIPTION);
        let mut schema = json!({"properties": {"x": {"description": "ä".repeat(2_000), "enum": ["ä".repeat(2_000)]}}});
        clean_descriptions(&mut schema, &Masks::default());
        let x = &schema["properties"]["x"];
        assert_eq!(x["description"].as_str().unwrap().chars().count(), MAX_DESCRIPTION);
        assert_eq!(x["enum"][0].as_str().unwrap().chars().count(), 2_000, "a value is what it is");
        // Properties that have the names of keywords, and unknown keywords.
        let long = || "\u{200b}".to_owned() + &"y".repeat(2_000);
        let mut schema = json!({
            "properties": {"default": {"description": long()}, "enum": {"title": long(), "const": long()}},
            "$defs": {"examples": {"description": long()}}, "x-note": {"deep": [long()]}, "examples": [long()], "pattern": long(),
        });
        clean_descriptions(&mut schema, &Masks::default());
        let said = |pointer: &str| schema.pointer(pointer).unwrap().as_str().unwrap().len();
        for pointer in [
            "/properties/default/description",
            "/properties/enum/title",
            "/$defs/examples/description",
            "/x-note/deep/0",
            "/examples/0",
        ] {
            assert_eq!(said(pointer), MAX_DESCRIPTION, "{pointer}");
        }
        assert_eq!((said("/properties/enum/const"), said("/pattern")), (2_003, 2_003));
    }
}
