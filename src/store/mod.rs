//! Persistence, on Postgres and SQLite.
//!
//! An aggregate that workers use, or that tests fake, has a trait. All other aggregates are methods of `dyn RecordStore`. Most
//! aggregates are written once for both databases, in `sql`. The queue, the log writer, the load of a run, deletions, and the
//! acceptance of a message in one statement are written for each database, in `postgres` and `sqlite`.
//!
//! Owns the database. Must not know why anything is written: `service` and `engine` decide, and the store applies each decision in
//! one transaction. Every query that serves a principal names the owner. One contract test suite runs on both implementations.

mod clone_detection;
mod conversations;
mod error;
mod handles;
mod migrations;
mod open;
mod options;
mod pages;
pub mod postgres;
mod records;
mod rows;
mod runs;
mod sql;
pub mod sqlite;
mod types;

pub use clone_detection::OnClone;
pub use conversations::ConversationStore;
pub use conversations::append::{AppendMessages, AppendOutcome};
pub use conversations::feedback::{FeedbackFilter, FeedbackOutcome, GiveFeedback};
pub use conversations::files::{AttachedFile, FILE_CHUNK, FILES_PIECE, FileFilter, NewFile, StoredOutcome, store_file};
pub use conversations::fork::{
    CopiedDocument, CopiedEnd, CopiedTurn, CopyConversation, CopyLimits, CopyOutcome, CopySource, CopyUntil,
};
pub use conversations::log::LogStore;
pub use conversations::messages::{EarlierMessages, EarlierPage};
pub use conversations::questions::{InputStore, MAX_GRANTS};
pub use conversations::retention::{EndedRun, ExpiredRowCounts, TOOL_SETS_PIECE};
pub use conversations::rewind::{EditOutcome, Rewind, RewindFrom, RewindOutcome};
pub use conversations::shares::{NewShare, ShareLimits, ShareOutcome};
pub use conversations::titles::{GeneratedTitle, TitleStore};
pub use error::{StoreError, StoreResult, retry_while_unavailable};
pub use handles::{CommonStore, RecordStore, ServiceStore, Store, WorkerStore};
pub use open::open;
pub use options::{Durability, StoreOptions};
pub use pages::*;
pub use records::agents::{AgentCursor, AgentVersionCursor, MAX_AGENT_VERSIONS};
pub use records::mcp_logins::{McpServerCursor, McpTokens};
pub use records::named::{CreateNamedOutcome, NameCursor, UpdateNamedOutcome};
pub use records::providers::{
    EncryptedRow, LoginClaimant, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade, SecretKind,
};
pub use records::tool_reviews::{ComparedDefinitions, ListedDefinition, MAX_REVIEWS, ToolReviewScope, ToolReviewStore};
pub use runs::budget::{BudgetStore, EmbeddingCharge};
pub use runs::queue::ControlSignal;
pub use runs::queue::QueueStore;
pub use runs::usage::{DAY_MS, UsageCursor, UsageFilter};
pub use runs::{RunFilter, RunStore};
pub use sql::{AUDIT_PIECE, Statement, all_statements as statements};
pub use types::*;
