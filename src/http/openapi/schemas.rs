//! The names and forms of schemas: pages, variants, events, absent fields and times.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::examples;

const SCHEMAS: &str = "#/components/schemas/";

/// The schema of frames that only WebSockets send, to which no operation refers.
const ON_SOCKETS: &str = "OwnerEvent";

/// The beginning of the name that utoipa gives a page.
pub(super) const PAGE: &str = "ListBody_";

pub(super) fn complete(document: &mut Value) {
    name_pages(document);
    if let Some(schemas) = members(document, "/components/schemas") {
        name_variants(schemas);
        join_events(schemas);
    }
    omit_null(document);
    visit(document, &mut |object| {
        mark_times(object);
        join_lines(object);
    });
    let roots = ["/paths", "/components/parameters", "/components/responses"];
    let on_sockets = reference(ON_SOCKETS);
    let roots = roots.iter().filter_map(|root| document.pointer(root)).chain([&on_sockets]);
    let used = reachable(document, roots.collect());
    if let Some(schemas) = members(document, "/components/schemas") {
        for (name, example) in examples::all() {
            if let Some(Value::Object(schema)) = schemas.get_mut(name) {
                schema.insert("example".to_owned(), example);
            }
        }
        schemas.retain(|name, _| used.contains(name));
        schemas.sort_keys();
    }
}

/// Returns the members of the object at a JSON pointer.
pub(super) fn members<'a>(value: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
}

/// Returns a name such as `RunQueued` for `run.queued`.
pub(super) fn pascal_case(name: &str) -> String {
    let words = name.split(['.', '_', '-']);
    words.filter_map(|word| Some(word.get(..1)?.to_ascii_uppercase() + word.get(1..)?)).collect()
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("{SCHEMAS}{name}") })
}

/// Calls `act` for each object in a value, the outer one first.
fn visit(value: &mut Value, act: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            act(object);
            object.values_mut().for_each(|value| visit(value, act));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, act)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Renames a page such as `ListBody_Run` to `RunPage`, and replaces the copy of `Run` that utoipa makes by a reference.
fn name_pages(document: &mut Value) {
    visit(document, &mut |object| {
        if let Some(Value::String(target)) = object.get_mut("$ref")
            && let Some(row) = target.strip_prefix(SCHEMAS).and_then(|name| name.strip_prefix(PAGE))
        {
            *target = format!("{SCHEMAS}{row}Page");
        }
    });
    let Some(schemas) = members(document, "/components/schemas") else { return };
    for (name, mut schema) in std::mem::take(schemas) {
        let Some(row) = name.strip_prefix(PAGE) else {
            schemas.insert(name, schema);
            continue;
        };
        if let Some(items) = schema.pointer_mut("/properties/data/items") {
            *items = reference(row);
        }
        schemas.insert(format!("{row}Page"), schema);
    }
}

/// One form of a tagged type.
struct Variant {
    /// The property that holds the tag.
    property: String,
    tag: String,
    schema: Value,
}

/// Gives each variant of a tagged type a name, and the type a discriminator: `Part` becomes one of `TextPart`, `ImagePart` and so
/// on.
fn name_variants(schemas: &mut Map<String, Value>) {
    let described = schemas.clone();
    for (name, schema) in &described {
        let Some(forms) = schema.get("oneOf").and_then(Value::as_array) else { continue };
        let variants: Option<Vec<Variant>> = forms.iter().map(|form| variant(form, &described)).collect();
        let Some(variants) = variants else { continue };
        let (envelope, suffix) = match name.as_str() {
            "Event" => (Some("EventEnvelope"), "Event"),
            "StreamEvent" => (Some("StreamEnvelope"), "Event"),
            name => (None, name),
        };
        let (mut one_of, mut mapping, mut property) = (Vec::new(), Map::new(), String::new());
        for variant in variants {
            let own_name = pascal_case(&variant.tag) + suffix;
            let schema = match envelope {
                Some(envelope) => json!({ "allOf": [reference(envelope), variant.schema] }),
                None => variant.schema,
            };
            schemas.insert(own_name.clone(), schema);
            mapping.insert(variant.tag, json!(format!("{SCHEMAS}{own_name}")));
            one_of.push(reference(&own_name));
            property = variant.property;
        }
        if let Some(Value::Object(schema)) = schemas.get_mut(name) {
            schema.insert("oneOf".to_owned(), Value::Array(one_of));
            schema.insert("discriminator".to_owned(), json!({ "propertyName": property, "mapping": mapping }));
        }
    }
}

