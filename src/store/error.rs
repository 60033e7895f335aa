//! What can go wrong in the store, without the words of a database.

/// A failed store call. Absence is not an error (`Option`), nor is losing a race (named outcomes).
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is read-only, full, shutting down, or its pool is exhausted. Worth trying again.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// A deadlock, serialisation failure or lock time-out that persisted over its retries.
    #[error("the database is contended")]
    Contended(#[source] sqlx::Error),
    /// A row holds what this version cannot read.
    #[error("cannot read {column} of {table} row {id}: {reason}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row.
        id: String,
        /// Why.
        reason: String,
    },
    /// A statement failed: our bug.
    #[error("a statement failed")]
    Statement(#[source] sqlx::Error),
    /// The schema could not be brought up to date, or is newer than this program.
    #[error("the database schema cannot be used: {0}")]
    Migration(String),
    /// Another server process holds the data folder.
    #[error("{0}")]
    Locked(String),
}

impl StoreError {
    /// Whether the same call may succeed a little later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Contended(_) => true,
            Self::Corrupt { .. } | Self::Statement(_) | Self::Migration(_) | Self::Locked(_) => false,
        }
    }
}
