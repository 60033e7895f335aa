//! `capstan serve`: starts the parts of a server, and stops them in order.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use metrics_exporter_prometheus::PrometheusHandle;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::commands::healthcheck::reachable;
use crate::app::config::{Config, ContextsConfig, Environment, Loaded, Role, ToolReviewMode, effective};
use crate::app::models::{self, DefaultModel, Models};
use crate::app::process::signals::Signals;
use crate::app::process::watchdog::{self, Watchdog};
use crate::app::process::{background_tasks, listener, log, open_file_limit, process_wakeups, telemetry};
use crate::app::wiring::file_reader::ReadingProcesses;
use crate::app::wiring::master_keys;
use crate::app::wiring::parts::{self, OpenPurpose};
use crate::app::wiring::provider_records::{RecordClients, RecordClientsOptions};
use crate::app::wiring::user_servers::StoredUserServers;
use crate::documents::FileDeps;
use crate::domain::ids::NodeId;
use crate::http::{self, Auth, HttpOptions};
use crate::live::{Hub, HubLimits};
use crate::service::{CopyLimits, FindModel, McpDeps, ProviderDeps, Service, ServiceDeps, ServiceLimits, ShareLimits, ShareRules};
use crate::store::{OnClone, Store};
use crate::support::clock::SystemClock;
use crate::support::ids::UuidIds;
use crate::tools::context_providers::{ContextProvider, ContextProviderOptions, ContextProviders};
use crate::tools::mcp::{McpConfig, McpWarning};
use crate::tools::{ToolExecutor, Toolbox as _};
use crate::worker::{EmbeddingSource, Worker, WorkerDeps, WorkerOptions};

/// Time limit for connections to close after their streams have ended.
const CONNECTIONS_GRACE: Duration = Duration::from_secs(5);

/// Time limit for each of three groups: the last tasks, connections and commits.
const LAST_GRACE: Duration = Duration::from_secs(2);

pub async fn run(loaded: Loaded, environment: &Environment, on_clone: OnClone) -> anyhow::Result<ExitCode> {
    let metrics = telemetry::start_metrics()?;
    let _log = log::start(&loaded.config.log)?;
    open_file_limit::raise();
    let _watchdog =
        Watchdog::start(&tokio::runtime::Handle::current(), watchdog::POLL_LIMIT).context("no thread can be started")?;
    let mut signals = Signals::install()?;
    let (environment, starting) = (environment.clone(), TaskTracker::new());
    // The server starts on a thread of the async runtime, because the allocator keeps freed memory for the thread that allocated it. The
    // main thread only waits.
    let started = starting.spawn(async move { Box::pin(Server::start(loaded, &environment, on_clone, metrics)).await });
    let server = tokio::select! {
        server = started => server.context("the server could not start")??,
        // A start that waits for a silent database must not block the end of the process.
        signal = signals.next() => bail!("{signal} ended the process before the start was complete"),
    };
    let signal = tokio::select! {
        signal = signals.next() => signal,
        () = server.listener.wait() => bail!("the listener ended unexpectedly"),
        () = server.worker_failed() => {
            tracing::error!("shutting down: the worker cannot continue");
            server.stop(&mut signals).await;
            return Ok(ExitCode::FAILURE);
        }
    };
    tracing::info!(signal, "shutting down: another signal shortens the shutdown");
    server.stop(&mut signals).await;
    tracing::info!("ended");
    Ok(ExitCode::SUCCESS)
}

struct Server {
    config: Config,
    store: Arc<dyn Store>,
    hub: Arc<Hub>,
    tools: Arc<ToolExecutor>,
    worker: Option<Arc<Worker>>,
    /// Makes `/readyz` answer 503.
    unready: CancellationToken,
    /// Closes the listening socket.
    drain: CancellationToken,
    /// Ends streams.
    shutdown: CancellationToken,
    /// Ends background tasks and closes the last connections.
    stop: CancellationToken,
    listener: TaskTracker,
    /// Tracks the tasks of WebSockets and of runs whose client has disconnected.
    connection_tasks: TaskTracker,
    /// Tracks commits, which finish even if their client disconnects.
    commits: TaskTracker,
    tasks: TaskTracker,
}

