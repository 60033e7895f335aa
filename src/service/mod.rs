//! Use cases: the requests of a principal, and their effects.
//!
//! Owns authorization, validation of requests, and the way from the log to a stream of events. Must not know HTTP: it accepts and
//! returns domain values and the request bodies of the API. Most use cases are one store transaction, followed by wake-ups.

mod access;
mod conversations;
mod deps;
mod error;
mod files;
mod idempotency_outcome;
mod questions;
mod records;
mod reports;
mod runs;
mod streams;
mod upkeep;

pub use access::Access;
pub use access::account::OwnAccount;
pub use access::key_cache::KEY_CACHE_TTL;
pub use access::keys::{NewApiKey, hash_key, new_key};
pub use access::logins::{LoginParty, StartedLogin, login_mark};
pub use access::mcp_logins::LoginCallback;
pub use access::mcp_tokens::McpTokenStore;
pub use access::sessions::SESSION_SECONDS;
pub use access::tickets::{NewTicket, TicketOrigin, TicketOutcome};
pub use access::users::{UserPatch, repeat_demotion_after_key_cache};
pub use conversations::export::ExportForm;
pub use conversations::import::{Document, SentConversation};
pub use conversations::{ConversationPatch, NewConversationRequest};
pub use deps::{FindModel, Service, ServiceDeps, ServiceLimits, ShareRules};
pub use error::{Error, Result};
pub use idempotency_outcome::{Replay, RequestKey};
pub use questions::tool_results::NewToolResult;
pub use records::agents::{AgentPatch, AgentRef, AgentView, AnyAgent, NewAgent};
pub use records::configured_providers::{AnyProvider, ConfiguredProvider};
pub use records::endpoints::{Endpoints, InvalidProvider, ProviderDeps, Target};
pub use records::mcp_deps::McpDeps;
pub use records::mcp_servers::{
    AnyMcpServer, ImportedMcpServers, McpServerPatch, McpServerView, McpServersDocument, NewMcpServer, decrypt_mcp_server,
};
pub use records::models::ProviderModel;
pub use records::named::OwnerScope;
pub use records::providers::{NewProvider, ProviderPatch, TestedProvider, is_name as is_provider_name, open_target};
pub use reports::usage::MAX_USAGE_DAYS;
pub use runs::explain::{ProgressState, RunExplanation};
pub use runs::message_content::{Content, NewPart, RunSetup, StartRun, check_protocol_size};
pub use runs::resume::{ContinueRun, RetryCall, RetryRun};
pub use runs::transcript::{SentCall, SentMessage, SentResult, SentTranscript};
pub use runs::user_counts::UserCounts;
pub use runs::{MAX_WAIT_SECONDS, StartedRun, WaitOutcome};
pub use streams::events::{Cursor, EventPage, StreamStart};
pub use streams::follower::follow_logs;
pub use streams::snapshot::ActiveRun;
pub use streams::stream::{Reader, Scope, StreamItem};
pub use upkeep::delta_compaction::{CompactionMode, CompactionStep, DeltaCompactor};
pub use upkeep::retention::{CleanupCounts, IdleAges, IdleCleanup};

// Types of the levels below that appear in results.
pub use crate::live::{ListChange, ListSubscription};
pub use crate::store::{
    AgentCursor, AgentVersionCursor, AuditCursor, BeforeCursor, ConversationChange, ConversationCursor, ConversationFilter,
    CopyLimits, CopyUntil, FeedbackCursor, FileCursor, FileFilter, IdCursor, InputCursor, InvalidCursor, KeyCursor,
    McpServerCursor, MessageCursor, Page, PageRequest, ProviderCursor, RewindFrom, RunCursor, RunFilter, SearchCursor, ShareCursor,
    ShareLimits, StoreError, StoredKey, StoredUser, UsageCursor, UserCursor,
};
pub use crate::tools::mcp::{McpPrompt, McpResource};
pub use crate::tools::{AuthState, ServerStatus};
