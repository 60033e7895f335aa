//! Reduces a JSON Schema to the keywords that a provider accepts. The original schema still validates the arguments.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::provider::catalog::table::Table;

/// The deepest nesting that is kept. Deeper parts accept anything.
const MAX_DEPTH: usize = 24;
/// The most parts of the reduced schema: nested references grow without bounds.
const MAX_PARTS: usize = 5_000;
const MAX_STEPS: usize = 64;
/// How often a definition may occur inside itself.
const MAX_RECURSION: usize = 1;

static PROFILES: Table<SchemaProfiles> = Table::new("schemas", include_str!("../catalog/schemas.toml"));

/// The JSON Schema keywords that each dialect accepts; `schemas.toml` explains them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct SchemaProfiles {
    pub(in crate::provider) gemini: SchemaProfile,
    pub(in crate::provider) anthropic_output: SchemaProfile,
    pub(in crate::provider) simple: SchemaProfile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct SchemaProfile {
    keywords: Vec<String>,
    formats: Vec<String>,
    references: bool,
    nullable: bool,
    closed: bool,
    typed: bool,
}

pub(in crate::provider) fn schema_profiles() -> &'static SchemaProfiles {
    PROFILES.get()
}

impl SchemaProfile {
    fn any_value(&self) -> Value {
        if self.typed { json!({ "type": "string" }) } else { json!({}) }
    }
}

/// Returns a schema with the keywords that a provider accepts.
pub(in crate::provider) fn projected(schema: &Value, profile: &SchemaProfile) -> Value {
    Walk { root: schema, profile, enclosing: Vec::new(), parts: 0 }.any(schema, 0)
}

/// Returns the schema of a tool's arguments as an object without a union or reference at the top level.
pub(in crate::provider) fn plain_object(schema: &Value) -> Cow<'_, Value> {
    let is_plain = schema.get("type").and_then(Value::as_str) == Some("object")
        && ["anyOf", "oneOf", "allOf", "$ref"].iter().all(|keyword| schema.get(keyword).is_none());
    if is_plain {
        return Cow::Borrowed(schema);
    }
    let mut object = schema.as_object().cloned().unwrap_or_default();
    object = resolved(schema, object, &mut 0);
    let mut common: Option<Vec<Value>> = None;
    for keyword in ["anyOf", "oneOf"] {
        let Some(Value::Array(branches)) = object.shift_remove(keyword) else { continue };
        for branch in branches {
            let Value::Object(branch) = branch else { continue };
            let mut branch = resolved(schema, branch, &mut 0);
            // A property is required only if every branch requires it.
            let required = branch.shift_remove("required").and_then(|names| names.as_array().cloned()).unwrap_or_default();
            common = Some(match common {
                Some(common) => common.into_iter().filter(|name| required.contains(name)).collect(),
                None => required,
            });
            merge(&mut object, branch);
        }
    }
    if let Some(Value::Array(names)) = common.map(Value::Array) {
        merge(&mut object, Map::from_iter([("required".to_owned(), Value::Array(names))]));
    }
    object.insert("type".to_owned(), "object".into());
    Cow::Owned(Value::Object(object))
}

/// Merges the target of `$ref` and the parts of `allOf` into an object schema.
fn resolved(root: &Value, mut object: Map<String, Value>, steps: &mut usize) -> Map<String, Value> {
    // The number of steps also limits recursive definitions.
    let target = object.shift_remove("$ref").and_then(|name| lookup(root, name.as_str()?).cloned());
    let all = object.shift_remove("allOf");
    let parts = target.into_iter().chain(all.into_iter().flat_map(|all| all.as_array().cloned().unwrap_or_default()));
    for part in parts {
        if let (Value::Object(part), true) = (part, *steps < MAX_STEPS) {
            *steps += 1;
            let part = resolved(root, part, steps);
            merge(&mut object, part);
        }
    }
    object
}

/// Adds the keywords of another schema for the same value. The first schema takes precedence.
fn merge(into: &mut Map<String, Value>, other: Map<String, Value>) {
    for (keyword, value) in other {
        match (into.get_mut(&keyword), value) {
            (None, value) => {
                into.insert(keyword, value);
            }
            (Some(Value::Object(known)), Value::Object(more)) if keyword == "properties" => {
                for (name, schema) in more {
                    known.entry(name).or_insert(schema);
                }
            }
            (Some(Value::Array(known)), Value::Array(more)) if keyword == "required" => {
                for name in more {
                    if !known.contains(&name) {
                        known.push(name);
                    }
                }
            }
            (Some(_), _) => {}
        }
    }
}

fn lookup<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

struct Walk<'a> {
    root: &'a Value,
    profile: &'a SchemaProfile,
    /// The definitions that contain the current part.
    enclosing: Vec<String>,
    parts: usize,
}

