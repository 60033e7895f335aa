//! The API document, generated from the code.

use std::sync::LazyLock;

use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, License, ObjectBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    ResponseBuilder,
};
use utoipa::{PartialSchema as _, ToSchema as _};
use utoipa_axum::router::OpenApiRouter;

use super::routes;
use crate::domain::problem::{FieldError, ProblemBody};

pub fn openapi() -> OpenApi {
    let mut document = OpenApiRouter::with_openapi(base()).merge(routes::all()).split_for_parts().1;
    for item in document.paths.paths.values_mut() {
        let operations = [
            (HttpMethod::Get, &mut item.get),
            (HttpMethod::Post, &mut item.post),
            (HttpMethod::Patch, &mut item.patch),
            (HttpMethod::Delete, &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                add_problems(&method, operation);
            }
        }
    }
    document
}

pub fn openapi_json() -> String {
    static JSON: LazyLock<String> = LazyLock::new(|| openapi().to_pretty_json().map(|json| json + "\n").unwrap_or_default());
    JSON.clone()
}

fn base() -> OpenApi {
    let description = "An API for runs of agents: send a message, then read the run's events live or later. Errors are problem details \
         (RFC 9457) with a stable `code`; `/docs/errors/{code}` explains each. A POST accepts an `Idempotency-Key`, unless its description \
         says that each request counts.";
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key")).build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Capstan")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(description))
                .license(Some(License::new("Apache-2.0")))
                .build(),
        )
        .components(Some(
            ComponentsBuilder::new()
                .security_scheme("key", SecurityScheme::Http(bearer))
                .schema(ProblemBody::name(), ProblemBody::schema())
                .schema(FieldError::name(), FieldError::schema())
                .build(),
        ))
        .build()
}

/// POSTs that are executed at each request and ignore the `Idempotency-Key`. Their responses hold secrets that are not stored, or
/// they act on or inspect the current state. Their descriptions say so.
const NEVER_REPLAYED: [&str; 8] = [
    "create_stream_ticket",
    "upload_file",
    "begin_mcp_server_login",
    "begin_openrouter_login",
    "start_mcp_server",
    "stop_mcp_server",
    "restart_mcp_server",
    "test_provider",
];

/// Adds the errors that follow from the method of an operation and from its security.
fn add_problems(method: &HttpMethod, operation: &mut Operation) {
    let is_open = operation.security.is_some();
    let mut problems = vec![(421, "This server does not answer for that host"), (500, "Our fault"), (503, "Not at the moment")];
    if !is_open {
        operation.security = Some(vec![SecurityRequirement::new("key", Vec::<String>::new())]);
        problems.extend([
            (400, "The request is not valid"),
            (401, "No valid key"),
            (403, "Not allowed"),
            (404, "No such thing, or somebody else's"),
            (406, "The wanted media type cannot be produced"),
        ]);
    }
    if matches!(method, HttpMethod::Post | HttpMethod::Patch) {
        problems.extend([
            (408, "The body took too long to arrive"),
            (409, "The state does not allow it"),
            (413, "The body is too large"),
            (415, "The body is not application/json, or has an unknown content-encoding"),
            (422, "The Idempotency-Key was used with another request"),
            (429, "Too much at a time"),
        ]);
    }
    let is_replayed = operation.operation_id.as_deref().is_none_or(|id| !NEVER_REPLAYED.contains(&id));
    if *method == HttpMethod::Post && is_replayed {
        let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(255));
        let header = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .description(Some("Makes repeating the request safe for 24 hours"))
            .schema(Some(text))
            .build();
        operation.parameters.get_or_insert_default().push(RefOr::T(header));
    }
    for (status, description) in problems {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemBody"))).build();
        let response = ResponseBuilder::new().description(description).content("application/problem+json", content).build();
        operation.responses.responses.entry(status.to_string()).or_insert(RefOr::T(response));
    }
}
