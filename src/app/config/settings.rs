//! The settings with their defaults. `reference.md` explains each key.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_with::skip_serializing_none;

use crate::domain::access::principal::UserRole;
use crate::domain::agent::AgentProfile;
use crate::domain::conversation::file::FileLimits;
use crate::domain::model::cost::Usd;
use crate::domain::model::provider::CallLimits;
use crate::domain::run::budget::Allowance;
use crate::provider::catalog::ProviderKind;
use crate::provider::circuit_breaker::BreakerLimits;
use crate::provider::embeddings::EmbeddingLimits;
use crate::service::IdleAges;
use crate::store::Durability;
use crate::support::net::egress::EgressScope;
use crate::support::net::egress_allowlist::{self, AllowlistEntry};
use crate::support::redact::{REDACTED, error_text};
use crate::tools::mcp::{ConnectionLimits, ContainerOptions};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub server: ServerConfig,
    pub auth: AuthConfig,
    pub database: DatabaseConfig,
    pub worker: WorkerConfig,
    /// The profile of runs that name no agent: the default agent.
    pub agent: AgentProfile,
    pub tools: ToolsConfig,
    pub providers: ProvidersConfig,
    pub embeddings: EmbeddingsConfig,
    pub contexts: ContextsConfig,
    pub breaker: BreakerConfig,
    pub outbound: OutboundConfig,
    pub mcp: McpServersConfig,
    pub limits: LimitsConfig,
    pub retention: RetentionConfig,
    pub log: LogConfig,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Serves the API and works on runs.
    #[default]
    All,
    /// Serves the API only.
    Api,
    /// Works on runs; answers health and metrics only.
    Worker,
}

impl Role {
    /// Returns the name, as the flag and the setting spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    pub role: Role,
    pub data_dir: PathBuf,
    /// Host names for which the server answers, in addition to its own addresses. Needed behind a proxy if no key is configured.
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    /// The URL of the server for browsers, such as `https://chat.example.org`; by default from the host of each request.
    pub public_url: Option<String>,
    /// How long requests are accepted after SIGTERM while `/readyz` answers 503, so that load balancers notice, in milliseconds.
    pub drain_delay_ms: u64,
    /// How long a chat completion continues after its client has disconnected, in milliseconds.
    pub completion_grace_ms: u64,
    /// Whether owners may share conversations, and shares are readable without a key.
    pub shares: bool,
    pub page: bool,
    /// The folder with the built chat page, instead of the embedded page.
    pub page_dir: Option<PathBuf>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            role: Role::All,
            data_dir: PathBuf::from("./data"),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            public_url: None,
            drain_delay_ms: 0,
            completion_grace_ms: 10_000,
            shares: true,
            page: true,
            page_dir: None,
        }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Keys in addition to those of `capstan keys create`.
    pub keys: Vec<ConfiguredKey>,
    /// The master key for secrets in the database; by default `secret.key` in the data folder.
    #[serde(serialize_with = "redacted")]
    pub secret_key: Option<SecretString>,
    /// Earlier master keys, separated by commas. They only decrypt.
    #[serde(serialize_with = "redacted")]
    pub secret_key_previous: Option<SecretString>,
}

/// A key in the configuration: either the key itself or its hash.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredKey {
    pub user: String,
    #[serde(default = "member")]
    pub role: UserRole,
    #[serde(serialize_with = "redacted")]
    pub key: Option<SecretString>,
    /// SHA-256 of the key, 64 hexadecimal digits.
    pub key_hash: Option<String>,
}

fn member() -> UserRole {
    UserRole::Member
}

#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseConfig {
    /// `postgres://...` or `sqlite:PATH`; by default SQLite in the data folder.
    #[serde(serialize_with = "redacted_url")]
    pub url: Option<SecretString>,
    /// Postgres: connections for requests and the log writer together. Leases have separate connections.
    pub max_connections: u32,
    /// Postgres: how long a request waits for a database that does not answer, before the client gets 503.
    pub request_timeout_ms: u64,
    /// Postgres: whether a pooler in transaction mode, such as PgBouncer, is in front of the database; detected if absent.
    pub pooler: Option<bool>,
    pub synchronous: Durability,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self { url: None, max_connections: 16, request_timeout_ms: 1_500, pooler: None, synchronous: Durability::Full }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerConfig {
    pub slots: u32,
    pub lease_ms: u64,
    pub renew_ms: u64,
    pub sweep_ms: u64,
    pub self_stop_ms: u64,
    pub drain_grace_ms: u64,
    pub poll_ms: u64,
    pub commit_gather_ms: u64,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            slots: 1024,
            lease_ms: 10_000,
            renew_ms: 3_000,
            sweep_ms: 2_000,
            self_stop_ms: 7_000,
            drain_grace_ms: 25_000,
            poll_ms: 1_000,
            commit_gather_ms: 25,
        }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// The only folder that the file tools can access; by default `files` in the data folder.
    pub files_root: Option<PathBuf>,
    /// A standard `{"mcpServers": {...}}` file.
    pub mcp_config: Option<PathBuf>,
    /// Optional built-in tools that are offered.
    pub enable: Vec<String>,
    pub pin: ToolReviewMode,
}

