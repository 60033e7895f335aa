//! The API document, generated from the code.
//!
//! utoipa describes each handler and each type on its own. [`operations`] adds the rules of all operations. [`schemas`] gives the
//! types the names and forms from which generators make typed clients.

mod examples;
mod operations;
mod protocols;
mod schemas;

use std::sync::LazyLock;

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, RefOr, Schema, Server};

use super::routes;
use crate::domain::event::EventBody;
use crate::domain::problem::ProblemBody;
use crate::domain::run::Run;
use crate::http::streams::preferred_response::run_or_stream_response;
use crate::http::streams::render::{OwnerEvent, StreamEnvelope, StreamEvent};
use crate::http::wire::types::{AcceptedBody, EventEnvelope};

const DESCRIPTION: &str = "An API for runs of agents: send a message, then read the run's events live or later. Errors are problem \
     details (RFC 9457) with a stable `code`; `/docs/errors/{code}` explains each. A POST accepts an `Idempotency-Key`, unless its \
     description says that each request counts. A request for a host that the server does not answer for gets 421.";

const TAGS: [(&str, &str); 14] = [
    ("runs", "Start, follow, explain, cancel and repeat runs. Answer their questions."),
    ("conversations", "Conversations, their messages and their event logs."),
    ("files", "Files to which messages refer."),
    ("feedback", "Ratings of answers, and their review."),
    ("agents", "Agents in versions: stored, built-in and configured."),
    ("approvals", "Approvals of tool calls, and grants for later calls."),
    ("providers", "Model providers, their models and their logins."),
    ("mcp-servers", "MCP servers: entries, processes, logins and contents."),
    ("tools", "The tools on offer, and reviews of changed tool definitions."),
    ("streams", "Tickets for browsers, and the WebSocket."),
    ("users", "The caller's account, users and their keys, and sign-in of browsers."),
    ("usage", "Tokens and costs by day, owner and model."),
    ("audit", "The outcomes of all tool calls."),
    ("system", "Health and metrics. These operations need no key."),
];

pub fn openapi() -> Value {
    let mut document = serde_json::to_value(routes::documented().document(base())).unwrap_or_default();
    operations::complete(&mut document);
    schemas::complete(&mut document);
    document
}

pub fn openapi_json() -> String {
    static JSON: LazyLock<String> =
        LazyLock::new(|| serde_json::to_string_pretty(&openapi()).map(|json| json + "\n").unwrap_or_default());
    JSON.clone()
}

pub fn protocols_json() -> String {
    static JSON: LazyLock<String> =
        LazyLock::new(|| serde_json::to_string_pretty(&protocols::document()).map(|json| json + "\n").unwrap_or_default());
    JSON.clone()
}

/// Returns a document for a server whose URL has the path `path_prefix`, if it is not empty.
pub(crate) fn served_under(path_prefix: &str, json: String) -> String {
    if path_prefix.is_empty() {
        return json;
    }
    let mut document: Value = serde_json::from_str(&json).unwrap_or_default();
    document["servers"] = json!([{ "url": path_prefix }]);
    serde_json::to_string_pretty(&document).unwrap_or_default()
}

/// Returns a document that has no paths yet. Its operations need a key.
fn without_paths(info: InfoBuilder, tags: &[(&str, &str)], components: ComponentsBuilder) -> OpenApi {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key")).build();
    OpenApiBuilder::new()
        .info(info.build())
        .servers(Some([Server::new("/")]))
        .tags(Some(tags.iter().map(|(name, text)| TagBuilder::new().name(*name).description(Some(*text)).build())))
        .security(Some([SecurityRequirement::new("key", Vec::<String>::new())]))
        .components(Some(components.security_scheme("key", SecurityScheme::Http(bearer)).build()))
        .build()
}

fn base() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Capstan")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(License::new("Apache-2.0")));
    let components = ComponentsBuilder::new()
        .responses_from_iter([run_or_stream_response(&Run::name()), run_or_stream_response(&AcceptedBody::name())])
        // No handler names these in its attributes.
        .schemas_from_iter(with_references::<ProblemBody>())
        .schemas_from_iter(with_references::<AcceptedBody>())
        .schemas_from_iter(with_references::<EventBody>())
        .schemas_from_iter(with_references::<EventEnvelope>())
        .schemas_from_iter(with_references::<StreamEvent>())
        .schemas_from_iter(with_references::<StreamEnvelope>())
        .schemas_from_iter(with_references::<OwnerEvent>());
    without_paths(info, &TAGS, components)
}

/// Returns the schema of a type, and of all types to which it refers.
fn with_references<T: ToSchema>() -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    schemas
}
