//! The store on Postgres: any number of server processes on one database.
//!
//! Owns the connection pools. Must not know why anything is written.
//!
//! **Locks.** The row of a conversation in `conversation_heads` protects the conversation's runs. A transaction that changes a run
//! locks heads first, then runs, then leases: heads ordered by conversation id, leases by run id. The claim and the sweep start
//! from runs and leases. They take every lock with SKIP LOCKED, so they never wait while they hold one. Postgres detects the
//! remaining deadlocks (two nodes that both believe they hold the same runs) and rolls one transaction back, which is retried.
//!
//! **Snapshots.** In READ COMMITTED, a statement that waited for a lock sees other tables as they were when it began. So rows that
//! the head protects are read by a separate statement after the lock.

mod accept;
mod accept_idle;
mod activate_next_run;
mod backend;
mod clone_detection;
mod commit;
pub(super) mod connect;
mod connection_cache;
mod delete;
pub(super) mod errors;
mod load;
mod low_water_marks;
mod maintenance;
mod merged_batch;
mod migrate;
mod notify;
mod queue;
mod statement;
pub(super) mod timeouts;

pub use connect::PostgresStore;
pub use notify::{Notice, NotificationBatch, PgNotifier};
