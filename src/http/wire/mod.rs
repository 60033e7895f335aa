//! The shared parts of requests and responses: extractors, lists, entity tags, idempotency keys, errors. Must not import a
//! resource.

pub(super) mod auth;
pub(super) mod conversation_status;
pub(super) mod etag;
pub(super) mod extract;
pub(super) mod idempotency_header;
pub(super) mod links;
pub(super) mod page;
pub(super) mod problem;
pub(super) mod request;
pub(super) mod responses;
pub(super) mod scope;
pub(super) mod types;
