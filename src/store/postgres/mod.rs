//! The store on Postgres: any number of server processes on one database.
//!
//! Owns the connection pools. Must not know why anything is written.
//!
//! **Locks.** The row of a conversation in `conversation_heads` protects the conversation's runs. A transaction that changes a run
//! locks the head first, then runs, then leases; heads in the order of conversation ids, leases in the order of run ids. The claim
//! and the sweep, which start from runs and leases, take every lock with SKIP LOCKED and so never wait while they hold one. Postgres
//! finds the other deadlocks (two nodes that both believe to hold the same runs) and rolls one transaction back, which is retried.
//!
//! **Snapshots.** In READ COMMITTED a statement that waited for a lock still sees other tables as they were when it began. So
//! rows that the head protects are read by a statement of its own after the lock was taken.

mod accept;
mod accept_alone;
pub(super) mod answer;
mod clones;
mod commit;
pub(super) mod connect;
mod connection_cache;
mod delete;
pub(super) mod errors;
mod fold;
mod load;
mod low_water;
mod migrate;
mod notify;
mod per_backend;
mod queue;
mod settle;
mod statement;
mod store;

pub use connect::PostgresStore;
pub use notify::{Merger, Notice, PgNotifier};
