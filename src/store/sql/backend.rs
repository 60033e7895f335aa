//! `Backend`: the interface between the aggregates in `sql` and the two stores.
//!
//! Owns which pool serves which caller. Must not know any table.

use super::database::Database;
use crate::store::postgres::connect::PostgresStore;
use crate::store::sqlite::connection::SqliteStore;

/// A store with a database. Every aggregate trait in `sql` is implemented for it.
pub trait Backend: Send + Sync {
    /// Returns the database for requests, whose clients wait.
    fn database(&self) -> Database<'_>;

    /// Returns the database for background work, which may take longer.
    fn maintenance_database(&self) -> Database<'_> {
        self.database()
    }

    /// Returns the database for workers, whose leases depend on its answers.
    fn worker(&self) -> Database<'_> {
        self.database()
    }
}

impl Backend for PostgresStore {
    fn database(&self) -> Database<'_> {
        Database::Postgres(&self.api)
    }

    fn maintenance_database(&self) -> Database<'_> {
        Database::Postgres(&self.chores)
    }

    fn worker(&self) -> Database<'_> {
        Database::Postgres(&self.worker)
    }
}

impl Backend for SqliteStore {
    fn database(&self) -> Database<'_> {
        Database::Sqlite(self)
    }
}
