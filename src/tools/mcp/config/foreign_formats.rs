//! Forms in which other programs write `mcpServers` documents.

use serde_json::{Map, Value};

/// The keys of an entry that Capstan reads.
pub const ENTRY: [&str; 12] =
    ["type", "transport", "image", "command", "args", "env", "cwd", "url", "headers", "enabled", "disabled", "capstan"];

/// Other names of `url`: that of Windsurf, and that of the Gemini CLI.
const URL_ALIASES: [&str; 2] = ["serverUrl", "httpUrl"];

/// The keys whose value is one text. Programs with an input form also write the fields that are left empty.
const TEXTS: [&str; 6] = ["type", "transport", "image", "command", "cwd", "url"];

/// Returns a document as plain JSON: without byte order mark, comments and trailing commas.
pub fn plain_json(document: &str) -> String {
    let document = document.trim_start_matches('\u{feff}');
    let mut plain = document.to_owned();
    match json_strip_comments::strip(&mut plain) {
        Ok(()) => plain,
        // The JSON parser then reports the error.
        Err(_) => document.to_owned(),
    }
}

/// Returns the key of the servers in a document: `mcpServers`, or else that of VS Code or of Zed.
pub fn servers_key(document: &Map<String, Value>) -> &'static str {
    let known = ["mcpServers", "servers", "context_servers"];
    known.into_iter().find(|key| document.contains_key(*key)).unwrap_or("mcpServers")
}

/// Returns an entry with the keys that Capstan reads, without those that have no value.
pub fn canonical(entry: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut canonical = Map::new();
    for (key, value) in entry {
        let name = if URL_ALIASES.contains(&key.as_str()) { "url" } else { key.as_str() };
        let value = match (name, value) {
            (_, Value::Null) if ENTRY.contains(&name) => continue,
            (_, Value::String(text)) if text.is_empty() && TEXTS.contains(&name) => continue,
            ("env" | "headers" | "capstan", Value::Object(values)) => {
                values.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())).collect()
            }
            (_, value) => value.clone(),
        };
        if canonical.insert(name.to_owned(), value).is_some() {
            return Err(format!("the entry has more than one of url, {}: keep one of them", URL_ALIASES.join(", ")));
        }
    }
    Ok(canonical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!({"url": "", "command": "a"}), json!({"command": "a"}))]
    #[case(json!({"url": "https://h", "command": null, "args": null, "env": null}), json!({"url": "https://h"}))]
    #[case(json!({"url": "https://h", "headers": {"A": null, "B": ""}}), json!({"url": "https://h", "headers": {"B": ""}}))]
    #[case(json!({"serverUrl": "https://h"}), json!({"url": "https://h"}))]
    #[case(json!({"httpUrl": "https://h", "url": ""}), json!({"url": "https://h"}))]
    #[case(json!({"command": "a", "capstan": {"timeout": null}}), json!({"command": "a", "capstan": {}}))]
    // The check of unknown keys decides about a key that may restrict the server.
    #[case(json!({"command": "a", "readOnly": null, "disabled": ""}), json!({"command": "a", "readOnly": null, "disabled": ""}))]
    fn entry_of_other_program_becomes_canonical(#[case] entry: Value, #[case] expected: Value) {
        assert_eq!(Value::Object(canonical(entry.as_object().unwrap()).unwrap()), expected);
    }

    #[test]
    fn two_urls_in_one_entry_are_refused() {
        let error = canonical(json!({"url": "https://a", "httpUrl": "https://b"}).as_object().unwrap()).unwrap_err();
        assert!(error.contains("httpUrl"), "{error}");
    }

    #[rstest]
    #[case("\u{feff}{\"a\": 1}", Some(json!({"a": 1})))]
    #[case("// x\n{\"a\": \"/* // # */\", /* y */ \"b\": [1, 2,],\n # z\n}", Some(json!({"a": "/* // # */", "b": [1, 2]})))]
    #[case("{\"a\": 1 / }", None)]
    #[case("{\"a\": [1,,]}", None)]
    #[case("{\"a\": 1 /* x", None)]
    fn comments_and_byte_order_mark_are_left_out(#[case] text: &str, #[case] expected: Option<Value>) {
        assert_eq!(serde_json::from_str::<Value>(&plain_json(text)).ok(), expected);
    }
}
