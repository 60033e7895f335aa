//! A database of its own for each test, on either store, and a look into it that does not go through the server.

use std::path::Path;
use std::str::FromStr as _;
use std::sync::Mutex;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::template;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One file.
    Sqlite,
    /// A fresh database on the test server.
    Postgres,
}

/// One row, every column as text.
pub type TextRow = Vec<Option<String>>;

/// A database that is gone when the value is dropped.
pub struct Database {
    /// Which store.
    pub kind: Kind,
    /// For `DATABASE_URL`.
    pub url: String,
    name: String,
    admin_url: String,
    /// The connection of the last query. A new one costs Postgres more than most queries.
    connection: Mutex<Option<PgConnection>>,
}

fn admin_url() -> String {
    #[expect(clippy::disallowed_methods, reason = "the test server's address is a setting of the tests")]
    let given = std::env::var("CAPSTAN_TEST_POSTGRES_URL");
    given.unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned())
}

impl Database {
    /// Makes a database with the schema and no rows; the SQLite file lies in `folder`.
    pub async fn new(kind: Kind, folder: &Path) -> Self {
        match kind {
            Kind::Sqlite => {
                let database = Self::of_sqlite(folder);
                template::create_at(Path::new(database.path())).await;
                database
            }
            Kind::Postgres => {
                let database = Self::of_postgres(&admin_url());
                template::create_on(&database.admin_url, &database.name).await;
                database
            }
        }
    }

    /// Makes a database without a schema; the SQLite file will lie in `folder`.
    pub async fn empty(kind: Kind, folder: &Path) -> Self {
        match kind {
            Kind::Sqlite => Self::of_sqlite(folder),
            Kind::Postgres => Self::empty_on_postgres().await,
        }
    }

    /// Makes a Postgres database without a schema.
    pub async fn empty_on_postgres() -> Self {
        Self::on(&admin_url()).await
    }

    /// Makes a database without a schema on the Postgres at `admin_url`.
    pub async fn on(admin_url: &str) -> Self {
        let database = Self::of_postgres(admin_url);
        database.command("CREATE DATABASE {database}").await;
        database
    }

    fn of_sqlite(folder: &Path) -> Self {
        let url = format!("sqlite:{}", folder.join("capstan.db").display());
        Self { kind: Kind::Sqlite, url, name: String::new(), admin_url: String::new(), connection: Mutex::default() }
    }

    fn of_postgres(admin_url: &str) -> Self {
        let name = format!("capstan_test_{}", unique());
        let url = url_of(admin_url, &name);
        Self { kind: Kind::Postgres, url, name, admin_url: admin_url.to_owned(), connection: Mutex::default() }
    }

    /// A copy as it is now, on the same Postgres or in another folder. No server may be at work on the database.
    pub async fn copy(&self, folder: &Path) -> Self {
        match self.kind {
            Kind::Sqlite => {
                let copy = Self::of_sqlite(folder);
                std::fs::copy(self.path(), copy.path()).unwrap();
                copy
            }
            Kind::Postgres => {
                let copy = Self::of_postgres(&self.admin_url);
                self.disconnect().await;
                self.command(&format!("CREATE DATABASE {} TEMPLATE {{database}}", copy.name)).await;
                copy
            }
        }
    }

    /// Replaces the database by a copy.
    pub async fn put_back(&self, copy: &Self) {
        match self.kind {
            Kind::Sqlite => drop(std::fs::copy(copy.path(), self.path()).unwrap()),
            Kind::Postgres => {
                self.disconnect().await;
                copy.disconnect().await;
                self.command("DROP DATABASE {database}").await;
                self.command(&format!("CREATE DATABASE {{database}} TEMPLATE {}", copy.name)).await;
            }
        }
    }

    /// The file of SQLite.
    fn path(&self) -> &str {
        self.url.trim_start_matches("sqlite:")
    }

    /// Tells the Postgres server something about the database, whose name goes where `{database}` stands.
    pub async fn command(&self, sql: &str) {
        execute(&self.admin_url, &sql.replace("{database}", &self.name)).await.unwrap();
    }

    /// Ends every connection of Capstan to the Postgres database.
    pub async fn cut_off(&self) {
        self.command(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND application_name = 'capstan'",
        )
        .await;
    }

    /// Host and port of the Postgres server.
    pub fn server(&self) -> String {
        let options = PgConnectOptions::from_str(&self.url).unwrap();
        format!("{}:{}", options.get_host(), options.get_port())
    }

