//! The OpenAI API under `/v1`: models, chat completions, responses, conversations, embeddings and files.
//!
//! Each request becomes a use case of the service, and each answer of a run is a pure function of its events. Owns the names and forms of
//! OpenAI. Must not keep any state beside the log.

mod chat;
mod content;
mod embeddings;
mod error;
mod events;
mod files;
mod ids;
mod models;
mod responses;
mod target;

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::openai::responses::{conversations, input_items};
use crate::http::options::{App, Protocol};

pub(in crate::http) const PROTOCOL: Protocol = Protocol { prefix: "/v1", error: error::envelope };

pub(in crate::http) fn routes() -> OpenApiRouter<App> {
    requests()
        .route("/v1/openapi.json", axum::routing::get(document))
        .route("/v1/models/{provider}/{*model}", axum::routing::get(models::get_of_provider))
}

/// The WebSocket, which authenticates by itself.
pub(in crate::http) fn socket_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(responses::socket::connect))
}

fn requests() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(models::list))
        .routes(routes!(models::get))
        .routes(routes!(chat::create))
        .routes(routes!(embeddings::create))
        .routes(routes!(responses::create))
        .routes(routes!(responses::get, responses::delete))
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

/// Returns the document of these routes, which never changes while the process runs.
pub fn openapi_json() -> String {
    static JSON: LazyLock<String> = LazyLock::new(|| {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key")).build();
        let components = ComponentsBuilder::new().security_scheme("key", SecurityScheme::Http(bearer)).build();
        let info = InfoBuilder::new().title("Capstan: OpenAI API").version(env!("CARGO_PKG_VERSION"));
        let base = OpenApiBuilder::new()
            .info(info.build())
            .components(Some(components))
            .security(Some([SecurityRequirement::new("key", Vec::<String>::new())]));
        let document = OpenApiRouter::with_openapi(base.build()).merge(requests()).merge(socket_routes()).split_for_parts().1;
        serde_json::to_string_pretty(&document).map(|json| json + "\n").unwrap_or_default()
    });
    JSON.clone()
}

async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], openapi_json())
}