/// The treatment of a changed tool definition from an untrusted server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolReviewMode {
    /// The tool is not offered to new runs until a user accepts the definition.
    #[default]
    Hold,
    Off,
}

/// `[providers]` by name. A provider of the catalog only needs its key in the environment.
pub type ProvidersConfig = BTreeMap<String, ProviderConfig>;

/// `[providers.NAME]`. The catalog has the defaults.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderConfig {
    pub kind: Option<ProviderKind>,
    #[serde(serialize_with = "shown_url")]
    pub base_url: Option<SecretString>,
    /// The environment variable with the key, because keys do not belong in files.
    pub key_env: Option<String>,
    /// Additional headers of each request, with the environment variables that contain their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_env: BTreeMap<String, String>,
    pub streaming: Option<bool>,
    /// The quirks of its chat completions: see docs/guides/provider-quirks.md.
    pub accent: Option<toml::Table>,
    pub connect_ms: Option<u64>,
    pub first_byte_ms: Option<u64>,
    /// The longest time without any byte.
    pub idle_ms: Option<u64>,
    /// The longest time without a part of the answer itself. Keep-alives do not count.
    pub progress_ms: Option<u64>,
    pub total_ms: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model_limits: Vec<ModelLimits>,
}

/// Limits of one model. Its provider's limits are the defaults.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLimits {
    pub model: String,
    pub first_byte_ms: Option<u64>,
    pub idle_ms: Option<u64>,
    pub progress_ms: Option<u64>,
    pub total_ms: Option<u64>,
}

