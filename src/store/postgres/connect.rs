//! Opens the connection pools and migrates the schema.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::sync::Semaphore;

use super::connection_cache::{ConnectionCache, TEST_AFTER_IDLE};
use super::low_water_marks::LowWater;
use super::timeouts::{ANSWER_LIMIT, GuardedPool};
use super::{clone_detection, migrate};
use crate::store::sql::pooler;
use crate::store::{StoreError, StoreOptions, StoreResult};

/// Renewals and sweeps have two separate connections, so that a burst of requests delays no renewal.
const LEASE_CONNECTIONS: u32 = 2;

/// Time limit of workers for a connection. It is long, because no client waits for a worker: hundreds of runs that are claimed at
/// once load one after the other. Leases have separate connections, so none is lost meanwhile.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);

pub struct PostgresStore {
    pub(in crate::store) api: GuardedPool,
    /// For work that no client waits for. Uses the connections of `api`.
    pub(in crate::store) chores: GuardedPool,
    pub(in crate::store) worker: GuardedPool,
    pub(super) lease: GuardedPool,
    /// Limits concurrent acceptances to half of the request connections. A burst waits here: in the pool, it would reach the short
    /// timeout that detects a lost database, and would delay reads.
    pub(super) accepting: Semaphore,
    /// Limit of an owner's runs that workers hold at a time; 0 for no limit.
    pub(super) owner_cap: u32,
    pub(super) low_water: LowWater,
    /// The cached connection for accepting messages, from `api`.
    pub(super) accept: ConnectionCache,
    /// The cached connection of the log writer, from `worker`.
    pub(super) log: ConnectionCache,
}

/// Parses a URL. Sets no timeouts. The error does not contain the URL, which may contain a password.
pub(super) fn connect_options(url: &str) -> StoreResult<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| StoreError::Migration("the database URL is not a valid postgres:// URL".to_owned()))?;
    // Local connections are not encrypted, unless the URL requires it.
    let is_local = matches!(options.get_host(), "localhost" | "127.0.0.1" | "::1" | "[::1]");
    let options = if is_local && !url.contains("sslmode") && !url.contains("ssl-mode") {
        options.ssl_mode(PgSslMode::Disable)
    } else {
        options
    };
    // Poolers refuse the startup parameter `extra_float_digits`, which affects only the text form of numbers.
    Ok(options.application_name("capstan").extra_float_digits(None))
}

impl PostgresStore {
    /// Connects, and migrates the schema. Refuses a schema that is newer than this program or was changed by hand.
    pub async fn connect(url: &str, options: &StoreOptions) -> StoreResult<Self> {
        let plain = connect_options(url)?;
        let direct = match options.pooler {
            Some(true) => None,
            Some(false) | None => pooler::connect_directly(&plain, migrate::LOCK_TIMEOUT).await?,
        };
        let is_pooled = options.pooler.unwrap_or(direct.is_none());
        let connection = migrate::migrate(&plain, is_pooled, direct).await?;
        clone_detection::check(connection, options.on_clone, is_pooled).await?;
        // Behind a pooler, each transaction sets its limits and plans its own statements. Custom plans do not help look-ups by key.
        // Planning and just-in-time compilation cost more than most statements. A plan is kept until its table is analyzed again. A
        // plan for a small table must not use a sequential scan: when the table has grown, look-ups by key would take 1,000 times
        // as long until then.
        let plans = [("plan_cache_mode", "force_generic_plan"), ("enable_seqscan", "off")];
        let session = match is_pooled {
            true => plain.clone(),
            false => plain.clone().options(pooler::LIMITS).options(plans),
        };
        let pool = |size: u32, time_limit: Duration| {
            PgPoolOptions::new()
                .max_connections(size)
                .acquire_timeout(time_limit)
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
        // Connections are divided between requests and workers. Each part has at least two.
        let worker_connections = (options.max_connections * 3 / 8).max(2);
        let api_connections = options.max_connections.saturating_sub(worker_connections).max(2);
        let timeout = options.request_timeout;
        let api = GuardedPool::new(pool(api_connections, timeout), timeout, is_pooled);
        let worker = api.with_pool(pool(worker_connections, timeout.max(WORKER_PATIENCE)), ANSWER_LIMIT);
        Ok(Self {
            owner_cap: options.max_running_per_owner,
            low_water: LowWater::default(),
            accept: ConnectionCache::new(api.clone()),
            log: ConnectionCache::new(worker.clone()),
            chores: api.with_pool(api.pool.clone(), ANSWER_LIMIT),
            lease: api.with_pool(pool(LEASE_CONNECTIONS, timeout), ANSWER_LIMIT),
            api,
            worker,
            accepting: Semaphore::new((api_connections as usize / 2).max(1)),
        })
    }
}
