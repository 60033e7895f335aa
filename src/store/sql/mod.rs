//! Aggregates that are written once for Postgres and SQLite.
//!
//! Owns the statements of these aggregates, and the layer on which they are written. Must not know why anything is written.
//!
//! # How an aggregate is written
//!
//! - `store/<aggregate>.rs` holds the trait and its values, without statements. Readers that several aggregates
//!   share are in `store/rows.rs`.
//! - `store/sql/<aggregate>.rs` holds the statements, how rows become values, and `impl<B: Backend> Trait for B`, which makes
//!   both stores implement the trait.
//!
//! # How a method is added
//!
//! 1. The method, in the trait.
//! 2. Its statement, in the [`statements!`](statement::statements) block of `sql/<aggregate>.rs`, and its body in the `impl`.
//! 3. A contract test in `tests/it/store/<aggregate>.rs`, which runs on both databases.
//!
//! `tests/it/store/statements.rs` prepares every statement on both databases. A new module is added to `registry.rs`.
//!
//! # Rules for statements
//!
//! - Parameters are `$1`, `$2` in both dialects. A parameter that is only compared with NULL is written `CAST($1 AS text)`:
//!   Postgres must know its type. `$1::text` is not SQL for SQLite.
//! - Text columns are ordered by bytes in both databases, by the collation of the column.
//! - A text is static, so that each connection keeps it prepared. A filter that may be absent is
//!   `(CAST($1 AS text) IS NULL OR owner_id = $1)`.
//! - Integers are read as `i64`.
//! - One statement is a read ([`Database::fetch_all`]) or a write ([`Database::execute`], [`Database::returning`]); several are a
//!   transaction ([`Database::begin`], or [`Database::change`] for a write and a read). [`Database::retry`] runs it again after a
//!   deadlock or a serialization failure. [`Database::once`] also handles an idempotency key, and ends the transaction.
//! - A transaction that returns early ends with [`Transaction::rollback`]: when it is dropped, its connection is closed. After an
//!   error of the database it is over, and nothing is to be done.
//! - Rows that transactions contend for are locked by [`Transaction::lock_head`], or by [`Transaction::lock`] outside of conversations.

mod access;
mod backend;
mod control;
mod conversations;
mod database;
mod idempotency;
mod per_backend;
mod records;
mod registry;
mod row;
mod runs;
mod statement;
mod transaction;
mod value;

pub(super) use backend::Backend;
pub(super) use control::control_signals;
pub(super) use conversations::retention::count_expired;
pub(super) use database::Database;
pub(super) use per_backend::{IdleFor, PerBackend};
pub use registry::statements;
pub(super) use row::Row;
pub(super) use runs::accept::{accept_once, refused_files};
pub(super) use runs::load::{History, record};
pub(super) use runs::new_run::{fresh_counters, fresh_usage, profile_json};
pub use statement::Statement;
pub(super) use statement::piece;
pub(super) use transaction::{PostgresTransaction, Transaction};
pub(super) use value::{Value, values};
