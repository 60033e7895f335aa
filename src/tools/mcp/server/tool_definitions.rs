//! Converts the tools of one server into definitions that are frozen into runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use rmcp::model::Tool;
use serde_json::{Map, Value, json};

use crate::domain::tool::{Original, ReplayClass, ToolDefinition, ToolSafety};
use crate::support::json as stable;
use crate::support::text;
use crate::tools::invisible_chars::{self, visible};
use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::config::Identity;
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::{model_tool_names, schema};

/// The longest description of a tool or parameter, in characters.
const MAX_DESCRIPTION: usize = 1_024;

/// The properties of a server that its tool definitions contain.
#[derive(Clone, Copy)]
pub struct Labels<'a> {
    pub identity: &'a Identity,
    /// The prefix of its tool names.
    pub name_prefix: &'a str,
    /// The destination of a user server, which can change while runs are under way.
    pub destination: Option<&'a str>,
}

/// Returns the definitions of `tools`, sorted by name. A second tool with the same name is omitted.
pub fn definitions(server: Labels<'_>, config: &ServerConfig, tools: &[Tool]) -> Vec<Arc<ToolDefinition>> {
    let mut seen = BTreeSet::new();
    let tools: Vec<&Tool> = tools.iter().filter(|tool| seen.insert(tool.name.to_string())).collect();
    let raws: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    let mut definitions: Vec<Arc<ToolDefinition>> = tools
        .iter()
        .zip(model_tool_names::tool_names(&server.identity.key, server.name_prefix, &raws))
        .map(|(tool, name)| Arc::new(definition(server, config, tool, name)))
        .collect();
    definitions.sort_by(|one, other| one.name.cmp(&other.name));
    for name in unknown_tool_names(config, &definitions) {
        tracing::warn!(
            mcp.server = server.identity.name,
            tool = name,
            "the entry has a rule for a tool that the server does not offer"
        );
    }
    definitions
}

/// Returns the tools with rules in the entry that the server does not offer: a misspelt rule protects no tool.
fn unknown_tool_names<'c>(config: &'c ServerConfig, definitions: &[Arc<ToolDefinition>]) -> BTreeSet<&'c str> {
    config.named_tools().map(|(_, name)| name).filter(|name| definitions.iter().all(|tool| tool.tool != *name)).collect()
}

