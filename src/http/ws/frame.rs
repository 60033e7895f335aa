//! Frames as clients send them, and answers to them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::problem::ProblemBody;
use crate::service::Error;
use crate::support::text;

/// A request of a client.
pub(super) struct Frame<'a> {
    /// What the client calls it, echoed as it came; `null` if it has no name.
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

/// Reads a frame.
///
/// # Errors
/// If it is no JSON object with a method, or its id is neither a number nor a string.
pub(super) fn read(text: &str) -> Result<Frame<'_>, Error> {
    let raw: Raw<'_> = serde_json::from_str(text).map_err(|error| {
        let why = error.to_string();
        Error::invalid(format!("this is not a frame with id, method and params: {}", text::prefix(&why, 200)))
    })?;
    let id = raw.id.map_or("null", RawValue::get);
    if !(id == "null" || id.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())) {
        return Err(Error::field("/id", "must be a number or a string"));
    }
    Ok(Frame { id, method: raw.method, params: raw.params.map_or("{}", RawValue::get) })
}

/// The answer to a request that was carried out.
pub(super) fn result(id: &str, result: &Value) -> String {
    format!("{{\"id\":{id},\"result\":{result}}}")
}

/// The answer to a request that was refused or failed.
pub(super) fn error(id: &str, problem: &ProblemBody) -> String {
    let problem = serde_json::to_string(problem).unwrap_or_else(|_| "{}".to_owned());
    format!("{{\"id\":{id},\"error\":{problem}}}")
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
    }
}
