//! The resources of `/api/v1`, one file each: bodies and handlers. A handler parses the request and calls use cases.
//!
//! Owns the bodies of requests and responses. Must not know the store.

pub(super) mod access;
pub(super) mod agents;
pub(super) mod approvals;
pub(super) mod audit;
pub(super) mod conversations;
pub(super) mod export;
pub(super) mod feedback;
pub(super) mod files;
pub(super) mod fork;
pub(super) mod import;
pub(super) mod mcp_servers;
pub(super) mod providers;
pub(super) mod questions;
pub(super) mod rewind;
pub(super) mod runs;
pub(super) mod search;
pub(super) mod settings;
pub(super) mod shares;
pub(super) mod tool_reviews;
pub(super) mod usage;
