//! The store on SQLite: one server process, one writer connection, a few readers.
//!
//! Owns the database file and its lock file. Every write is one `BEGIN IMMEDIATE` transaction on the one writer, so what a
//! transaction has read cannot change under it: fences and guards are read, tested and written without row locks. Statements
//! are few, because each of them crosses a channel to the connection's thread; many rows go in as one JSON array. Must not
//! know why anything is written.

/// The database's clock in milliseconds, as an SQL expression: the only clock that leases and timers are decided by.
macro_rules! now {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

mod apply;
mod audit;
mod batch;
mod clock;
mod clones;
pub(super) mod connection;
mod delete;
mod load;
mod log;
mod per_backend;
mod queue;
mod store;

pub use connection::SqliteStore;
