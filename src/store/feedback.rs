//! Feedback of users on answers: the trait and its values.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::pages::written_by_us;
use super::{IdempotencyClaim, InvalidCursor, Keyed, Page, PageRequest, StoreResult, rows};
use crate::domain::feedback::{Feedback, FeedbackRecord, Rating};
use crate::domain::ids::{ConversationId, MessageId, UserId};
use crate::domain::message::{Message, Role};
use crate::support::clock::UnixMillis;

/// What a user says of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveFeedback {
    /// Whose conversation it is.
    pub owner: UserId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The answer.
    pub message_id: MessageId,
    /// Whether it was a good one.
    pub rating: Rating,
    /// Why. Without U+0000.
    pub comment: Option<String>,
    /// When it came.
    pub now: UnixMillis,
}

impl GiveFeedback {
    pub(super) fn feedback(&self) -> Feedback {
        Feedback { rating: self.rating, comment: self.comment.clone(), at: self.now.to_rfc3339() }
    }
}

/// What came of it. Serialised with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackGiven {
    /// It is kept, in the place of what was said before.
    Kept(Feedback),
    /// The message is not one that a model has said. Nothing has changed.
    NotAnAnswer,
    /// No such message in a conversation of this owner, or not any more.
    NoMessage,
}

/// Which feedback.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedbackFilter {
    /// That of this owner; of all if `None`, which only an administrator asks for.
    pub owner: Option<UserId>,
    /// That which says so.
    pub rating: Option<Rating>,
    /// That which somebody has looked at, or nobody.
    pub reviewed: Option<bool>,
}

/// The last row of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedbackCursor {
    /// When it was said, in milliseconds.
    pub at: i64,
    /// Of which message, among those of that moment.
    pub id: MessageId,
}

impl fmt::Display for FeedbackCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.at, self.id)
    }
}

impl FromStr for FeedbackCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (at, id) = text.split_once(':').ok_or(InvalidCursor)?;
        let at = at.parse().map_err(|_| InvalidCursor)?;
        written_by_us(Self { at, id: MessageId::parse(id).map_err(|_| InvalidCursor)? }, text)
    }
}

/// What users think of answers.
#[async_trait]
pub trait FeedbackStore: Send + Sync {
    /// Keeps what a user says of an answer, in the place of what they said before.
    async fn give_feedback(&self, give: GiveFeedback, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>>;

    /// Takes it back. `false` if there is none.
    async fn withdraw_feedback(&self, owner: &UserId, conversation: &ConversationId, message: &MessageId) -> StoreResult<bool>;

    /// Keeps that an administrator has looked at feedback, or that nobody has. `None` if there is none on this message.
    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>>;

    /// A page of feedback, what was said last first. That of messages which were taken out of their conversation is in it.
    async fn feedback(&self, filter: &FeedbackFilter, page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>>;
}

/// Whether a message is one that people can judge.
pub(super) fn is_answer(id: &MessageId, body: &str) -> StoreResult<bool> {
    let message: Message = rows::decode("messages", "body", id.as_str(), body)?;
    Ok(message.role == Role::Assistant && !message.internal)
}

/// Feedback that comes with a copied message, as columns. Nothing was said later than now.
pub(super) struct Rated {
    pub rating: Rating,
    pub comment: Option<String>,
    pub at: i64,
}

impl Rated {
    pub(super) fn copied(feedback: Feedback, now: UnixMillis) -> Self {
        let at = UnixMillis::from_rfc3339(&feedback.at).map_or(now, |at| at.min(now));
        Self { rating: feedback.rating, comment: feedback.comment, at: at.0 }
    }
}
