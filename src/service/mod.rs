//! Use cases: what a principal may ask for, and what follows from it.
//!
//! Owns authorisation, validation of what was asked, and the way from the log to a stream of events. Must not know HTTP: it is
//! asked in values of the domain and answers in them, for every wire alike. Each use case is one store transaction, followed by
//! wake-ups.

mod access;
mod agents;
mod approvals;
mod audit;
mod choices;
mod configured;
mod conversations;
mod copying;
mod error;
mod events;
mod explain;
mod export;
mod feedback;
mod files;
mod follower;
mod going_on;
mod importing;
mod inline;
mod input;
mod keys;
mod logins;
mod mcp_logins;
mod mcp_servers;
mod mcp_tokens;
mod owned_log;
mod pins;
mod providers;
mod questions;
mod retention;
mod rewinding;
mod runs;
mod search;
mod snapshot;
mod stream;
mod tickets;
mod tidy;
mod undoing;
mod usage;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

pub use access::Access;
pub use agents::{AgentPatch, AgentRef, AnyAgent, NewAgent, ShownAgent};
pub use audit::AuditOf;
pub use configured::{AnyProvider, ConfiguredProvider};
pub use conversations::NewConversationRequest;
pub use error::{Error, Result};
pub use events::{Cursor, EventPage, StreamStart};
pub use explain::RunExplanation;
pub use export::ExportForm;
pub use files::UploadSeat;
pub use follower::follow_logs;
pub use going_on::RetryCall;
pub use importing::Document;
pub use input::{Content, NewFilePart, NewPart, Replay, RequestKey, StartRun};
pub use keys::{NewKey, hash_key, new_key};
pub use logins::{BegunLogin, ComesBack, login_mark};
pub use mcp_logins::CameBack;
pub use mcp_servers::{
    AnyMcpServer, Import, ImportReport, Imported, McpDeps, McpServerPatch, NewMcpServer, ShownMcpServer, Variables, open_mcp_server,
};
pub use mcp_tokens::TokenKeeper;
pub use providers::{
    Endpoints, NewProvider, ProviderDeps, ProviderPatch, ProviderTest, Target, Unfit, is_name as is_provider_name, open_target,
};
pub use retention::{FoldMode, FoldStep, Folder};
pub use runs::{Started, Waited};
pub use snapshot::{ActiveRun, Snapshot};
pub use stream::{Reader, ResetReason, Scope, StreamItem};
pub use tickets::{NewTicket, Redeemed, ShownFrom};
pub use tidy::{Tidied, Tidier, TidyAges};
pub use usage::MAX_USAGE_DAYS;

// Words of the levels below that answers are made of; whoever asks the service need not know where they come from.
pub use crate::store::{
    AgentCursor, AgentVersionCursor, AuditCursor, BeforeCursor, ConversationChange, ConversationCursor, ConversationFilter,
    CopyLimits, CopyUntil, FeedbackCursor, FileCursor, InputCursor, InvalidCursor, McpServerCursor, MessageCursor, Page,
    PageRequest, ProviderCursor, RewindFrom, RunCursor, RunFilter, SearchCursor, StoreError,
};
pub use crate::tools::mcp::{ConfiguredServer, McpPrompt, McpResource};
pub use crate::tools::{AuthState, ServerStatus};

use async_trait::async_trait;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::documents::FileDeps;
use crate::domain::admission::Admission;
use crate::domain::agent::AgentProfile;
use crate::domain::budget::Allowance;
use crate::domain::principal::Principal;
use crate::domain::tool::ToolDefinition;
use crate::live::Hub;
use crate::store::ServiceStore;
use crate::support::clock::SharedClock;
use crate::support::ids::SharedIds;
use crate::tools::Toolbox;

/// Whether a model name is one that can be served.
pub type KnowsModel = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Finds the model of runs that name none, where that is not settled when the server starts.
#[async_trait]
pub trait FindModel: Send + Sync {
    /// The model, as `provider/name`. Asked at each such run.
    ///
    /// # Errors
    /// In words: why there is none now, and the way out.
    async fn find(&self) -> std::result::Result<String, String>;
}

/// Bounds of what one request or one principal may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Characters of all text of one message.
    pub max_message_chars: usize,
    /// Parts of one message.
    pub max_message_parts: usize,
    /// Runs of one principal that are not terminal; 0 for no limit.
    pub max_active_runs: u32,
    /// Conversations of one principal that are not archived; 0 for no limit.
    pub max_conversations: u32,
    /// What all runs of one principal may spend on one day together.
    pub day: Allowance,
    /// The longest that a request may wait for a run, in seconds.
    pub max_wait_seconds: u64,
    /// Agents that one owner may keep.
    pub max_agents: u32,
    /// Characters of the words beside a rating.
    pub max_feedback_chars: usize,
    /// The most that one fork or import copies.
    pub copies: CopyLimits,
}