/// Returns the variant that a schema describes; `None` if it has no tag.
fn variant(form: &Value, schemas: &Map<String, Value>) -> Option<Variant> {
    let mut schema = form.clone();
    if let Some([base, tagged]) = form.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
        let base = base.get("$ref")?.as_str()?.strip_prefix(SCHEMAS)?;
        schema = schemas.get(base)?.clone();
        let properties = tagged.get("properties")?.as_object()?.clone();
        schema.get_mut("required")?.as_array_mut()?.extend(properties.keys().map(|name| json!(name)));
        members(&mut schema, "/properties")?.extend(properties);
        schema.as_object_mut()?.insert("description".to_owned(), form.get("description")?.clone());
    }
    let mut tags = members(&mut schema, "/properties")?.iter_mut().filter_map(|(name, property)| {
        let [Value::String(tag)] = property.get("enum")?.as_array()?.as_slice() else { return None };
        let tag = tag.clone();
        *property = json!({ "type": "string", "const": tag });
        Some((name.clone(), tag))
    });
    let (property, tag) = tags.next()?;
    drop(tags);
    // utoipa repeats the description of an event as that of its data.
    if let Some(Value::Object(data)) = schema.pointer_mut("/properties/data") {
        data.remove("description");
    }
    Some(Variant { property, tag, schema })
}

/// Adds the events of the log to the events of a stream. Removes the discriminator, because `Event` has its own.
fn join_events(schemas: &mut Map<String, Value>) {
    let Some(Value::Object(streamed)) = schemas.get_mut("StreamEvent") else { return };
    streamed.remove("discriminator");
    if let Some(Value::Array(forms)) = streamed.get_mut("oneOf") {
        forms.push(reference("Event"));
    }
}

/// Removes `null` from optional fields of responses: the server omits such a field.
fn omit_null(document: &mut Value) {
    let operations = document.pointer("/paths").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let operations = operations.filter_map(Value::as_object).flat_map(Map::values);
    let on_sockets = reference(ON_SOCKETS);
    let responses = operations.filter_map(|operation| operation.get("responses")).chain([&on_sockets]);
    let answered = reachable(document, responses.collect());
    let Some(schemas) = members(document, "/components/schemas") else { return };
    for schema in schemas.iter_mut().filter(|(name, _)| answered.contains(*name)).map(|(_, schema)| schema) {
        visit(schema, &mut |object| {
            let required = object.get("required").cloned().unwrap_or_default();
            let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
            for (name, property) in properties {
                if required.as_array().is_none_or(|names| !names.contains(&json!(name))) {
                    deny_null(property);
                }
            }
        });
    }
}

pub(super) fn deny_null(property: &mut Value) {
    let null = json!({ "type": "null" });
    if let Some([form, other]) = property.get("oneOf").and_then(Value::as_array).map(Vec::as_slice)
        && *other == null
    {
        *property = form.clone();
    }
    if let Some(kind) = property.get_mut("type")
        && let Some([form, Value::String(other)]) = kind.as_array().map(Vec::as_slice)
        && other == "null"
    {
        *kind = form.clone();
    }
}

/// Gives the fields that hold a time, `at`, `since` and `*_at`, the format of RFC 3339.
fn mark_times(object: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
    for (_, property) in properties.iter_mut().filter(|(name, _)| *name == "at" || *name == "since" || name.ends_with("_at")) {
        let is_text = property.get("type").is_some_and(|kind| kind == "string" || *kind == json!(["string", "null"]));
        if let Some(property) = property.as_object_mut().filter(|_| is_text) {
            property.insert("format".to_owned(), json!("date-time"));
        }
    }
}

/// Joins the lines of each paragraph of a description, which were broken for the source.
fn join_lines(object: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
}

/// Returns the names of all schemas to which `roots` lead, also through shared responses and bodies.
fn reachable<'a>(document: &'a Value, mut roots: Vec<&'a Value>) -> BTreeSet<String> {
    let mut targets = BTreeSet::new();
    while let Some(value) = roots.pop() {
        match value {
            Value::Object(object) => {
                let target = object.get("$ref").and_then(Value::as_str).filter(|target| targets.insert(*target));
                roots.extend(target.and_then(|target| document.pointer(target.trim_start_matches('#'))));
                roots.extend(object.values());
            }
            Value::Array(items) => roots.extend(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    targets.into_iter().filter_map(|target| Some(target.strip_prefix(SCHEMAS)?.to_owned())).collect()
}
