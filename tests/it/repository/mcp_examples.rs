//! Every example of an `mcpServers` entry in the documents means what it says.

use capstan::tools::mcp::McpConfig;
use serde_json::{Map, Value, json};

use super::{files, read};

/// Keys that begin an example of an entry or of its object `capstan`.
const KEYS: &str = "mcpServers command url image capstan trusted approval replay undo preview elicitation sampling shared roots \
    max_timeout concurrency oauth container disabled enabled";

/// Returns the texts between backticks: code blocks, and code within lines.
fn code(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, part) in page.split("```").enumerate() {
        match at % 2 {
            // The first line of a block is its language.
            1 => found.push(part.split_once('\n').map_or(part, |(_, text)| text).to_owned()),
            _ => found.extend(part.split('`').skip(1).step_by(2).map(str::to_owned)),
        }
    }
    found
}

/// Returns the JSON objects in a text that are examples: whole documents, entries, and parts of entries without braces.
fn examples(text: &str) -> Vec<Map<String, Value>> {
    // Parts of messages and shortened events have a URL, too.
    let is_example = |object: &Map<String, Value>| {
        KEYS.split(' ').any(|key| object.contains_key(key)) && !["media_type", "bytes"].iter().any(|key| object.contains_key(*key))
    };
    let whole = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok().filter(is_example);
    if text.trim_start().starts_with('"') {
        return whole(&format!("{{{text}}}")).into_iter().collect();
    }
    let starts = text.match_indices('{').map(|(at, _)| at);
    let mut found: Vec<Map<String, Value>> = Vec::new();
    let mut end = 0;
    for at in starts {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Map<String, Value>>();
        if at >= end
            && let Some(Ok(object)) = values.next()
            && is_example(&object)
        {
            end = at + values.byte_offset();
            found.push(object);
        }
    }
    found
}

/// Returns a document with the example in its place.
fn document(example: Map<String, Value>) -> Value {
    if example.contains_key("mcpServers") {
        return Value::Object(example);
    }
    let mut entry = json!({"command": "x"});
    if example.contains_key("url") || example.get("capstan").is_some_and(|capstan| capstan.get("oauth").is_some()) {
        entry = json!({"url": "https://x.example/mcp"});
    }
    if let Some(entry) = entry.as_object_mut() {
        entry.extend(example);
    }
    json!({"mcpServers": {"example": entry}})
}

#[test]
fn every_example_in_the_documents_is_read_whole() {
    let pages = files("docs", "md").into_iter().chain(["README.md", "ARCHITECTURE.md"].map(Into::into));
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages {
        let text = read(&page);
        for example in code(&text).iter().flat_map(|text| examples(text)) {
            // A change of a record through the API.
            if example.len() == 1 && example.contains_key("enabled") {
                continue;
            }
            count += 1;
            let document = document(example).to_string();
            match McpConfig::parse(&document, &|_| Some("/value".to_owned())) {
                Ok(config) => {
                    let refused = config.servers.values().filter_map(|server| server.as_ref().err().cloned());
                    let told = config.warnings.iter().map(|warning| warning.text.clone());
                    wrong.extend(refused.chain(told).map(|reason| format!("{}: {document}: {reason}", page.display())));
                }
                Err(error) => wrong.push(format!("{}: {document}: {error}", page.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= 15, "only {count} examples were found");
}
