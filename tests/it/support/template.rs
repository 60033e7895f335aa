//! Databases with the schema of the server. A copy of one takes a quarter of the time that its migrations take.

use std::path::{Path, PathBuf};

use capstan::store::{OnClone, StoreOptions, open};
use capstan::support::json::hash_bytes;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use super::database::{connect, fetch, unique, url_of};
use super::repository::{files, read};

/// The number of the advisory lock of the process that makes the template.
const LOCK: i64 = 7_261_354;

/// Creates a Postgres database `name` with the schema. Makes the template if it is missing. A server that is not thrown away after
/// the tests keeps the template for the next ones. Needs Postgres 15.
pub(super) async fn create_on(admin_url: &str, name: &str) {
    let template = format!("capstan_template_{}", schema_hash("postgres"));
    let mut admin = connect(admin_url).await.unwrap();
    // The other strategy writes each page to the log as well.
    let copy = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY");
    if let Err(error) = fetch(&mut admin, &copy).await {
        const UNDEFINED_DATABASE: &str = "3D000";
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some(UNDEFINED_DATABASE), "{error}");
        make_template(&mut admin, admin_url, &template).await;
        fetch(&mut admin, &copy).await.unwrap();
    }
    admin.close().await.unwrap();
}

/// Makes the template under another name first, so that no test copies a part of it.
async fn make_template(admin: &mut PgConnection, admin_url: &str, template: &str) {
    fetch(admin, &format!("SELECT pg_advisory_lock({LOCK})")).await.unwrap();
    let is_made: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)")
        .bind(template)
        .fetch_one(&mut *admin)
        .await
        .unwrap();
    if !is_made {
        let new = format!("capstan_test_{}", unique());
        fetch(admin, &format!("CREATE DATABASE {new}")).await.unwrap();
        migrate(&url_of(admin_url, &new)).await;
        fetch(admin, &format!("ALTER DATABASE {new} RENAME TO {template}")).await.unwrap();
    }
    fetch(admin, &format!("SELECT pg_advisory_unlock({LOCK})")).await.unwrap();
}

/// Creates a SQLite file with the schema. Its template is in the folder of temporary files.
pub(super) async fn create_at(path: &Path) {
    let template = std::env::temp_dir().join(format!("capstan_template_{}.db", schema_hash("sqlite")));
    if !template.exists() {
        let folder = tempfile::tempdir().unwrap();
        let new: PathBuf = folder.path().join("capstan.db");
        migrate(&format!("sqlite:{}", new.display())).await;
        // Another process may have made the same file meanwhile.
        std::fs::rename(&new, &template).unwrap();
    }
    std::fs::copy(&template, path).unwrap();
}

/// Applies the migrations only: the identity that detects a copy is not in the template.
async fn migrate(url: &str) {
    let options = StoreOptions { exclusive: false, on_clone: OnClone::SkipCheck, ..StoreOptions::default() };
    open(url, &options).await.unwrap().close().await;
}

/// Returns a name for the migrations of a backend, which changes with them.
fn schema_hash(backend: &str) -> String {
    let migrations: String = files(&format!("migrations/{backend}"), "sql").into_iter().map(read).collect();
    hash_bytes(migrations.as_bytes())[..16].to_owned()
}
