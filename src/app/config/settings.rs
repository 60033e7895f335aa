//! What can be set, with the defaults. `docs/reference/settings.md` explains each key.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use crate::domain::agent::AgentProfile;
use crate::domain::budget::Allowance;
use crate::domain::cost::Usd;
use crate::domain::file::FileLimits;
use crate::domain::principal::UserRole;
use crate::domain::provider::CallLimits;
use crate::provider::breaker::BreakerLimits;
use crate::provider::catalog::ProviderKind;
use crate::provider::embeddings::EmbeddingLimits;
use crate::service::TidyAges;
use crate::support::allowed::{self, Allowed};
use crate::support::outbound::Reach;
use crate::support::redact::{REDACTED, error_text};
use crate::tools::mcp::{ConnectionLimits, ContainerOptions};

/// All settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The listener and this process's part in the whole.
    pub server: ServerConfig,
    /// Who may use it.
    pub auth: AuthConfig,
    /// Where everything is kept.
    pub database: DatabaseConfig,
    /// How runs are worked on.
    pub worker: WorkerConfig,
    /// The profile of runs that name no other.
    pub agent: AgentProfile,
    /// Built-in tools and MCP servers.
    pub tools: ToolsConfig,
    /// Model endpoints.
    pub providers: ProvidersConfig,
    /// Who turns texts into vectors.
    pub embeddings: EmbeddingsConfig,
    /// Whom agents may ask what else their models should know.
    pub contexts: ContextsConfig,
    /// When a provider that keeps failing is left alone.
    pub breaker: BreakerConfig,
    /// Where the server connects to for others.
    pub outbound: OutboundConfig,
    /// MCP servers that people keep.
    pub mcp: McpServersConfig,
    /// Bounds for what clients can ask for.
    pub limits: LimitsConfig,
    /// How long what is kept.
    pub retention: RetentionConfig,
    /// The log.
    pub log: LogConfig,
}

/// What a process does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
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

/// `[server]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// What this process does.
    pub role: Role,
    /// The folder for the SQLite database and the files that tools may read.
    pub data_dir: PathBuf,
    /// Host names that the server answers for beside its own addresses; needed behind a proxy when no key is configured.
    pub allowed_hosts: Vec<String>,
    /// Web origins that may call the API from a browser.
    pub allowed_origins: Vec<String>,
    /// Where browsers find the server, such as `https://chat.example.org`; without it, by the host that they name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// Whether there is a page for people at `/`.
    pub page: bool,
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
            page: true,
        }
    }
}

/// `[auth]`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Keys that exist as long as they stand here, beside those made by `capstan keys create`.
    pub keys: Vec<ConfiguredKey>,
    /// The master key that secrets in the database are sealed with; without it, `secret.key` in the data folder.
    #[serde(serialize_with = "redacted", skip_serializing_if = "Option::is_none")]
    pub secret_key: Option<SecretString>,
    /// Master keys of before, separated by commas: they open what they have sealed.
    #[serde(serialize_with = "redacted", skip_serializing_if = "Option::is_none")]
    pub secret_key_previous: Option<SecretString>,
}

/// A key in the configuration: either the key itself or its hash.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredKey {
    /// The user's name.
    pub user: String,
    /// The user's role.
    #[serde(default = "member")]
    pub role: UserRole,
    /// The key.
    #[serde(default, serialize_with = "redacted", skip_serializing_if = "Option::is_none")]
    pub key: Option<SecretString>,
    /// SHA-256 of the key, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_hash: Option<String>,
}

fn member() -> UserRole {
    UserRole::Member
}

/// How much a commit waits for the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Synchronous {
    /// Committed is on the disk.
    #[default]
    Full,
    /// Committed survives the process; a power cut may take the last moments.
    Normal,
}

/// `[database]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseConfig {
    /// `postgres://...` or `sqlite:PATH`; without it, SQLite in the data folder.
    #[serde(serialize_with = "redacted_url", skip_serializing_if = "Option::is_none")]
    pub url: Option<SecretString>,
    /// Postgres: connections for requests and the log writer together. Leases have connections of their own beside them.
    pub max_connections: u32,
    /// Postgres: milliseconds that a request bears that the database answers nobody; then it is answered with 503.
    pub request_timeout_ms: u64,
    /// How much a commit waits for the disk.
    pub synchronous: Synchronous,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self { url: None, max_connections: 16, request_timeout_ms: 1_500, synchronous: Synchronous::Full }
    }
}

