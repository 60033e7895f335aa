//! Arguments of a call that come in pieces, each with its path:
//! <https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling#streaming-fc>.
//!
//! No request asks for them, but gateways may. Pieces that do not fit fail the answer: no arguments are invented.

use serde_json::{Map, Value};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::support::text::storable;

/// The most steps of a path. It bounds the nesting of the arguments.
const MOST_STEPS: usize = 64;

#[derive(Debug)]
pub(super) struct Partial {
    arguments: Value,
}

#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

impl Partial {
    pub(super) fn new(known: &str) -> Result<Self, ModelError> {
        let known = if known.is_empty() { "{}" } else { known };
        let arguments = serde_json::from_str(known).map_err(|_| bad("the arguments before them are no JSON"))?;
        Ok(Self { arguments })
    }

    pub(super) fn take(&mut self, piece: &Value) -> Result<(), ModelError> {
        let field = |camel: &str, snake: &str| piece.get(camel).or_else(|| piece.get(snake));
        let path = field("jsonPath", "json_path").and_then(Value::as_str).ok_or_else(|| bad("a piece has no path"))?;
        let steps = steps(path).ok_or_else(|| bad(&format!("the path {path:?} cannot be read")))?;
        let string = field("stringValue", "string_value").and_then(Value::as_str);
        let whole = field("numberValue", "number_value")
            .filter(|value| value.is_number())
            .or_else(|| field("boolValue", "bool_value").filter(|value| value.is_boolean()))
            .cloned()
            .or_else(|| field("nullValue", "null_value").map(|_| Value::Null));
        let place = place(&mut self.arguments, &steps).ok_or_else(|| bad(&format!("the path {path:?} leads nowhere")))?;
        match (place, string, whole) {
            (Place::Taken(Value::String(text)), Some(more), None) => text.push_str(&storable(more)),
            (Place::Free(free), Some(text), None) => *free = Value::String(storable(text).into_owned()),
            (Place::Free(free), None, Some(value)) => *free = value,
            // The end of a text.
            (Place::Taken(_), None, None) => {}
            (Place::Free(_) | Place::Taken(_), _, _) => return Err(bad(&format!("the piece at {path:?} fits nowhere"))),
        }
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        self.arguments.to_string()
    }
}

pub(super) fn bad(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("arguments in pieces (partialArgs) cannot be put together: {why}"))
}

enum Place<'a> {
    Free(&'a mut Value),
    Taken(&'a mut Value),
}

/// Follows the steps, and creates missing values on the way. Lists get no gaps.
fn place<'a>(root: &'a mut Value, steps: &[Step<'_>]) -> Option<Place<'a>> {
    let (mut at, mut is_new) = (root, false);
    for step in steps {
        if is_new {
            *at = match step {
                Step::Field(_) => Value::Object(Map::new()),
                Step::Item(_) => Value::Array(Vec::new()),
            };
        }
        (at, is_new) = match (step, at) {
            (Step::Field(name), Value::Object(fields)) => {
                let name = storable(name);
                let is_new = !fields.contains_key(&*name);
                (fields.entry(name).or_insert(Value::Null), is_new)
            }
            (Step::Item(index), Value::Array(items)) => {
                let is_new = *index == items.len();
                if is_new {
                    items.push(Value::Null);
                }
                (items.get_mut(*index)?, is_new)
            }
            (Step::Field(_) | Step::Item(_), _) => return None,
        };
    }
    (!steps.is_empty()).then_some(if is_new { Place::Free(at) } else { Place::Taken(at) })
}

/// Reads a path of names and indices: `$.a.b[0]['c d']`.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MOST_STEPS {
            return None;
        }
        let (step, after) = if let Some(name) = rest.strip_prefix('.') {
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let (name, rest) = name.split_at(end);
            // `..` and `*` stand for many values.
            let is_name = !name.is_empty() && name != "*";
            (is_name.then_some(Step::Field(name))?, rest)
        } else if let Some((quote, name)) =
            ['\'', '"'].iter().find_map(|quote| Some((quote, rest.strip_prefix('[')?.strip_prefix(*quote)?)))
        {
            let (name, rest) = name.split_once(&format!("{quote}]"))?;
            ((!name.contains('\\')).then_some(Step::Field(name))?, rest)
        } else {
            let (index, rest) = rest.strip_prefix('[')?.split_once(']')?;
            (Step::Item(index.parse().ok()?), rest)
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
        use Step::{Field, Item};
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
