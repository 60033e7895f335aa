//! Persistence: a trait for each aggregate, which the stores on Postgres and on SQLite both implement.
//!
//! Aggregates are written once for both, in `sql`. The queue, the log writer, the load of a run, deletions, and the acceptance of a message
//! by one statement are written for each database, in `postgres` and `sqlite`.
//!
//! Owns the database. Must not know why anything is written: decisions are made in `service` and `engine`, the store carries
//! them out in one transaction each. Every query that serves a principal names the owner. One contract suite runs on both
//! implementations.

mod access;
mod clones;
mod conversations;
mod error;
mod handles;
mod migrations;
mod open;
mod options;
mod pages;
mod patience;
pub mod postgres;
mod records;
mod rows;
mod runs;
mod sql;
pub mod sqlite;
mod types;

pub use access::audit::{AUDIT_PIECE, AuditStore};
pub use access::keys::KeyStore;
pub use access::tickets::TicketStore;
pub use access::users::{Owned, UserStore};
pub use clones::OnCopy;
pub use conversations::ConversationStore;
pub use conversations::copy::{Copied, CopiedDocument, CopiedEnd, CopiedTurn, CopyConversation, CopyLimits, CopySource, CopyUntil};
pub use conversations::feedback::{FeedbackFilter, FeedbackGiven, FeedbackStore, GiveFeedback};
pub use conversations::files::{AttachedFile, FILE_CHUNK, FILES_PIECE, FileStore, NewFile, StoredOutcome, store_file};
pub use conversations::input::{InputStore, MAX_GRANTS};
pub use conversations::log::LogStore;
pub use conversations::messages::{EarlierMessages, EarlierPage};
pub use conversations::retention::{EndedRun, Expired, RetentionStore, TOOL_SETS_PIECE};
pub use conversations::rewind::{Edited, Rewind, RewindFrom, Rewound};
pub use conversations::search::{Found, SearchStore};
pub use conversations::titles::{TitleMade, TitleStore};
pub use error::{StoreError, StoreResult};
pub use handles::{CommonStore, RecordStore, ServiceStore, Store, WorkerStore};
pub use open::open;
pub use options::{Durability, StoreOptions};
pub use pages::*;
pub use patience::patiently;
pub use records::agents::{AgentCursor, AgentStore, AgentVersionCursor, MAX_AGENT_VERSIONS};
pub use records::mcp_logins::{McpLoginStore, McpTokens};
pub use records::mcp_servers::{McpServerCursor, McpServerStore};
pub use records::named::{NameCursor, NamedChanged, NamedMade};
pub use records::providers::{
    LoginTaker, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade, ProviderStore, SealedRow, SecretOf,
};
pub use records::tool_reviews::{MAX_PINS, PinScope, PinStore, SeenTool};
pub use runs::budget::BudgetStore;
pub use runs::call_batch::CallBatch;
pub use runs::control::ControlSignal;
pub use runs::queue::QueueStore;
pub use runs::usage::{DAY_MS, UsageCursor, UsageFilter, UsageStore};
pub use runs::{RunFilter, RunStore};
pub use sql::{Statement, statements};
pub use types::*;
