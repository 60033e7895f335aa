//! The resources of `/api/v1`, one file each: bodies and handlers. A handler parses the request and calls one use case.

pub(super) mod agents;
pub(super) mod approvals;
pub(super) mod audit;
pub(super) mod conversations;
pub(super) mod export;
pub(super) mod feedback;
pub(super) mod files;
pub(super) mod fork;
pub(super) mod import;
pub(super) mod logins;
pub(super) mod mcp_logins;
pub(super) mod mcp_servers;
pub(super) mod pins;
pub(super) mod providers;
pub(super) mod questions;
pub(super) mod rewind;
pub(super) mod runs;
pub(super) mod search;
pub(super) mod usage;
