//! Conversations, their messages, files and summaries.
//!
//! Owns their values. Must not know how they are stored.

pub mod content;
pub mod delta_compaction;
pub mod eviction_summary;
pub mod feedback;
pub mod file;
pub mod list_item;
pub mod message;
pub mod search;
pub mod shares;

pub use content::{BinaryContent, SentContent, ToolContent};
pub use delta_compaction::CompactedDelta;
pub use eviction_summary::Spans;
pub use feedback::{Feedback, FeedbackRecord, Rating, Review};
pub use file::{FileFacts, FileLimits, FileOrigin, FilePurpose, FileText, StoredFile};
pub use list_item::{ListHint, ListItem, OpenQuestion};
pub use message::{
    FilePart, Message, MessageStatus, Part, ReasoningPart, Role, SourcePart, TextLimit, TextPart, ToolCallPart, ToolResultPart,
};
pub use search::{Term, Terms};
pub use shares::{Share, SharedConversation, SharedMessage, Snapshot};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::problem::ProblemBody;
use crate::domain::run::{RunStatus, WaitReason};

pub const MAX_TITLE_CHARS: usize = 255;

named_enum! {
    /// The status of a conversation's active run, stored with the conversation.
    pub enum ConversationStatus {
        /// No run is active.
        Idle = "idle",
        /// A run waits for a worker.
        Queued = "queued",
        /// A model call is running.
        Processing = "processing",
        /// Tool calls are running.
        ToolLoop = "tool_loop",
        /// The run waits for an external event.
        Waiting = "waiting",
        /// The last run failed.
        Failed = "failed",
    }
}

impl From<RunStatus> for ConversationStatus {
    fn from(run: RunStatus) -> Self {
        match run {
            RunStatus::Queued => Self::Queued,
            RunStatus::Processing => Self::Processing,
            RunStatus::ToolLoop => Self::ToolLoop,
            RunStatus::Waiting => Self::Waiting,
            RunStatus::Completed | RunStatus::Cancelled => Self::Idle,
            RunStatus::Failed => Self::Failed,
        }
    }
}

/// The time that orders a list of conversations, the newest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConversationSort {
    /// The creation.
    #[default]
    Created,
    /// The last change, such as a new message.
    Updated,
}

/// The origin of a copied conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedFrom {
    /// The id of the original conversation.
    pub conversation_id: ConversationId,
    /// The id of the last copied message. Absent if no message was copied.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message_id: Option<MessageId>,
}

/// The agent and the model that a message, or a conversation, names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentChoice {
    pub agent: Option<String>,
    /// The model, as `provider/name`.
    pub model: Option<String>,
}

impl Conversation {
    /// Returns the agent and the model that the conversation stores.
    pub fn choice(&self) -> AgentChoice {
        AgentChoice { agent: self.agent.clone(), model: self.model.clone() }
    }

    /// Returns whether the active run waits for a human or the client.
    pub fn waits_for_answer(&self) -> bool {
        self.reason.is_some_and(WaitReason::needs_answer)
    }
}

/// The newest run of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastRun {
    /// The id of the run.
    pub id: RunId,
    /// The status of the run.
    pub status: RunStatus,
    /// The error of a failed run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<ProblemBody>,
}

/// A conversation as clients see it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Conversation {
    /// The id of the conversation.
    pub id: ConversationId,
    /// The title. Unless the client sets it, it comes from the first message, or from a model after the first run.
    pub title: String,
    /// The status of the conversation.
    pub status: ConversationStatus,
    /// The reason why the active run waits. Absent if it does not wait.
    pub reason: Option<WaitReason>,
    /// The id of the active run, if any.
    pub active_run_id: Option<RunId>,
    /// The newest run, in any status. Absent before the first run.
    pub last_run: Option<LastRun>,
    /// The agent for messages that name none: its name or id, with `@` and a version if that version was requested. If absent, the
    /// server's default agent is used.
    pub agent: Option<String>,
    /// The model for messages that name none, as `provider/name`. If absent, the agent's own model is used.
    pub model: Option<String>,
    /// Whether the owner has pinned the conversation. A pinned conversation is not archived automatically.
    #[serde(default)]
    pub pinned: bool,
    /// When the conversation was archived, RFC 3339. Absent if it is not archived. Lists omit archived conversations by default,
    /// and a new message restores an archived conversation.
    pub archived_at: Option<String>,
    /// Tags that the owner has set, in the owner's order.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Text that extends or replaces the agent's system prompt, as the agent's settings say. Omitted from lists.
    pub system_prompt: Option<String>,
    /// The user's wishes for every answer. They form a section of the system prompt that is marked as the user's. Omitted from
    /// lists.
    pub instructions: Option<String>,
    /// The origin of a copy. The original conversation may have been deleted.
    pub forked_from: Option<ForkedFrom>,
    /// Keys and values that a client of the OpenAI API has set. Omitted from lists.
    #[serde(skip)]
    pub metadata: Map<String, Value>,
    /// The `seq` of the newest event.
    pub last_seq: i64,
    /// When the conversation was created, RFC 3339.
    pub created_at: String,
    /// When the conversation last changed, RFC 3339.
    pub updated_at: String,
}
