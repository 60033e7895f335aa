//! The table of documented routes, by their authentication.

use crate::http::api_router::{ApiRouter, routes};
use crate::http::streams::{tickets, ws};
use crate::http::system;
use crate::http::v1::access::{keys, logins, mcp_logins, me, sessions, users};
use crate::http::v1::{
    agents, approvals, audit, conversations, export, feedback, files, fork, import, mcp_servers, providers, questions, rewind,
    runs, search, settings, shares, tool_reviews, usage,
};

/// The routes that require a key.
pub(in crate::http) fn with_key() -> ApiRouter {
    ApiRouter::new()
        .routes(routes!(runs::start, runs::list))
        .routes(routes!(runs::list_of_conversation))
        .routes(routes!(runs::get))
        .routes(routes!(runs::explain))
        .routes(routes!(runs::step_request))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::resume))
        .routes(routes!(runs::retry))
        .routes(routes!(runs::store_results))
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
        .routes(routes!(settings::list))
        .routes(routes!(fork::fork))
        .routes(routes!(import::import))
        .routes(routes!(rewind::rewind))
        .routes(routes!(rewind::edit))
        .routes(routes!(export::export))
        .routes(routes!(shares::create, shares::list))
        .routes(routes!(shares::list_all))
        .routes(routes!(shares::revoke))
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
        .routes(routes!(me::get, me::update))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(users::list))
        .routes(routes!(users::update))
        .routes(routes!(usage::list))
        .routes(routes!(questions::list))
        .routes(routes!(questions::get, questions::answer))
        .routes(routes!(providers::create, providers::list))
        .routes(routes!(providers::get, providers::update, providers::delete))
        .routes(routes!(providers::models))
        .routes(routes!(providers::all_models))
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
        .routes(routes!(tool_reviews::list))
        .routes(routes!(tool_reviews::accept))
        .routes(routes!(system::tools))
}

/// The routes of event streams, which accept a key or a ticket in the URL.
pub(in crate::http) fn with_key_or_ticket() -> ApiRouter {
    ApiRouter::new().routes(routes!(runs::events)).routes(routes!(conversations::events))
}

/// The routes that need no authentication.
pub(in crate::http) fn without_key() -> ApiRouter {
    ApiRouter::new().routes(routes!(system::healthz)).routes(routes!(system::readyz)).routes(routes!(system::metrics))
}

/// The WebSocket, shared conversations, the sign-in of browsers and the callbacks of logins. Their handlers check the caller.
pub(in crate::http) fn with_own_check() -> ApiRouter {
    ApiRouter::new()
        .routes(routes!(ws::connect))
        .routes(routes!(shares::read))
        .routes(routes!(sessions::begin, sessions::end))
        .routes(routes!(logins::finish))
        .routes(routes!(mcp_logins::finish))
}

pub(in crate::http) fn documented() -> ApiRouter {
    with_key().merge(with_key_or_ticket()).merge(with_own_check()).merge(without_key())
}
