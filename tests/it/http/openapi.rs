//! The OpenAPI document.

use std::path::Path;

use capstan::http::openapi_json;
use serde_json::Value;

use super::rig::Rig;

/// Set `CAPSTAN_UPDATE=1` to write the file instead of comparing it.
#[tokio::test]
async fn the_checked_in_document_is_the_one_that_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/capstan.json");
    #[expect(clippy::disallowed_methods, reason = "a switch of this test only")]
    let update = std::env::var("CAPSTAN_UPDATE").is_ok();
    if update {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, openapi_json()).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == openapi_json(), "openapi/capstan.json is out of date: run this test with CAPSTAN_UPDATE=1");
    assert_eq!(Rig::new().await.get("/openapi.json").await.body, checked_in);
}

#[test]
fn every_reference_leads_somewhere() {
    let document: Value = serde_json::from_str(&openapi_json()).unwrap();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} points to nothing");
    }
}

/// A client must know whether a repeated request counts twice: each POST has the key as a parameter, or its description
/// explains repetition.
#[test]
fn every_post_says_what_an_idempotency_key_does() {
    let document: Value = serde_json::from_str(&openapi_json()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let posts: Vec<&Value> = paths.values().filter_map(|item| item.get("post")).collect();
    assert!(posts.len() > 20);
    for post in posts {
        let parameters = post["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        let takes = parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key");
        let words: Vec<&str> = post["description"].as_str().unwrap_or_default().split_whitespace().collect();
        let counts = words.join(" ").contains("regardless of its `Idempotency-Key`");
        assert!(takes != counts, "{}", post["operationId"]);
    }
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
