//! Opens the database: pragmas, connections and transactions.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, Sqlite, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::migrations::{FIRST_MIGRATION, migrator, refusal};
use crate::store::sqlite::clock::MachineClock;
use crate::store::sqlite::clone_detection::MarkerWriter;
use crate::store::{Durability, StoreError, StoreOptions, StoreResult};

/// A transaction on the writer or a reader.
pub type Tx = Transaction<'static, Sqlite>;

/// Time limit of a statement for the end of a write by another process, such as `capstan keys create`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of a call for the writer or a reader. After it, the database counts as unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15);

/// Number of requests that wait for the writer at a time. They share one batch of the log: with one permit, every message of a
/// burst would wait for a separate batch. More permits accept a burst sooner, but delay the tokens of running runs: measured with
/// 1,000 conversations, 4, 16 and 64 permits delayed a first token by 2.4, 1.8 and 1.1 s and each word by 73, 132 and 348 ms.
const TURNS: usize = 16;

/// Time limit of a request for its permit. It is long, because the queue of a burst does not mean that the database is unavailable.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of pages in the write-ahead log that triggers a checkpoint (16 MiB). Every batch writes a busy page to the log, but a
/// checkpoint writes it to the file only once, so fewer checkpoints save writes. A longer log would make a checkpoint noticeable.
const CHECKPOINT_PAGES: &str = "4000";

/// Readers run concurrently with the writer. More readers than cores bring no gain.
const READERS: u32 = 4;

pub struct SqliteStore {
    /// The only writer: the queue for this connection defines the order of writes.
    pub(super) writer: SqlitePool,
    pub(super) readers: SqlitePool,
    /// Permits to write for a request.
    turns: Arc<Semaphore>,
    pub(super) clock: MachineClock,
    /// Limit of an owner's runs that workers hold at a time; 0 for no limit.
    pub(super) owner_cap: u32,
    /// The time of the last successful test write. Locked during a test.
    pub(super) took_write: tokio::sync::Mutex<Option<Instant>>,
    /// Locked while this process is the server of the data folder.
    pub(super) lock: Mutex<Option<File>>,
    /// Writes the marker file of clone detection. `None` in a command, and if the check is skipped.
    pub(super) marker_writer: Option<MarkerWriter>,
}

impl SqliteStore {
    /// Opens `sqlite:PATH`, and creates folder, file and schema if they are missing.
    pub async fn connect(url: &str, options: &StoreOptions) -> StoreResult<Self> {
        let base = SqliteConnectOptions::from_str(url).map_err(|error| StoreError::Migration(error.to_string()))?;
        let path = base.get_filename().to_owned();
        if url.contains(":memory:") || url.contains("mode=memory") || path.as_os_str().is_empty() {
            return Err(StoreError::Migration("a database in memory would lose everything: use sqlite:PATH".to_owned()));
        }
        let folder = folder_of(&path);
        make_folder(&folder)?;
        let lock = if options.exclusive { Some(lock_folder(&folder)?) } else { None };

        let base = base.foreign_keys(true).busy_timeout(BUSY_TIMEOUT).pragma("temp_store", "memory");
        let writer_options = base
            .clone()
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(match options.durability {
                Durability::Full => SqliteSynchronous::Full,
                Durability::Normal => SqliteSynchronous::Normal,
            })
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .thread_name(|_| "sqlite-writer".to_owned());
        let reader_options = base.read_only(true).thread_name(|id| format!("sqlite-reader-{id}"));

        let writer = pool(1).connect_with(writer_options).await.map_err(StoreError::from)?;
        migrate(&writer, &path).await?;
        let marker_writer = match options.exclusive {
            true => MarkerWriter::check(&writer, &path, options.durability, options.on_clone).await?,
            false => None,
        };
        // Connected at the first use: by then the writer has created the file.
        let readers = pool(READERS).connect_lazy_with(reader_options);
        let owner_cap = options.max_running_per_owner;
        Ok(Self {
            writer,
            readers,
            turns: Arc::new(Semaphore::new(TURNS)),
            clock: MachineClock::default(),
            owner_cap,
            took_write: tokio::sync::Mutex::default(),
            lock: Mutex::new(lock),
            marker_writer,
        })
    }

