//! Schema versions that the migrations accept, and schemas that they refuse.

use std::collections::BTreeSet;
use std::str::FromStr as _;

use capstan::domain::ids::RunId;
use capstan::store::{StoreError, StoreOptions, open};
use capstan::support::ids::UuidIds;
use rstest::rstest;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::fixture::{World, user};
use super::postgres::{SOON, blocked};
use support::database::{Database, Kind};
use support::repository::files;
use support::wait::within;

async fn refusal(url: &str) -> String {
    let refused = open(url, &StoreOptions::default()).await.err().expect("a refusal");
    assert!(matches!(refused, StoreError::Migration(_)), "{refused:?}");
    refused.to_string()
}

#[rstest]
#[tokio::test]
async fn newer_schema_is_refused(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = World::new(kind).await;
    world.store.close().await;
    let checksum = if kind == Kind::Sqlite { "X'00'" } else { "'\\x00'" };
    let newer = format!(
        "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time)
         VALUES (9999, 'later', '2030-01-01', true, {checksum}, 0)"
    );
    world.database.rows(&newer).await;
    let refusal = refusal(&world.database.url).await;
    assert!(refusal.contains("it has version 9999") && refusal.contains("start a newer version"), "{refusal}");
}

#[rstest]
#[tokio::test]
async fn changed_migration_is_refused(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = World::new(kind).await;
    world.store.close().await;
    let checksum = if kind == Kind::Sqlite { "X'00'" } else { "'\\x00'" };
    world.database.rows(&format!("UPDATE _sqlx_migrations SET checksum = {checksum} WHERE version = 2")).await;
    let refusal = refusal(&world.database.url).await;
    assert!(refusal.contains("its migration 2 differs"), "{refusal}");
}

/// The table that the migrator creates.
const SQLITE_VERSIONS: &str = "CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY, description TEXT NOT NULL, installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL, checksum BLOB NOT NULL, execution_time BIGINT NOT NULL)";
const POSTGRES_VERSIONS: &str = "CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY, description TEXT NOT NULL, installed_on TIMESTAMPTZ NOT NULL DEFAULT now(),
    success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, execution_time BIGINT NOT NULL)";

/// The first and the newest development version.
#[rstest]
#[tokio::test]
async fn schema_from_before_release_is_refused(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[values(&["backbone"], &["backbone", "joined", "access", "input", "x", "y", "z", "content files"])] names: &[&str],
) {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::empty(kind, folder.path()).await;
    let row = |(version, name)| format!("({version}, '{name}', true, '\\x6f6c64', 1)");
    let rows: Vec<String> = (1..).zip(names).map(row).collect();
    let rows = format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES {}",
        rows.join(", ")
    );
    match kind {
        Kind::Sqlite => {
            let options = SqliteConnectOptions::from_str(&database.url).unwrap().create_if_missing(true);
            SqliteConnection::connect_with(&options).await.unwrap().close().await.unwrap();
            database.rows(SQLITE_VERSIONS).await;
        }
        Kind::Postgres => drop(database.rows(POSTGRES_VERSIONS).await),
    }
    database.rows(&rows).await;
    let refusal = refusal(&database.url).await;
    assert!(refusal.contains("Nothing was released before 0.1.0"), "{refusal}");
    let start_anew = match kind {
        Kind::Sqlite => "capstan.db-wal and",
        Kind::Postgres => "a new, empty Postgres database",
    };
    assert!(refusal.contains(start_anew), "{refusal}");
    let tables = match kind {
        Kind::Sqlite => "SELECT name FROM sqlite_schema WHERE name = 'users'",
        Kind::Postgres => "SELECT table_name::text FROM information_schema.tables WHERE table_name = 'users'",
    };
    assert!(database.rows(tables).await.is_empty(), "a refused database is unchanged");
}

#[rstest]
#[tokio::test]
async fn migrations_of_both_databases_have_the_same_names(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let names = |folder: &str| -> BTreeSet<String> {
        files(folder, "sql").iter().map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let postgres = names("migrations/postgres");
    assert_eq!(postgres, names("migrations/sqlite"));
    let folder = tempfile::tempdir().unwrap();
    let database = Database::empty(kind, folder.path()).await;
    open(&database.url, &StoreOptions::default()).await.unwrap().close().await;
    let applied = database.rows("SELECT CAST(version AS text), description FROM _sqlx_migrations ORDER BY version").await;
    let applied: BTreeSet<String> = applied
        .iter()
        .map(|row| format!("{:0>4}_{}", row[0].as_deref().unwrap(), row[1].as_deref().unwrap().replace(' ', "_")))
        .collect();
    assert_eq!(postgres, applied);
}

/// Byte order is the same on every cluster, and an index serves only its own collation.
#[tokio::test]
async fn indexed_text_has_collation_c() {
    let world = World::new(Kind::Postgres).await;
    let columns = "SELECT c.relname || '.' || a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
        WHERE c.relnamespace = 'public'::regnamespace AND c.relname <> '_sqlx_migrations'
            AND a.atttypid = 'text'::regtype AND a.attcollation <> '\"C\"'::regcollation";
    assert_eq!(world.database.rows(columns).await, Vec::<Vec<Option<String>>>::new());
    world.store.close().await;
}

#[tokio::test]
async fn whole_numbers_are_bigint() {
    let world = World::new(Kind::Postgres).await;
    let columns = "SELECT table_name || '.' || column_name FROM information_schema.columns
        WHERE table_schema = 'public' AND data_type IN ('smallint', 'integer', 'numeric')";
    assert_eq!(world.database.rows(columns).await, Vec::<Vec<Option<String>>>::new());
    world.store.close().await;
}

/// An older version keeps working while a newer one waits for a table lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_that_waits_blocks_no_writer() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    for undo in [
        "DROP TABLE files, file_chunks, file_uses, message_words CASCADE",
        "DROP FUNCTION note_file_uses, note_file_uses_of_call, drop_files_of_conversation, drop_chunks_of_file, owner_word,
             words_of_message, is_hidden, note_words, drop_words CASCADE",
        "DELETE FROM _sqlx_migrations WHERE version = 6",
    ] {
        world.database.rows(undo).await;
    }
    // The migration creates triggers on this table, which needs a lock that conflicts with open writes.
    let mut writer = PgConnection::connect_with(&PgConnectOptions::from_str(&world.database.url).unwrap()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut writer).await.unwrap();
    sqlx::query("LOCK TABLE messages IN ROW EXCLUSIVE MODE").execute(&mut writer).await.unwrap();
    let options = StoreOptions::default();
    let old = async {
        blocked(&world, 1).await;
        for _ in 0..3 {
            world.run(&owner).await;
            world.store.control_signals(&[RunId::generate(&UuidIds)]).await.unwrap();
        }
        sqlx::query("COMMIT").execute(&mut writer).await.unwrap();
    };
    let (new, ()) = within("the migration", SOON, Box::pin(async { tokio::join!(open(&world.database.url, &options), old) })).await;
    let new = new.unwrap();
    new.run_counts().await.unwrap();
    world.run(&owner).await;
    new.close().await;
    world.store.close().await;
}
