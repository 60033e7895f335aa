//! The state that all use cases share: ports and limits.
//!
//! Each use case is a method of [`Service`] in the file of its resource; none is here.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::documents::FileDeps;
use crate::domain::access::principal::Principal;
use crate::domain::agent::AgentProfile;
use crate::domain::run::admission::Admission;
use crate::domain::run::budget::Allowance;
use crate::domain::setting::Setting;
use crate::live::Hub;
use crate::service::access::CredentialsInUse;
use crate::service::access::default_models::{DefaultModels, default_models};
use crate::service::access::key_cache::KeyCache;
use crate::service::access::mcp_login_limit::McpLoginLimit;
use crate::service::error::{Error, Result};
use crate::service::files::uploads::Uploads;
use crate::service::records::endpoints::ProviderDeps;
use crate::service::records::mcp_deps::McpDeps;
use crate::store::{CopyLimits, ServiceStore, ShareLimits};
use crate::support::clock::SharedClock;
use crate::support::ids::SharedIds;
use crate::tools::Toolbox;

/// Returns whether a provider of the configuration serves a model.
pub type ModelCheck = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Finds the default model, if it is not known when the server starts.
#[async_trait]
pub trait FindModel: Send + Sync {
    /// Returns the model as `provider/name`, or why there is none and the way out. Called for each run without a model.
    async fn find(&self) -> std::result::Result<String, String>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Limit of all texts of one message, in characters.
    pub max_message_chars: usize,
    /// Limit of unfinished runs of one principal; 0 for no limit.
    pub max_active_runs: u32,
    /// Limit of conversations of one principal that are not archived; 0 for no limit.
    pub max_conversations: u32,
    /// The budget of all runs of one principal on one day.
    pub day: Allowance,
    pub max_agents: u32,
    /// Limit of keys of one user that are not revoked; 0 for no limit.
    pub max_keys: u32,
    /// Limit of a rating's comment, in characters.
    pub max_feedback_chars: usize,
    /// Limit of client tools of one run.
    pub max_client_tools: usize,
    /// Limit of the description and the schema of a client tool, in bytes of JSON.
    pub client_tool_bytes: usize,
    /// Limit of a client's result of one call, in bytes of JSON.
    pub client_result_bytes: usize,
    pub copies: CopyLimits,
    pub shares: ShareRules,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareRules {
    /// Whether conversations can be shared, and shares be read.
    pub enabled: bool,
    pub max_days: u32,
    pub limits: ShareLimits,
}

impl Default for ShareRules {
    fn default() -> Self {
        let limits = ShareLimits { per_conversation: 20, bytes: 4 * 1024 * 1024, read_bytes: 16 * 1024 * 1024 };
        Self { enabled: true, max_days: 365, limits }
    }
}

impl ServiceLimits {
    /// Returns the limits that an agent can make stricter.
    pub(in crate::service) fn admission(&self) -> Admission {
        Admission {
            max_message_chars: self.max_message_chars as u64,
            max_active_runs: self.max_active_runs,
            max_conversations: self.max_conversations,
        }
    }
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            max_message_chars: 100_000,
            max_active_runs: 0,
            max_conversations: 0,
            day: Allowance::default(),
            max_agents: 100,
            max_keys: 100,
            max_feedback_chars: 4_000,
            max_client_tools: 128,
            client_tool_bytes: 32 * 1024,
            client_result_bytes: 256 * 1024,
            copies: CopyLimits { messages: 10_000, bytes: 16 * 1024 * 1024 },
            shares: ShareRules::default(),
        }
    }
}

pub struct ServiceDeps {
    pub store: Arc<dyn ServiceStore>,
    pub hub: Arc<Hub>,
    /// Lists tools and their servers. Use cases never call a tool.
    pub tools: Arc<dyn Toolbox>,
    pub clock: SharedClock,
    pub ids: SharedIds,
    /// The agent for runs that name none.
    pub default_profile: AgentProfile,
    pub models: ModelCheck,
    pub limits: ServiceLimits,
    /// Configured keys, by hash, which are valid in addition to the stored ones.
    pub configured_keys: HashMap<String, Principal>,
    /// Finds the default model for runs, instead of the default profile's model.
    pub find_model: Option<Arc<dyn FindModel>>,
    pub providers: Option<ProviderDeps>,
    pub mcp_servers: Option<McpDeps>,
    pub files: FileDeps,
    /// The settings in force, for administrators to see.
    pub settings: Vec<Setting>,
    /// Owns commits in progress: they finish, with their effects, even if their client disconnects. Must be awaited before the
    /// store is closed.
    pub commits: TaskTracker,
}

pub struct Service {
    pub(in crate::service) store: Arc<dyn ServiceStore>,
    pub(in crate::service) hub: Arc<Hub>,
    pub(in crate::service) tools: Arc<dyn Toolbox>,
    pub(in crate::service) clock: SharedClock,
    pub(in crate::service) ids: SharedIds,
    pub(in crate::service) default_profile: AgentProfile,
    pub(in crate::service) models: ModelCheck,
    pub(in crate::service) limits: ServiceLimits,
    pub(in crate::service) commits: TaskTracker,
    pub(in crate::service) keys: KeyCache,
    pub(in crate::service) credentials_in_use: CredentialsInUse,
    pub(in crate::service) configured_keys: HashMap<String, Principal>,
    pub(in crate::service) find_model: Option<Arc<dyn FindModel>>,
    pub(in crate::service) providers: Option<ProviderDeps>,
    pub(in crate::service) mcp_servers: Option<McpDeps>,
    pub(in crate::service) files: FileDeps,
    pub(in crate::service) settings: Vec<Setting>,
    pub(in crate::service) uploads: Uploads,
    pub(in crate::service) mcp_login_limit: McpLoginLimit,
    pub(in crate::service) default_models: DefaultModels,
}

impl Service {
    pub fn new(deps: ServiceDeps) -> Self {
        Self {
            store: deps.store,
            hub: deps.hub,
            tools: deps.tools,
            clock: deps.clock,
            ids: deps.ids,
            default_profile: deps.default_profile,
            models: deps.models,
            limits: deps.limits,
            commits: deps.commits,
            keys: KeyCache::default(),
            credentials_in_use: CredentialsInUse::default(),
            configured_keys: deps.configured_keys,
            find_model: deps.find_model,
            providers: deps.providers,
            mcp_servers: deps.mcp_servers,
            files: deps.files,
            settings: deps.settings,
            uploads: Uploads::default(),
            mcp_login_limit: McpLoginLimit::default(),
            default_models: default_models(),
        }
    }

    pub async fn ping(&self) -> Result<()> {
        Ok(self.store.ping().await?)
    }

    /// Runs a commit with its effects to the end. The future of a request is dropped at any `await` if its client disconnects.
    /// Between a commit and the publication of its events, that would hide the events from all subscribers.
    pub(in crate::service) async fn run_to_end<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<dyn ServiceStore>, Arc<Hub>) -> F,
    ) -> Result<T> {
        let work = work(Arc::clone(&self.store), Arc::clone(&self.hub));
        match self.commits.spawn(work.in_current_span()).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::Ending),
            },
        }
    }

    pub fn ids(&self) -> &SharedIds {
        &self.ids
    }

    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }
}
