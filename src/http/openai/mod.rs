//! The OpenAI API under `/v1`: models, chat completions, responses, conversations, embeddings and files.
//!
//! Each request becomes a use case of the service, and each answer of a run is a pure function of its events. Owns the names and
//! forms of OpenAI. Must not keep any state beside the log.

mod chat;
mod client_disconnect;
mod content;
mod embeddings;
mod error;
mod events;
mod files;
mod ids;
mod models;
mod responses;
mod target;
mod tool_choice;

use crate::http::api_router::{ApiRouter, routes};
use crate::http::openai::responses::{conversations, deletion, input_items};
use crate::http::options::Protocol;

pub(in crate::http) const PROTOCOL: Protocol = Protocol { prefix: "/v1", error: error::envelope };

/// Returns the route of the WebSocket, whose handler checks the key.
pub(in crate::http) fn socket_routes() -> ApiRouter {
    ApiRouter::new().routes(routes!(responses::socket::connect))
}

pub(in crate::http) fn routes() -> ApiRouter {
    ApiRouter::new()
        .routes(routes!(models::list))
        .routes(routes!(models::get))
        .undocumented_route("/v1/models/{provider}/{*model}", axum::routing::get(models::get_of_provider))
        .routes(routes!(chat::create))
        .routes(routes!(embeddings::create))
        .routes(routes!(responses::create))
        .routes(routes!(responses::get, deletion::delete))
        .routes(routes!(responses::cancel))
        .routes(routes!(input_items::list))
        .routes(routes!(conversations::create))
        .routes(routes!(conversations::get, conversations::update, conversations::delete))
        .routes(routes!(conversations::list_items, conversations::create_items))
        .routes(routes!(conversations::get_item, conversations::delete_item))
        .routes(routes!(files::upload, files::list))
        .routes(routes!(files::get, files::delete))
        .routes(routes!(files::content))
}
