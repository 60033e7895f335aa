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
use crate::live::Hub;
use crate::service::access::KeysInUse;
use crate::service::access::key_cache::KeyCache;
use crate::service::access::login_counter::LoginCounter;
use crate::service::error::{Error, Result};
use crate::service::files::uploads::Uploads;
use crate::service::records::endpoints::ProviderDeps;
use crate::service::records::mcp_deps::McpDeps;
use crate::store::{CopyLimits, ServiceStore};
use crate::support::clock::SharedClock;
use crate::support::ids::SharedIds;
use crate::tools::Toolbox;

/// Tells whether a provider of the configuration serves a model.
pub type KnowsModel = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Finds the model of runs that name none, where that is not known when the server starts.
#[async_trait]
pub trait FindModel: Send + Sync {
    /// Returns the model, as `provider/name`, or why there is none now and the way out. Asked at each such run.
    async fn find(&self) -> std::result::Result<String, String>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Characters of all text of one message.
    pub max_message_chars: usize,
    /// Runs of one principal that are not terminal; 0 for no limit.
    pub max_active_runs: u32,
    /// Conversations of one principal that are not archived; 0 for no limit.
    pub max_conversations: u32,
    /// The budget of all runs of one principal on one day.
    pub day: Allowance,
    pub max_agents: u32,
    /// Characters of the comment of a rating.
    pub max_feedback_chars: usize,
    pub copies: CopyLimits,
}

impl ServiceLimits {
    /// Returns the limits that an agent may make stricter.
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
            max_feedback_chars: 4_000,
            copies: CopyLimits { messages: 10_000, bytes: 16 * 1024 * 1024 },
        }
    }
}

pub struct ServiceDeps {
    pub store: Arc<dyn ServiceStore>,
    pub hub: Arc<Hub>,
    /// For listing only.
    pub tools: Arc<dyn Toolbox>,
    pub clock: SharedClock,
    pub ids: SharedIds,
    /// The agent of runs that name none.
    pub default_profile: AgentProfile,
    pub models: KnowsModel,
    pub limits: ServiceLimits,
    /// Keys, by hash, that are valid beside those in the store.
    pub configured_keys: HashMap<String, Principal>,
    /// Finds the model of runs that name none, instead of the default profile's.
    pub find_model: Option<Arc<dyn FindModel>>,
    pub providers: Option<ProviderDeps>,
    pub mcp_servers: Option<McpDeps>,
    pub files: FileDeps,
    /// Owns the commits under way: they end, with what follows from them, though their client is gone. To be waited for before the store is
    /// closed.
    pub commits: TaskTracker,
}

pub struct Service {
    pub(in crate::service) store: Arc<dyn ServiceStore>,
    pub(in crate::service) hub: Arc<Hub>,
    pub(in crate::service) tools: Arc<dyn Toolbox>,
    pub(in crate::service) clock: SharedClock,
    pub(in crate::service) ids: SharedIds,
    pub(in crate::service) default_profile: AgentProfile,
    pub(in crate::service) models: KnowsModel,
    pub(in crate::service) limits: ServiceLimits,
    pub(in crate::service) commits: TaskTracker,
    pub(in crate::service) keys: KeyCache,
    pub(in crate::service) keys_in_use: KeysInUse,
    pub(in crate::service) configured_keys: HashMap<String, Principal>,
    pub(in crate::service) find_model: Option<Arc<dyn FindModel>>,
    pub(in crate::service) providers: Option<ProviderDeps>,
    pub(in crate::service) mcp_servers: Option<McpDeps>,
    pub(in crate::service) files: FileDeps,
    pub(in crate::service) uploads: Uploads,
    pub(in crate::service) login_counter: LoginCounter,
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
            keys_in_use: KeysInUse::default(),
            configured_keys: deps.configured_keys,
            find_model: deps.find_model,
            providers: deps.providers,
            mcp_servers: deps.mcp_servers,
            files: deps.files,
            uploads: Uploads::default(),
            login_counter: LoginCounter::default(),
        }
    }

    pub async fn ping(&self) -> Result<()> {
        Ok(self.store.ping().await?)
    }

    /// Carries out a commit with what follows from it, to the end. A use case lives in its client's connection and is dropped with it, at any
    /// `await`; between a commit and its events that would keep them from all subscribers.
    pub(in crate::service) async fn whole<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
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
