//! A database as an earlier version has left it: made by the first migrations only, with the rows of one that is up to date.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr as _;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _};

use super::database::{Database, Kind};
use super::server::repository;

/// The first migrations up to the one of that name.
fn first_migrations(kind: Kind, last: &str) -> Migrator {
    let store = match kind {
        Kind::Sqlite => "sqlite",
        Kind::Postgres => "postgres",
    };
    let folder = repository().join("migrations").join(store);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut migrations = Vec::new();
    for file in files {
        let (version, name) = file.file_stem().unwrap().to_str().unwrap().split_once('_').unwrap();
        let sql = AssertSqlSafe(std::fs::read_to_string(&file).unwrap()).into_sql_str();
        let version = version.parse().unwrap();
        migrations.push(Migration::new(version, name.to_owned().into(), MigrationType::Simple, sql, false));
        if name == last {
            return Migrator::with_migrations(migrations);
        }
    }
    panic!("no migration {last}")
}

/// A database with the schema of then and the rows of now. Columns that came later are lost; nobody may be at work on `now`.
pub async fn as_of(last: &str, now: &Database, folder: &Path) -> Database {
    let then = Database::new(now.kind, folder).await;
    let migrations = first_migrations(now.kind, last);
    match now.kind {
        Kind::Sqlite => {
            let options = SqliteConnectOptions::from_str(&then.url).unwrap().create_if_missing(true).foreign_keys(false);
            let mut old = SqliteConnection::connect_with(&options).await.unwrap();
            migrations.run(&mut old).await.unwrap();
            let path = now.url.strip_prefix("sqlite:").unwrap();
            sqlx::query(AssertSqlSafe(format!("ATTACH '{path}' AS new"))).execute(&mut old).await.unwrap();
            let tables =
                "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE '_sqlx%'";
            for table in texts(sqlx::query(tables).fetch_all(&mut old).await.unwrap()) {
                let mut columns = Vec::new();
                for schema in ["main", "new"] {
                    let query = format!("SELECT name FROM pragma_table_info('{table}', '{schema}')");
                    columns.push(texts(sqlx::query(AssertSqlSafe(query)).fetch_all(&mut old).await.unwrap()));
                }
                let both = columns[0].intersection(&columns[1]).cloned().collect::<Vec<_>>().join(", ");
                let copy = format!("INSERT INTO main.{table} ({both}) SELECT {both} FROM new.{table}");
                sqlx::query(AssertSqlSafe(copy)).execute(&mut old).await.unwrap();
            }
            old.close().await.unwrap();
        }
        Kind::Postgres => {
            let mut old = PgConnection::connect_with(&PgConnectOptions::from_str(&then.url).unwrap()).await.unwrap();
            let mut new = PgConnection::connect_with(&PgConnectOptions::from_str(&now.url).unwrap()).await.unwrap();
            migrations.run(&mut old).await.unwrap();
            sqlx::query("SET session_replication_role = replica").execute(&mut old).await.unwrap();
            let tables = "SELECT table_name::text FROM information_schema.tables
                          WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND table_name NOT LIKE '\\_sqlx%'";
            for table in pg_texts(&mut old, tables).await {
                let query = format!(
                    "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'public' AND table_name = '{table}'"
                );
                let (before, after) = (pg_texts(&mut old, &query).await, pg_texts(&mut new, &query).await);
                let both = before.intersection(&after).cloned().collect::<Vec<_>>().join(", ");
                let read = format!("SELECT coalesce(json_agg(row_to_json(t)), '[]')::text FROM (SELECT {both} FROM {table}) t");
                let rows: String = sqlx::query(AssertSqlSafe(read)).fetch_one(&mut new).await.unwrap().get(0);
                // What earlier versions made of nothing is theirs.
                sqlx::query(AssertSqlSafe(format!("DELETE FROM {table}"))).execute(&mut old).await.unwrap();
                let copy =
                    format!("INSERT INTO {table} ({both}) SELECT {both} FROM json_populate_recordset(NULL::{table}, $1::json)");
                sqlx::query(AssertSqlSafe(copy)).bind(rows).execute(&mut old).await.unwrap();
            }
            old.close().await.unwrap();
            new.close().await.unwrap();
        }
    }
    then
}

async fn pg_texts(connection: &mut PgConnection, query: &str) -> BTreeSet<String> {
    let rows = sqlx::query(AssertSqlSafe(query.to_owned())).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn texts(rows: Vec<sqlx::sqlite::SqliteRow>) -> BTreeSet<String> {
    rows.iter().map(|row| row.get(0)).collect()
}