/// `[worker]`: how runs are worked on. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerConfig {
    /// Runs under way at a time.
    pub slots: u32,
    /// How long a claim holds without renewal.
    pub lease_ms: u64,
    /// How often claims are renewed.
    pub renew_ms: u64,
    /// How often expired claims are looked for.
    pub sweep_ms: u64,
    /// A worker that could not renew for this long stops itself.
    pub self_stop_ms: u64,
    /// How long a drain waits for steps under way.
    pub drain_grace_ms: u64,
    /// How often the queue is looked at without a wake-up.
    pub poll_ms: u64,
    /// The longest that deltas gather before they are committed.
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

/// `[tools]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// The one folder that the file tools can see; without it, `files` in the data folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_root: Option<PathBuf>,
    /// A standard `{"mcpServers": {...}}` file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp_config: Option<PathBuf>,
    /// Built-in tools that are offered only if they are named here.
    pub enable: Vec<String>,
    /// What becomes of a tool whose definition has changed since it was looked at.
    pub pin: PinMode,
}

/// What becomes of a tool of a server that is not trusted whose definition has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinMode {
    /// It is not offered to new runs until somebody accepts it.
    #[default]
    Hold,
    /// It is offered.
    Off,
}

/// `[providers]`: by name. One that is known by its name needs nothing more than its key in the environment.
pub type ProvidersConfig = BTreeMap<String, ProviderConfig>;

/// `[providers.NAME]`. What is left out is what is known of the provider by that name. Times are in milliseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderConfig {
    /// The wire that it speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ProviderKind>,
    /// Where its API is.
    #[serde(serialize_with = "shown_url", skip_serializing_if = "Option::is_none")]
    pub base_url: Option<SecretString>,
    /// The environment variable that holds the key. Keys do not stand in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// More headers of each request, by name: the environment variables that hold their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_env: BTreeMap<String, String>,
    /// Whether to ask for streamed answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<bool>,
    /// How its chat completions differ from OpenAI's own: see docs/guides/provider-quirks.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accent: Option<toml::Table>,
    /// The longest wait for the connection; 5,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_ms: Option<u64>,
    /// The longest wait for the first byte of an answer; 30,000 unless the model is known to think longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
    /// The longest silence on the wire within an answer; 30,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// The longest time without anything of the answer itself; 120,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_ms: Option<u64>,
    /// The longest that one answer may take; no limit unless set, and 600,000 for an answer in one piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<u64>,
    /// Other limits for single models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model_limits: Vec<ModelLimits>,
}

/// Limits of one model: those that are not set are those of its provider.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLimits {
    /// The model, without its provider.
    pub model: String,
    /// See [`ProviderConfig::first_byte_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
    /// See [`ProviderConfig::idle_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// See [`ProviderConfig::progress_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_ms: Option<u64>,
    /// See [`ProviderConfig::total_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<u64>,
}

impl ModelLimits {
    /// The limits alone. The connection is no matter of a model.
    #[must_use]
    pub fn limits(&self) -> CallLimits {
        let Self { model: _, first_byte_ms, idle_ms, progress_ms, total_ms } = *self;
        CallLimits { connect_ms: None, first_byte_ms, idle_ms, progress_ms, total_ms }
    }
}

/// `[embeddings]`: who turns texts into vectors, for agents with many tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddingsConfig {
    /// The model, as `provider/name`; without it, tools are ranked by their words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How long a run waits for vectors before its tools are ranked by their words, in milliseconds.
    pub timeout_ms: u64,
    /// Texts of one request.
    pub batch: usize,
    /// Dimensions, for models that give a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// MiB of vectors that are remembered.
    pub cache_mib: usize,
}

impl Default for EmbeddingsConfig {
    fn default() -> Self {
        Self { model: None, timeout_ms: 2_000, batch: 96, dimensions: None, cache_mib: 64 }
    }
}

impl EmbeddingsConfig {
    /// The same for clients.
    #[must_use]
    pub fn limits(&self) -> EmbeddingLimits {
        EmbeddingLimits { dimensions: self.dimensions, texts_per_request: self.batch, ..EmbeddingLimits::default() }
    }
}

/// `[contexts]`: whom agents may ask, before each turn, what else their models should know.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextsConfig {
    /// How long one provider may take, in milliseconds.
    pub each_ms: u64,
    /// How long all of a turn may take together, in milliseconds.
    pub all_ms: u64,
    /// The longest text of one provider, in characters.
    pub max_chars: usize,
    /// Failures in a row after which a provider is left alone; 0 for never.
    pub failures: u32,
    /// How long it is left alone then, in milliseconds.
    pub rest_ms: u64,
    /// The providers, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, ContextProviderConfig>,
}

