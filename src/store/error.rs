//! Errors of the store, without the terms of a database.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::sqlite::SqliteError;

pub type StoreResult<T> = Result<T, StoreError>;

/// A failed store call. Absence is not an error (`Option`), nor is losing a race (named outcomes).
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is missing, refuses the login, is read-only, full, shutting down, or its pool is exhausted. Worth
    /// trying again.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// Pages of the database file are damaged, or it is no database. Worth trying again after a backup was restored: until then the
    /// content of the rows is unknown.
    #[error("the database file is damaged: stop the server and put a backup in its place, as docs/operate/databases.md says")]
    Damaged(#[source] sqlx::Error),
    /// A deadlock, serialisation failure or lock time-out that persisted over the retries that it gets.
    #[error("the database is contended")]
    Contended(#[source] sqlx::Error),
    /// A row holds what this version cannot read, or would if it were written.
    #[error("{column} of {table} row {id} cannot be read: {reason}")]
    Corrupt { table: &'static str, column: &'static str, id: String, reason: String },
    /// A statement failed: our bug.
    #[error("a statement failed")]
    Statement(#[source] sqlx::Error),
    /// The schema could not be brought up to date, or is newer than this program.
    #[error("the database schema cannot be used: {0}")]
    Migration(String),
    /// Another server process holds the data folder.
    #[error("{0}")]
    Locked(String),
    /// The database is a copy that no operator has accepted.
    #[error("{0}")]
    Copied(String),
}

impl StoreError {
    /// Returns whether the same call may succeed later, because the request itself is right.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Contended(_) | Self::Damaged(_) => true,
            Self::Corrupt { .. } | Self::Statement(_) | Self::Migration(_) | Self::Locked(_) | Self::Copied(_) => false,
        }
    }

    /// Returns whether the database has answered with this error.
    pub(super) fn is_answer_of_database(&self) -> bool {
        match self {
            Self::Unavailable(error) | Self::Damaged(error) | Self::Contended(error) | Self::Statement(error) => {
                error.as_database_error().is_some()
            }
            Self::Corrupt { .. } | Self::Migration(_) | Self::Locked(_) | Self::Copied(_) => false,
        }
    }

    /// Returns whether a statement met a row that is there already.
    pub(super) fn is_unique_violation(&self) -> bool {
        let Self::Statement(sqlx::Error::Database(error)) = self else { return false };
        error.is_unique_violation()
    }
}

/// Sorts an error of the driver by whether the call may be made again, for both databases.
impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let class = match &error {
            // An answer over a connection that is cut, or shared by a proxy, may belong to another request: another connection may serve.
            sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Class::Unavailable,
            sqlx::Error::Database(database) => match (database.code(), database.try_downcast_ref::<SqliteError>()) {
                (Some(code), Some(_)) => sqlite_class(&code),
                (Some(code), None) => postgres_class(&code),
                (None, _) => Class::Statement,
            },
            // The driver's own enum is not exhaustive; all that is left is a mistake in a statement or in reading its rows.
            _ => Class::Statement,
        };
        match class {
            Class::Unavailable => Self::Unavailable(error),
            Class::Contended => Self::Contended(error),
            Class::Damaged => {
                let damaged = Self::Damaged(error);
                if !DAMAGE_WAS_MET.swap(true, Ordering::Relaxed) {
                    tracing::error!(error = &damaged as &dyn std::error::Error, "the server is not ready any more");
                }
                damaged
            }
            Class::Statement => Self::Statement(error),
        }
    }
}

/// Whether this process, which has one database, has met damage in its file. Errors are classified in one place and met in many, most
/// of them far from the readiness check. A damaged file stays damaged until another process opens another file.
static DAMAGE_WAS_MET: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has met a damaged database file.
pub(super) fn damage_was_met() -> bool {
    DAMAGE_WAS_MET.load(Ordering::Relaxed)
}

enum Class {
    Unavailable,
    Contended,
    Damaged,
    Statement,
}

/// By primary result code, the low byte of the extended one: <https://www.sqlite.org/rescode.html>.
fn sqlite_class(code: &str) -> Class {
    match code.parse::<u32>().map(|code| code & 0xff) {
        // BUSY, LOCKED, and PROTOCOL (too many races for the write-ahead log).
        Ok(5 | 6 | 15) => Class::Contended,
        // NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN.
        Ok(7 | 8 | 9 | 10 | 13 | 14) => Class::Unavailable,
        // CORRUPT and NOTADB.
        Ok(11 | 26) => Class::Damaged,
        Ok(_) | Err(_) => Class::Statement,
    }
}

/// By SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn postgres_class(code: &str) -> Class {
    match code {
        // serialization_failure, deadlock_detected, lock_not_available: the transaction is rolled back for certain.
        "40001" | "40P01" | "55P03" => Class::Contended,
        // query_canceled (statement_timeout), idle_in_transaction_session_timeout, read_only_sql_transaction.
        "57014" | "25P03" | "25006" => Class::Unavailable,
        // A database that is missing or refuses logins, as during a restore or a change of the password; connection exceptions,
        // insufficient resources, shutdown, system errors.
        _ if ["28", "3D", "08", "53", "57P", "58"].iter().any(|class| code.starts_with(class)) => Class::Unavailable,
        _ => Class::Statement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_nobody_understands_is_asked_for_again() {
        let cut = sqlx::Error::Protocol("unknown message type: '\\0'".to_owned());
        assert!(StoreError::from(cut).is_transient());
    }

    #[test]
    fn codes_are_sorted_by_whether_to_try_again() {
        assert!(matches!(sqlite_class("517"), Class::Contended));
        assert!(matches!(sqlite_class("13"), Class::Unavailable));
        assert!(matches!(sqlite_class("266"), Class::Unavailable));
        assert!(matches!(sqlite_class("11"), Class::Damaged) && matches!(sqlite_class("26"), Class::Damaged));
        assert!(matches!(sqlite_class("2067"), Class::Statement));
        assert!(matches!(postgres_class("40P01"), Class::Contended));
        assert!(matches!(postgres_class("57P01"), Class::Unavailable));
        for code in ["28P01", "28000", "3D000"] {
            assert!(matches!(postgres_class(code), Class::Unavailable), "{code}");
        }
        assert!(matches!(postgres_class("23505"), Class::Statement));
    }
}
