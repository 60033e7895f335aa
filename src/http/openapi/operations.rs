//! The rules of all operations: errors, idempotency keys, links to next pages, and shared parameters.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::schemas::{PAGE, deny_null, members, pascal_case};
use crate::http::streams::preferred_response::RUN_OR_STREAM_PREFIX;

/// The error responses by status: name and description.
const PROBLEMS: [(u16, &str, &str); 13] = [
    (400, "BadRequest", "The request is not valid"),
    (403, "Forbidden", "The key does not allow this"),
    (404, "NotFound", "The resource does not exist or belongs to another user"),
    (406, "NotAcceptable", "The wanted media type cannot be produced"),
    (408, "RequestTimeout", "The body took too long to arrive"),
    (409, "Conflict", "The state does not allow this"),
    (410, "Gone", "The events at this cursor are not available; a stream reports `stream.reset` instead"),
    (412, "PreconditionFailed", "The version does not match `If-Match`"),
    (413, "PayloadTooLarge", "The body is too large"),
    (422, "UnprocessableEntity", "The Idempotency-Key was used with another request"),
    (429, "TooManyRequests", "Too many concurrent requests of this kind"),
    (502, "BadGateway", "The provider failed"),
    (504, "GatewayTimeout", "The provider took too long"),
];

/// The response for statuses that any operation may have and that it does not describe: 401, 408, 415, 429, 500 and 503.
const DEFAULT: (&str, &str) = (
    "Problem",
    "A problem that any operation may have: 401, 408, 415, 429, 500 or 503. The server's log has the cause of a 500 under `request_id`",
);

/// POSTs that ignore the `Idempotency-Key`, as their descriptions say. Some return secrets, which are never stored. Others depend on the
/// current state. An upload stores a file each time.
const NEVER_REPLAYED: [&str; 9] = [
    "sign_in",
    "create_stream_ticket",
    "upload_file",
    "begin_mcp_server_login",
    "begin_openrouter_login",
    "start_mcp_server",
    "stop_mcp_server",
    "restart_mcp_server",
    "test_provider",
];

pub(super) fn complete(document: &mut Value) {
    for (method, operation) in operations(document) {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
        if method == "post" && !NEVER_REPLAYED.contains(&id) {
            add_idempotency_key(operation);
        }
        add_problems(operation, method);
        add_link(operation);
        make_body_optional(operation);
        merge_defaults(operation);
    }
    share_repeated(document);
    share_bodies(document, "responses", |operation| {
        members(operation, "/responses").into_iter().flat_map(Map::values_mut).collect()
    });
    share_bodies(document, "requestBodies", |operation| operation.get_mut("requestBody").into_iter().collect());
    let content = json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/ProblemBody" } } });
    if let Some(responses) = members(document, "/components/responses") {
        let response = |text: &str| json!({ "description": text, "content": content });
        responses.extend(PROBLEMS.map(|(_, name, text)| (name.to_owned(), response(text))));
        responses.insert(DEFAULT.0.to_owned(), response(DEFAULT.1));
        responses.sort_keys();
    }
    share_parameters_of_paths(document);
}

/// Moves the parameters that all operations of a path repeat to the path.
fn share_parameters_of_paths(document: &mut Value) {
    for path in members(document, "/paths").into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        let operations: Vec<&Value> = path.values().collect();
        let [first, others @ ..] = operations.as_slice() else { continue };
        let is_common = |wanted: &&Value| others.iter().all(|other| parameters(other).any(|parameter| parameter == *wanted));
        let common: Vec<Value> = parameters(first).filter(is_common).cloned().collect();
        if others.is_empty() || common.is_empty() {
            continue;
        }
        for operation in path.values_mut().filter_map(Value::as_object_mut) {
            let Some(Value::Array(own)) = operation.get_mut("parameters") else { continue };
            own.retain(|parameter| !common.contains(parameter));
            if own.is_empty() {
                operation.shift_remove("parameters");
            }
        }
        path.insert("parameters".to_owned(), Value::Array(common));
    }
}

pub(super) fn operations(document: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    let paths = members(document, "/paths").into_iter().flat_map(Map::values_mut);
    paths.filter_map(Value::as_object_mut).flatten()
}

