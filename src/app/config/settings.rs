//! The settings with their defaults. `reference.md` explains each key; a comment here states what it does not.

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

/// Defines a section of the settings. The default of each field follows its type.
macro_rules! section {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$attr:meta])* pub $field:ident: $type:ty = $default:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$attr])* pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
}

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

section! {
    #[skip_serializing_none]
    pub struct ServerConfig {
        pub listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)),
        pub role: Role = Role::All,
        pub data_dir: PathBuf = PathBuf::from("./data"),
        pub allowed_hosts: Vec<String> = Vec::new(),
        pub allowed_origins: Vec<String> = Vec::new(),
        pub public_url: Option<String> = None,
        pub drain_delay_ms: u64 = 0,
        pub completion_grace_ms: u64 = 10_000,
        pub shares: bool = true,
        pub page: bool = true,
        pub page_dir: Option<PathBuf> = None,
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    pub keys: Vec<ConfiguredKey>,
    #[serde(serialize_with = "redacted")]
    pub secret_key: Option<SecretString>,
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
    pub key_hash: Option<String>,
}

fn member() -> UserRole {
    UserRole::Member
}

section! {
    #[skip_serializing_none]
    pub struct DatabaseConfig {
        #[serde(serialize_with = "redacted_url")]
        pub url: Option<SecretString> = None,
        pub max_connections: u32 = 16,
        pub request_timeout_ms: u64 = 1_500,
        pub pooler: Option<bool> = None,
        pub synchronous: Durability = Durability::Full,
    }
}

section! {
    pub struct WorkerConfig {
        pub slots: u32 = 1024,
        pub lease_ms: u64 = 10_000,
        pub renew_ms: u64 = 3_000,
        pub sweep_ms: u64 = 2_000,
        pub self_stop_ms: u64 = 7_000,
        pub drain_grace_ms: u64 = 25_000,
        pub poll_ms: u64 = 1_000,
        pub commit_gather_ms: u64 = 25,
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    pub files_root: Option<PathBuf>,
    pub mcp_config: Option<PathBuf>,
    pub enable: Vec<String>,
    pub review: ToolReviewMode,
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

section! {
    #[skip_serializing_none]
    pub struct EmbeddingsConfig {
        /// The model, as `provider/name`; without it, tools are ranked by their words.
        pub model: Option<String> = None,
        pub timeout_ms: u64 = 2_000,
        pub batch: usize = 96,
        pub dimensions: Option<u32> = None,
        pub cache_mib: usize = 64,
    }
}

impl EmbeddingsConfig {
    pub fn limits(&self) -> EmbeddingLimits {
        EmbeddingLimits { dimensions: self.dimensions, texts_per_request: self.batch, ..EmbeddingLimits::default() }
    }
}

section! {
    /// `[contexts]`: context providers, which add texts to the model's context before each run.
    pub struct ContextsConfig {
        pub each_ms: u64 = 300,
        pub all_ms: u64 = 800,
        pub max_chars: usize = 10_000,
        pub failures: u32 = 3,
        pub cool_down_ms: u64 = 300_000,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub providers: BTreeMap<String, ContextProviderConfig> = BTreeMap::new(),
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

section! {
    /// `[breaker]`: the circuit breakers of model providers.
    pub struct BreakerConfig {
        /// Consecutive failures that open it; 0 for never. Errors of the request do not count.
        pub failures: u32 = 5,
        pub open_ms: u64 = 30_000,
    }
}

impl BreakerConfig {
    pub fn limits(&self) -> BreakerLimits {
        BreakerLimits { failures: self.failures, open: Duration::from_millis(self.open_ms) }
    }
}

section! {
    pub struct OutboundConfig {
        /// The allowlist: hosts, addresses and networks, each with an optional port. URLs of members may use them without https, and
        /// even if the address is not public.
        pub allow: Vec<String> = Vec::new(),
        pub allow_private: bool = false,
        pub openrouter_url: String = "https://openrouter.ai".to_owned(),
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

section! {
    pub struct McpServersConfig {
        pub allow_user_commands: bool = false,
        pub idle_ms: u64 = 1_800_000,
        pub max_processes: u32 = 100,
        pub start_timeout_ms: u64 = 60_000,
        pub start_wait_ms: u64 = 15_000,
        pub containers: ContainerOptions = ContainerOptions::default(),
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

section! {
    #[skip_serializing_none]
    pub struct LimitsConfig {
        pub max_connections: usize = 20_000,
        pub body_bytes: usize = 1024 * 1024,
        pub max_message_chars: usize = 100_000,
        pub max_active_runs_per_owner: u32 = 10_000,
        pub max_conversations_per_owner: u32 = 0,
        pub max_day_tokens_per_owner: Option<u64> = None,
        pub max_day_usd_per_owner: Option<Usd> = None,
        pub max_running_runs_per_owner: u32 = 0,
        pub max_providers_per_owner: u32 = 100,
        pub max_mcp_servers_per_owner: u32 = 50,
        pub max_mcp_logins_per_owner: u32 = 20,
        pub max_agents_per_owner: u32 = 100,
        pub max_keys_per_owner: u32 = 100,
        pub max_feedback_chars: usize = 4_000,
        pub max_client_tools: usize = 128,
        pub client_tool_bytes: usize = 32 * 1024,
        pub client_result_bytes: usize = 256 * 1024,
        pub copy_messages: u32 = 10_000,
        pub copy_bytes: usize = 16 * 1024 * 1024,
        pub max_share_days: u32 = 365,
        pub max_shares_per_conversation: u32 = 20,
        pub max_share_bytes: usize = 4 * 1024 * 1024,
        pub file_bytes: usize = 20 * 1024 * 1024,
        pub max_files_per_owner: u32 = 1_000,
        pub max_content_files_per_owner: u32 = 10_000,
        pub tool_call_file_bytes: usize = 32 * 1024 * 1024,
        pub max_files_per_conversation: u32 = 5,
        pub file_text_chars: usize = 100_000,
        pub max_websockets_per_owner: usize = 1_000,
        pub max_subscriptions_per_websocket: usize = 64,
        pub stream_buffer_events: usize = 256,
        pub stream_buffer_bytes: usize = 1024 * 1024,
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

section! {
    /// `[retention]`: ages in days; 0 for never.
    pub struct RetentionConfig {
        /// From the end of a run to the delta compaction.
        pub deltas_days: u32 = 7,
        /// From the end of a tool call to the removal of its audit record.
        pub audit_days: u32 = 365,
        /// From the last change of a conversation to its archival, unless it is pinned.
        pub archive_days: u32 = 30,
        /// From archival to deletion.
        pub delete_days: u32 = 90,
        /// From the last change of a conversation without messages to its deletion, unless it has a title or is pinned.
        pub empty_days: u32 = 7,
        /// From the last change of a hidden conversation to its deletion.
        pub hidden_days: u32 = 1,
        /// From upload to removal, for a file that no message uses.
        pub unused_files_days: u32 = 1,
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

section! {
    pub struct LogConfig {
        pub format: LogFormat = LogFormat::Auto,
        pub level: String = "info".to_owned(),
        pub queue_bytes: usize = 4 * 1024 * 1024,
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
