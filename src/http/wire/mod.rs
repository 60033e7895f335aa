//! The shared parts of requests and answers: extractors, lists, entity tags, idempotency keys, errors. They import no resource.

pub(super) mod answer;
pub(super) mod auth;
pub(super) mod etag;
pub(super) mod extract;
pub(super) mod idempotency;
pub(super) mod page;
pub(super) mod problem;
pub(super) mod request;
pub(super) mod scope;
pub(super) mod status_words;
pub(super) mod types;
