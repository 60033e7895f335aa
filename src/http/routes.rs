//! The table of described routes, by who may call them.

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::options::App;
use super::{
    agents, approvals, audit, conversations, export, feedback, files, fork, import, logins, mcp_logins, mcp_servers, pins,
    providers, questions, rewind, runs, search, system, tickets, usage, ws,
};

/// The routes that need a principal.
pub(super) fn api() -> OpenApiRouter<App> {
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
        .routes(routes!(fork::fork))
        .routes(routes!(import::import))
        .routes(routes!(rewind::rewind))
        .routes(routes!(rewind::edit))
        .routes(routes!(export::export))
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
pub(super) fn streams() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(runs::events)).routes(routes!(conversations::events))
}

/// The routes that need no authentication.
pub(super) fn open() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(system::healthz)).routes(routes!(system::readyz)).routes(routes!(system::metrics))
}

/// The WebSocket and the callbacks of logins, which authenticate by themselves.
pub(super) fn socket() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(ws::connect)).routes(routes!(logins::finish)).routes(routes!(mcp_logins::finish))
}

pub(super) fn all() -> OpenApiRouter<App> {
    api().merge(streams()).merge(socket()).merge(open())
}