impl Walk<'_> {
    fn any(&mut self, schema: &Value, depth: usize) -> Value {
        self.parts += 1;
        match schema {
            Value::Object(map) if depth < MAX_DEPTH && self.parts < MAX_PARTS => self.object(map.clone(), depth),
            Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                self.profile.any_value()
            }
        }
    }

    fn object(&mut self, mut schema: Map<String, Value>, depth: usize) -> Value {
        // A schema that refers to itself through `allOf` or a single branch recurses without `any`, which counts the parts.
        if depth >= MAX_DEPTH {
            return self.profile.any_value();
        }
        if !self.profile.references {
            if let Some(Value::String(reference)) = schema.shift_remove("$ref") {
                return self.reference(reference, schema, depth);
            }
            if let Some(Value::Array(all)) = schema.shift_remove("allOf") {
                for part in all {
                    if let Value::Object(part) = part {
                        let part = resolved(self.root, part, &mut 0);
                        merge(&mut schema, part);
                    }
                }
                return self.object(schema, depth + 1);
            }
        }
        let mut nullable = self.remove_null(&mut schema);
        if let Some(Value::Array(branches)) = schema.shift_remove("anyOf").or_else(|| schema.shift_remove("oneOf")) {
            let before = branches.len();
            let branches: Vec<Value> = branches.into_iter().filter(|branch| !(self.profile.nullable && is_null(branch))).collect();
            nullable |= branches.len() < before;
            // A typed object cannot express which of its properties belong together.
            let says_nothing = branches.is_empty() || (self.profile.typed && schema.contains_key("properties"));
            if !says_nothing {
                return self.union(branches, schema, nullable, depth);
            }
        }
        let mut out = self.leaf(&schema);
        self.children(&schema, &mut out, depth);
        if nullable {
            out.insert("nullable".to_owned(), true.into());
        }
        Value::Object(out)
    }

    fn reference(&mut self, reference: String, siblings: Map<String, Value>, depth: usize) -> Value {
        let target = lookup(self.root, &reference).and_then(Value::as_object).cloned();
        let times = self.enclosing.iter().filter(|name| **name == reference).count();
        let (Some(target), true) = (target, times <= MAX_RECURSION && depth < MAX_DEPTH) else {
            let mut rest = self.profile.any_value();
            if let (Some(object), Some(words)) = (rest.as_object_mut(), siblings.get("description")) {
                object.insert("description".to_owned(), words.clone());
            }
            return rest;
        };
        let mut schema = siblings;
        merge(&mut schema, target);
        self.enclosing.push(reference);
        let out = self.object(schema, depth + 1);
        self.enclosing.pop();
        out
    }

    fn union(&mut self, mut branches: Vec<Value>, siblings: Map<String, Value>, nullable: bool, depth: usize) -> Value {
        if let (1, Some(Value::Object(only))) = (branches.len(), branches.first_mut()) {
            let mut schema = siblings;
            merge(&mut schema, std::mem::take(only));
            if nullable {
                schema.insert("nullable".to_owned(), true.into());
            }
            return self.object(schema, depth + 1);
        }
        let mut projected = Vec::with_capacity(branches.len());
        for branch in &branches {
            let mut branch = self.any(branch, depth + 1);
            if let Some(branch) = branch.as_object_mut().filter(|_| self.profile.typed) {
                // A union has no other keywords, so its branches get them.
                if let Some(words) = siblings.get("description") {
                    branch.entry("description").or_insert_with(|| words.clone());
                }
                if nullable {
                    branch.insert("nullable".to_owned(), true.into());
                }
            }
            projected.push(branch);
        }
        let mut out = if self.profile.typed { Map::new() } else { self.leaf(&siblings) };
        if !self.profile.typed {
            self.children(&siblings, &mut out, depth);
        }
        out.insert("anyOf".to_owned(), Value::Array(projected));
        Value::Object(out)
    }

    /// Removes `null` from a list of types, and converts several remaining types to a union.
    fn remove_null(&self, schema: &mut Map<String, Value>) -> bool {
        if !self.profile.nullable {
            return false;
        }
        let Some(Value::Array(types)) = schema.get("type") else { return false };
        let other_types: Vec<Value> = types.iter().filter(|name| *name != "null").cloned().collect();
        let nullable = other_types.len() < types.len();
        match <[Value; 1]>::try_from(other_types) {
            Ok([only]) => {
                schema.insert("type".to_owned(), only);
            }
            Err(other_types) => {
                schema.shift_remove("type");
                if !other_types.is_empty() && !schema.contains_key("anyOf") {
                    let branches = other_types.into_iter().map(|name| json!({ "type": name })).collect();
                    schema.insert("anyOf".to_owned(), Value::Array(branches));
                }
            }
        }
        nullable
    }

    /// Reduces the keywords of a part, except those of its children.
    fn leaf(&self, schema: &Map<String, Value>) -> Map<String, Value> {
        let mut out = Map::new();
        let kind = schema.get("type").cloned().or_else(|| self.profile.typed.then(|| Value::from(guess_type(schema))));
        let is_text = kind.as_ref().is_some_and(|kind| kind == "string");
        if let Some(kind) = kind {
            out.insert("type".to_owned(), kind);
        }
        for (keyword, value) in schema {
            let known = match keyword.as_str() {
                "format" => value.as_str().is_some_and(|format| self.profile.formats.iter().any(|known| known == format)),
                "minItems" if self.profile.closed => value.as_u64().is_some_and(|least| least <= 1),
                keyword => self.profile.keywords.iter().any(|known| known == keyword),
            };
            if known {
                out.insert(keyword.clone(), value.clone());
            }
        }
        let choices = schema.get("enum").and_then(Value::as_array).cloned();
        let choices = choices.or_else(|| schema.get("const").filter(|_| self.profile.typed).map(|only| vec![only.clone()]));
        match choices {
            Some(choices) if self.profile.typed => {
                let texts: Vec<Value> =
                    choices.into_iter().filter(|choice| choice.as_str().is_some_and(|text| !text.is_empty())).collect();
                if is_text && !texts.is_empty() {
                    out.insert("enum".to_owned(), Value::Array(texts));
                }
            }
            Some(choices) => {
                out.insert("enum".to_owned(), Value::Array(choices));
            }
            None => {}
        }
        out
    }

    /// Reduces the schemas within a part.
    fn children(&mut self, schema: &Map<String, Value>, out: &mut Map<String, Value>, depth: usize) {
        let mut maps = vec!["properties"];
        if self.profile.references {
            maps.extend(["$defs", "definitions"]);
        }
        for keyword in maps {
            let Some(Value::Object(inner)) = schema.get(keyword) else { continue };
            let inner: Map<String, Value> = inner
                .iter()
                .filter(|(_, schema)| **schema != false)
                .map(|(name, schema)| (name.clone(), self.any(schema, depth + 1)))
                .collect();
            // The provider refuses a typed object with empty properties.
            if !(inner.is_empty() && self.profile.typed) {
                out.insert(keyword.to_owned(), Value::Object(inner));
            }
        }
        if let (Some(Value::Array(names)), Some(Value::Object(properties))) = (schema.get("required"), out.get("properties")) {
            let names: Vec<Value> =
                names.iter().filter(|name| name.as_str().is_some_and(|name| properties.contains_key(name))).cloned().collect();
            if !names.is_empty() {
                out.insert("required".to_owned(), Value::Array(names));
            }
        }
        if self.profile.references
            && let Some(Value::Array(all)) = schema.get("allOf")
        {
            let all = all.iter().map(|part| self.any(part, depth + 1)).collect();
            out.insert("allOf".to_owned(), all);
        }
        let kind = out.get("type").and_then(Value::as_str);
        let (is_list, is_object) = (kind == Some("array"), kind == Some("object"));
        match schema.get("items").or_else(|| schema.get("prefixItems").and_then(|items| items.get(0))) {
            Some(items) => {
                let items = self.any(items, depth + 1);
                out.insert("items".to_owned(), items);
            }
            None if is_list && self.profile.typed => {
                out.insert("items".to_owned(), self.profile.any_value());
            }
            None => {}
        }
        if self.profile.closed && (is_object || out.contains_key("properties")) {
            out.insert("additionalProperties".to_owned(), false.into());
        }
    }
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null") || schema.get("const").is_some_and(Value::is_null)
}

