//! Aggregates that are written once for Postgres and SQLite.
//!
//! Owns the statements of these aggregates, and the layer that executes them on either database. Must not know why anything is
//! written.
//!
//! # How an aggregate is written
//!
//! - `store/<group>/<aggregate>.rs` contains its values, without statements, and its trait if it has one. Conversions that several
//!   aggregates share are in `store/rows.rs`.
//! - `store/sql/<group>/<aggregate>.rs` contains the statements, the conversion of rows, and the methods:
//!   `impl dyn RecordStore + '_`, or `impl<B: Backend> Trait for B`. Both serve both stores.
//!
//! # How a method is added
//!
//! 1. Its statement, in the [`statements!`](statement::statements) block of the aggregate's file, and its body in the `impl`.
//! 2. Its signature in the trait, if the aggregate has one.
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
//!   transaction ([`Database::transaction`], or [`Database::change`] for a write and a read). [`Database::retry`] repeats it after
//!   a deadlock or a serialization failure. [`Database::once`] also handles an idempotency key.
//! - A transaction ends with [`Transaction::end`], also after an error: on Postgres, dropping it closes its connection.
//! - [`Transaction::write`] executes a statement whose result is not needed, on SQLite together with others. Do not use it before a
//!   statement whose error has a meaning of its own.
//! - Contended rows are locked by [`Transaction::lock_head`], or by [`Transaction::lock`] outside conversations.

mod access;
mod backend;
mod control_signals;
mod conversations;
mod database;
mod idempotency_keys;
pub(in crate::store) mod pooler;
mod records;
mod registry;
mod row;
pub(super) mod runs;
mod statement;
mod transaction;
mod value;

pub use access::audit::AUDIT_PIECE;
pub(super) use backend::{Backend, IdleAge};
pub(super) use control_signals::control_signals;
pub(super) use conversations::retention::count_expired;
pub(super) use database::Database;
pub(super) use idempotency_keys::{if_fresh, refuse};
pub use registry::all_statements;
pub(super) use row::{Row, the_row};
pub(super) use runs::accept::{accept_once, refused_files};
pub(super) use runs::load::{History, record};
pub(super) use runs::new_run::{fresh_counters, fresh_usage, profile_json};
pub use statement::Statement;
pub(super) use statement::{piece, statements, text};
pub(super) use transaction::{PostgresTransaction, Transaction};
pub(super) use value::{Value, values};
