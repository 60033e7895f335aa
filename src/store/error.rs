//! Errors of the store, independent of the database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::SqliteError;
use tokio::time::Instant;

pub type StoreResult<T> = Result<T, StoreError>;

/// A failed store call. Absence (`Option`) and lost races (named outcomes) are not errors.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is missing, refuses the login, is read-only, full or shutting down, a statement took too
    /// long, or the pool is exhausted. A retry may succeed.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// Pages of the database file are damaged, or the file is not a database. A retry may succeed after a backup was restored.
    /// Until then, the content of the rows is unknown.
    #[error("the database file is damaged: stop the server and put a backup in its place, as docs/operate/databases.md says")]
    Damaged(#[source] sqlx::Error),
    /// A deadlock, serialization failure or lock timeout persisted over all retries.
    #[error("the database is contended")]
    Contended(#[source] sqlx::Error),
    /// A row contains a value that this version cannot read, or a value to write could not be read again.
    #[error("{column} of {table} row {id} cannot be read: {reason}")]
    Corrupt { table: &'static str, column: &'static str, id: String, reason: String },
    /// A statement failed, which is a bug.
    #[error("a statement failed")]
    Statement(#[source] sqlx::Error),
    /// The schema could not be migrated, or is newer than this program.
    #[error("the database schema cannot be used: {0}")]
    Migration(String),
    /// Another server process has locked the data folder.
    #[error("{0}")]
    Locked(String),
    /// The database is a copy that no operator has accepted.
    #[error("{0}")]
    Copied(String),
}

impl StoreError {
    /// Returns whether the same call may succeed later, because the request itself is valid.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Contended(_) | Self::Damaged(_))
    }

    /// Returns whether the connection of the failed call is usable: the database has answered, or no call was made.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self, Self::Unavailable(error) if error.as_database_error().is_none())
    }

    /// Returns whether a row with the same key exists already.
    pub(super) fn is_unique_violation(&self) -> bool {
        let Self::Statement(sqlx::Error::Database(error)) = self else { return false };
        error.is_unique_violation()
    }
}

/// Classifies an error of the driver by whether a retry may succeed, for both databases.
impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let class: Class = match &error {
            // The connection is broken, or a proxy mixed up the answers of two requests. Another connection may work.
            sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable,
            sqlx::Error::Database(database) => match (database.code(), database.try_downcast_ref::<SqliteError>()) {
                (Some(code), Some(_)) => sqlite_class(&code),
                (Some(code), None) => postgres_class(&code),
                (None, _) => Self::Statement,
            },
            // The driver's enum is not exhaustive. All other errors are mistakes in a statement or in reading its rows.
            _ => Self::Statement,
        };
        let error = class(error);
        if matches!(error, Self::Damaged(_)) && !DAMAGE_WAS_MET.swap(true, Ordering::Relaxed) {
            tracing::error!(error = &error as &dyn std::error::Error, "the database file is damaged, so the server is not ready");
        }
        error
    }
}

/// Whether this process has found damage in its database file. Errors are classified here but occur anywhere, mostly far from the
/// readiness check. The state never resets: a process uses one database file.
static DAMAGE_WAS_MET: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has found its database file damaged.
pub(super) fn damage_was_met() -> bool {
    DAMAGE_WAS_MET.load(Ordering::Relaxed)
}

/// The variant for an error of the driver.
type Class = fn(sqlx::Error) -> StoreError;

/// Classifies by the primary result code, the low byte of the extended one: <https://www.sqlite.org/rescode.html>.
fn sqlite_class(code: &str) -> Class {
    match code.parse::<u32>().map(|code| code & 0xff) {
        // BUSY, LOCKED, and PROTOCOL (too many races for the write-ahead log).
        Ok(5 | 6 | 15) => StoreError::Contended,
        // NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN.
        Ok(7 | 8 | 9 | 10 | 13 | 14) => StoreError::Unavailable,
        // CORRUPT and NOTADB.
        Ok(11 | 26) => StoreError::Damaged,
        Ok(_) | Err(_) => StoreError::Statement,
    }
}

/// Classifies by SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn postgres_class(code: &str) -> Class {
    match code {
        // serialization_failure, deadlock_detected, lock_not_available: the transaction was certainly rolled back.
        "40001" | "40P01" | "55P03" => StoreError::Contended,
        // query_canceled (statement_timeout), idle_in_transaction_session_timeout, read_only_sql_transaction.
        "57014" | "25P03" | "25006" => StoreError::Unavailable,
        // A database that is missing or refuses logins, as during a restore or a change of the password; connection exceptions,
        // insufficient resources, shutdown, system errors.
        _ if ["28", "3D", "08", "53", "57P", "58"].iter().any(|class| code.starts_with(class)) => StoreError::Unavailable,
        _ => StoreError::Statement,
    }
}

const PAUSE: Duration = Duration::from_millis(200);

/// Retries a call while it fails with a [transient](crate::store::StoreError::is_transient) error, for at most `time_limit`.
/// Returns other errors at once.
pub async fn retry_while_unavailable<T, F: Future<Output = StoreResult<T>>>(
    time_limit: Duration,
    ask: impl Fn() -> F,
) -> StoreResult<T> {
    let started_at = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_transient() && started_at.elapsed() < time_limit => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_database_reply_is_retried() {
        let cut = sqlx::Error::Protocol("unknown message type: '\\0'".to_owned());
        assert!(StoreError::from(cut).is_transient());
    }

    #[test]
    fn codes_are_sorted_by_whether_to_try_again() {
        let sqlite = |code| sqlite_class(code)(sqlx::Error::RowNotFound);
        let postgres = |code| postgres_class(code)(sqlx::Error::RowNotFound);
        assert!(matches!(sqlite("517"), StoreError::Contended(_)));
        assert!(matches!(sqlite("13"), StoreError::Unavailable(_)));
        assert!(matches!(sqlite("266"), StoreError::Unavailable(_)));
        assert!(matches!(sqlite("11"), StoreError::Damaged(_)) && matches!(sqlite("26"), StoreError::Damaged(_)));
        assert!(matches!(sqlite("2067"), StoreError::Statement(_)));
        assert!(matches!(postgres("40P01"), StoreError::Contended(_)));
        assert!(matches!(postgres("57P01"), StoreError::Unavailable(_)));
        for code in ["28P01", "28000", "3D000"] {
            assert!(matches!(postgres(code), StoreError::Unavailable(_)), "{code}");
        }
        assert!(matches!(postgres("23505"), StoreError::Statement(_)));
    }
}
