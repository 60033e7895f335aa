//! Estimates the cost of checking a value against a schema before the check begins.
//!
//! A schema of 2 KB can take longer than a lifetime to check: each of forty definitions refers twice to the next. Schemas come from
//! untrusted servers, and a check cannot be stopped. So the pairs of a schema part and a value part are counted first. Each pair is visited
//! once, so that counting is bounded.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use crate::support::text::prefix_chars;

/// The most comparisons of a part of the schema with a part of the value. They take well under a second.
const MAX_STEPS: u64 = 300_000;
/// The longest chain of nested parts of the schema, references included.
const MAX_DEPTH: usize = 200;

/// Keywords that apply to the value itself.
const SAME_VALUE: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const IN_PLACE: [&str; 4] = ["not", "if", "then", "else"];
const IN_PLACE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords that apply to each member or element of the value.
const EACH_MEMBER: [&str; 3] = ["additionalProperties", "unevaluatedProperties", "propertyNames"];
const EACH_ELEMENT: [&str; 4] = ["items", "additionalItems", "unevaluatedItems", "contains"];
/// References whose target depends on the path of the evaluation.
const DYNAMIC: [&str; 2] = ["$dynamicRef", "$recursiveRef"];

/// Fails if `value` cannot be checked against `schema` in bounded time.
pub fn check_cost(schema: &Value, value: &Value) -> Result<(), String> {
    let mut count = Count { root: schema, known: HashMap::new() };
    if count.of(schema, value, 0)? > MAX_STEPS { Err(too_long()) } else { Ok(()) }
}

fn too_long() -> String {
    format!("checking this value against it takes more than {MAX_STEPS} steps")
}

