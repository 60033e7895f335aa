//! Assembles arguments of a call that arrive in pieces, each with its path:
//! <https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling#streaming-fc>.
//!
//! Capstan never requests them, but a gateway may send them. An unusable piece fails the answer, so that no arguments are invented.

use serde_json::{Map, Value};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::support::text::storable;

/// Maximum depth of a path, and so of the arguments.
const MOST_STEPS: usize = 64;

#[derive(Debug)]
pub(super) struct Partial {
    arguments: Value,
}

#[derive(Debug, PartialEq, Eq)]
enum PathSegment<'a> {
    Field(&'a str),
    Item(usize),
}

impl Partial {
    pub(super) fn new(known: &str) -> Result<Self, ModelError> {
        let known = if known.is_empty() { "{}" } else { known };
        let arguments = serde_json::from_str(known).map_err(|_| malformed("the earlier arguments are not valid JSON"))?;
        Ok(Self { arguments })
    }

    pub(super) fn take(&mut self, piece: &Value) -> Result<(), ModelError> {
        let field = |camel: &str, snake: &str| piece.get(camel).or_else(|| piece.get(snake));
        let path = field("jsonPath", "json_path").and_then(Value::as_str).ok_or_else(|| malformed("a piece has no path"))?;
        let steps = steps(path).ok_or_else(|| malformed(&format!("the path {path:?} is not valid")))?;
        let string = field("stringValue", "string_value").and_then(Value::as_str);
        let whole = field("numberValue", "number_value")
            .filter(|value| value.is_number())
            .or_else(|| field("boolValue", "bool_value").filter(|value| value.is_boolean()))
            .cloned()
            .or_else(|| field("nullValue", "null_value").map(|_| Value::Null));
        let target = path_target(&mut self.arguments, &steps)
            .ok_or_else(|| malformed(&format!("the path {path:?} does not fit the earlier pieces")))?;
        match (target, string, whole) {
            (PathTarget::Taken(Value::String(text)), Some(more), None) => text.push_str(&storable(more)),
            (PathTarget::Free(free), Some(text), None) => *free = Value::String(storable(text).into_owned()),
            (PathTarget::Free(free), None, Some(value)) => *free = value,
            // A piece without a value ends a text.
            (PathTarget::Taken(_), None, None) => {}
            (PathTarget::Free(_) | PathTarget::Taken(_), _, _) => {
                return Err(malformed(&format!("the piece at {path:?} does not fit the earlier pieces")));
            }
        }
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        self.arguments.to_string()
    }
}

pub(super) fn malformed(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("arguments in pieces (partialArgs) cannot be assembled: {why}"))
}

enum PathTarget<'a> {
    Free(&'a mut Value),
    Taken(&'a mut Value),
}

/// Returns the value at a path, and creates missing ones. A list grows only at its end.
fn path_target<'a>(root: &'a mut Value, steps: &[PathSegment<'_>]) -> Option<PathTarget<'a>> {
    let (mut at, mut is_new) = (root, false);
    for step in steps {
        if is_new {
            *at = match step {
                PathSegment::Field(_) => Value::Object(Map::new()),
                PathSegment::Item(_) => Value::Array(Vec::new()),
            };
        }
        (at, is_new) = match (step, at) {
            (PathSegment::Field(name), Value::Object(fields)) => {
                let name = storable(name);
                let is_new = !fields.contains_key(&*name);
                (fields.entry(name).or_insert(Value::Null), is_new)
            }
            (PathSegment::Item(index), Value::Array(items)) => {
                let is_new = *index == items.len();
                if is_new {
                    items.push(Value::Null);
                }
                (items.get_mut(*index)?, is_new)
            }
            (PathSegment::Field(_) | PathSegment::Item(_), _) => return None,
        };
    }
    (!steps.is_empty()).then_some(if is_new { PathTarget::Free(at) } else { PathTarget::Taken(at) })
}

/// Parses a path of names and indices: `$.a.b[0]['c d']`.
fn steps(path: &str) -> Option<Vec<PathSegment<'_>>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MOST_STEPS {
            return None;
        }
        let (step, after) = if let Some(name) = rest.strip_prefix('.') {
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let (name, rest) = name.split_at(end);
            // `..` and `*` are refused, because they match several values.
            let is_name = !name.is_empty() && name != "*";
            (is_name.then_some(PathSegment::Field(name))?, rest)
        } else if let Some((quote, name)) =
            ['\'', '"'].iter().find_map(|quote| Some((quote, rest.strip_prefix('[')?.strip_prefix(*quote)?)))
        {
            let (name, rest) = name.split_once(&format!("{quote}]"))?;
            ((!name.contains('\\')).then_some(PathSegment::Field(name))?, rest)
        } else {
            let (index, rest) = rest.strip_prefix('[')?.split_once(']')?;
            (PathSegment::Item(index.parse().ok()?), rest)
        };
        steps.push(step);
        rest = after;
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        use PathSegment::{Field, Item};
        for (path, expected) in [
            ("$.x", vec![Field("x")]),
            ("$.a.b_c[0].d[12]", vec![Field("a"), Field("b_c"), Item(0), Field("d"), Item(12)]),
            ("$['a.b'][\"c d\"][0]", vec![Field("a.b"), Field("c d"), Item(0)]),
        ] {
            assert_eq!(steps(path), Some(expected), "{path}");
        }
        for path in
            ["", "x", "$..x", "$.", "$.*", "$[*]", "$[-1]", "$[1", "$['a", "$['a\\'b']", "$x", &format!("${}", ".a".repeat(65))]
        {
            assert_eq!(steps(path), None, "{path}");
        }
    }

    #[test]
    fn pieces_make_arguments() {
        let mut partial = Partial::new(r#"{"known":1}"#).unwrap();
        for piece in [
            json!({"jsonPath": "$.city", "stringValue": "Zü", "willContinue": true}),
            json!({"jsonPath": "$.city", "stringValue": "rich"}),
            json!({"jsonPath": "$.city"}),
            json!({"jsonPath": "$.list[0].n", "numberValue": 1.5}),
            json!({"jsonPath": "$.list[1].n", "numberValue": 2}),
            json!({"json_path": "$.yes", "bool_value": true}),
            json!({"jsonPath": "$.none", "nullValue": null}),
        ] {
            partial.take(&piece).unwrap();
        }
        let expected = json!({"known": 1, "city": "Zürich", "list": [{"n": 1.5}, {"n": 2}], "yes": true, "none": null});
        assert_eq!(serde_json::from_str::<Value>(&partial.text()).unwrap(), expected);
        for piece in [
            json!({"stringValue": "x"}),
            json!({"jsonPath": "$", "stringValue": "x"}),
            json!({"jsonPath": "$.new"}),
            json!({"jsonPath": "$.newer", "stringValue": 7}),
            json!({"jsonPath": "$.yes", "boolValue": true}),
            json!({"jsonPath": "$.none", "stringValue": "x"}),
            json!({"jsonPath": "$.list[3]", "numberValue": 1}),
            json!({"jsonPath": "$.city.x", "numberValue": 1}),
            json!(7),
        ] {
            let error = partial.take(&piece).unwrap_err();
            assert!(error.kind == ModelErrorKind::BadStream && error.message.contains("partialArgs"), "{piece}: {error}");
        }
        assert!(Partial::new("{").is_err());
    }
}
