//! The router: all routes and the layers around them.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LOCATION, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, LINK,
    LOCATION, RETRY_AFTER,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa_swagger_ui::{Config, SwaggerUi, Url};

use crate::domain::problem::ProblemCode;
use crate::http::options::{App, HttpOptions};
use crate::http::wire::problem::Problem;
use crate::http::wire::{auth, links, request};
use crate::http::{openapi, protocols, routes, system, ui};
use crate::service::Service;

pub fn router(service: Arc<Service>, options: HttpOptions) -> Router {
    let cors = cors(&options.cors_origins);
    let page = if options.page { ui::routes() } else { Router::new() };
    let app = App { service, options: Arc::new(options), protocols: protocols::ALL, sockets: Arc::default() };
    let api = routes::with_key().into_router();
    let streams = routes::with_key_or_ticket().into_router();
    let open = routes::without_key().merge(routes::with_own_check()).into_router();
    let (requests, sockets) = (protocols::routes().into_router(), protocols::sockets().into_router());
    let documents = [Url::new("API", "../openapi.json"), Url::new("Other protocols", "../openapi/protocols.json")];
    let swagger: Router<App> = SwaggerUi::new("/docs").config(Config::new(documents)).into();
    Router::new()
        .merge(api.route_layer(from_fn_with_state(app.clone(), auth::require)))
        .merge(requests.route_layer(from_fn_with_state(app.clone(), auth::require)))
        .merge(streams.route_layer(from_fn_with_state(app.clone(), auth::require_or_ticket)))
        .merge(sockets)
        .merge(open)
        .route("/openapi.json", get(async |State(app): State<App>| document(&app, openapi::openapi_json())))
        .route("/openapi/protocols.json", get(async |State(app): State<App>| document(&app, openapi::protocols_json())))
        .route("/docs/errors/{code}", get(system::error_page))
        .merge(swagger)
        .merge(page)
        .layer(from_fn(request::decode_body))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(request::admit))
        .layer(cors)
        .layer(from_fn_with_state(app.clone(), request::finish))
        // Last, because `finish` writes the problems.
        .layer(from_fn_with_state(app.clone(), links::add_prefix))
        .with_state(app)
}

/// Returns the router of a process with the role `worker`: health and metrics only.
pub fn system_router(service: Arc<Service>, options: HttpOptions) -> Router {
    let app = App { service, options: Arc::new(options), protocols: protocols::ALL, sockets: Arc::default() };
    let open = routes::without_key().into_router();
    open.layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(request::admit))
        .layer(from_fn_with_state(app.clone(), request::finish))
        .with_state(app)
}

fn document(app: &App, json: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::served_under(app.options.path_prefix(), json)).into_response()
}

fn panicked(_panic: Box<dyn std::any::Any + Send>) -> Response {
    // The panic hook has logged the location and the cause.
    Problem::new(ProblemCode::Internal, "internal error; the server's log contains the cause under this request_id").into_response()
}

/// Allows calls from pages of the configured origins. Pages of other origins cannot read a response.
fn cors(origins: &[String]) -> CorsLayer {
    let origins = origins.to_vec();
    let is_allowed = move |origin: &HeaderValue, _: &Parts| origins.iter().any(|allowed| *origin == allowed.as_str());
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods([Method::GET, Method::POST, Method::PATCH, Method::DELETE])
        .allow_headers([
            ACCEPT,
            AUTHORIZATION,
            CONTENT_ENCODING,
            CONTENT_TYPE,
            IF_MATCH,
            IF_NONE_MATCH,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static("last-event-id"),
            HeaderName::from_static("mcp-method"),
            HeaderName::from_static("mcp-name"),
            HeaderName::from_static("mcp-protocol-version"),
            HeaderName::from_static("mcp-session-id"),
            HeaderName::from_static("prefer"),
            HeaderName::from_static("share-token"),
            HeaderName::from_static("traceparent"),
            HeaderName::from_static("x-request-id"),
            // TanStack AI sends it with each request.
            HeaderName::from_static("x-run-id"),
        ])
        .expose_headers([
            LOCATION,
            CONTENT_LOCATION,
            ETAG,
            LINK,
            RETRY_AFTER,
            HeaderName::from_static("mcp-session-id"),
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("idempotent-replayed"),
        ])
}
