//! The parts of a request that several dialects share: messages, schemas, quirks, and parts that were refused before.

pub(super) mod adapt;
pub(super) mod compose;
pub(super) mod quirk_forms;
pub(super) mod quirks;
pub(super) mod schema;