/// Guesses the type of a part without a type.
fn guess_type(schema: &Map<String, Value>) -> &'static str {
    let has = |keyword: &str| schema.contains_key(keyword);
    let choice = schema.get("const").or_else(|| schema.get("enum").and_then(|choices| choices.get(0)));
    match choice {
        _ if has("properties") || has("required") => "object",
        _ if has("items") || has("prefixItems") => "array",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => "integer",
        Some(Value::Number(_)) => "number",
        _ if has("minimum") || has("maximum") => "number",
        Some(Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_)) | None => "string",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_table_is_valid() {
        PROFILES.checked().unwrap();
    }
    use rstest::rstest;

    #[rstest]
    #[case::plain(
        json!({"$schema": "x", "type": "object", "additionalProperties": false, "properties": {
            "city": {"type": "string", "format": "uri", "description": "where", "default": "x"}}, "required": ["city", "gone"]}),
        json!({"type": "object", "properties": {"city": {"type": "string", "description": "where"}}, "required": ["city"]})
    )]
    #[case::null_in_a_list_of_types(json!({"type": ["string", "null"]}), json!({"type": "string", "nullable": true}))]
    #[case::several_types(
        json!({"type": ["string", "integer", "null"], "description": "d"}),
        json!({"anyOf": [
            {"type": "string", "description": "d", "nullable": true}, {"type": "integer", "description": "d", "nullable": true}]})
    )]
    #[case::union_with_null(
        json!({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "description": "d"}),
        json!({"type": "integer", "minimum": 0, "description": "d", "nullable": true})
    )]
    #[case::one_of(json!({"oneOf": [{"type": "string"}, {"type": "number"}]}), json!({"anyOf": [{"type": "string"}, {"type": "number"}]}))]
    #[case::all_of(
        json!({"allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}, "required": ["a", "b"]})
    )]
    #[case::constant(json!({"const": "on"}), json!({"type": "string", "enum": ["on"]}))]
    #[case::numbers_to_choose_from(json!({"enum": [1, 2]}), json!({"type": "integer"}))]
    #[case::texts_to_choose_from(json!({"type": "string", "enum": ["", "a", null]}), json!({"type": "string", "enum": ["a"]}))]
    #[case::empty_object(json!({"type": "object", "properties": {}}), json!({"type": "object"}))]
    #[case::list_of_anything(json!({"type": "array"}), json!({"type": "array", "items": {"type": "string"}}))]
    #[case::properties_of_any_kind(
        json!({"properties": {"a": true, "b": false, "c": {}}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "string"}}})
    )]
    #[case::groups_of_properties(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}})
    )]
    #[case::definitions(
        json!({"type": "object", "properties": {"p": {"$ref": "#/$defs/point", "description": "here"}},
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number", "exclusiveMinimum": 0}}, "description": "a point"}}}),
        json!({"type": "object", "properties": {"p": {"type": "object", "properties": {"x": {"type": "number"}}, "description": "here"}}})
    )]
    #[case::a_definition_that_is_not_there(json!({"$ref": "https://host/x", "description": "d"}), json!({"type": "string", "description": "d"}))]
    fn for_gemini(#[case] schema: Value, #[case] expected: Value) {
        assert_eq!(projected(&schema, &schema_profiles().gemini), expected);
    }

    #[test]
    fn recursive_schema_is_cut() {
        let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {
            "type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}}});
        let cut = projected(&tree, &schema_profiles().gemini);
        assert_eq!(cut["properties"]["left"]["properties"]["right"], json!({"type": "string"}));
        let itself = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(projected(&itself, &schema_profiles().gemini), json!({"type": "string"}));
        let both = json!({"allOf": [{"$ref": "#"}]});
        assert_eq!(projected(&both, &schema_profiles().gemini), json!({"type": "string"}));
        // Found by a fuzzer: the recursion did not end, and overflowed the stack.
        let branch = json!({"anyOf": [{"allOf": [{"$ref": "#"}, {"type": "object"}]}]});
        assert_eq!(projected(&branch, &schema_profiles().gemini), json!({"type": "string"}));

        // Each definition uses the next one twice.
        let mut definitions = Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(format!("d{level}"), json!({"type": "object", "properties": {"a": next.clone(), "b": next}}));
        }
        let bomb = json!({"$ref": "#/$defs/d0", "$defs": definitions});
        assert!(projected(&bomb, &schema_profiles().gemini).to_string().len() < 1_000_000);
    }

    #[test]
    fn for_answers_of_anthropic() {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer", "minimum": 1}, "l": {"type": "array", "minItems": 2, "items": {"$ref": "#/$defs/x"}},
            "u": {"oneOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}},
            "required": ["n"], "$defs": {"x": {"type": "object", "properties": {}}}});
        assert_eq!(
            projected(&schema, &schema_profiles().anthropic_output),
            json!({"type": "object", "properties": {
                "n": {"type": "integer"}, "l": {"type": "array", "items": {"$ref": "#/$defs/x"}},
                "u": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["n"], "additionalProperties": false,
                "$defs": {"x": {"type": "object", "properties": {}, "additionalProperties": false}}})
        );
    }

    #[test]
    fn an_object_at_the_top() {
        let plain = json!({"type": "object", "properties": {"a": {"anyOf": []}}});
        assert!(matches!(plain_object(&plain), Cow::Borrowed(_)));
        let union = json!({"oneOf": [
            {"type": "object", "properties": {"a": {"type": "string"}, "k": {"const": 1}}, "required": ["a", "k"]},
            {"$ref": "#/$defs/b"}],
            "$defs": {"b": {"type": "object", "properties": {"b": {"type": "string"}, "k": {"const": 2}}, "required": ["b", "k"]}}});
        let object = plain_object(&union);
        assert_eq!((&object["type"], &object["required"], object.get("oneOf")), (&json!("object"), &json!(["k"]), None));
        assert_eq!(object["properties"].as_object().unwrap().len(), 3);
        assert_eq!(*plain_object(&json!({})), json!({"type": "object"}));
    }
}