pub(super) fn add_idempotency_key(operation: &mut Value) {
    let key = json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes repeating the request safe for 24 hours",
        "schema": { "type": "string", "maxLength": 255, "minLength": 1 },
    });
    if let Some(operation) = operation.as_object_mut()
        && let Value::Array(parameters) = operation.entry("parameters").or_insert_with(|| json!([]))
    {
        parameters.push(key);
    }
}

fn has_parameter(operation: &Value, name: &str) -> bool {
    parameters(operation).any(|parameter| parameter["name"] == name)
}

fn parameters(operation: &Value) -> impl Iterator<Item = &Value> {
    operation.get("parameters").and_then(Value::as_array).into_iter().flatten()
}

/// Adds the errors that follow from the method and the parameters of an operation. An error that the handler describes itself keeps
/// its description.
fn add_problems(operation: &mut Value, method: &str) {
    let needs_key = operation.get("security").is_none();
    let writes = method == "post" || method == "patch";
    let has_place = |wanted: &str| parameters(operation).any(|parameter| parameter["in"] == wanted);
    let has_input = writes || has_place("query") || has_place("header");
    let rules = [
        (400, needs_key && has_input),
        (403, needs_key && method != "get"),
        (404, needs_key && (writes || has_place("path"))),
        (409, writes),
        (410, has_parameter(operation, "Last-Event-ID")),
        (412, has_parameter(operation, "If-Match")),
        (413, operation.get("requestBody").is_some()),
        (422, has_parameter(operation, "Idempotency-Key")),
    ];
    let mut statuses: Vec<u16> = rules.into_iter().filter(|(_, applies)| *applies).map(|(status, _)| status).collect();
    let Some(responses) = members(operation, "/responses") else { return };
    let is_stream = |response: &Value| response.pointer("/content/text~1event-stream").is_some();
    let prefix = format!("#/components/responses/{RUN_OR_STREAM_PREFIX}");
    let is_run_or_stream = |response: &Value| response["$ref"].as_str().is_some_and(|name| name.starts_with(&prefix));
    statuses.extend(responses.values().any(|response| is_stream(response) || is_run_or_stream(response)).then_some(406));
    for (status, name, _) in PROBLEMS {
        let own = responses.remove(&status.to_string());
        if own.is_none() && !statuses.contains(&status) {
            continue;
        }
        let mut response = json!({ "$ref": format!("#/components/responses/{name}") });
        if let (Some(response), Some(text)) = (response.as_object_mut(), own.as_ref().and_then(|own| own.get("description"))) {
            response.insert("description".to_owned(), text.clone());
        }
        responses.insert(status.to_string(), response);
    }
    responses.insert("default".to_owned(), json!({ "$ref": format!("#/components/responses/{}", DEFAULT.0) }));
}

/// Adds the header `Link` to an operation that returns pages.
fn add_link(operation: &mut Value) {
    if has_parameter(operation, "cursor")
        && let Some(response) = members(operation, "/responses/200")
    {
        response.insert("headers".to_owned(), json!({ "Link": { "schema": { "type": "string" } } }));
    }
}

/// Moves the defaults of inlined parameters into their schemas. The derive macro puts them into a second schema of type object, which no
/// value matches.
fn merge_defaults(operation: &mut Value) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some([schema, Value::Object(default)]) =
            parameter.pointer_mut("/schema/allOf").and_then(Value::as_array_mut).map(Vec::as_mut_slice)
        else {
            continue;
        };
        let (mut merged, default) = (schema.take(), default.remove("default"));
        if let (Some(merged), Some(default)) = (merged.as_object_mut(), default) {
            // The parameter has a description of its own.
            merged.remove("description");
            merged.insert("default".to_owned(), default);
        }
        parameter["schema"] = merged;
    }
}

/// Lets a request omit a body of type `Option`. A body of `null` is not valid.
pub(super) fn make_body_optional(operation: &mut Value) {
    for content in members(operation, "/requestBody/content").into_iter().flat_map(Map::values_mut) {
        if content.pointer("/schema/oneOf/1") == Some(&json!({ "type": "null" }))
            && let Some(some) = content.pointer("/schema/oneOf/0").cloned()
        {
            *content = json!({ "schema": some });
        }
    }
}

