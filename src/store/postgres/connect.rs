//! Connections: three pools and the schema.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions, PgSslMode};
use sqlx::{Connection as _, SqlSafeStr as _};
use tokio::sync::Semaphore;

use super::answer::{ANSWER_LIMIT, Line};
use super::kept::{Kept, TEST_AFTER_IDLE};
use super::low_water::LowWater;
use super::{lineage, owners};
use crate::store::{OnCopy, StoreError, StoreResult};

/// Sizes of the pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Connections for requests and streams.
    pub api_connections: u32,
    /// Connections for claims, loading and the log writer.
    pub worker_connections: u32,
    /// The longest wait for a connection, free or new, and the longest that a request bears a database that is silent; then the call
    /// fails as unavailable: a client shall know within two seconds that the database is gone. Workers wait longer.
    pub request_timeout: Duration,
    /// Runs of one owner that workers have at a time; 0 for no limit.
    pub max_running_per_owner: u32,
    /// What becomes of a database that looks like a copy.
    pub on_copy: OnCopy,
}

/// See [`PostgresOptions::request_timeout`].
pub const REQUEST_TIMEOUT: Duration = Duration::from_millis(1_500);

impl Default for PostgresOptions {
    fn default() -> Self {
        Self::with_connections(16)
    }
}

impl PostgresOptions {
    /// Divides connections between requests and workers; each get at least two.
    #[must_use]
    pub fn with_connections(all: u32) -> Self {
        let worker_connections = (all * 3 / 8).max(2);
        let api_connections = all.saturating_sub(worker_connections).max(2);
        Self {
            api_connections,
            worker_connections,
            request_timeout: REQUEST_TIMEOUT,
            max_running_per_owner: 0,
            on_copy: OnCopy::default(),
        }
    }
}

/// Renewing and sweeping have two connections that nothing else may use, so that no burst of requests costs a lease.
const LEASE_CONNECTIONS: u32 = 2;

/// Nobody waits for an answer of a worker: when hundreds of runs are claimed at once, they load one after the other instead of
/// failing and trying again together. Leases have connections of their own, so none is lost meanwhile.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);

/// The store on a Postgres database.
pub struct PostgresStore {
    pub(in crate::store) api: Line,
    /// For what no client waits for, on the connections of `api`.
    pub(in crate::store) chores: Line,
    pub(super) worker: Line,
    pub(super) lease: Line,
    /// Lets half as many messages be accepted at a time as there are connections for requests. A burst waits here in line: in
    /// the pool it would run into the short time-out that tells a database that is gone, and keep reads waiting.
    pub(super) accepting: Semaphore,
    /// Runs of one owner that workers have at a time; 0 for no limit.
    pub(super) owner_cap: u32,
    /// From where on the queue and the leases are read.
    pub(super) low_water: LowWater,
    /// What messages are accepted with, of `api`.
    pub(super) accept: Kept,
    /// What the log writer writes with, of `worker`.
    pub(super) log: Kept,
}

/// What a URL says, without any time-outs. The error does not repeat the URL, which may hold a password.
pub(super) fn connect_options(url: &str) -> StoreResult<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| StoreError::Migration("the database URL is not a valid postgres:// URL".to_owned()))?;
    // What never leaves the machine need not be encrypted, unless the URL says how.
    let is_local = matches!(options.get_host(), "localhost" | "127.0.0.1" | "::1" | "[::1]");
    let options = if is_local && !url.contains("sslmode") && !url.contains("ssl-mode") {
        options.ssl_mode(PgSslMode::Disable)
    } else {
        options
    };
    Ok(options.application_name("capstan"))
}

