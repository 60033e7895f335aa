//! Connections: three pools and the schema.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::sync::Semaphore;

use super::answer::{ANSWER_LIMIT, Line};
use super::connection_cache::{ConnectionCache, TEST_AFTER_IDLE};
use super::low_water::LowWater;
use super::{clones, migrate};
use crate::store::{StoreError, StoreOptions, StoreResult};

/// Renewing and sweeping have two connections that nothing else may use, so that no burst of requests costs a lease.
const LEASE_CONNECTIONS: u32 = 2;

/// How long workers wait for a connection. No client waits for a worker: hundreds of runs that are claimed at once load one after the
/// other, instead of failing and retrying together. Leases have connections of their own, so none is lost meanwhile.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);

pub struct PostgresStore {
    pub(in crate::store) api: Line,
    /// For work that no client waits for, on the connections of `api`.
    pub(in crate::store) chores: Line,
    pub(in crate::store) worker: Line,
    pub(super) lease: Line,
    /// Lets half as many messages be accepted at a time as there are connections for requests. A burst queues here: in the pool it
    /// would run into the short timeout that detects a lost database, and keep reads waiting.
    pub(super) accepting: Semaphore,
    /// Runs of one owner that workers have at a time; 0 for no limit.
    pub(super) owner_cap: u32,
    pub(super) low_water: LowWater,
    /// The cached connection for accepting messages, of `api`.
    pub(super) accept: ConnectionCache,
    /// The cached connection of the log writer, of `worker`.
    pub(super) log: ConnectionCache,
}

/// Reads a URL, without any timeouts. The error does not repeat the URL, which may hold a password.
pub(super) fn connect_options(url: &str) -> StoreResult<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| StoreError::Migration("the database URL is not a valid postgres:// URL".to_owned()))?;
    // Local connections need no encryption, unless the URL says so.
    let is_local = matches!(options.get_host(), "localhost" | "127.0.0.1" | "::1" | "[::1]");
    let options = if is_local && !url.contains("sslmode") && !url.contains("ssl-mode") {
        options.ssl_mode(PgSslMode::Disable)
    } else {
        options
    };
    Ok(options.application_name("capstan"))
}

impl PostgresStore {
    /// Connects, and brings the schema up to date. A schema that is newer than this program or was changed by hand is refused.
    pub async fn connect(url: &str, options: &StoreOptions) -> StoreResult<Self> {
        let plain = connect_options(url)?;
        migrate::migrate(&plain).await?;
        clones::check(&plain, options.on_copy).await?;
        // Custom plans bring nothing for look-ups by key, and making one costs more than most statements; so does
        // just-in-time compilation. A plan is kept until its table is analyzed again. A plan of a small table must not scan all of it
        // when it has grown: look-ups by key would take 1,000 times as long until then.
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
        // Connections are divided between requests and workers; each get at least two.
        let worker_connections = (options.max_connections * 3 / 8).max(2);
        let api_connections = options.max_connections.saturating_sub(worker_connections).max(2);
        let timeout = options.request_timeout;
        let api = Line::new(pool(api_connections, timeout), timeout);
        let worker = api.beside(pool(worker_connections, timeout.max(WORKER_PATIENCE)), ANSWER_LIMIT);
        Ok(Self {
            owner_cap: options.max_running_per_owner,
            low_water: LowWater::default(),
            accept: ConnectionCache::new(api.clone()),
            log: ConnectionCache::new(worker.clone()),
            chores: api.beside(api.pool.clone(), ANSWER_LIMIT),
            lease: api.beside(pool(LEASE_CONNECTIONS, timeout), ANSWER_LIMIT),
            api,
            worker,
            accepting: Semaphore::new((api_connections as usize / 2).max(1)),
        })
    }
}
