//! Use cases: what a principal may ask for, and what follows from it.
//!
//! Owns authorisation, validation of requests, and the way from the log to a stream of events. Must not know HTTP: it takes and returns values
//! of the domain, and the bodies that stand for them in the API's documents. Each use case is one store transaction, followed by wake-ups.

mod access;
mod conversations;
mod error;
mod files;
mod idempotency;
mod questions;
mod records;
mod reports;
mod runs;
mod streams;
mod upkeep;
mod use_cases;

pub use access::Access;
pub use access::keys::{hash_key, new_key};
pub use access::logins::{LoginParty, StartedLogin, login_mark};
pub use access::mcp_logins::LoginCallback;
pub use access::mcp_tokens::TokenKeeper;
pub use access::tickets::{NewTicket, Redeemed, TicketOrigin};
pub use conversations::export::ExportForm;
pub use conversations::import::Document;
pub use conversations::{ConversationPatch, NewConversationRequest};
pub use error::{Error, Result};
pub use idempotency::{Replay, RequestKey};
pub use records::agents::{AgentPatch, AgentRef, AnyAgent, NewAgent, ShownAgent};
pub use records::configured::{AnyProvider, ConfiguredProvider};
pub use records::endpoints::{Endpoints, ProviderDeps, Target, Unfit};
pub use records::mcp_deps::McpDeps;
pub use records::mcp_servers::{
    AnyMcpServer, ImportedMcpServers, McpServerPatch, McpServersDocument, NewMcpServer, ShownMcpServer, open_mcp_server,
};
pub use records::named::OwnerScope;
pub use records::providers::{NewProvider, ProviderPatch, TestedProvider, is_name as is_provider_name, open_target};
pub use reports::usage::MAX_USAGE_DAYS;
pub use runs::explain::RunExplanation;
pub use runs::input::{Content, NewPart, StartRun};
pub use runs::resume::{ContinueRun, RetryCall};
pub use runs::user_counts::UserCounts;
pub use runs::{MAX_WAIT_SECONDS, Started, Waited};
pub use streams::events::{Cursor, EventPage, StreamStart};
pub use streams::follower::follow_logs;
pub use streams::stream::{Reader, Scope, StreamItem};
pub use upkeep::retention::{FoldMode, FoldStep, Folder};
pub use upkeep::tidy::{Tidied, Tidier, TidyAges};
pub use use_cases::{FindModel, Service, ServiceDeps, ServiceLimits};

// Words of the levels below that answers are made of.
pub use crate::store::{
    AgentCursor, AgentVersionCursor, AuditCursor, BeforeCursor, ConversationChange, ConversationCursor, ConversationFilter,
    CopyLimits, CopyUntil, FeedbackCursor, FileCursor, InputCursor, InvalidCursor, McpServerCursor, MessageCursor, Page,
    PageRequest, ProviderCursor, RewindFrom, RunCursor, RunFilter, SearchCursor, StoreError, UsageCursor,
};
pub use crate::tools::mcp::{McpPrompt, McpResource};
pub use crate::tools::{AuthState, ServerStatus};