    /// Begins a write of a worker. No other write runs until it ends.
    pub(in crate::store) async fn write(&self) -> StoreResult<Tx> {
        loop {
            let tx = self.begin_write().await?;
            // After a clock jump, the stored times must be shifted before a new time is written, or the new time would be shifted
            // too.
            if !self.clock_may_have_jumped() {
                return Ok(tx);
            }
            tx.rollback().await?;
            self.follow_clock().await?;
        }
    }

    /// Begins a write without a check of the machine's clock.
    pub(super) async fn begin_write(&self) -> StoreResult<Tx> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Begins a write for a request. Only a few requests wait for the writer at a time, and the others wait here, so that the log
    /// writer and lease renewals get the writer soon.
    pub(in crate::store) async fn write_in_turn(&self) -> StoreResult<(OwnedSemaphorePermit, Tx)> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok((turn, self.write().await?))
    }

    /// Begins a read of several statements in one snapshot.
    pub(super) async fn read(&self) -> StoreResult<Tx> {
        Ok(self.readers.begin().await?)
    }

    /// Returns the pool for reads of one statement.
    pub(in crate::store) fn reader(&self) -> &SqlitePool {
        &self.readers
    }
}

/// Returns a pool whose connections live as long as the store.
fn pool(size: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(size)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        // When the disk is full, and after other disk errors, SQLite ends a transaction by itself. Its rollback then fails, and the
        // driver keeps believing that the transaction is open: such a connection can begin no other.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

/// Creates the folder if it is missing, readable by this user only.
fn make_folder(folder: &Path) -> StoreResult<()> {
    crate::support::files::private_folder(folder)
        .map_err(|error| StoreError::Migration(format!("cannot make the folder {}: {error}", folder.display())))
}

async fn migrate(writer: &SqlitePool, path: &Path) -> StoreResult<()> {
    let Err(error) = migrator!("sqlite").run(writer).await else { return Ok(()) };
    let text = error.to_string();
    Err(match error {
        MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _) => match StoreError::from(cause) {
            damaged @ StoreError::Damaged(_) => damaged,
            _ => StoreError::Migration(text),
        },
        error => {
            let first: Option<String> = sqlx::query_scalar(FIRST_MIGRATION).fetch_optional(writer).await.ok().flatten();
            let start_anew = format!("move {0}, {0}-wal and {0}-shm to another folder, and start again", path.display());
            refusal(error, first.as_deref(), &start_anew)
        }
    })
}

/// Locks the folder. The operating system releases the lock when the process ends, however it ends.
pub(super) fn lock_folder(folder: &Path) -> StoreResult<File> {
    let path = folder.join("capstan.lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(|error| StoreError::Locked(format!("cannot open the lock file {}: {error}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(format!(
            "another server process holds {}: stop it, give this one another data folder, or use Postgres for several servers",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => {
            Err(StoreError::Locked(format!("cannot lock {}: {error}; is the folder on a local disk?", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{CommonStore as _, Store as _};

    #[tokio::test]
    async fn a_full_disk_costs_one_connection_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("full.db").display());
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        sqlx::query("CREATE TABLE filler (data BLOB)").execute(&store.writer).await.unwrap();
        // Limits the file to its current size, for this connection only.
        sqlx::query("PRAGMA max_page_count = 1").execute(&store.writer).await.unwrap();
        let fill = async || -> StoreResult<()> {
            let mut tx = store.write().await?;
            sqlx::query("INSERT INTO filler VALUES (zeroblob(1000000))").execute(&mut *tx).await?;
            Ok(tx.commit().await?)
        };
        let full = fill().await.unwrap_err();
        assert!(matches!(full, StoreError::Unavailable(_)), "{full:?}");
        fill().await.unwrap();
        store.close().await;
    }

    #[tokio::test]
    async fn a_database_that_takes_no_writes_does_not_answer_a_ping() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("refuses.db").display());
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        store.ping().await.unwrap();
        *store.took_write.lock().await = None;
        sqlx::query("PRAGMA query_only = ON").execute(&store.writer).await.unwrap();
        for _ in 0..2 {
            let refused = store.ping().await.unwrap_err();
            assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
        }
        sqlx::query("SELECT 1").execute(&store.readers).await.unwrap();
        sqlx::query("PRAGMA query_only = OFF").execute(&store.writer).await.unwrap();
        store.ping().await.unwrap();
        store.close().await;
    }
}
