//! All routes, and what surrounds them.

use std::sync::Arc;

use axum::Router;
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
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::options::{App, HttpOptions};
use super::problem::Problem;
use super::{
    agents, approvals, audit, auth, conversations, copies, feedback, files, history, logins, mcp_logins, mcp_servers, openapi,
    pins, providers, questions, request, runs, search, system, tickets, ui, usage, ws,
};
use crate::domain::problem::ProblemCode;
use crate::service::Service;

/// The routes that need a principal, with their descriptions.
fn api() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(runs::start, runs::list))
        .routes(routes!(runs::list_of_conversation))
        .routes(routes!(runs::get))
        .routes(routes!(runs::explain))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::resume))
        .routes(routes!(runs::retry))
        .routes(routes!(runs::get_call))
        .routes(routes!(runs::retry_call))
        .routes(routes!(runs::undo_call))
        .routes(routes!(conversations::create, conversations::list))
        .routes(routes!(conversations::get, conversations::update, conversations::delete))
        .routes(routes!(conversations::messages, conversations::send))
        .routes(routes!(conversations::compact))
        .routes(routes!(files::upload, files::list))
        .routes(routes!(files::get, files::delete))
        .routes(routes!(files::content))
        .routes(routes!(search::messages))
        .routes(routes!(copies::fork))
        .routes(routes!(copies::import))
        .routes(routes!(history::rewind))
        .routes(routes!(history::edit))
        .routes(routes!(history::export))
        .routes(routes!(feedback::give, feedback::withdraw))
        .routes(routes!(feedback::list))
        .routes(routes!(feedback::review))
        .routes(routes!(agents::create, agents::list))
        .routes(routes!(agents::get, agents::update, agents::delete))
        .routes(routes!(agents::versions))
        .routes(routes!(agents::version))
        .routes(routes!(agents::roll_back))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get, approvals::resolve))
        .routes(routes!(approvals::grants))
        .routes(routes!(approvals::revoke))
        .routes(routes!(audit::list))
        .routes(routes!(usage::list))
        .routes(routes!(questions::list))
        .routes(routes!(questions::get, questions::answer))
        .routes(routes!(providers::create, providers::list))
        .routes(routes!(providers::get, providers::update, providers::delete))
        .routes(routes!(providers::models))
        .routes(routes!(providers::test))
        .routes(routes!(mcp_servers::create, mcp_servers::list))
        .routes(routes!(mcp_servers::get, mcp_servers::update, mcp_servers::delete))
        .routes(routes!(mcp_servers::start))
        .routes(routes!(mcp_servers::stop))
        .routes(routes!(mcp_servers::restart))
        .routes(routes!(mcp_servers::tools))
        .routes(routes!(mcp_servers::resources))
        .routes(routes!(mcp_servers::prompts))
        .routes(routes!(mcp_logins::begin, mcp_logins::forget))
        .routes(routes!(mcp_servers::import))
        .routes(routes!(mcp_servers::export))
        .routes(routes!(logins::begin))
        .routes(routes!(tickets::create))
        .routes(routes!(pins::list))
        .routes(routes!(pins::accept))
        .routes(routes!(system::tools))
}

/// The routes of event streams, which a ticket in the URL opens too.
fn streams() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(runs::events)).routes(routes!(conversations::events))
}

/// The routes that anybody may call, with their descriptions.
fn open() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(system::healthz)).routes(routes!(system::readyz)).routes(routes!(system::metrics))
}

/// The WebSocket, and where a browser comes back to from a login: they find out by themselves who calls.
fn socket() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(ws::connect)).routes(routes!(logins::finish)).routes(routes!(mcp_logins::finish))
}

/// All described routes.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base()).merge(api()).merge(streams()).merge(socket()).merge(open())
}

/// The HTTP API over `service`.
pub fn router(service: Arc<Service>, options: HttpOptions) -> Router {
    let cors = cors(&options.cors_origins);
    let page = if options.page { ui::routes() } else { Router::new() };
    let app = App { service, options: Arc::new(options), sockets: Arc::default() };
    let api: Router<App> = api().into();
    let streams: Router<App> = streams().into();
    let open: Router<App> = open().merge(socket()).into();
    let swagger: Router<App> = SwaggerUi::new("/docs").config(Config::from("/openapi.json")).into();
    Router::new()
        .merge(api.route_layer(from_fn_with_state(app.clone(), auth::require)))
        .merge(streams.route_layer(from_fn_with_state(app.clone(), auth::require_or_ticket)))
        .merge(open)
        .route("/openapi.json", get(system::document))
        .route("/docs/errors/{code}", get(system::error_page))
        .merge(swagger)
        .merge(page)
        .layer(from_fn(request::decode_body))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(request::admit))
        .layer(cors)
        .layer(from_fn_with_state(app.clone(), request::finish))
        .with_state(app)
}

/// Health and metrics alone: what a process answers that only works on runs.
pub fn system_router(service: Arc<Service>, options: HttpOptions) -> Router {
    let app = App { service, options: Arc::new(options), sockets: Arc::default() };
    let open: Router<App> = open().into();
    open.layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(request::admit))
        .layer(from_fn_with_state(app.clone(), request::finish))
        .with_state(app)
}

fn panicked(_panic: Box<dyn std::any::Any + Send>) -> Response {
    // The panic hook has written down where and why.
    Problem::new(ProblemCode::Internal, "the server could not do this; its log has the cause under this request_id").into_response()
}

/// Lets pages of the named origins call; with none, no page of another origin can read an answer.
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
            HeaderName::from_static("prefer"),
            HeaderName::from_static("traceparent"),
            HeaderName::from_static("x-request-id"),
        ])
        .expose_headers([
            LOCATION,
            CONTENT_LOCATION,
            ETAG,
            LINK,
            RETRY_AFTER,
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("idempotent-replayed"),
        ])
}
