//! The store on SQLite: one server process, one writer connection, a few readers.
//!
//! Owns the database file and its lock file. Must not know why anything is written. Every write is one `BEGIN IMMEDIATE`
//! transaction on the only writer, so rows that a transaction has read cannot change during it: fences are read, tested and written
//! without row locks. There are few statements, because each crosses a channel to the connection's thread; many rows are inserted
//! as one JSON array.

/// Composes a text from [pieces](crate::store::sql::piece), such as `now`: leases and timers are decided by that clock only.
macro_rules! sql {
    ($($piece:tt)+) => {
        $crate::store::sql::text!(sqlite: $($piece)+)
    };
}

mod apply_changes;
mod audit;
mod backend;
pub(super) mod batch;
mod clock;
mod clone_detection;
pub(super) mod connection;
mod load;
mod log;
mod maintenance;
mod queue;

pub use connection::SqliteStore;
