//! How a store is opened, on either database.

use std::time::Duration;

use super::OnClone;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// SQLite: whether this process is the server of the data folder. A command that only writes a few rows opens with `false`,
    /// while a server may be running.
    pub exclusive: bool,
    /// SQLite: the failures that a commit survives.
    pub durability: Durability,
    /// Postgres: connections for requests, workers and the log writer together, at least four. Leases have separate connections.
    pub max_connections: u32,
    /// Postgres: time limit of a request for a free or new connection, and for any answer of the database to any caller. After it,
    /// the call fails as unavailable, so that a client gets an error within two seconds. Workers wait longer.
    pub request_timeout: Duration,
    /// Postgres: whether a pooler in transaction mode is in front of the database; detected if absent.
    pub pooler: Option<bool>,
    /// Limit of an owner's runs that workers hold at a time, in all processes together. Other runs wait in the queue. 0 for no
    /// limit. All processes of a database should use the same value.
    pub max_running_per_owner: u32,
    /// The treatment of a database that seems to be a copy.
    pub on_clone: OnClone,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            exclusive: true,
            durability: Durability::default(),
            max_connections: 16,
            request_timeout: Duration::from_millis(1_500),
            pooler: None,
            max_running_per_owner: 0,
            on_clone: OnClone::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Survives a loss of power: every commit waits for the disk.
    #[default]
    Full,
    /// Survives a crash of the process, but not of the machine: a loss of power may lose the newest commits. Faster.
    Normal,
}
