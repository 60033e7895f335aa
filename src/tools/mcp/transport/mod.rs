//! Connections to MCP servers: stdio, Streamable HTTP and SSE. Must not know runs, or which server is needed.

pub(super) mod connection;
#[cfg(test)]
pub(super) mod connection_tests;
pub(super) mod controlled_transport;
pub(super) mod ending;
pub(super) mod endpoint;
pub(super) mod flood_limits;
pub(super) mod handler;
pub(super) mod http_status;
pub(super) mod remote;
pub(super) mod sse;
pub(super) mod stdio;
