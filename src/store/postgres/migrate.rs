//! Migrates a Postgres database while other processes use it.
//!
//! Owns the waits of a migration for locks. Must not know what a migration changes.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, raw_sql};

use crate::store::StoreResult;
use crate::store::migrations::{FIRST_MIGRATION, migrator, refusal};
use crate::store::sql::pooler;

/// Time limit of a migration for a lock. Meanwhile, all other transactions that need the table wait behind the migration.
pub(super) const LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "500ms");

/// The pause before the migration requests its lock again, so that other transactions can work.
const PAUSE: Duration = Duration::from_millis(500);

/// Time limit of a migration for a lock after [`MANY`] failed attempts. Postgres cancels an automatic vacuum when a lock has waited
/// for it for `deadlock_timeout`, one second. Otherwise the vacuum of a large table would block the migration for hours.
const LONG_LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "1200ms");

/// Number of failed attempts after which one attempt uses [`LONG_LOCK_TIMEOUT`].
const MANY: usize = 5;

/// The number of the advisory lock of migrations through a pooler: "capstan" in ASCII.
const MIGRATION_LOCK: i64 = 0x63_61_70_73_74_61_6e;

const START_ANEW: &str = "give this version a new, empty Postgres database";

/// Migrates the schema. Returns the connection of the migration, without a time limit for locks.
///
/// A migration uses its own connection, because it may take long: `direct`, which has [`LOCK_TIMEOUT`], or a new one. It must not wait
/// long for a lock, because older versions are still working. The migrator takes an advisory lock, so that processes that start
/// together wait for each other.
pub(super) async fn migrate(
    options: &PgConnectOptions,
    is_pooled: bool,
    mut direct: Option<PgConnection>,
) -> StoreResult<PgConnection> {
    let mut migrator = migrator!("postgres");
    // The lock of the migrator belongs to a session.
    migrator.set_locking(!is_pooled);
    let mut refusals = 0_usize;
    loop {
        let time_limit = if refusals % (MANY + 1) == MANY { LONG_LOCK_TIMEOUT } else { LOCK_TIMEOUT };
        let own = if is_pooled { options.clone() } else { options.clone().options([time_limit]) };
        let mut connection = match direct.take() {
            Some(connection) => connection,
            None => PgConnection::connect_with(&own).await?,
        };
        // Not `run`, whose future must be awaited by the thread that created it.
        let done = match is_pooled {
            false => migrator.run_direct(None, &mut connection, false).await,
            true => in_one_transaction(&migrator, &mut connection, time_limit.1).await,
        };
        let first: Option<String> = match (&done, is_pooled) {
            (Err(_), false) => sqlx::query_scalar(FIRST_MIGRATION).fetch_optional(&mut connection).await.ok().flatten(),
            (Err(_), true) => {
                let first = async |tx: &mut PgConnection| sqlx::query_scalar(FIRST_MIGRATION).fetch_optional(tx).await;
                pooler::in_transaction(&mut connection, first).await.ok().flatten()
            }
            (Ok(()), _) => None,
        };
        let Err(error) = done else {
            if !is_pooled {
                raw_sql("SET lock_timeout = 0").execute(&mut connection).await?;
            }
            return Ok(connection);
        };
        // A failed migrator does not release its advisory lock. Closing the connection does.
        let _ = connection.close().await;
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

/// Applies the migrations through a pooler: there, only a transaction keeps a lock and a lock timeout.
async fn in_one_transaction(migrator: &Migrator, connection: &mut PgConnection, time_limit: &str) -> Result<(), MigrateError> {
    let begin = format!("BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK}); SET LOCAL lock_timeout = '{time_limit}'");
    let mut tx = connection.begin_with(AssertSqlSafe(begin)).await?;
    let done = migrator.run_direct(None, &mut *tx, false).await;
    let cleared = tx.clear_cached_statements().await;
    done?;
    cleared?;
    Ok(tx.commit().await?)
}

fn is_lock_timeout(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else { return false };
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55P03")
}
