//! The OpenAPI document.

use capstan::domain::event::EventBody;
use capstan::domain::problem::ProblemCode;
use capstan::http::{openapi, openapi_json};
use serde_json::{Value, json};
use support::repository::root;

use super::rig::Rig;

/// The most lines of the document, for people who read it.
const MAX_LINES: usize = 14_000;

/// Set `CAPSTAN_UPDATE=1` to write the file instead of comparing it.
#[tokio::test]
async fn the_checked_in_document_is_the_one_that_is_served() {
    let path = root().join("openapi/capstan.json");
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
fn document_is_short_enough_to_read() {
    let lines = openapi_json().lines().count();
    assert!(lines <= MAX_LINES, "{lines} lines");
}

/// Returns the fault of a value that does not conform to a schema of the document.
fn fault(document: &Value, schema: &str, value: &Value) -> Option<String> {
    let reference = format!("#/components/schemas/{schema}");
    let schema = json!({ "$ref": reference, "components": document["components"] });
    let validator = jsonschema::options().offline().build(&schema).unwrap();
    validator.iter_errors(value).next().map(|error| format!("{error}: {value}"))
}

#[test]
fn each_event_type_has_one_schema() {
    let document = openapi();
    let mapping = document["components"]["schemas"]["Event"]["discriminator"]["mapping"].as_object().unwrap();
    let mut kinds = EventBody::KINDS.to_vec();
    let mut described: Vec<&str> = mapping.keys().map(String::as_str).collect();
    kinds.sort_unstable();
    described.sort_unstable();
    assert_eq!(described, kinds);
}

#[test]
fn each_error_code_is_in_the_document() {
    let codes: Vec<&str> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(openapi()["components"]["schemas"]["ProblemCode"]["enum"], json!(codes));
}

#[test]
fn each_default_of_a_parameter_conforms_to_its_schema() {
    let document = openapi();
    let operations = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    let parameters = operations.flat_map(|operation| operation["parameters"].as_array().into_iter().flatten());
    let schemas: Vec<&Value> = parameters.map(|parameter| &parameter["schema"]).collect();
    assert!(schemas.iter().all(|schema| schema.get("allOf").is_none()), "a default would stand in a second schema");
    let with_default: Vec<_> = schemas.into_iter().filter(|schema| schema.get("default").is_some()).collect();
    assert!(with_default.len() > 8, "{with_default:?}");
    for schema in with_default.into_iter().filter(|schema| schema.get("enum").is_some()) {
        assert!(schema["enum"].as_array().unwrap().contains(&schema["default"]), "{schema}");
    }
}

#[test]
fn error_responses_are_shared() {
    let document = openapi();
    let operations = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    // A path also has a list of the parameters that its operations share.
    let operations = operations.filter(|operation| operation.is_object());
    let responses = operations.flat_map(|operation| operation["responses"].as_object().unwrap());
    let errors: Vec<_> = responses.filter(|(status, _)| status.as_str() >= "400").collect();
    assert!(errors.len() > 400, "{}", errors.len());
    for (status, response) in errors {
        assert!(response["$ref"].as_str().unwrap().starts_with("#/components/responses/"), "{status} {response}");
    }
}

#[test]
fn path_holds_the_parameters_that_its_operations_share() {
    let item = openapi()["paths"]["/api/v1/conversations/{id}"].clone();
    assert_eq!(item["parameters"], json!([{"$ref": "#/components/parameters/ConversationIdInPath"}]));
    for method in ["get", "patch", "delete"] {
        assert!(!item[method].to_string().contains("ConversationIdInPath"), "{}", item[method]);
    }
}

#[test]
fn each_time_has_the_format_date_time() {
    let mut times = Vec::new();
    fields(&openapi(), &mut times);
    times.retain(|(_, field)| field["description"].as_str().unwrap_or_default().contains("RFC 3339"));
    assert!(times.len() > 30, "{times:?}");
    for (name, field) in times {
        assert_eq!(field["format"], "date-time", "{name}: {field}");
    }
}

/// Collects the fields of all objects.
fn fields(value: &Value, found: &mut Vec<(String, Value)>) {
    if let Some(properties) = value["properties"].as_object() {
        found.extend(properties.iter().map(|(name, field)| (name.clone(), field.clone())));
    }
    let children: Vec<&Value> = match value {
        Value::Object(map) => map.values().collect(),
        Value::Array(items) => items.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    children.into_iter().for_each(|child| fields(child, found));
}

#[test]
fn examples_conform_to_their_schemas() {
    let document = openapi();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let examples: Vec<_> = schemas.iter().filter_map(|(name, schema)| Some((name, schema.get("example")?))).collect();
    assert!(examples.len() >= 5, "{examples:?}");
    for (name, example) in examples {
        assert_eq!(fault(&document, name, example), None, "{name}");
    }
}

#[tokio::test]
async fn streams_send_what_the_document_describes() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let path = format!("/api/v1/conversations/{conversation}/events");
    let mut stream = rig.stream(&path, &[]).await;
    let mut events = vec![stream.next().await.unwrap().json()];
    rig.play().await;
    let mut stream = rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await;
    while let Some(event) = stream.next().await {
        events.push(event.json());
    }
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert!(types.len() > 5 && types[0] == "stream.snapshot" && types.ends_with(&["stream.end"]), "{types:?}");
    let document = openapi();
    for event in &mut events {
        assert_eq!(fault(&document, "StreamEvent", event), None);
        event["type"] = json!("run.unknown");
        assert!(fault(&document, "StreamEvent", event).is_some(), "{event}");
    }
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
        let takes = parameters.iter().any(|parameter| parameter["$ref"] == "#/components/parameters/IdempotencyKey");
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
