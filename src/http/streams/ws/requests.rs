//! Parses the request frames of clients, and renders the responses.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::frame_limit::{MAX_FRAME_JSON, fit};
use crate::domain::problem::ProblemBody;
use crate::service::Error;
use crate::support::{number, text};

/// Limit of a request's id in bytes, because it is echoed.
const MAX_ID_BYTES: usize = 1_000;

/// The result of a request, and the path of the complete result if it does not fit into a frame.
pub(super) struct Outcome {
    pub result: Value,
    pub whole: Option<String>,
}

impl Outcome {
    /// Returns a result that may not fit into a frame. `whole` is the path of the complete resource.
    pub(super) fn at(whole: String, result: Value) -> Self {
        Self { result, whole: Some(whole) }
    }
}

impl From<Value> for Outcome {
    fn from(result: Value) -> Self {
        Self { result, whole: None }
    }
}

pub(super) struct Frame<'a> {
    /// The client's id, echoed unchanged; `null` if absent.
    pub id: &'a str,
    pub method: Cow<'a, str>,
    pub params: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Parses a frame: a JSON object with a method, and an id that is a number or a short string.
pub(super) fn read(text: &str) -> Result<Frame<'_>, Error> {
    number::check_text(text.as_bytes()).map_err(|error| Error::field("/params", error.to_string()))?;
    let raw: Raw<'_> = serde_json::from_str(text).map_err(|error| {
        let why = error.to_string();
        Error::invalid(format!("this is not a frame with id, method and params: {}", text::prefix(&why, 200)))
    })?;
    let id = raw.id.map_or("null", RawValue::get);
    if !(id == "null" || id.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())) {
        return Err(Error::field("/id", "must be a number or a string"));
    }
    if id.len() > MAX_ID_BYTES {
        return Err(Error::field("/id", format!("has {} bytes; at most {MAX_ID_BYTES} are accepted", id.len())));
    }
    Ok(Frame { id, method: raw.method, params: raw.params.map_or("{}", RawValue::get) })
}

pub(super) fn result(id: &str, outcome: Outcome) -> String {
    let Outcome { result, whole } = outcome;
    fit(format!("{{\"id\":{id},\"result\":{result}}}"), MAX_FRAME_JSON, || whole)
}

pub(super) fn error(id: &str, problem: &ProblemBody) -> String {
    let problem = serde_json::to_string(problem).unwrap_or_else(|_| "{}".to_owned());
    fit(format!("{{\"id\":{id},\"error\":{problem}}}"), MAX_FRAME_JSON, || None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_echoed_as_they_came() {
        for id in ["1", "-7", "1.50", "12345678901234567890123", r#""a\u0041""#, "null"] {
            let text = format!(r#"{{"id":{id},"method":"ping"}}"#);
            assert_eq!(read(&text).unwrap().id, id);
        }
        for bad in
            ["{", "[]", r#"{"id":1}"#, r#"{"id":{},"method":"ping"}"#, r#"{"id":true,"method":"x"}"#, r#"{"method":"x","more":1}"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        let long = format!("{{\"id\":\"{}\",\"method\":\"ping\"}}", "x".repeat(MAX_ID_BYTES));
        assert!(read(&long).is_err());
    }

    #[test]
    fn large_replies_fit_into_a_frame() {
        let text = "x".repeat(MAX_FRAME_JSON);
        let shown =
            result("7", Outcome::at("/whole".to_owned(), serde_json::json!({"message": {"text": text}, "replayed": false})));
        assert!(shown.len() <= MAX_FRAME_JSON);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((&shown["id"], &shown["result"]["replayed"]), (&Value::from(7), &Value::from(false)));
        assert_eq!(shown["shortened"]["url"], "/whole");
    }
}
