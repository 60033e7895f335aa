//! Use cases: what a principal may ask for, and what follows from it.
//!
//! Owns authorisation, validation of requests, and the way from the log to a stream of events. Must not know HTTP: it takes and returns values
//! of the domain, and the bodies that stand for them in the API's documents. Each use case is one store transaction, followed by wake-ups.

mod access;
mod agent_bounds;
mod agents;
mod approvals;
mod audit;
mod choices;
mod configured;
mod conversations;
mod endpoints;
mod error;
mod events;
mod explain;
mod export;
mod feedback;
mod files;
mod follower;
mod fork;
mod idempotency;
mod import;
mod inline;
mod input;
mod key_cache;
mod keys;
mod login_counter;
mod logins;
mod mcp_deps;
mod mcp_logins;
mod mcp_servers;
mod mcp_tokens;
mod named;
mod owned_log;
mod pins;
mod providers;
mod questions;
mod resume;
mod retention;
mod rewind;
mod runs;
mod search;
mod snapshot;
mod snippet;
mod stream;
mod tickets;
mod tidy;
mod undo;
mod uploads;
mod usage;
mod use_cases;
mod user_counts;

pub use access::Access;
pub use agents::{AgentPatch, AgentRef, AnyAgent, NewAgent, ShownAgent};
pub use configured::{AnyProvider, ConfiguredProvider};
pub use conversations::{ConversationPatch, NewConversationRequest};
pub use endpoints::{Endpoints, ProviderDeps, Target, Unfit};
pub use error::{Error, Result};
pub use events::{Cursor, EventPage, StreamStart};
pub use explain::RunExplanation;
pub use export::ExportForm;
pub use follower::follow_logs;
pub use idempotency::{Replay, RequestKey};
pub use import::Document;
pub use input::{Content, NewPart, StartRun};
pub use keys::{hash_key, new_key};
pub use logins::{LoginParty, StartedLogin, login_mark};
pub use mcp_deps::McpDeps;
pub use mcp_logins::LoginCallback;
pub use mcp_servers::{
    AnyMcpServer, ImportedMcpServers, McpServerPatch, McpServersDocument, NewMcpServer, ShownMcpServer, open_mcp_server,
};
pub use mcp_tokens::TokenKeeper;
pub use named::OwnerScope;
pub use providers::{NewProvider, ProviderPatch, TestedProvider, is_name as is_provider_name, open_target};
pub use resume::RetryCall;
pub use retention::{FoldMode, FoldStep, Folder};
pub use runs::{MAX_WAIT_SECONDS, Started, Waited};
pub use stream::{Reader, Scope, StreamItem};
pub use tickets::{NewTicket, Redeemed, TicketOrigin};
pub use tidy::{Tidied, Tidier, TidyAges};
pub use usage::MAX_USAGE_DAYS;
pub use use_cases::{FindModel, Service, ServiceDeps, ServiceLimits};
pub use user_counts::UserCounts;

// Words of the levels below that answers are made of.
pub use crate::store::{
    AgentCursor, AgentVersionCursor, AuditCursor, BeforeCursor, ConversationChange, ConversationCursor, ConversationFilter,
    CopyLimits, CopyUntil, FeedbackCursor, FileCursor, InputCursor, InvalidCursor, McpServerCursor, MessageCursor, Page,
    PageRequest, ProviderCursor, RewindFrom, RunCursor, RunFilter, SearchCursor, StoreError, UsageCursor,
};
pub use crate::tools::mcp::{McpPrompt, McpResource};
pub use crate::tools::{AuthState, ServerStatus};