    /// The URL of the same Postgres database, reached through another address.
    pub fn url_through(&self, address: std::net::SocketAddr) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap();
        let (authority, path) = rest.split_once('/').unwrap();
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        format!("{scheme}://{user}{address}/{path}")
    }

    /// Keeps all others from writing to the SQLite file until the connection is dropped. Waits for who writes now.
    pub async fn hold_writer(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::from_str(&self.url).unwrap().busy_timeout(Duration::from_secs(10));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        connection
    }

    /// Keeps all others from changing the leases that Postgres has, until the connection is dropped.
    pub async fn hold_leases(&self) -> PgConnection {
        let mut connection = connect(&self.url).await.unwrap();
        sqlx::query("BEGIN").execute(&mut connection).await.unwrap();
        sqlx::query("SELECT run_id FROM run_leases FOR UPDATE").execute(&mut connection).await.unwrap();
        connection
    }

    /// How many leases have not expired.
    pub async fn live_leases(&self) -> i64 {
        let now = match self.kind {
            Kind::Sqlite => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            Kind::Postgres => "now_ms()",
        };
        self.count(&format!("SELECT CAST(count(*) AS text) FROM run_leases WHERE lease_until > {now}")).await
    }

    /// Waits until the database server runs no statement. Statements of a killed client may still be running.
    pub async fn quiet(&self) {
        if self.kind == Kind::Sqlite {
            return;
        }
        let busy = "SELECT CAST(count(*) AS text) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                    AND pid <> pg_backend_pid()";
        super::wait::until("the database to be quiet", Duration::from_secs(15), || async {
            (self.count(busy).await == 0).then_some(())
        })
        .await;
    }

    /// Runs a query whose columns are all text. Write `CAST(x AS text)` for others.
    pub async fn rows(&self, sql: &str) -> Vec<TextRow> {
        self.try_rows(sql).await.unwrap()
    }

    /// Why the database refuses to carry a statement out; panics if it does not.
    pub async fn refusal(&self, sql: &str) -> sqlx::Error {
        self.try_rows(sql).await.expect_err("the database was to refuse this")
    }

    async fn try_rows(&self, sql: &str) -> Result<Vec<TextRow>, sqlx::Error> {
        match self.kind {
            Kind::Sqlite => {
                let options = SqliteConnectOptions::from_str(&self.url).unwrap().busy_timeout(Duration::from_secs(10));
                let mut connection = SqliteConnection::connect_with(&options).await?;
                let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await;
                connection.close().await?;
                let rows = rows?;
                Ok(rows.iter().map(|row| (0..row.len()).map(|column| row.get::<Option<String>, _>(column)).collect()).collect())
            }
            Kind::Postgres => {
                let rows = self.postgres_rows(sql).await?;
                Ok(rows.iter().map(|row| (0..row.len()).map(|column| row.get::<Option<String>, _>(column)).collect()).collect())
            }
        }
    }

    /// Runs a query on Postgres. A kept connection may have been cut off since, so the query is repeated on a new one.
    async fn postgres_rows(&self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        let kept = self.connection.lock().unwrap().take();
        if let Some(mut connection) = kept {
            let rows = fetch(&mut connection, sql).await;
            if rows.as_ref().err().is_none_or(|error| error.as_database_error().is_some_and(|error| !is_cut_off(error))) {
                *self.connection.lock().unwrap() = Some(connection);
                return rows;
            }
        }
        let mut connection = connect(&self.url).await?;
        let rows = fetch(&mut connection, sql).await;
        *self.connection.lock().unwrap() = Some(connection);
        rows
    }

    /// Closes the connection of the last query.
    async fn disconnect(&self) {
        let kept = self.connection.lock().unwrap().take();
        if let Some(connection) = kept {
            let _ = connection.close().await;
        }
    }

    /// The number that a query gives.
    pub async fn count(&self, sql: &str) -> i64 {
        self.rows(sql).await[0][0].as_deref().unwrap().parse().unwrap()
    }
}

pub(super) async fn fetch(connection: &mut PgConnection, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    // Not prepared for the next time: by then, a migration may have changed its columns.
    sqlx::query(AssertSqlSafe(sql.to_owned())).persistent(false).fetch_all(connection).await
}

/// Returns whether the server ends the connection with this error.
fn is_cut_off(error: &dyn DatabaseError) -> bool {
    error.code().is_some_and(|code| code.starts_with("57P") || code.starts_with("08"))
}

async fn execute(url: &str, sql: &str) -> Result<(), sqlx::Error> {
    let mut connection = connect(url).await?;
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
    connection.close().await
}

pub(super) async fn connect(url: &str) -> Result<PgConnection, sqlx::Error> {
    PgConnection::connect_with(&PgConnectOptions::from_str(url)?).await
}

/// Returns the URL of a database on the same server.
pub(super) fn url_of(admin_url: &str, name: &str) -> String {
    let (rest, query) = admin_url.split_once('?').map_or((admin_url, String::new()), |(rest, query)| (rest, format!("?{query}")));
    let (server, _) = rest.rsplit_once('/').unwrap();
    format!("{server}/{name}{query}")
}

/// A name that no other test has.
pub fn unique() -> String {
    #[expect(clippy::disallowed_methods, reason = "names of test databases are no ids of ours")]
    let id = uuid::Uuid::now_v7();
    id.simple().to_string()
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.kind == Kind::Sqlite {
            return;
        }
        // Drop is not async, and the test's own runtime may be going down: another thread does it.
        let (url, sql) = (self.admin_url.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = runtime.block_on(execute(&url, &sql));
        });
        let _ = dropping.join();
    }
}