fn definition(server: Labels<'_>, config: &ServerConfig, tool: &Tool, name: String) -> ToolDefinition {
    let raw_schema = Value::Object(tool.input_schema.as_ref().clone());
    let raw_description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    let (redactor, mut parameters) = (&config.redactor, schema::normalise(&raw_schema));
    clean_descriptions(&mut parameters, redactor);
    // Hashes the server's original text with its secrets, because tool reviews compare that.
    let definition_hash = stable::hash(&json!([raw_description, raw_schema, tool.annotations]));
    let plain = visible(raw_description);
    let redacted_output = redactor.redact(&plain);
    // If a secret was redacted, invisible characters are removed too: with them, another occurrence of a secret would stay
    // readable.
    let seen_description = if redacted_output == plain { raw_description.to_owned() } else { redacted_output };
    let (mut seen_schema, mut hints) = (raw_schema, json!(tool.annotations));
    redactor.redact_value(&mut seen_schema);
    redactor.redact_value(&mut hints);
    // This hint of an untrusted server is used too, because it only causes questions and exclusive calls.
    let destructive = tool.annotations.as_ref().is_some_and(|hints| hints.destructive_hint == Some(true));
    let reads = tool.annotations.as_ref().is_some_and(|hints| hints.read_only_hint == Some(true));
    ToolDefinition {
        name,
        server: Some(server.identity.key.clone()),
        tool: tool.name.to_string(),
        description: description(&server.identity.name, raw_description, redactor),
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
        by_client: false,
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

fn description(server: &str, raw: &str, redactor: &SecretRedactor) -> String {
    let full = format!("[{}] {}", visible(server), redactor.redact(&visible(raw)).trim());
    text::prefix_chars(full.trim_end(), MAX_DESCRIPTION).to_owned()
}

/// Returns the class in the entry, or else that of a trusted server's annotations.
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
const VALUE_KEYWORDS: [&str; 16] = [
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
/// Keywords that contain schemas, by names that the server chooses.
const SCHEMA_MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Cleans, cuts and redacts texts for people and models, also under unknown keywords, because some providers get the complete
/// schema. A default is only redacted: it does not restrict values, and may contain a secret of the entry.
fn clean_descriptions(schema: &mut Value, redactor: &SecretRedactor) {
    match schema {
        Value::String(description) => {
            *description = text::prefix_chars(&redactor.redact(&visible(description)), MAX_DESCRIPTION).to_owned();
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clean_descriptions(item, redactor)),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::Object(schemas) if SCHEMA_MAPS.contains(&key.as_str()) => {
                        schemas.values_mut().for_each(|schema| clean_descriptions(schema, redactor));
                    }
                    value if key == "default" => redactor.redact_value(value),
                    value if !VALUE_KEYWORDS.contains(&key.as_str()) => clean_descriptions(value, redactor),
                    _ => {}
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns an invisible character of a tool's schema that cannot be removed without changing which arguments the tool accepts: in the name
/// or the allowed values of an argument.
pub fn hidden_in(tool: &Tool) -> Option<char> {
    hidden_in_schemas(&tool.input_schema)
}

/// Cleans the schema of a form for people. `None` if the name or an allowed value of a field contains a secret or an invisible character,
/// which cannot be removed there.
pub fn shown_form(mut schema: Value, redactor: &SecretRedactor) -> Option<Value> {
    clean_descriptions(&mut schema, redactor);
    (hidden_in_schema(&schema).is_none() && find_in_texts(&schema, &|text| redactor.finds_secret(text).then_some(())).is_none())
        .then_some(schema)
}

fn hidden_in_schemas(map: &Map<String, Value>) -> Option<char> {
    map.iter().find_map(|(key, value)| {
        let inside = || match value {
            Value::Object(schemas) if SCHEMA_MAPS.contains(&key.as_str()) => {
                schemas.iter().find_map(|(name, schema)| invisible_chars::hidden_in(name).or_else(|| hidden_in_schema(schema)))
            }
            value if VALUE_KEYWORDS.contains(&key.as_str()) => find_in_texts(value, &invisible_chars::hidden_in),
            value => hidden_in_schema(value),
        };
        invisible_chars::hidden_in(key).or_else(inside)
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

/// Returns the first match in the texts and names of a value.
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
        Labels { identity: &IDENTITY, name_prefix: "s", destination: None }
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
        // Must not change: during an upgrade it is compared with runs of an earlier version, and with tool reviews in the database.
        let known = "36a13cb05d61d46337ccc3e3e53854ba5fa90b7711eb10f530628b4045c563c3";
        assert_eq!(definitions[0].definition_hash, known, "no tool would be called by runs that have begun");
    }

    /// A server may show its own configuration. People and models do not see it; the comparison uses the server's original text.
    #[test]
    fn secrets_of_the_entry_are_not_in_what_is_said_of_a_tool() {
        let tools: Vec<Tool> = serde_json::from_value(json!([{
            "name": "t", "description": "Asks with token-ca\u{200b}nary-1", "annotations": {"title": "token-canary-1"},
            "inputSchema": {"type": "object", "title": "token-canary-1", "examples": ["token-canary-1"], "properties": {
                "key": {"type": "string", "description": "such as token-canary-1", "default": "token-canary-1"},
                "mode": {"enum": ["fast"], "default": "fast"}}}}]))
        .unwrap();
        let mut keeps = config(&json!({}));
        keeps.redactor.add("API_TOKEN", "token-canary-1");
        let (redacted_output, plain) = (definitions(server(), &keeps, &tools), definitions(server(), &config(&json!({})), &tools));
        let original = redacted_output[0].original.as_ref().unwrap();
        for seen in [
            redacted_output[0].description.clone(),
            redacted_output[0].parameters.to_string(),
            original.description.clone(),
            json!(original.schema).to_string(),
            original.hints.to_string(),
        ] {
            assert!(!seen.contains("canary"), "{seen}");
        }
        let property = |name: &str| &redacted_output[0].parameters["properties"][name]["default"];
        assert_eq!((property("key"), property("mode")), (&json!("[redacted:API_TOKEN]"), &json!("fast")));
        assert_eq!(redacted_output[0].definition_hash, plain[0].definition_hash, "what was looked at is not looked at anew");
    }

    #[test]
    fn operator_replay_class_overrides_server_hints() {
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
        assert_eq!(unknown_tool_names(&config, &definitions(server(), &config, &tools())), BTreeSet::from(["A", "c"]));
    }

    /// M-21.
    #[test]
    fn uncleanable_name_is_found_at_any_place() {
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
        assert_eq!(description("s", &"ä".repeat(2_000), &SecretRedactor::default()).chars().count(), MAX_DESCRIPTION);
        let mut schema = json!({"properties": {"x": {"description": "ä".repeat(2_000), "enum": ["ä".repeat(2_000)]}}});
        clean_descriptions(&mut schema, &SecretRedactor::default());
        let x = &schema["properties"]["x"];
        assert_eq!(x["description"].as_str().unwrap().chars().count(), MAX_DESCRIPTION);
        assert_eq!(x["enum"][0].as_str().unwrap().chars().count(), 2_000, "a value is what it is");
        // Properties that have the names of keywords, and unknown keywords.
        let long = || "\u{200b}".to_owned() + &"y".repeat(2_000);
        let mut schema = json!({
            "properties": {"default": {"description": long()}, "enum": {"title": long(), "const": long()}},
            "$defs": {"examples": {"description": long()}}, "x-note": {"deep": [long()]}, "examples": [long()], "pattern": long(),
        });
        clean_descriptions(&mut schema, &SecretRedactor::default());
        let length_of = |pointer: &str| schema.pointer(pointer).unwrap().as_str().unwrap().len();
        for pointer in [
            "/properties/default/description",
            "/properties/enum/title",
            "/$defs/examples/description",
            "/x-note/deep/0",
            "/examples/0",
        ] {
            assert_eq!(length_of(pointer), MAX_DESCRIPTION, "{pointer}");
        }
        assert_eq!((length_of("/properties/enum/const"), length_of("/pattern")), (2_003, 2_003));
    }
}
