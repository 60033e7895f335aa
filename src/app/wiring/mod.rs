//! Builds the parts of a process from its settings.
//!
//! Chooses the implementation of each trait. Must not know when a part starts or stops.

pub(super) mod file_reader;
pub(super) mod master_keys;
pub(super) mod parts;
pub(super) mod provider_clients;
pub(super) mod provider_records;
pub(super) mod user_servers;
