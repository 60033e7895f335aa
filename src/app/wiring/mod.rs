//! Builds the parts of a process from its settings.

pub(super) mod clients;
pub(super) mod parts;
pub(super) mod reading;
pub(super) mod records;
pub(super) mod secrets;
pub(super) mod servers;
