//! Feedback of users on answers: the trait and its values.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::domain::conversation::feedback::{Feedback, FeedbackRecord, Rating};
use crate::domain::conversation::message::{Message, Role};
use crate::domain::ids::{ConversationId, MessageId, UserId};
use crate::store::{FeedbackCursor, IdempotencyClaim, Keyed, Page, PageRequest, StoreResult, rows};
use crate::support::clock::UnixMillis;

/// Feedback on an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveFeedback {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    /// The answer.
    pub message_id: MessageId,
    pub rating: Rating,
    /// Why. Without U+0000.
    pub comment: Option<String>,
    pub now: UnixMillis,
}

impl GiveFeedback {
    pub(in crate::store) fn feedback(&self) -> Feedback {
        Feedback { rating: self.rating, comment: self.comment.clone(), at: self.now.to_rfc3339() }
    }
}

/// The outcome. Serialised with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackGiven {
    /// It replaces earlier feedback.
    Kept(Feedback),
    /// The message is not one that a model has said. Nothing has changed.
    NotAnAnswer,
    /// No such message in a conversation of this owner, or not any more.
    NoMessage,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedbackFilter {
    /// That of this owner; of all if `None`, which only an administrator asks for.
    pub owner: Option<UserId>,
    pub rating: Option<Rating>,
    /// Feedback that an administrator has reviewed, or that none has.
    pub reviewed: Option<bool>,
}

/// Feedback of users on answers.
#[async_trait]
pub trait FeedbackStore: Send + Sync {
    /// Stores feedback on an answer. It replaces earlier feedback.
    async fn give_feedback(&self, give: GiveFeedback, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>>;

    /// Withdraws feedback. Returns false if there is none.
    async fn withdraw_feedback(&self, owner: &UserId, conversation: &ConversationId, message: &MessageId) -> StoreResult<bool>;

    /// Marks feedback as reviewed, or as not reviewed. `None` if there is none on this message.
    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>>;

    /// A page of feedback, what was said last first. That of messages which were taken out of their conversation is in it.
    async fn feedback(&self, filter: &FeedbackFilter, page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>>;
}

/// Returns whether feedback on a message is possible.
pub(in crate::store) fn is_answer(id: &MessageId, body: &str) -> StoreResult<bool> {
    let message: Message = rows::decode("messages", "body", id.as_str(), body)?;
    Ok(message.role == Role::Assistant && !message.internal)
}

/// Feedback that comes with a copied message, as columns. Nothing was said later than now.
pub(in crate::store) struct Rated {
    pub rating: Rating,
    pub comment: Option<String>,
    pub at: i64,
}

impl Rated {
    pub(in crate::store) fn copied(feedback: Feedback, now: UnixMillis) -> Self {
        let at = UnixMillis::from_rfc3339(&feedback.at).map_or(now, |at| at.min(now));
        Self { rating: feedback.rating, comment: feedback.comment, at: at.0 }
    }
}
