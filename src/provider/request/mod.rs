//! The parts of a request that several dialects share: messages, schemas and quirks. Must not know how an answer is read.

pub(super) mod quirk_values;
pub(super) mod quirks;
pub(super) mod schema;
pub(super) mod shared_parts;