impl PostgresStore {
    /// Connects, and brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Copied`] for a copy that is to be refused, [`StoreError::Unavailable`] if the database cannot be reached, [`StoreError::Migration`] for a URL that is none and
    /// for a schema that is newer than this program or was changed by hand.
    pub async fn connect(url: &str, options: PostgresOptions) -> StoreResult<Self> {
        let plain = connect_options(url)?;
        migrate(&plain).await?;
        owners::complete(&plain).await?;
        lineage::check(&plain, options.on_copy).await?;
        // Custom plans bring nothing for look-ups by key, and making one costs more than most statements; so does
        // just-in-time compilation. A plan is kept as long as its connection, and one that was made while a table was small
        // must not go through all of it when it has grown: every frequent statement has an index.
        let session = plain.clone().options([
            ("statement_timeout", "10s"),
            ("lock_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "5s"),
            ("plan_cache_mode", "force_generic_plan"),
            ("jit", "off"),
            ("enable_seqscan", "off"),
        ]);
        let pool = |size: u32, patience: Duration| {
            PgPoolOptions::new()
                .max_connections(size)
                .acquire_timeout(patience)
                .test_before_acquire(false)
                .before_acquire(|connection, about| {
                    Box::pin(async move {
                        if about.idle_for > TEST_AFTER_IDLE {
                            connection.ping().await?;
                        }
                        Ok(true)
                    })
                })
                .connect_lazy_with(session.clone())
        };
        let timeout = options.request_timeout;
        let api = Line::new(pool(options.api_connections, timeout), timeout);
        let worker = api.beside(pool(options.worker_connections, timeout.max(WORKER_PATIENCE)), ANSWER_LIMIT);
        Ok(Self {
            owner_cap: options.max_running_per_owner,
            low_water: LowWater::default(),
            accept: Kept::new(api.clone()),
            log: Kept::new(worker.clone()),
            chores: api.beside(api.pool.clone(), ANSWER_LIMIT),
            lease: api.beside(pool(LEASE_CONNECTIONS, timeout), ANSWER_LIMIT),
            api,
            worker,
            accepting: Semaphore::new((options.api_connections as usize / 2).max(1)),
        })
    }

    pub(super) async fn close_pools(&self) {
        self.accept.release();
        self.log.release();
        self.api.pool.close().await;
        self.worker.pool.close().await;
        self.lease.pool.close().await;
    }
}

/// Every migration, oldest first. They are only ever added to.
fn migrations() -> Migrator {
    let step = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(vec![
        step(1, "backbone", include_str!("../../../migrations/postgres/0001_backbone.sql")),
        step(2, "joined", include_str!("../../../migrations/postgres/0002_joined.sql")),
        step(3, "access", include_str!("../../../migrations/postgres/0003_access.sql")),
        step(4, "input", include_str!("../../../migrations/postgres/0004_input.sql")),
        step(5, "owner_cap", include_str!("../../../migrations/postgres/0005_owner_cap.sql")),
        step(6, "fold", include_str!("../../../migrations/postgres/0006_fold.sql")),
        step(7, "input_list", include_str!("../../../migrations/postgres/0007_input_list.sql")),
        step(8, "providers", include_str!("../../../migrations/postgres/0008_providers.sql")),
        step(9, "approvals", include_str!("../../../migrations/postgres/0009_approvals.sql")),
        step(10, "provider_limits", include_str!("../../../migrations/postgres/0010_provider_limits.sql")),
        step(11, "repair", include_str!("../../../migrations/postgres/0011_repair.sql")),
        step(12, "tool_audit", include_str!("../../../migrations/postgres/0012_tool_audit.sql")),
        step(13, "mcp_servers", include_str!("../../../migrations/postgres/0013_mcp_servers.sql")),
        step(14, "tool_pins", include_str!("../../../migrations/postgres/0014_tool_pins.sql")),
        step(15, "agents", include_str!("../../../migrations/postgres/0015_agents.sql")),
        step(16, "mcp_logins", include_str!("../../../migrations/postgres/0016_mcp_logins.sql")),
        step(17, "retry", include_str!("../../../migrations/postgres/0017_retry.sql")),
        step(18, "conversation_order", include_str!("../../../migrations/postgres/0018_conversation_order.sql")),
        step(19, "files", include_str!("../../../migrations/postgres/0019_files.sql")),
        step(20, "context_summaries", include_str!("../../../migrations/postgres/0020_context_summaries.sql")),
        step(21, "prompt_layers", include_str!("../../../migrations/postgres/0021_prompt_layers.sql")),
        step(22, "search", include_str!("../../../migrations/postgres/0022_search.sql")),
        step(23, "copies", include_str!("../../../migrations/postgres/0023_copies.sql")),
        step(24, "file_uses", include_str!("../../../migrations/postgres/0024_file_uses.sql")),
        step(25, "feedback", include_str!("../../../migrations/postgres/0025_feedback.sql")),
        step(26, "cheaper_words", include_str!("../../../migrations/postgres/0026_cheaper_words.sql")),
        step(27, "undo", include_str!("../../../migrations/postgres/0027_undo.sql")),
        step(28, "titles", include_str!("../../../migrations/postgres/0028_titles.sql")),
        step(29, "review", include_str!("../../../migrations/postgres/0029_review.sql")),
        step(30, "handles", include_str!("../../../migrations/postgres/0030_handles.sql")),
        step(31, "owners", include_str!("../../../migrations/postgres/0031_owners.sql")),
        step(32, "lineage", include_str!("../../../migrations/postgres/0032_lineage.sql")),
        step(33, "spending", include_str!("../../../migrations/postgres/0033_spending.sql")),
        step(34, "contexts", include_str!("../../../migrations/postgres/0034_contexts.sql")),
        step(35, "seen_logins", include_str!("../../../migrations/postgres/0035_seen_logins.sql")),
        step(36, "low_water", include_str!("../../../migrations/postgres/0036_low_water.sql")),
        step(37, "granted", include_str!("../../../migrations/postgres/0037_granted.sql")),
        step(38, "unused_tool_sets", include_str!("../../../migrations/postgres/0038_unused_tool_sets.sql")),
        step(39, "groups", include_str!("../../../migrations/postgres/0039_groups.sql")),
        step(40, "hidden_messages", include_str!("../../../migrations/postgres/0040_hidden_messages.sql")),
        step(41, "conversation_agents", include_str!("../../../migrations/postgres/0041_conversation_agents.sql")),
        step(42, "content_files", include_str!("../../../migrations/postgres/0042_content_files.sql")),
    ])
}

/// How long a migration waits for a lock: as long as it does, everybody else who wants the table waits behind it.
pub(super) const MIGRATION_LOCK: (&str, &str) = ("lock_timeout", "500ms");

/// How long those who waited behind a migration get to go on, before it asks for its lock again.
pub(super) const MIGRATION_PAUSE: Duration = Duration::from_millis(500);

/// How long a migration waits for a lock that it has often not got. Postgres stops an automatic vacuum of a table for whoever has
/// waited for it for `deadlock_timeout`, which is a second; a vacuum of a large table would otherwise go on for hours.
const MIGRATION_LOCK_AT_LAST: (&str, &str) = ("lock_timeout", "1200ms");

/// After how many refusals a migration waits so long, once.
const OFTEN: usize = 5;

/// On a connection of its own: a migration may take its time, but not at a lock, for older versions are at work meanwhile. The
/// migrator takes an advisory lock, so that processes that start together do not get in each other's way.
async fn migrate(options: &PgConnectOptions) -> StoreResult<()> {
    let mut refusals = 0_usize;
    loop {
        let patience = if refusals % (OFTEN + 1) == OFTEN { MIGRATION_LOCK_AT_LAST } else { MIGRATION_LOCK };
        let options = options.clone().options([patience]);
        let mut connection = PgConnection::connect_with(&options).await?;
        // Not by `run`, whose future can only be awaited by the thread that began it.
        let done = migrations().run_direct(None, &mut connection, false).await;
        // The lock that a failed migrator leaves behind goes with the connection.
        let _ = connection.close().await;
        match done {
            Err(error) if is_kept_waiting(&error) => {
                tracing::warn!("the schema cannot be brought up to date yet: somebody holds a lock on it");
                tokio::time::sleep(MIGRATION_PAUSE).await;
            }
            done => return migrated(done),
        }
        refusals += 1;
    }
}

/// Whether a lock was not to be had in time.
fn is_kept_waiting(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else { return false };
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55P03")
}

fn migrated(done: Result<(), MigrateError>) -> StoreResult<()> {
    let version = match &done {
        Err(MigrateError::VersionMissing(version)) => Some(*version),
        Ok(()) | Err(_) => None,
    };
    match (done, version) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(version)) => Err(StoreError::Migration(format!(
            "it has version {version}, which this program does not know: start a newer version of capstan"
        ))),
        (Err(MigrateError::VersionMismatch(version)), None) => {
            Err(StoreError::Migration(format!("its version {version} is not the one that this program was built with")))
        }
        (Err(MigrateError::Execute(error)), None) => Err(error.into()),
        (Err(error), None) => Err(StoreError::Migration(error.to_string())),
    }
}