/// Moves the parameters and headers that several operations repeat into the components.
pub(super) fn share_repeated(document: &mut Value) {
    let mut found = Vec::new();
    let mut headers = Map::new();
    for (_, operation) in operations(document) {
        for parameter in parameters_mut(operation) {
            if let Some(schema) = parameter.get_mut("schema") {
                deny_null(schema);
            }
            // False is the default.
            if let Some(members) = parameter.as_object_mut().filter(|members| members.get("required") == Some(&json!(false))) {
                members.shift_remove("required");
            }
            found.push((shared_name(parameter), parameter.clone()));
        }
        for response in members(operation, "/responses").into_iter().flat_map(Map::values_mut) {
            for (name, header) in members(response, "/headers").into_iter().flatten() {
                let reference = json!({ "$ref": format!("#/components/headers/{name}") });
                headers.insert(name.clone(), std::mem::replace(header, reference));
            }
        }
    }
    let shared = most_used(found);
    for (_, operation) in operations(document) {
        for parameter in parameters_mut(operation) {
            let name = shared_name(parameter);
            if shared.get(&name) == Some(parameter) {
                *parameter = json!({ "$ref": format!("#/components/parameters/{name}") });
            }
        }
    }
    headers.sort_keys();
    if let Some(components) = members(document, "/components") {
        components.insert("parameters".to_owned(), shared.into_iter().collect());
        components.insert("headers".to_owned(), Value::Object(headers));
    }
}

fn parameters_mut(operation: &mut Value) -> impl Iterator<Item = &mut Value> {
    operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Returns, by name, the form that is used most often, if it is used more than once.
fn most_used(found: Vec<(String, Value)>) -> BTreeMap<String, Value> {
    let mut forms: BTreeMap<String, Vec<(Value, usize)>> = BTreeMap::new();
    for (name, form) in found {
        let forms = forms.entry(name).or_default();
        match forms.iter_mut().find(|(known, _)| *known == form) {
            Some((_, uses)) => *uses += 1,
            None => forms.push((form, 1)),
        }
    }
    // Of several forms with the same count, the first one is used.
    let most_used =
        |forms: Vec<(Value, usize)>| forms.into_iter().rev().max_by_key(|(_, uses)| *uses).filter(|(_, uses)| *uses > 1);
    forms.into_iter().filter_map(|(name, forms)| most_used(forms).map(|(form, _)| (name, form))).collect()
}

/// Moves the bodies that several operations repeat into the components, each under the name of its type.
fn share_bodies(document: &mut Value, kind: &str, bodies: impl Fn(&mut Value) -> Vec<&mut Value>) {
    let mut found = Vec::new();
    for (_, operation) in operations(document) {
        found.extend(bodies(operation).into_iter().filter_map(|body| Some((body_type(body)?, body.clone()))));
    }
    let shared = most_used(found);
    for (_, operation) in operations(document) {
        for body in bodies(operation) {
            if let Some((name, _)) = body_type(body).and_then(|name| shared.get_key_value(&name)).filter(|(_, form)| *form == body)
            {
                *body = json!({ "$ref": format!("#/components/{kind}/{name}") });
            }
        }
    }
    if let Some(components) = members(document, "/components")
        && let Value::Object(components) = components.entry(kind).or_insert_with(|| json!({}))
    {
        components.extend(shared);
    }
}

/// Returns the name of the type that a request or response has as JSON.
fn body_type(body: &Value) -> Option<String> {
    let target = body.pointer("/content/application~1json/schema/$ref")?.as_str()?;
    let name = target.rsplit_once('/')?.1;
    Some(name.strip_prefix(PAGE).map_or_else(|| name.to_owned(), |row| format!("{row}Page")))
}

/// Returns the name of a parameter among the components: `Limit`, or `RunIdInPath` for an `id` in a path.
fn shared_name(parameter: &Value) -> String {
    let text = |pointer: &str| parameter.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match (text("/in"), text("/schema/$ref").rsplit_once('/')) {
        ("path", Some((_, schema))) => schema.to_owned() + "InPath",
        ("path", None) => pascal_case(text("/name")) + "InPath",
        _ => pascal_case(text("/name")),
    }
}
