//! Connections to MCP servers: stdio, Streamable HTTP and SSE.

pub(super) mod attentive;
pub(super) mod connection;
#[cfg(test)]
pub(super) mod connection_tests;
pub(super) mod endpoint;
pub(super) mod handler;
pub(super) mod remote;
pub(super) mod sse;
pub(super) mod statuses;
pub(super) mod stdio;
