//! Applies the migrations to a Postgres database that other processes use.
//!
//! Owns how a migration waits for locks. Must not know what a migration changes.

use std::time::Duration;

use sqlx::Connection as _;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::store::StoreResult;
use crate::store::migrations::{FIRST_MIGRATION, migrator, refusal};

/// How long a migration waits for a lock: meanwhile all others that want the table wait behind it.
const LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "500ms");

/// How long the others go on before a migration asks for its lock again.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a migration waits for a lock after many refusals. Postgres cancels an automatic vacuum when a lock has waited for it for
/// `deadlock_timeout`, which is a second; the vacuum of a large table would otherwise go on for hours.
const LONG_LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "1200ms");

/// After how many refusals a migration waits so long, once.
const MANY: usize = 5;

const START_ANEW: &str = "give this version a new, empty Postgres database";

/// Brings the schema up to date.
///
/// A migration takes a connection of its own, because it may take its time. It may not take it at a lock, because older versions are at
/// work meanwhile. The migrator takes an advisory lock, so that processes that start together wait for each other.
pub(super) async fn migrate(options: &PgConnectOptions) -> StoreResult<()> {
    let migrator = migrator!("postgres");
    let mut refusals = 0_usize;
    loop {
        let patience = if refusals % (MANY + 1) == MANY { LONG_LOCK_TIMEOUT } else { LOCK_TIMEOUT };
        let mut connection = PgConnection::connect_with(&options.clone().options([patience])).await?;
        // Not by `run`, whose future only the thread can await that began it.
        let done = migrator.run_direct(None, &mut connection, false).await;
        let first: Option<String> = match &done {
            Err(_) => sqlx::query_scalar(FIRST_MIGRATION).fetch_optional(&mut connection).await.ok().flatten(),
            Ok(()) => None,
        };
        // A failed migrator leaves its lock to the connection, which ends here.
        let _ = connection.close().await;
        let Err(error) = done else { return Ok(()) };
        if !is_lock_timeout(&error) {
            return Err(match error {
                MigrateError::Execute(cause) => cause.into(),
                error => refusal(error, first.as_deref(), START_ANEW),
            });
        }
        tracing::warn!("the migration waits: another session holds a lock on the schema");
        tokio::time::sleep(PAUSE).await;
        refusals += 1;
    }
}

fn is_lock_timeout(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else { return false };
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55P03")
}
