//! Feedback of users on answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};
use crate::domain::words::words;

/// Whether an answer was a good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rating {
    /// It was.
    Up,
    /// It was not.
    Down,
}

words!(Rating { Up = "up", Down = "down" });

/// What its user thinks of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feedback {
    /// Whether it was a good one.
    pub rating: Rating,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comment: Option<String>,
    /// When it was said, RFC 3339.
    pub at: String,
}

/// Feedback with the answer that it is about, whose words are its owner's alone.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FeedbackRecord {
    /// The answer. It may have been taken out of its conversation since.
    pub message_id: MessageId,
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// The run that made it.
    pub run_id: RunId,
    /// Whose conversation it is, and whose feedback.
    pub owner_id: UserId,
    /// The agent of the run.
    pub agent: String,
    /// The version of the agent.
    pub agent_version: u32,
    /// The model of the run, as `provider/name`.
    pub model: String,
    /// Whether it was a good one.
    pub rating: Rating,
    /// Why.
    pub comment: Option<String>,
    /// When it was said, RFC 3339.
    pub at: String,
    /// Who has looked at it since, and when.
    pub review: Option<Review>,
}

/// That an administrator has looked at feedback. Whoever rates the answer anew has something new to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Review {
    /// The administrator.
    pub by: UserId,
    /// When, RFC 3339.
    pub at: String,
}
