//! The native HTTP API: routes, extractors, problem details, event streams, WebSocket, and the document that describes them.
//!
//! Owns what is particular to HTTP and nothing else: each handler takes a request apart, calls one use case of
//! [`crate::service`] and puts the answer together. Must not know the store or the loop.

mod metrics;
mod openapi;
mod options;
mod router;
mod routes;
mod streams;
mod system;
mod ui;
mod v1;
mod wire;

pub use openapi::{openapi, openapi_json};

pub use options::{Auth, HttpLimits, HttpOptions};

pub use wire::request::OneTooMany;

pub use router::{router, system_router};