impl Server {
    async fn start(
        loaded: Loaded,
        environment: &Environment,
        on_clone: OnClone,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        let mut models = models::select_models(&loaded, environment).await?;
        let mut config = loaded.config;
        if let Some(model) = models.default_model.known() {
            config.agent.model = model;
        }
        let settings = effective(&config, &loaded.sources).context("the settings cannot be listed")?;

        let store = parts::open_store(&config, OpenPurpose::Server(on_clone)).await?;
        models.limitations.open(&store);
        if let Some(problem) = models::unserved_default(&models, store.as_ref()).await? {
            tracing::warn!("{problem}");
        }
        models::check_served("agent.fallbacks", &config.agent.fallbacks, &models, store.as_ref()).await?;
        models::check_served("agent.title_model", config.agent.title_model.as_slice(), &models, store.as_ref()).await?;
        // The checks come first, because `explain_missing_key` adds a provider without a key. The checks would accept that provider.
        models.explain_missing_key()?;
        let vault = master_keys::open_vault(&config)?;
        master_keys::require_keys(store.as_ref(), &vault).await?;
        let keys = parts::configured_keys(&config, store.records()).await?;
        let has_keys = !keys.is_empty() || store.has_keys(None).await.context("the keys cannot be read")?;
        refuse_public_bind(&config, has_keys)?;
        let socket = listener::bind(config.server.listen)?;

        let hub =
            Hub::new(HubLimits { max_events: config.limits.stream_buffer_events, max_bytes: config.limits.stream_buffer_bytes });
        let rules = parts::member_rules(&config);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let user_servers = StoredUserServers::new(Arc::clone(&store), Arc::clone(&vault), rules, tasks.clone());
        let mcp = parts::mcp_config(&config, environment)?;
        warn_of_mcp_config(&config, &mcp);
        let tools = parts::tools(&config, mcp, environment, Some(user_servers))?;
        let node = NodeId::generate(&UuidIds);
        let configured = tools.mcp().configured().map(|server| server.id).collect();
        tasks.spawn(background_tasks::forget_logins(Arc::clone(&store), configured, stop.clone()));
        background_tasks::start(&tasks, &store, &hub, metrics.clone(), &config.retention, &stop);
        if store.is_pooled() {
            tracing::info!(
                "a connection pooler is in front of the database: this process finds the changes of other processes only by polling"
            );
        } else if store.is_shared() {
            process_wakeups::start(&tasks, &config.database_url(), &node, &hub, &stop)
                .context("Postgres notifications cannot be set up")?;
        }

        let router = Arc::clone(&models.router);
        let client_options = RecordClientsOptions {
            endpoints: models.endpoints.clone(),
            openrouter: config.outbound.openrouter_url.clone(),
            embedders: models.embedders(&config.embeddings)?,
            breaker: config.breaker.limits(),
            limitations: models.limitations.clone(),
            member_egress: rules.egress,
        };
        let records = RecordClients::new(Arc::clone(&store), Arc::clone(&vault), router, client_options);
        let files = FileDeps { reader: Arc::new(ReadingProcesses::new()?), limits: config.limits.files() };
        let worker = match config.server.role {
            Role::All | Role::Worker => {
                let deps = WorkerDeps {
                    store: store.clone(),
                    hub: Arc::clone(&hub),
                    models: Arc::clone(&records) as _,
                    tools: Arc::clone(&tools) as _,
                    clock: Arc::new(SystemClock),
                    ids: Arc::new(UuidIds),
                    embeddings: embedding_source(&config, &records),
                    context_providers: context_providers(&config, environment)?,
                    files: files.clone(),
                };
                Some(Worker::start(deps, worker_options(&config, node.clone())).await.context("the worker cannot start")?)
            }
            Role::Api => None,
        };

        let auth = if has_keys { Auth::Keys } else { Auth::Open(parts::local_principal(store.records()).await?) };
        let shutdown = CancellationToken::new();
        let unready = shutdown.child_token();
        let (connection_tasks, commits) = (TaskTracker::new(), TaskTracker::new());
        let max_per_owner = config.limits.max_providers_per_owner;
        let providers = ProviderDeps { vault, endpoints: records, member_egress: rules.egress, max_per_owner };
        let max_per_owner = config.limits.max_mcp_servers_per_owner;
        let max_logins = config.limits.max_mcp_logins_per_owner;
        let mcp_servers = McpDeps { servers: Arc::clone(tools.mcp()), rules, max_per_owner, max_logins };
        let service = Arc::new(Service::new(ServiceDeps {
            configured_keys: keys,
            providers: Some(providers),
            mcp_servers: Some(mcp_servers),
            files,
            settings,
            ..service_deps(&config, &store, &hub, &tools, &models, commits.clone())
        }));
        tasks.spawn(Arc::clone(&service).watch_keys(stop.clone()));
        let mut options = http_options(&config, auth.clone(), shutdown.clone(), connection_tasks.clone(), metrics);
        options.unready = unready.clone();
        let app = match config.server.role {
            Role::All | Role::Api => http::router(service, options),
            Role::Worker => http::system_router(service, options),
        };
        let (drain, listener) = (CancellationToken::new(), TaskTracker::new());
        log_startup(&config, &socket, &models, &auth, &node)?;
        tools.mcp().prepare_containers();
        listener.spawn(listener::serve(socket, app, config.limits.max_connections, drain.clone(), stop.clone()));
        listener.close();
        Ok(Self { config, store, hub, tools, worker, unready, drain, shutdown, stop, listener, connection_tasks, commits, tasks })
    }

