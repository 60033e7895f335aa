//! How a store is opened, on either database.
//!
//! Owns the options and their defaults. Must not know how a store is opened.

use std::time::Duration;

use super::OnCopy;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// SQLite: whether this process is the one server of the data folder. A command that only writes a row or two opens
    /// with `false`, beside a running server.
    pub exclusive: bool,
    /// SQLite: what a commit survives.
    pub durability: Durability,
    /// Postgres: connections for requests and the log writer together. Leases have connections of their own beside them.
    pub max_connections: u32,
    /// Postgres: the longest wait of a request for a connection, free or new, and for a database that answers no caller. Then the
    /// call fails as unavailable, so that a client knows within two seconds that the database is gone. Workers wait longer.
    pub request_timeout: Duration,
    /// Runs of one owner that workers have at a time, in all processes together; the others wait in the queue. 0 for no limit.
    /// All processes of a database should agree on it.
    pub max_running_per_owner: u32,
    /// How a database is treated that looks like a copy.
    pub on_copy: OnCopy,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            exclusive: true,
            durability: Durability::default(),
            max_connections: 16,
            request_timeout: Duration::from_millis(1_500),
            max_running_per_owner: 0,
            on_copy: OnCopy::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Also a loss of power: every commit waits for the disk.
    #[default]
    Full,
    /// A crash of the process, but not of the machine: the newest commits may be gone after a loss of power. Faster.
    Normal,
}
