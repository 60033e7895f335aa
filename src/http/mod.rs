//! The native HTTP API: routes, extractors, problem details, event streams, WebSocket, and the document that describes them.
//!
//! Owns what is particular to HTTP and nothing else: each handler takes a request apart, calls one use case of
//! [`crate::service`] and puts the answer together. Must not know the store or the loop.

mod agents;
mod answer;
mod approvals;
mod audit;
mod auth;
mod conversations;
mod delivery;
mod etag;
mod export;
mod extract;
mod feedback;
mod files;
mod fork;
mod framing;
mod idempotency;
mod import;
mod logins;
mod mcp_logins;
mod mcp_servers;
mod metrics;
mod openapi;
mod options;
mod page;
mod pins;
mod problem;
mod providers;
mod questions;
mod request;
mod rewind;
mod router;
mod routes;
mod runs;
mod scope;
mod search;
mod status_words;
mod streams;
mod system;
mod tickets;
mod types;
mod ui;
mod usage;
mod wire;
mod ws;

pub use openapi::{openapi, openapi_json};

pub use options::{Auth, HttpLimits, HttpOptions};

pub use request::OneTooMany;

pub use router::{router, system_router};