impl ModelLimits {
    /// Returns the limits without `connect_ms`, which is the same for all models.
    pub fn limits(&self) -> CallLimits {
        let Self { model: _, first_byte_ms, idle_ms, progress_ms, total_ms } = *self;
        CallLimits { connect_ms: None, first_byte_ms, idle_ms, progress_ms, total_ms }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddingsConfig {
    /// The model, as `provider/name`; without it, tools are ranked by their words.
    pub model: Option<String>,
    /// How long a run waits for vectors before its tools are ranked by their words.
    pub timeout_ms: u64,
    pub batch: usize,
    pub dimensions: Option<u32>,
    pub cache_mib: usize,
}

impl Default for EmbeddingsConfig {
    fn default() -> Self {
        Self { model: None, timeout_ms: 2_000, batch: 96, dimensions: None, cache_mib: 64 }
    }
}

impl EmbeddingsConfig {
    pub fn limits(&self) -> EmbeddingLimits {
        EmbeddingLimits { dimensions: self.dimensions, texts_per_request: self.batch, ..EmbeddingLimits::default() }
    }
}

/// `[contexts]`: context providers, which add texts to the model's context before each run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextsConfig {
    pub each_ms: u64,
    /// The time limit of all providers of a run together.
    pub all_ms: u64,
    pub max_chars: usize,
    /// Consecutive failures that open the circuit breaker of a provider; 0 for never.
    pub failures: u32,
    /// The cool-down of the circuit breaker.
    pub rest_ms: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, ContextProviderConfig>,
}

impl Default for ContextsConfig {
    fn default() -> Self {
        Self { each_ms: 300, all_ms: 800, max_chars: 10_000, failures: 3, rest_ms: 300_000, providers: BTreeMap::new() }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextProviderConfig {
    pub url: String,
    /// The environment variable with the key, because keys do not belong in files.
    pub key_env: Option<String>,
}

/// `[breaker]`: the circuit breakers of model providers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerConfig {
    /// Consecutive failures that open it; 0 for never. Errors of the request do not count.
    pub failures: u32,
    /// The cool-down. After it one request tests the provider.
    pub open_ms: u64,
}

impl BreakerConfig {
    pub fn limits(&self) -> BreakerLimits {
        BreakerLimits { failures: self.failures, open: Duration::from_millis(self.open_ms) }
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, open_ms: 30_000 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboundConfig {
    /// The allowlist: hosts, addresses and networks, each with an optional port. URLs of members may use them without https, and
    /// even if the address is not public.
    pub allow: Vec<String>,
    pub allow_private: bool,
    pub openrouter_url: String,
}

impl Default for OutboundConfig {
    fn default() -> Self {
        Self { allow: Vec::new(), allow_private: false, openrouter_url: "https://openrouter.ai".to_owned() }
    }
}

impl OutboundConfig {
    /// Returns the egress policy for URLs of members, or why an entry of the allowlist is invalid.
    pub fn egress(&self) -> Result<EgressScope, String> {
        let list = self.allow.iter().map(|entry| AllowlistEntry::parse(entry)).collect::<Result<Vec<_>, _>>()?;
        Ok(match (self.allow_private, list.is_empty()) {
            (true, _) => EgressScope::Anywhere,
            (false, true) => EgressScope::Public,
            (false, false) => EgressScope::Listed(egress_allowlist::interned(list)),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpServersConfig {
    /// Whether members may add commands, which run on this machine with the rights of this process.
    pub allow_user_commands: bool,
    /// How long an unused connection stays open; 0 for no limit.
    pub idle_ms: u64,
    /// Limit of server processes and containers; 0 for no limit.
    pub max_processes: u32,
    /// The limit from the start of a server to its list of tools.
    pub start_timeout_ms: u64,
    /// How long a new run waits for servers that are not connected. After that it starts without their tools.
    pub start_patience_ms: u64,
    pub containers: ContainerOptions,
}

impl Default for McpServersConfig {
    fn default() -> Self {
        Self {
            allow_user_commands: false,
            idle_ms: 1_800_000,
            max_processes: 100,
            start_timeout_ms: 60_000,
            start_patience_ms: 15_000,
            containers: ContainerOptions::default(),
        }
    }
}

impl McpServersConfig {
    pub fn connections(&self) -> ConnectionLimits {
        let processes = usize::try_from(self.max_processes).unwrap_or(usize::MAX);
        ConnectionLimits {
            idle: (self.idle_ms > 0).then(|| Duration::from_millis(self.idle_ms)),
            processes: (processes > 0).then_some(processes),
            start: Duration::from_millis(self.start_timeout_ms),
        }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Limit of client connections; more get 503.
    pub max_connections: usize,
    pub body_bytes: usize,
    pub max_message_chars: usize,
    /// Limit of unfinished runs; 0 for no limit.
    pub max_active_runs_per_owner: u32,
    /// Limit of conversations that are not archived; 0 for no limit.
    pub max_conversations_per_owner: u32,
    /// Input and output tokens of one day in UTC.
    pub max_day_tokens_per_owner: Option<u64>,
    pub max_day_usd_per_owner: Option<Usd>,
    /// Limit of runs that workers of all processes hold at a time. Other runs wait in the queue. 0 for no limit.
    pub max_running_runs_per_owner: u32,
    pub max_providers_per_owner: u32,
    pub max_mcp_servers_per_owner: u32,
    /// Limit of logins begun within 10 minutes, in each process; 0 for no limit.
    pub max_mcp_logins_per_owner: u32,
    pub max_agents_per_owner: u32,
    /// Limit of API keys that are not revoked; 0 for no limit.
    pub max_keys_per_owner: u32,
    pub max_feedback_chars: usize,
    /// Limit of client tools of one run.
    pub max_client_tools: usize,
    /// Limit of the description and the schema of a client tool.
    pub client_tool_bytes: usize,
    /// Limit of a client's result of one call.
    pub client_result_bytes: usize,
    pub copy_messages: u32,
    pub copy_bytes: usize,
    /// Limit of the lifetime of a share, in days.
    pub max_share_days: u32,
    /// Limit of the shares of one conversation that have not expired.
    pub max_shares_per_conversation: u32,
    /// Limit of the messages of a share, in bytes of JSON.
    pub max_share_bytes: usize,
    pub file_bytes: usize,
    /// Limit of uploaded files.
    pub max_files_per_owner: u32,
    /// Limit of files in messages and tool results.
    pub max_content_files_per_owner: u32,
    pub tool_call_file_bytes: usize,
    pub max_files_per_conversation: u32,
    /// Limit of a file's text that models can read, in characters.
    pub file_text_chars: usize,
    /// Limit of WebSockets in each process; more are closed with 4429.
    pub max_websockets_per_owner: usize,
    pub max_subscriptions_per_websocket: usize,
    /// Limit of events that a stream buffers for a lagging subscriber, before it reads them from the store.
    pub stream_buffer_events: usize,
    pub stream_buffer_bytes: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            body_bytes: 1024 * 1024,
            max_message_chars: 100_000,
            max_active_runs_per_owner: 10_000,
            max_conversations_per_owner: 0,
            max_day_tokens_per_owner: None,
            max_day_usd_per_owner: None,
            max_running_runs_per_owner: 0,
            max_providers_per_owner: 100,
            max_mcp_servers_per_owner: 50,
            max_mcp_logins_per_owner: 20,
            max_agents_per_owner: 100,
            max_keys_per_owner: 100,
            max_feedback_chars: 4_000,
            max_client_tools: 128,
            client_tool_bytes: 32 * 1024,
            client_result_bytes: 256 * 1024,
            copy_messages: 10_000,
            copy_bytes: 16 * 1024 * 1024,
            max_share_days: 365,
            max_shares_per_conversation: 20,
            max_share_bytes: 4 * 1024 * 1024,
            file_bytes: 20 * 1024 * 1024,
            max_files_per_owner: 1_000,
            max_content_files_per_owner: 10_000,
            tool_call_file_bytes: 32 * 1024 * 1024,
            max_files_per_conversation: 5,
            file_text_chars: 100_000,
            max_websockets_per_owner: 1_000,
            max_subscriptions_per_websocket: 64,
            stream_buffer_events: 256,
            stream_buffer_bytes: 1024 * 1024,
        }
    }
}

impl LimitsConfig {
    pub fn day(&self) -> Allowance {
        Allowance { tokens: self.max_day_tokens_per_owner, usd: self.max_day_usd_per_owner }
    }

    pub fn files(&self) -> FileLimits {
        FileLimits {
            max_bytes: self.file_bytes,
            max_per_owner: self.max_files_per_owner,
            max_content_per_owner: self.max_content_files_per_owner,
            max_bytes_per_call: self.tool_call_file_bytes,
            max_per_conversation: self.max_files_per_conversation,
            text_chars: self.file_text_chars,
        }
    }
}

/// `[retention]`: ages in days; 0 for never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// From the end of a run to the delta compaction.
    pub deltas_days: u32,
    /// From the end of a tool call to the removal of its audit record.
    pub audit_days: u32,
    /// From the last change of a conversation to its archival, unless it is pinned.
    pub archive_days: u32,
    /// From archival to deletion.
    pub delete_days: u32,
    /// From the last change of a conversation without messages to its deletion, unless it has a title or is pinned.
    pub empty_days: u32,
    /// From the last change of a hidden conversation to its deletion.
    pub hidden_days: u32,
    /// From upload to removal, for a file that no message uses.
    pub unused_files_days: u32,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            deltas_days: 7,
            audit_days: 365,
            archive_days: 30,
            delete_days: 90,
            empty_days: 7,
            hidden_days: 1,
            unused_files_days: 1,
        }
    }
}

impl RetentionConfig {
    pub fn idle_ages(&self) -> IdleAges {
        IdleAges {
            archive_ms: days_ms(self.archive_days),
            delete_ms: days_ms(self.delete_days),
            empty_ms: days_ms(self.empty_days),
            hidden_ms: days_ms(self.hidden_days),
        }
    }
}

/// Returns an age in milliseconds, or `None` for 0, which means never.
pub fn days_ms(days: u32) -> Option<u64> {
    (days > 0).then(|| u64::from(days) * 24 * 60 * 60 * 1000)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,capstan::worker=debug`.
    pub level: String,
    /// Limit of lines that wait for standard error, in bytes. Further lines are dropped and counted.
    pub queue_bytes: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".to_owned(), queue_bytes: 4 * 1024 * 1024 }
    }
}

impl Config {
    pub fn database_url(&self) -> SecretString {
        match &self.database.url {
            Some(url) => url.clone(),
            None => SecretString::from(format!("sqlite:{}", self.server.data_dir.join("capstan.db").display())),
        }
    }

    pub fn files_root(&self) -> PathBuf {
        self.tools.files_root.clone().unwrap_or_else(|| self.server.data_dir.join("files"))
    }
}

fn redacted<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| REDACTED).serialize(serializer)
}

fn redacted_url<S: Serializer>(url: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    url.as_ref().map(|url| redact_url(url.expose_secret())).serialize(serializer)
}

/// Serializes a provider's URL without its user part and its query, which may contain keys.
fn shown_url<S: Serializer>(url: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    url.as_ref().map(|url| error_text(url.expose_secret())).serialize(serializer)
}

/// Returns a database URL without its password and its parameters, which may contain one too.
pub fn redact_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    match rest.rsplit_once('@') {
        Some((user_info, host)) => match user_info.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:{REDACTED}@{host}"),
            None => format!("{scheme}://{user_info}@{host}"),
        },
        None => format!("{scheme}://{rest}"),
    }
}