impl ServiceLimits {
    /// Those that an agent may make stricter.
    fn admission(&self) -> Admission {
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
            max_message_parts: 64,
            max_active_runs: 0,
            max_conversations: 0,
            day: Allowance::default(),
            max_wait_seconds: 60,
            max_agents: 100,
            max_feedback_chars: 4_000,
            copies: CopyLimits { messages: 10_000, bytes: 16 * 1024 * 1024 },
        }
    }
}

/// What the service stands on.
pub struct ServiceDeps {
    /// The database.
    pub store: Arc<dyn ServiceStore>,
    /// Wake-ups and the tail of the log.
    pub hub: Arc<Hub>,
    /// The tools, for listing only.
    pub tools: Arc<dyn Toolbox>,
    /// Wall-clock time.
    pub clock: SharedClock,
    /// New ids.
    pub ids: SharedIds,
    /// The agent that runs get unless they ask for another one.
    pub default_profile: AgentProfile,
    /// Which models are served.
    pub models: KnowsModel,
    /// Bounds.
    pub limits: ServiceLimits,
    /// Owns the commits under way: they end, with what follows from them, though whoever asked is gone. To be waited for
    /// before the store is closed.
    pub commits: TaskTracker,
}

/// The use cases. See the module documentation.
pub struct Service {
    store: Arc<dyn ServiceStore>,
    hub: Arc<Hub>,
    tools: Arc<dyn Toolbox>,
    clock: SharedClock,
    ids: SharedIds,
    default_profile: AgentProfile,
    models: KnowsModel,
    limits: ServiceLimits,
    commits: TaskTracker,
    keys: keys::KeyCache,
    keys_in_use: access::KeysInUse,
    configured_keys: HashMap<String, Principal>,
    find_model: Option<Arc<dyn FindModel>>,
    providers: Option<ProviderDeps>,
    mcp_servers: Option<McpDeps>,
    files: FileDeps,
    uploads: Arc<files::Uploads>,
    begun_logins: mcp_logins::BegunLogins,
}

impl Service {
    /// The use cases over `deps`.
    #[must_use]
    pub fn new(deps: ServiceDeps) -> Self {
        let ServiceDeps { store, hub, tools, clock, ids, default_profile, models, limits, commits } = deps;
        Self {
            store,
            hub,
            tools,
            clock,
            ids,
            default_profile,
            models,
            limits,
            commits,
            keys: keys::KeyCache::default(),
            keys_in_use: access::KeysInUse::default(),
            configured_keys: HashMap::new(),
            find_model: None,
            providers: None,
            mcp_servers: None,
            files: FileDeps::default(),
            uploads: Arc::default(),
            begun_logins: mcp_logins::BegunLogins::default(),
        }
    }

    /// The same with keys, by hash, that are valid beside those in the store.
    #[must_use]
    pub fn with_configured_keys(mut self, keys: HashMap<String, Principal>) -> Self {
        self.configured_keys = keys;
        self
    }

    /// The same, where runs that name no model get the one that `find_model` finds instead of the default profile's.
    #[must_use]
    pub fn with_model_to_find(mut self, find_model: Option<Arc<dyn FindModel>>) -> Self {
        self.find_model = find_model;
        self
    }

    /// Answers if the database does.
    pub async fn ping(&self) -> Result<()> {
        Ok(self.store.ping().await?)
    }

    /// The tools on offer, and how their servers are doing. Connects to servers that are not connected yet.
    pub async fn tools(&self, principal: &Principal) -> (Vec<Arc<ToolDefinition>>, Vec<ServerStatus>) {
        let definitions = self.tools.definitions(&principal.user_id).await;
        let servers = self.tools.servers(&principal.user_id).await;
        let servers = servers.into_iter().map(|server| mcp_servers::listed(server, principal)).collect();
        (definitions, servers)
    }

    /// Carries out a commit with what follows from it, to the end. A use case lives in its client's connection and is dropped
    /// with it, at any `await`; between a commit and its events that would keep them from everybody who listens.
    async fn whole<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        match self.commits.spawn(work.in_current_span()).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::Ending),
            },
        }
    }

    /// New ids, for what names requests.
    #[must_use]
    pub fn ids(&self) -> &SharedIds {
        &self.ids
    }

    /// Wall-clock time, for what is shown.
    #[must_use]
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }
}
