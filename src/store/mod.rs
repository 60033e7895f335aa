//! Persistence: a trait for each aggregate, which the stores on Postgres and on SQLite both implement.
//!
//! Aggregates are written once for both, in `sql`. The queue, the log writer, the load of a run, deletions, and the acceptance of a message
//! by one statement are written for each database, in `postgres` and `sqlite`.
//!
//! Owns the database. Must not know why anything is written: decisions are made in `service` and `engine`, the store carries
//! them out in one transaction each. Every query that serves a principal names the owner. One contract suite runs on both
//! implementations.

mod agents;
mod audit;
mod budget;
mod call_batch;
mod clones;
mod compose;
mod control;
mod conversations;
mod copy;
mod error;
mod feedback;
mod files;
mod handles;
mod input;
mod keys;
mod log;
mod mcp_logins;
mod mcp_servers;
mod messages;
mod migrations;
mod named;
mod open;
mod options;
mod pages;
mod patience;
pub mod postgres;
mod providers;
mod queue;
mod retention;
mod rewind;
mod rows;
mod runs;
mod search;
mod sql;
pub mod sqlite;
mod tickets;
mod titles;
mod tool_reviews;
mod types;
mod usage;
mod users;

pub use agents::{AgentCursor, AgentStore, AgentVersionCursor, MAX_AGENT_VERSIONS};
pub use audit::{AUDIT_PIECE, AuditStore};
pub use budget::BudgetStore;
pub use call_batch::CallBatch;
pub use clones::OnCopy;
pub use control::ControlSignal;
pub use conversations::ConversationStore;
pub use copy::{Copied, CopiedDocument, CopiedEnd, CopiedTurn, CopyConversation, CopyLimits, CopySource, CopyUntil};
pub use error::{StoreError, StoreResult};
pub use feedback::{FeedbackFilter, FeedbackGiven, FeedbackStore, GiveFeedback};
pub use files::{AttachedFile, FILE_CHUNK, FILES_PIECE, FileStore, NewFile, StoredOutcome, store_file};
pub use handles::{CommonStore, RecordStore, ServiceStore, Store, WorkerStore};
pub use input::{InputStore, MAX_GRANTS};
pub use keys::KeyStore;
pub use log::LogStore;
pub use mcp_logins::{McpLoginStore, McpTokens};
pub use mcp_servers::{McpServerCursor, McpServerStore};
pub use messages::{EarlierMessages, EarlierPage};
pub use named::{NameCursor, NamedChanged, NamedMade};
pub use open::open;
pub use options::{Durability, StoreOptions};
pub use pages::*;
pub use patience::patiently;
pub use providers::{LoginTaker, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade, ProviderStore, SealedRow, SecretOf};
pub use queue::QueueStore;
pub use retention::{EndedRun, Expired, RetentionStore, TOOL_SETS_PIECE};
pub use rewind::{Edited, Rewind, RewindFrom, Rewound};
pub use runs::{RunFilter, RunStore};
pub use search::{Found, SearchStore};
pub use sql::{Statement, statements};
pub use tickets::TicketStore;
pub use titles::{TitleMade, TitleStore};
pub use tool_reviews::{MAX_PINS, PinScope, PinStore, SeenTool};
pub use types::*;
pub use usage::{DAY_MS, UsageCursor, UsageFilter, UsageStore};
pub use users::{Owned, UserStore};
