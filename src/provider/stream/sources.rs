//! Reads the sources of an answer, which each provider writes in a form of its own.

use serde_json::Value;

use crate::domain::model::Source;

/// Objects that hold the source itself: of OpenAI, and of Gemini.
const INNER: [&str; 4] = ["url_citation", "web", "retrievedContext", "retrieved_context"];

/// Returns the sources in a list of addresses or citations, or in one of them.
pub(super) fn read(value: &Value) -> Vec<Source> {
    match value {
        Value::Array(items) => items.iter().filter_map(source).collect(),
        Value::String(_) | Value::Object(_) => source(value).into_iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

fn source(item: &Value) -> Option<Source> {
    if let Value::String(url) = item {
        return Source::new(url, "", "");
    }
    let fields = INNER.iter().find_map(|name| item.get(name)).unwrap_or(item);
    let word = |names: [&str; 2]| names.iter().find_map(|name| fields.get(name)?.as_str()).unwrap_or_default();
    Source::new(word(["url", "uri"]), word(["title", "document_title"]), word(["cited_text", "snippet"]))
}
