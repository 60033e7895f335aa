//! Feedback of users on answers: the values.

use serde::{Deserialize, Serialize};

use crate::domain::conversation::{Feedback, Rating};
use crate::domain::ids::{ConversationId, MessageId, UserId};
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveFeedback {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    pub message_id: MessageId,
    pub rating: Rating,
    /// The reason. Without U+0000.
    pub comment: Option<String>,
    pub now: UnixMillis,
}

/// The outcome. Stored with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackOutcome {
    Kept(Feedback),
    /// The message is not an answer of a model. Nothing was stored.
    NotAnAnswer,
    /// No conversation of this owner contains the message, or no longer does.
    NoMessage,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedbackFilter {
    /// The owner of the feedback; `None` for all owners, which only an administrator may request.
    pub owner: Option<UserId>,
    pub rating: Option<Rating>,
    /// Whether an administrator has reviewed the feedback; `None` for both.
    pub reviewed: Option<bool>,
}
