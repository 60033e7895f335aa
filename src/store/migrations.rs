//! The schema's migrations, and the databases that they cannot be applied to.
//!
//! Owns the list of files in `migrations/`. Must not know how a backend waits for locks.

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use super::error::StoreError;

/// Builds the migrator of a backend's folder in `migrations/`.
///
/// `sqlx::migrate!` would do the same. It needs the procedural macros of sqlx, for which both drivers and SQLite itself are compiled
/// a second time.
macro_rules! migrator {
    ($folder:literal) => {
        $crate::store::migrations::migrator!($folder: "0001_identity", "0002_conversations_and_log", "0003_runs_and_queue",
            "0004_tools", "0005_records", "0006_files_and_search")
    };
    ($folder:literal: $($file:literal),+) => {
        $crate::store::migrations::in_order(vec![$((
            $file,
            include_str!(concat!("../../../migrations/", $folder, "/", $file, ".sql")),
        )),+])
    };
}
pub(super) use migrator;

/// Returns a migrator that applies the files in this order. Each is named by its number and what it creates.
pub(super) fn in_order(files: Vec<(&'static str, &'static str)>) -> Migrator {
    let migration = |(version, (file, sql)): (i64, (&'static str, &'static str))| {
        let name = file.split_once('_').map_or(file, |(_, name)| name);
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations((1..).zip(files).map(migration).collect())
}

/// Selects the name of a database's first migration.
pub(super) const FIRST_MIGRATION: &str = "SELECT description FROM _sqlx_migrations WHERE version = 1";

/// The name of the first migration before 0.1.0.
const FIRST_UNRELEASED: &str = "backbone";

/// Returns why the migrator refused a database; `first` is the answer to [`FIRST_MIGRATION`].
///
/// Nothing was released before 0.1.0, so no migration leads from an older schema to this one.
pub(super) fn refusal(error: MigrateError, first: Option<&str>, start_anew: &str) -> StoreError {
    if first == Some(FIRST_UNRELEASED) {
        return StoreError::Migration(format!(
            "a development version from before 0.1.0 made it. Nothing was released before 0.1.0, so its data cannot be upgraded: {start_anew}"
        ));
    }
    match error {
        MigrateError::VersionMissing(version) => StoreError::Migration(format!(
            "it has version {version}, which this program does not know: start a newer version of capstan"
        )),
        MigrateError::VersionMismatch(version) => {
            StoreError::Migration(format!("its version {version} is not the one that this program was built with"))
        }
        error => StoreError::Migration(error.to_string()),
    }
}
