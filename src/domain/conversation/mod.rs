//! Conversations.

pub mod content;
pub mod feedback;
pub mod file;
pub mod fold;
pub mod message;
pub mod search;
pub mod summary;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::problem::ProblemBody;
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::words::words;

pub const MAX_TITLE_CHARS: usize = 255;

/// Where a conversation stands: the status of its active run, stored with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConversationStatus {
    /// Nothing is under way.
    Idle,
    /// A run waits for a worker.
    Queued,
    /// A model call is under way.
    Processing,
    /// Tool calls are under way.
    ToolLoop,
    /// The run waits for something outside.
    Waiting,
    /// The last run failed.
    Failed,
}

words!(ConversationStatus {
    Idle = "idle",
    Queued = "queued",
    Processing = "processing",
    ToolLoop = "tool_loop",
    Waiting = "waiting",
    Failed = "failed",
});

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

/// Where a copy comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedFrom {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The last of its messages that was copied; absent if none was.
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

/// The newest run of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastRun {
    /// Its id.
    pub id: RunId,
    /// Where it stands.
    pub status: RunStatus,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<ProblemBody>,
}

/// A conversation as clients see it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Conversation {
    /// Its id.
    pub id: ConversationId,
    /// Its title, made from the first message, or by a model after the first turn, unless the client gave one.
    pub title: String,
    /// Where it stands.
    pub status: ConversationStatus,
    /// What its run waits for, if it does.
    pub reason: Option<WaitReason>,
    /// The run under way, if any.
    pub active_run_id: Option<RunId>,
    /// The newest run, whether it is under way, queued or over; absent before the first one.
    pub last_run: Option<LastRun>,
    /// The agent of messages that name none: its name or id, with `@` and a version if that version was asked for. Absent: the server's
    /// default agent.
    pub agent: Option<String>,
    /// The model of messages that name none, as `provider/name`. Absent: the agent's own model.
    pub model: Option<String>,
    /// Whether its owner has pinned it: then it is not put away by itself.
    #[serde(default)]
    pub pinned: bool,
    /// When it was put away, RFC 3339; absent if it is not. Lists leave it out unless they are asked for it, and a new message
    /// brings it back.
    pub archived_at: Option<String>,
    /// Words of its owner's, in their order.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What its runs add to their agent's system prompt, or put in its place, as the agent says. Lists leave it out.
    pub system_prompt: Option<String>,
    /// What its user wants of every answer: a part of the system prompt that is marked as theirs. Lists leave it out.
    pub instructions: Option<String>,
    /// Of a copy: the conversation that it was forked from. That may be gone.
    pub forked_from: Option<ForkedFrom>,
    /// The `seq` of its newest event.
    pub last_seq: i64,
    /// When it was made, RFC 3339.
    pub created_at: String,
    /// When it last changed, RFC 3339.
    pub updated_at: String,
}
