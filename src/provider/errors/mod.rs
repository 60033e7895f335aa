//! The meaning of providers' errors, by the tables of the catalogue: classes, refused parts, refused tools, and secrets to redact.
//! Must not know what follows from an error.

pub(super) mod facts;
pub(super) mod failure;
pub(super) mod refusals;
pub(super) mod secrets;