/// Fails if the target of a reference depends on more than the root of the schema.
pub fn check_references(schema: &Value) -> Result<(), String> {
    fn parts(value: &Value, is_root: bool) -> Result<(), String> {
        match value {
            Value::Object(map) => {
                if let Some(key) = DYNAMIC.into_iter().find(|key| map.get(*key).is_some_and(Value::is_string)) {
                    return Err(format!("{key} is not supported"));
                }
                // An id inside the schema would change the base of the references below it.
                if !is_root && map.get("$id").is_some_and(Value::is_string) {
                    return Err("$id is supported at its top only".to_owned());
                }
                map.values().try_for_each(|part| parts(part, false))
            }
            Value::Array(items) => items.iter().try_for_each(|part| parts(part, false)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }
    if schema.get("$schema").and_then(Value::as_str).is_some_and(|version| version.contains("draft-04")) {
        return Err("schemas of draft 4 are not supported".to_owned());
    }
    parts(schema, true)
}

struct Count<'s> {
    root: &'s Value,
    /// Costs by the addresses of schema part and value part; `None` for a pair that is being counted.
    known: HashMap<(usize, usize), Option<u64>>,
}

impl<'s> Count<'s> {
    fn of(&mut self, schema: &'s Value, value: &Value, depth: usize) -> Result<u64, String> {
        let Value::Object(map) = schema else { return Ok(1) };
        let pair = (std::ptr::from_ref(schema).addr(), std::ptr::from_ref(value).addr());
        match self.known.get(&pair) {
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => return Err("its references are endless".to_owned()),
            None => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} levels deep"));
        }
        if self.known.len() as u64 >= MAX_STEPS {
            return Err(too_long());
        }
        self.known.insert(pair, None);
        let mut here: u64 = 0;
        for part in in_place(map) {
            here = here.saturating_add(self.of(part, value, depth + 1)?);
        }
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            let target = self.target(reference)?;
            here = here.saturating_add(self.of(target, value, depth + 1)?);
        }
        // Unevaluated members are found by evaluating all keywords again.
        let evaluates_twice = map.contains_key("unevaluatedProperties") || map.contains_key("unevaluatedItems");
        let mut cost = here.saturating_mul(if evaluates_twice { 3 } else { 1 }).saturating_add(1);
        match value {
            Value::Object(members) => {
                for (part, member) in of_members(map, members) {
                    cost = cost.saturating_add(self.of(part, member, depth + 1)?);
                }
            }
            Value::Array(elements) => {
                for (part, element) in of_elements(map, elements) {
                    cost = cost.saturating_add(self.of(part, element, depth + 1)?);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        self.known.insert(pair, Some(cost));
        Ok(cost)
    }

    fn target(&self, reference: &str) -> Result<&'s Value, String> {
        let pointer = reference.strip_prefix('#').filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let unescaped = pointer.and_then(|pointer| percent_decode_str(pointer).decode_utf8().ok());
        let found = unescaped.and_then(|pointer| self.root.pointer(&pointer));
        found.ok_or_else(|| format!("the reference {:?} has no target in it", prefix_chars(reference, 100)))
    }
}

fn in_place(map: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let each = SAME_VALUE.iter().filter_map(|key| map.get(*key)?.as_array()).flatten();
    let one = IN_PLACE.iter().filter_map(|key| map.get(*key));
    let named = IN_PLACE_BY_NAME.iter().filter_map(|key| map.get(*key)?.as_object()).flat_map(Map::values);
    each.chain(one).chain(named)
}

fn of_members<'s, 'v>(
    map: &'s Map<String, Value>,
    members: &'v Map<String, Value>,
) -> impl Iterator<Item = (&'s Value, &'v Value)> {
    let by_name = map.get("properties").and_then(Value::as_object).into_iter().flatten();
    let by_name = by_name.filter_map(|(name, part)| Some((part, members.get(name)?)));
    let by_pattern = map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let each = EACH_MEMBER.iter().filter_map(|key| map.get(*key)).chain(by_pattern);
    by_name.chain(each.flat_map(move |part| members.values().map(move |member| (part, member))))
}

fn of_elements<'s, 'v>(map: &'s Map<String, Value>, elements: &'v [Value]) -> impl Iterator<Item = (&'s Value, &'v Value)> {
    let each = EACH_ELEMENT.iter().filter_map(|key| map.get(*key)).filter(|part| !part.is_array());
    let each = each.flat_map(move |part| elements.iter().map(move |element| (part, element)));
    let by_place = ["prefixItems", "items"].into_iter().filter_map(|key| map.get(key)?.as_array());
    each.chain(by_place.flat_map(move |parts| parts.iter().zip(elements)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    /// Each of `levels` definitions applies the one below it `times` times, by `keyword`.
    fn tower(levels: usize, times: usize, keyword: &str) -> Value {
        let mut definitions = Map::from_iter([("a0".to_owned(), json!({}))]);
        for level in 1..=levels {
            let below = json!({"$ref": format!("#/$defs/a{}", level - 1)});
            definitions.insert(format!("a{level}"), json!({keyword: vec![below; times]}));
        }
        json!({"type": "object", "$ref": format!("#/$defs/a{levels}"), "$defs": definitions})
    }

    #[rstest]
    #[case("allOf")]
    #[case("anyOf")]
    #[case("oneOf")]
    fn a_tower_of_references_is_refused_at_once(#[case] keyword: &str) {
        assert_eq!(check_cost(&tower(3, 2, keyword), &json!({})), Ok(()));
        let error = check_cost(&tower(40, 2, keyword), &json!({})).unwrap_err();
        assert!(error.contains("more than 300000 steps"), "{error}");
    }

    #[test]
    fn schema_cost_allows_depth_but_not_branching_per_level() {
        let deep = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({"c": inner}));
        let once = json!({"properties": {"c": {"$ref": "#"}}});
        let twice = json!({"allOf": [{"properties": {"c": {"$ref": "#"}}}, {"properties": {"c": {"$ref": "#"}}}]});
        assert_eq!(check_cost(&once, &deep(60)), Ok(()));
        assert_eq!(check_cost(&twice, &deep(5)), Ok(()));
        assert!(check_cost(&twice, &deep(60)).is_err());
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        let full = (0..12).fold(json!({}), |inner, _| json!({"left": inner, "right": inner}));
        assert_eq!(check_cost(&tree, &full), Ok(()));
    }

    #[rstest]
    #[case(json!({"$ref": "#"}), "endless")]
    #[case(json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}), "endless")]
    #[case(json!({"$ref": "#/$defs/none"}), "has no target")]
    #[case(json!({"$ref": "#name"}), "has no target")]
    fn endless_or_dangling_reference_is_named(#[case] schema: Value, #[case] words: &str) {
        let error = check_cost(&schema, &json!({})).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn a_long_chain_ends_before_the_stack_does() {
        let error = check_cost(&tower(5_000, 1, "allOf"), &json!({})).unwrap_err();
        assert!(error.contains("more than 200 levels deep"), "{error}");
    }

    #[rstest]
    #[case(json!({"properties": {"a": {"$id": "https://example.com/a"}}}), "$id")]
    #[case(json!({"$dynamicRef": "#a"}), "$dynamicRef")]
    #[case(json!({"$schema": "http://json-schema.org/draft-04/schema#"}), "draft 4")]
    fn moved_references_are_not_supported(#[case] schema: Value, #[case] words: &str) {
        assert!(check_references(&schema).unwrap_err().contains(words));
        assert_eq!(check_references(&json!({"$id": "https://example.com/a", "properties": {"$id": {"type": "string"}}})), Ok(()));
    }

    #[test]
    fn large_ordinary_arguments_fit() {
        let schema = json!({"properties": {"rows": {"type": "array", "items": {"type": "object", "properties":
            {"a": {"type": "string"}, "b": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "additionalProperties": false}}}});
        let rows = json!({"rows": vec![json!({"a": "x", "b": 1}); 10_000]});
        assert_eq!(check_cost(&schema, &rows), Ok(()));
    }
}
