//! The store on Postgres: any number of server processes on one database.
//!
//! Owns the connection pools. Must not know why anything is written.
//!
//! **Locks.** The row of a conversation in `conversation_heads` stands for all that happens to the conversation's runs: whoever
//! changes a run locks the head first, then runs, then leases; heads in the order of conversation ids, leases in the order of
//! run ids. The claim and the sweep, which start from runs and leases, take every lock with SKIP LOCKED and so never wait while
//! they hold one. What still deadlocks (two nodes that both believe to hold the same runs) is found by Postgres, rolled back
//! and tried again.
//!
//! **Snapshots.** In READ COMMITTED a statement that waited for a lock still sees other tables as they were when it began. So
//! whatever is decided from rows that the head protects is read by a statement of its own after the lock was taken.

pub(super) mod accept;
mod accept_alone;
pub(super) mod answer;
mod cancel;
mod clones;
mod commit;
pub(super) mod connect;
pub(super) mod conversations;
mod delete;
pub(super) mod errors;
mod files;
mod fold;
mod idempotency;
mod kept;
mod load;
mod log;
mod low_water;
mod migrate;
mod notify;
mod per_backend;
mod queue;
pub(super) mod resume;
mod retention;
mod runs;
mod statement;
mod store;

pub use connect::{PostgresOptions, PostgresStore, REQUEST_TIMEOUT};
pub use notify::{Merger, Notice, PgNotifier};