    async fn worker_failed(&self) {
        match &self.worker {
            Some(worker) => worker.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Stops the server in order. First `/readyz` fails for the configured delay. Then the server closes its socket, drains runs, ends
    /// streams, and ends everything else.
    ///
    /// Streams stay open during the drain, so that subscribers receive the end or hand-back of each run.
    async fn stop(self, signals: &mut Signals) {
        self.unready.cancel();
        let delay = self.config.server.drain_delay_ms;
        if delay > 0 {
            tracing::info!(delay_ms = delay, "requests are accepted until the drain begins, and /readyz answers 503");
            // A second signal ends the delay, and a third one the drain.
            let _ = tokio::time::timeout(Duration::from_millis(delay), signals.next()).await;
        }
        self.drain.cancel();
        if let Some(worker) = &self.worker {
            let grace = Duration::from_millis(self.config.worker.drain_grace_ms);
            let drained = worker.drain(grace);
            tokio::pin!(drained);
            tokio::select! {
                () = &mut drained => {}
                signal = signals.next() => {
                    tracing::warn!(signal, "another signal arrived: the drain ends now");
                    worker.stop_now();
                    drained.await;
                }
            }
        }
        self.shutdown.cancel();
        self.connection_tasks.close();
        let connections = async {
            self.connection_tasks.wait().await;
            self.listener.wait().await;
        };
        tokio::select! {
            ended = tokio::time::timeout(CONNECTIONS_GRACE, connections) => {
                if ended.is_err() {
                    tracing::warn!("closing the remaining connections");
                }
            }
            _ = signals.next() => {}
        }
        self.hub.close_all();
        self.stop.cancel();
        self.tasks.close();
        self.commits.close();
        // Commits are last: dropped connections leave commits in progress.
        let ends = [("tasks", self.tasks.wait()), ("connections", self.listener.wait()), ("commits", self.commits.wait())];
        for (kind, end) in ends {
            if tokio::time::timeout(LAST_GRACE, end).await.is_err() {
                tracing::warn!(kind, "a group of tasks did not end in time");
            }
        }
        if tokio::time::timeout(CONNECTIONS_GRACE, self.tools.shutdown()).await.is_err() {
            tracing::warn!("MCP servers did not stop in time");
        }
        // The database is closed even if an MCP server does not stop.
        if tokio::time::timeout(CONNECTIONS_GRACE, self.store.close()).await.is_err() {
            tracing::warn!("the database connections did not close in time");
        }
    }
}

/// Logs the refused entries of the `mcpServers` file, and its parts without effect.
fn warn_of_mcp_config(config: &Config, mcp: &McpConfig) {
    let file = config.tools.mcp_config.as_deref().unwrap_or(Path::new("")).display();
    for (entry, server) in &mcp.servers {
        if let Err(reason) = server {
            tracing::warn!(%file, entry, reason, "an MCP server is not available, because its entry is invalid");
        }
    }
    for McpWarning { entry, text } in &mcp.warnings {
        tracing::warn!(%file, entry, reason = text, "a part of the MCP configuration has no effect");
    }
}

/// Returns whether the process serves the API, and not only health and metrics, which need no key.
fn serves_api(config: &Config) -> bool {
    match config.server.role {
        Role::All | Role::Api => true,
        Role::Worker => false,
    }
}

fn refuse_public_bind(config: &Config, has_keys: bool) -> anyhow::Result<()> {
    let listen = config.server.listen;
    if serves_api(config) && !has_keys && !listen.ip().is_loopback() {
        bail!(
            "refusing to listen on {listen} without authentication, because every client that reaches this address could use the server; \
             create a key with `capstan keys create --user NAME`, or listen on 127.0.0.1"
        );
    }
    Ok(())
}

fn embedding_source(config: &Config, records: &Arc<RecordClients>) -> Option<EmbeddingSource> {
    let embeddings = &config.embeddings;
    Some(EmbeddingSource {
        embedders: Arc::clone(records) as _,
        model: embeddings.model.clone()?,
        time_limit: Duration::from_millis(embeddings.timeout_ms),
        limits: embeddings.limits(),
        cache_bytes: embeddings.cache_mib * 1024 * 1024,
    })
}

fn context_providers(config: &Config, environment: &Environment) -> anyhow::Result<Option<Arc<ContextProviders>>> {
    let ContextsConfig { each_ms, all_ms, max_chars, failures, cool_down_ms, providers: configured } = &config.contexts;
    let mut providers = BTreeMap::new();
    for (name, provider) in configured {
        let read = |variable: &String| {
            let unset = || format!("contexts.providers.{name}.key_env names {variable}, which is not set");
            environment.get(variable).map(SecretString::from).with_context(unset)
        };
        let key = provider.key_env.as_ref().map(read).transpose()?;
        providers.insert(name.clone(), ContextProvider { url: provider.url.clone(), key });
    }
    let options = ContextProviderOptions {
        providers,
        each: Duration::from_millis(*each_ms),
        all: Duration::from_millis(*all_ms),
        max_chars: *max_chars,
        failures: *failures,
        cool_down: Duration::from_millis(*cool_down_ms),
    };
    Ok((!options.providers.is_empty()).then(|| Arc::new(ContextProviders::new(options))))
}

fn worker_options(config: &Config, node: NodeId) -> WorkerOptions {
    let worker = &config.worker;
    let mut options = WorkerOptions::new(node);
    options.slots = worker.slots;
    options.lease = Duration::from_millis(worker.lease_ms);
    options.renew = Duration::from_millis(worker.renew_ms);
    options.sweep_interval = Duration::from_millis(worker.sweep_ms);
    options.self_stop = Duration::from_millis(worker.self_stop_ms);
    options.poll = Duration::from_millis(worker.poll_ms);
    options.hold_changed_tools = config.tools.review == ToolReviewMode::Hold;
    options.gather = Duration::from_millis(worker.commit_gather_ms);
    options
}

/// Returns the parts of the service. The caller adds keys, providers, MCP servers, files and settings.
fn service_deps(
    config: &Config,
    store: &Arc<dyn Store>,
    hub: &Arc<Hub>,
    tools: &Arc<ToolExecutor>,
    models: &Models,
    commits: TaskTracker,
) -> ServiceDeps {
    let router = Arc::clone(&models.router);
    let find_model = match &models.default_model {
        DefaultModel::Known(_) => None,
        DefaultModel::FirstListed(later) => Some(Arc::clone(later) as Arc<dyn FindModel>),
    };
    ServiceDeps {
        store: store.clone(),
        hub: Arc::clone(hub),
        tools: Arc::clone(tools) as _,
        clock: Arc::new(SystemClock),
        ids: Arc::new(UuidIds),
        default_profile: config.agent.clone(),
        models: Arc::new(move |model| router.has_provider(model)),
        limits: ServiceLimits {
            max_message_chars: config.limits.max_message_chars,
            max_active_runs: config.limits.max_active_runs_per_owner,
            max_conversations: config.limits.max_conversations_per_owner,
            day: config.limits.day(),
            max_agents: config.limits.max_agents_per_owner,
            max_keys: config.limits.max_keys_per_owner,
            max_feedback_chars: config.limits.max_feedback_chars,
            max_client_tools: config.limits.max_client_tools,
            client_tool_bytes: config.limits.client_tool_bytes,
            client_result_bytes: config.limits.client_result_bytes,
            copies: CopyLimits { messages: config.limits.copy_messages, bytes: config.limits.copy_bytes as u64 },
            shares: ShareRules {
                enabled: config.server.shares,
                max_days: config.limits.max_share_days,
                limits: ShareLimits {
                    per_conversation: config.limits.max_shares_per_conversation,
                    bytes: config.limits.max_share_bytes,
                    read_bytes: config.limits.copy_bytes,
                },
            },
        },
        configured_keys: HashMap::new(),
        find_model,
        providers: None,
        mcp_servers: None,
        files: FileDeps::default(),
        settings: Vec::new(),
        commits,
    }
}

fn http_options(
    config: &Config,
    auth: Auth,
    shutdown: CancellationToken,
    connections: TaskTracker,
    metrics: PrometheusHandle,
) -> HttpOptions {
    let allowed_hosts = match &auth {
        Auth::Open(_) => {
            let mut hosts = HttpOptions::loopback_hosts();
            hosts.push(config.server.listen.ip().to_string());
            hosts.extend(config.server.allowed_hosts.iter().cloned());
            Some(hosts)
        }
        Auth::Keys => None,
    };
    let mut options = HttpOptions::new(auth);
    options.shutdown = shutdown;
    options.connections = connections;
    options.metrics = Arc::new(move || metrics.render());
    options.allowed_hosts = allowed_hosts;
    options.cors_origins.clone_from(&config.server.allowed_origins);
    options.public_url.clone_from(&config.server.public_url);
    options.page = config.server.page;
    options.page_dir.clone_from(&config.server.page_dir);
    options.limits.max_body_bytes = config.limits.body_bytes;
    options.limits.completion_grace = Duration::from_millis(config.server.completion_grace_ms);
    options.limits.ws_max_per_principal = config.limits.max_websockets_per_owner;
    options.limits.ws_max_subscriptions = config.limits.max_subscriptions_per_websocket;
    options
}

/// Logs the warnings about models, the address of the server, and its main settings.
fn log_startup(config: &Config, socket: &TcpListener, models: &Models, auth: &Auth, node: &NodeId) -> anyhow::Result<()> {
    for warning in &models.warnings {
        tracing::warn!("{warning}");
    }
    let address = socket.local_addr().context("the listener has no address")?;
    let key = match auth {
        Auth::Open(_) => "not required",
        Auth::Keys => "required",
    };
    tracing::info!(
        url = %format_args!("http://{address}"),
        role = config.server.role.as_str(),
        model = %models.default_model,
        database = %crate::app::config::redact_url(config.database_url().expose_secret()),
        key,
        loopback_only = address.ip().is_loopback(),
        node = %node,
        version = env!("CARGO_PKG_VERSION"),
        "capstan is ready"
    );
    if serves_api(config) && config.server.page {
        tracing::info!("open http://{}/ in a browser", reachable(address));
    }
    if models.is_demonstration {
        tracing::warn!(
            "the default model is demo/demo, which is only a demonstration: it works offline and knows nothing; set \
             OPENAI_API_KEY, or OPENAI_BASE_URL for any compatible endpoint, or start Ollama, and restart"
        );
    }
    Ok(())
}