impl Default for ContextsConfig {
    fn default() -> Self {
        Self { each_ms: 300, all_ms: 800, max_chars: 10_000, failures: 3, rest_ms: 300_000, providers: BTreeMap::new() }
    }
}

/// `[contexts.providers.NAME]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextProviderConfig {
    /// Where it is asked.
    pub url: String,
    /// The environment variable that holds the key which it is shown. Keys do not stand in files.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key_env: Option<String>,
}

/// `[breaker]`: when a provider that keeps failing is left alone for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerConfig {
    /// Failures in a row, of the kinds that are the provider's own, after which it is not asked; 0 for never.
    pub failures: u32,
    /// How long it is not asked then, in milliseconds. After that, one request finds out.
    pub open_ms: u64,
}

impl BreakerConfig {
    /// The same for breakers.
    #[must_use]
    pub fn limits(&self) -> BreakerLimits {
        BreakerLimits { failures: self.failures, open: Duration::from_millis(self.open_ms) }
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, open_ms: 30_000 }
    }
}

/// `[outbound]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboundConfig {
    /// Hosts, addresses and networks, each with a port if only that one counts, to which URLs that members give may lead though they
    /// are not public, and be other than https.
    pub allow: Vec<String>,
    /// Whether they may lead anywhere.
    pub allow_private: bool,
    /// The site of the logins at OpenRouter.
    pub openrouter_url: String,
}

impl Default for OutboundConfig {
    fn default() -> Self {
        Self { allow: Vec::new(), allow_private: false, openrouter_url: "https://openrouter.ai".to_owned() }
    }
}

impl OutboundConfig {
    /// Where URLs of members may lead.
    ///
    /// # Errors
    /// In words: what of the list is no place.
    pub fn reach(&self) -> Result<Reach, String> {
        let list = self.allow.iter().map(|entry| Allowed::parse(entry)).collect::<Result<Vec<_>, _>>()?;
        Ok(match (self.allow_private, list.is_empty()) {
            (true, _) => Reach::Anywhere,
            (false, true) => Reach::Public,
            (false, false) => Reach::Listed(allowed::kept(list)),
        })
    }
}

/// `[mcp]`: MCP servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpServersConfig {
    /// Whether those of members may be commands, which run on this machine with the rights of this server.
    pub allow_user_commands: bool,
    /// How long nobody uses a connection until it ends, in milliseconds. 0 for never.
    pub idle_ms: u64,
    /// Processes of servers in this process at a time, containers among them. 0 for no limit.
    pub max_processes: u32,
    /// How long a server may take from its start to its list of tools, in milliseconds.
    pub start_timeout_ms: u64,
    /// How long a run that begins waits for servers that are not connected yet, in milliseconds: it goes on without their tools then.
    pub start_patience_ms: u64,
    /// What servers may have that run in containers.
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
    /// How many connections there are, and for how long.
    #[must_use]
    pub fn connections(&self) -> ConnectionLimits {
        let processes = usize::try_from(self.max_processes).unwrap_or(usize::MAX);
        ConnectionLimits {
            idle: (self.idle_ms > 0).then(|| Duration::from_millis(self.idle_ms)),
            processes: (processes > 0).then_some(processes),
            start: Duration::from_millis(self.start_timeout_ms),
        }
    }
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Connections of clients at a time; more get 503.
    pub max_connections: usize,
    /// The largest request body, in bytes.
    pub body_bytes: usize,
    /// Characters of all text of one message.
    pub max_message_chars: usize,
    /// Runs of one owner that are not over; more are refused. 0 for no limit.
    pub max_active_runs_per_owner: u32,
    /// Conversations of one owner that are not archived; more are refused. 0 for no limit.
    pub max_conversations_per_owner: u32,
    /// Input and output tokens of all runs of one owner on one day, in UTC; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_day_tokens_per_owner: Option<u64>,
    /// US dollars of all runs of one owner on one day, in UTC; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_day_usd_per_owner: Option<Usd>,
    /// Runs of one owner that are worked on at a time, in all processes together; the others wait in the queue. 0 for no limit.
    pub max_running_runs_per_owner: u32,
    /// Providers that one owner may keep.
    pub max_providers_per_owner: u32,
    /// MCP servers that one owner may keep.
    pub max_mcp_servers_per_owner: u32,
    /// Logins at MCP servers that one owner may begin within 10 minutes, in each process; more are refused. 0 for no limit.
    pub max_mcp_logins_per_owner: u32,
    /// Agents that one owner may keep.
    pub max_agents_per_owner: u32,
    /// Characters of the words beside a rating of an answer.
    pub max_feedback_chars: usize,
    /// Messages that one fork or import copies at most.
    pub copy_messages: u32,
    /// Bytes of messages that one fork or import copies at most.
    pub copy_bytes: usize,
    /// Bytes of an uploaded file.
    pub file_bytes: usize,
    /// Files that one owner may upload and keep.
    pub max_files_per_owner: u32,
    /// Files of one owner that came inside messages and results of tools.
    pub max_content_files_per_owner: u32,
    /// Bytes of the files that one tool call returns.
    pub tool_call_file_bytes: usize,
    /// Uploaded files in the messages of one conversation.
    pub max_files_per_conversation: u32,
    /// Characters of the text of a file that models get to read.
    pub file_text_chars: usize,
    /// WebSockets that one owner may have open, in each process; more are closed with 4429.
    pub max_websockets_per_owner: usize,
    /// Conversations and runs that one WebSocket may follow at a time; more are refused.
    pub max_subscriptions_per_websocket: usize,
    /// Events that a stream holds back for a slow reader before it reads from the store again.
    pub stream_buffer_events: usize,
    /// The same in bytes.
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
            max_feedback_chars: 4_000,
            copy_messages: 10_000,
            copy_bytes: 16 * 1024 * 1024,
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
    /// What one owner may spend on one day.
    #[must_use]
    pub fn day(&self) -> Allowance {
        Allowance { tokens: self.max_day_tokens_per_owner, usd: self.max_day_usd_per_owner }
    }

    /// Bounds of files.
    #[must_use]
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

