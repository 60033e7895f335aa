//! The protocols of other products, each in a folder of its own. A new protocol needs a folder and an entry in each list here.

use crate::http::api_router::ApiRouter;
use crate::http::options::Protocol;
use crate::http::{ag_ui, ai_sdk, mcp_server, openai};

pub(in crate::http) const ALL: &[Protocol] = &[openai::PROTOCOL, ai_sdk::PROTOCOL, mcp_server::PROTOCOL];

/// The routes of all protocols, which require a key.
pub(in crate::http) fn routes() -> ApiRouter {
    openai::routes().merge(ai_sdk::routes()).merge(ag_ui::routes()).merge(mcp_server::routes())
}

/// The WebSockets of all protocols, whose handlers check the key.
pub(in crate::http) fn sockets() -> ApiRouter {
    openai::socket_routes().merge(ai_sdk::socket_routes())
}
