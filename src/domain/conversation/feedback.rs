//! Feedback of users on answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};

named_enum! {
    /// Whether the user rated an answer as good.
    pub enum Rating {
        /// The answer was good.
        Up = "up",
        /// The answer was not good.
        Down = "down",
    }
}

/// The feedback of a user on an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feedback {
    /// The rating of the answer.
    pub rating: Rating,
    /// The reason for the rating.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comment: Option<String>,
    /// When the feedback was given, RFC 3339.
    pub at: String,
}

/// Feedback with the ids of its answer. The text of the answer stays private to its owner.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FeedbackRecord {
    /// The id of the answer. The answer may have been removed from its conversation since.
    pub message_id: MessageId,
    /// The conversation of the answer.
    pub conversation_id: ConversationId,
    /// The run that made the answer.
    pub run_id: RunId,
    /// The owner of the conversation, who gave the feedback.
    pub owner_id: UserId,
    /// The agent of the run.
    pub agent: String,
    /// The version of the agent.
    pub agent_version: u32,
    /// The model of the run, as `provider/name`.
    pub model: String,
    /// The rating of the answer.
    pub rating: Rating,
    /// The reason for the rating.
    pub comment: Option<String>,
    /// When the feedback was given, RFC 3339.
    pub at: String,
    /// The review of the feedback. Absent until an administrator reviews it.
    pub review: Option<Review>,
}

/// An administrator's review of feedback. A new rating of the answer removes the review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Review {
    /// The administrator who reviewed the feedback.
    pub by: UserId,
    /// When the feedback was reviewed, RFC 3339.
    pub at: String,
}