/// `[retention]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Days after the end of a run until its deltas are folded; 0 for never.
    pub deltas_days: u32,
    /// Days after the end of a call of a tool until its row of the audit is removed; 0 for never.
    pub audit_days: u32,
    /// Days without a change until a conversation that is not pinned is put away; 0 for never.
    pub archive_days: u32,
    /// Days from then until it is deleted; 0 for never.
    pub delete_days: u32,
    /// Days without a change until a conversation is deleted in which nothing was ever said, unless it has a title or is pinned; 0
    /// for never.
    pub empty_days: u32,
    /// Days after its upload until a file that no message has is removed; 0 for never.
    pub unused_files_days: u32,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self { deltas_days: 7, audit_days: 365, archive_days: 30, delete_days: 90, empty_days: 7, unused_files_days: 1 }
    }
}

impl RetentionConfig {
    /// The same in milliseconds; `None` for never.
    #[must_use]
    pub fn deltas_ms(&self) -> Option<u64> {
        days_ms(self.deltas_days)
    }

    /// When conversations are tidied.
    #[must_use]
    pub fn tidy_ages(&self) -> TidyAges {
        TidyAges {
            archive_ms: days_ms(self.archive_days),
            delete_ms: days_ms(self.delete_days),
            empty_ms: days_ms(self.empty_days),
        }
    }

    /// The same of files that no message has.
    #[must_use]
    pub fn unused_files_ms(&self) -> Option<u64> {
        days_ms(self.unused_files_days)
    }

    /// The same of the audit.
    #[must_use]
    pub fn audit_ms(&self) -> Option<u64> {
        days_ms(self.audit_days)
    }
}

fn days_ms(days: u32) -> Option<u64> {
    (days > 0).then(|| u64::from(days) * 24 * 60 * 60 * 1000)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,capstan::worker=debug`.
    pub level: String,
    /// The most bytes of lines that wait for standard error; further lines are dropped and counted.
    pub queue_bytes: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".to_owned(), queue_bytes: 4 * 1024 * 1024 }
    }
}

impl Config {
    /// The database's URL: the configured one, or SQLite in the data folder.
    #[must_use]
    pub fn database_url(&self) -> SecretString {
        match &self.database.url {
            Some(url) => url.clone(),
            None => SecretString::from(format!("sqlite:{}", self.server.data_dir.join("capstan.db").display())),
        }
    }

    /// The folder that the file tools can see.
    #[must_use]
    pub fn files_root(&self) -> PathBuf {
        self.tools.files_root.clone().unwrap_or_else(|| self.server.data_dir.join("files"))
    }
}

fn redacted<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => serializer.serialize_str(REDACTED),
        None => serializer.serialize_none(),
    }
}

fn redacted_url<S: Serializer>(url: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    match url {
        Some(url) => serializer.serialize_str(&redact_url(url.expose_secret())),
        None => serializer.serialize_none(),
    }
}

/// A provider's URL without its user part and its query, in which people put keys.
fn shown_url<S: Serializer>(url: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    url.as_ref().map(|url| error_text(url.expose_secret())).serialize(serializer)
}

/// A database URL without its password and without its parameters, which may hold one too.
#[must_use]
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
