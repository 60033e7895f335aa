//! The meaning of providers' errors, by the tables of the catalogue: classes, refused parts, refused tools, secrets to redact.

pub(super) mod facts;
pub(super) mod failure;
pub(super) mod refusals;
pub(super) mod secrets;
pub(super) mod vendors;
