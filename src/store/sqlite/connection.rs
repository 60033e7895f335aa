//! Opening, pragmas, the lock file, transactions.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sqlx::migrate::MigrateError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, Sqlite, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clock::MachineClock;
use super::clones::CloneMark;
use crate::store::error::damage_was_met;
use crate::store::migrations::{FIRST_MIGRATION, migrator, refusal};
use crate::store::{CommonStore, Durability, Expired, RecordStore, Store, StoreError, StoreOptions, StoreResult};

/// A transaction on the writer or a reader.
pub(in crate::store) type Tx = Transaction<'static, Sqlite>;

/// How long a statement waits for another process that writes, such as `capstan keys create`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for the writer or a reader before the database counts as unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15);

/// Whoever asks within this time after a write was taken hears the same: nobody can keep the disk busy by asking.
const PING_PAUSE: Duration = Duration::from_secs(1);

/// How many requests wait for the writer at a time. They share one batch of the log: with one turn, every message of a burst
/// would wait for a batch of its own. With more turns a burst is accepted sooner, and the words of the runs under way come later:
/// measured with 1,000 conversations, 4 turns, 16 and 64 kept a first token waiting for 2.4, 1.8 and 1.1 s and each word for 73,
/// 132 and 348 ms.
const TURNS: usize = 16;

/// How long a request waits for its turn. A burst that waits in line is no sign of a database that is gone.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// The write-ahead log is folded into the file after so many pages (16 MiB). A busy page is written to the log by every batch
/// but to the file only once per fold, so folding less often saves writes; more would make the fold itself felt.
const CHECKPOINT_PAGES: &str = "4000";

/// Readers run beside the writer and beside each other; more than the machine has cores bring nothing.
const READERS: u32 = 4;

/// The store on SQLite.
pub struct SqliteStore {
    /// One connection: the queue for it is the order of writes.
    writer: SqlitePool,
    readers: SqlitePool,
    /// Whose turn it is among those who write for a request.
    turns: Arc<Semaphore>,
    /// Whether the machine's clock goes on as it should.
    pub(super) clock: MachineClock,
    /// Runs of one owner that workers have at a time; 0 for no limit.
    pub(super) owner_cap: u32,
    /// When a write that asked whether the database takes writes was last taken. Held while one asks.
    took_write: tokio::sync::Mutex<Option<Instant>>,
    /// Held while this process is the one server of the data folder.
    lock: Mutex<Option<File>>,
    /// Of that one server, unless nobody looks for copies.
    clone_mark: Option<CloneMark>,
}

impl SqliteStore {
    /// Opens `sqlite:PATH`, makes folder, file and schema if they are missing.
    ///
    /// # Errors
    /// [`StoreError::Copied`] for a copy that is to be refused, [`StoreError::Locked`] if another server process has the data folder, [`StoreError::Migration`] if the URL or the
    /// schema cannot be used, [`StoreError::Unavailable`] if the file cannot be opened.
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
        let clone_mark = match options.exclusive {
            true => CloneMark::check(&writer, &path, options.durability, options.on_copy).await?,
            false => None,
        };
        // Connected on first use: by then the writer has made the file.
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
            clone_mark,
        })
    }

    /// Begins a write of a worker. Nobody else writes until it ends.
    pub(in crate::store) async fn write(&self) -> StoreResult<Tx> {
        loop {
            let tx = self.begin_write().await?;
            // A time that is written by a clock that has just jumped would be moved along with the older ones.
            if !self.clock_may_have_jumped() {
                return Ok(tx);
            }
            tx.rollback().await?;
            self.follow_clock().await?;
        }
    }

    /// The same, whatever the machine's clock has done.
    pub(super) async fn begin_write(&self) -> StoreResult<Tx> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Begins a write for a request. Only a few of those wait for the writer at a time, the others wait here: however many
    /// requests there are, the log and the leases of the runs under way are soon next.
    pub(in crate::store) async fn write_in_turn(&self) -> StoreResult<(OwnedSemaphorePermit, Tx)> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok((turn, self.write().await?))
    }

    /// Begins a read of several statements that see one state.
    pub(super) async fn read(&self) -> StoreResult<Tx> {
        Ok(self.readers.begin().await?)
    }

    /// For a read of one statement.
    pub(in crate::store) fn reader(&self) -> &SqlitePool {
        &self.readers
    }
}

/// A pool whose connections live as long as the store.
fn pool(size: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(size)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        // When the disk is full, and at other faults below it, SQLite ends a transaction by itself. Its rollback fails then, and the
        // driver believes for ever that it is still in it: such a connection can begin no other.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

/// A folder that is made here is nobody else's to read.
fn make_folder(folder: &Path) -> StoreResult<()> {
    crate::support::files::private_folder(folder)
        .map_err(|error| StoreError::Migration(format!("cannot make the folder {}: {error}", folder.display())))
}

/// The operating system gives the lock back when the process ends, however it ends.
fn lock_folder(folder: &Path) -> StoreResult<File> {
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

#[async_trait]
impl CommonStore for SqliteStore {
    async fn ping(&self) -> StoreResult<()> {
        if damage_was_met() {
            return Err(StoreError::Damaged(sqlx::Error::Io(std::io::Error::other("it was met before"))));
        }
        let mut took_write = self.took_write.lock().await;
        if took_write.is_some_and(|at| at.elapsed() < PING_PAUSE) {
            return Ok(());
        }
        // Only a commit tells whether the disk takes one. This one changes nothing that anybody reads.
        sqlx::query("PRAGMA user_version = 0").execute(&self.writer).await?;
        *took_write = Some(Instant::now());
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn caps_owners(&self) -> bool {
        self.owner_cap > 0
    }

    fn records(&self) -> &(dyn RecordStore + 'static) {
        self
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        let deleted = sqlx::query(concat!("DELETE FROM idempotency_keys WHERE created_at <= ", now!(), " - ?"));
        let deleted = deleted.bind(i64::try_from(age_ms).unwrap_or(i64::MAX)).execute(&self.writer);
        Ok(deleted.await?.rows_affected())
    }

    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired> {
        let counts = sqlx::query_as(concat!(
            "SELECT (SELECT count(*) FROM stream_tickets WHERE expires_at <= ",
            now!(),
            "), (SELECT count(*) FROM idempotency_keys WHERE created_at <= ",
            now!(),
            " - ?1), (SELECT count(*) FROM tool_audit WHERE at <= ",
            now!(),
            " - ?2), (SELECT count(*) FROM spending WHERE day < ",
            now!(),
            " / 86400000 - 1), (
                 SELECT count(*) FROM tool_sets s WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = s.hash)
             )"
        ))
        .bind(i64::try_from(keys_ms).unwrap_or(i64::MAX))
        .bind(audit_ms.map(|age| i64::try_from(age).unwrap_or(i64::MAX)))
        .fetch_one(self.reader())
        .await?;
        Ok(Expired::of(counts))
    }

    async fn leave_mark(&self) -> StoreResult<()> {
        match &self.clone_mark {
            Some(clone_mark) => clone_mark.leave(&self.writer).await,
            None => Ok(()),
        }
    }

    async fn close(&self) {
        if let Err(error) = self.leave_mark().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the last mark by which copies are noticed could not be left");
        }
        // The writer goes last: the last connection folds the write-ahead log into the file, which a reader may not do.
        self.readers.close().await;
        self.writer.close().await;
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_costs_one_connection_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("full.db").display());
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        sqlx::query("CREATE TABLE filler (data BLOB)").execute(&store.writer).await.unwrap();
        // As full as it is now; of this connection alone.
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
