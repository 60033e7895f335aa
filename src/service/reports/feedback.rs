//! Feedback on answers.

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::conversation::feedback::{Feedback, FeedbackRecord, Rating};
use crate::domain::ids::{ConversationId, MessageId};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::reports::audit::owner_of;
use crate::service::runs::message_content::storable_text;
use crate::service::{Error, Result, Service};
use crate::store::{FeedbackCursor, FeedbackFilter, FeedbackOutcome, GiveFeedback, Page, PageRequest};

impl Service {
    /// Stores a rating, which replaces an earlier one. Only answers of a model can be rated.
    pub async fn give_feedback(
        &self,
        principal: &Principal,
        (conversation_id, message_id): (ConversationId, MessageId),
        rating: Rating,
        comment: Option<String>,
        key: Option<RequestKey>,
    ) -> Result<(Feedback, Replay)> {
        let comment = self.comment("/comment", comment)?;
        let (owner, now) = (principal.user_id.clone(), self.clock.now());
        let give = GiveFeedback { owner, conversation_id: conversation_id.clone(), message_id, rating, comment, now };
        let claim = self.claim(&principal.user_id, key);
        let (outcome, replay) = outcome_or_conflict(self.store.give_feedback(give, claim).await?)?;
        let feedback = match outcome {
            FeedbackOutcome::Kept(feedback) => feedback,
            FeedbackOutcome::NotAnAnswer => return Err(Error::conflict("only answers of a model can be rated")),
            FeedbackOutcome::NoMessage => return Err(Error::NotFound("message in this conversation")),
        };
        if replay == Replay::Fresh {
            metrics::counter!("capstan_feedback_total", "rating" => rating.as_str()).increment(1);
        }
        self.check_replayed(principal, &conversation_id, replay).await?;
        Ok((feedback, replay))
    }

    pub async fn withdraw_feedback(&self, principal: &Principal, of: &ConversationId, message: &MessageId) -> Result<()> {
        let is_gone = self.store.withdraw_feedback(&principal.user_id, of, message).await?;
        is_gone.then_some(()).ok_or(Error::NotFound("feedback on a message in this conversation"))
    }

    pub async fn feedback(
        &self,
        principal: &Principal,
        owner: Option<&str>,
        (rating, reviewed): (Option<Rating>, Option<bool>),
        page: &PageRequest<FeedbackCursor>,
    ) -> Result<Page<FeedbackRecord>> {
        let owner = owner_of(principal, owner, "only an administrator can see the feedback of others")?;
        Ok(self.store.feedback(&FeedbackFilter { owner, rating, reviewed }, page).await?)
    }

    pub async fn review_feedback(&self, principal: &Principal, message: &MessageId, is_reviewed: bool) -> Result<FeedbackRecord> {
        if principal.role != UserRole::Admin {
            return Err(Error::Forbidden("only an administrator can review feedback"));
        }
        let by = is_reviewed.then_some(&principal.user_id);
        let found = self.store.review_feedback(message, by, self.clock.now()).await?;
        found.ok_or(Error::NotFound("feedback on this message"))
    }

    pub(in crate::service) fn comment(&self, pointer: &str, comment: Option<String>) -> Result<Option<String>> {
        let Some(comment) = comment.as_deref().map(str::trim).filter(|comment| !comment.is_empty()) else { return Ok(None) };
        storable_text(pointer, comment, self.limits.max_feedback_chars).map(Some)
    }
}
