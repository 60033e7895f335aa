//! The HTTP layer: the native API, the APIs of other protocols, event streams, WebSockets, and the OpenAPI documents.
//!
//! Owns everything that is specific to HTTP and nothing else: each handler parses the request, calls use cases of
//! [`crate::service`] and builds the response. Must not know the store or the engine.

mod ag_ui;
mod ai_sdk;
mod api_router;
mod clients;
mod mcp_server;
mod metrics;
mod openai;
mod openapi;
mod options;
mod protocols;
mod router;
mod routes;
mod streams;
mod system;
mod ui;
mod v1;
mod wire;

pub use openapi::{openapi, openapi_json, protocols_json};

pub use options::{Auth, HttpLimits, HttpOptions};

pub use wire::request::ExcessConnection;

pub use router::{router, system_router};
