//! The migrations of the schema, and the databases that they cannot upgrade.
//!
//! Owns the list of files in `migrations/`. Must not know how a backend waits for locks.

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use super::error::StoreError;

/// Builds the migrator of a backend's folder in `migrations/`.
///
/// `sqlx::migrate!` would do the same, but it needs the procedural macros of sqlx. For those, both drivers and SQLite are compiled
/// a second time.
macro_rules! migrator {
    ($folder:literal) => {
        $crate::store::migrations::migrator!($folder: "0001_identity", "0002_conversations_and_log", "0003_runs_and_queue",
            "0004_tools", "0005_records", "0006_files_and_search", "0007_model_limitations", "0008_default_models",
            "0009_lowercase_words", "0010_browser_sessions", "0011_conversation_metadata",
            "0012_embedding_usage_and_file_purposes", "0013_conversation_shares", "0014_deleted_responses",
            "0015_indexes_of_unfinished_runs", "0016_conversations_by_change", "0017_step_requests", "0018_continued_requests",
            "0019_shares_of_owners", "0020_sessions_of_tickets")
    };
    ($folder:literal: $($file:literal),+) => {
        $crate::store::migrations::in_order(vec![$((
            $file,
            include_str!(concat!("../../../migrations/", $folder, "/", $file, ".sql")),
        )),+])
    };
}
pub(super) use migrator;

/// Returns a migrator that applies the files in this order. The name of a file contains its number and what it creates.
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

/// Returns the error for a database that the migrator refused. `first` is the result of [`FIRST_MIGRATION`].
///
/// Nothing was released before 0.1.0, so no migration leads from an older schema to this one.
pub(super) fn refusal(error: MigrateError, first: Option<&str>, start_anew: &str) -> StoreError {
    if first == Some(FIRST_UNRELEASED) {
        return StoreError::Migration(format!(
            "a development version created it. Nothing was released before 0.1.0, so its data cannot be upgraded: {start_anew}"
        ));
    }
    match error {
        MigrateError::VersionMissing(version) => StoreError::Migration(format!(
            "it has version {version}, which this program does not know: start a newer version of capstan"
        )),
        MigrateError::VersionMismatch(version) => {
            StoreError::Migration(format!("its migration {version} differs from the one in this program"))
        }
        error => StoreError::Migration(error.to_string()),
    }
}
