//! Titles that models make: the trait.

use async_trait::async_trait;

use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::run::budget::Amount;
use crate::store::StoreResult;
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, PartialEq)]
pub struct TitleMade {
    pub owner: UserId,
    pub conversation: ConversationId,
    /// The title that it had when the model was asked.
    pub was: String,
    /// The title that the model has made, if any.
    pub title: Option<String>,
    pub model: String,
    pub usage: Option<Usage>,
    /// The run after which it was made, if the title counts in a budget of its conversation or its day.
    pub budget_of: Option<RunId>,
    pub now: UnixMillis,
}

impl TitleMade {
    /// Returns what is booked for the day, and for which run.
    pub(in crate::store) fn booked(&self) -> Option<(&RunId, Amount)> {
        Some((self.budget_of.as_ref()?, Amount::of(self.usage.as_ref()?)))
    }
}

/// Titles that models make, at most one for a conversation.
#[async_trait]
pub trait TitleStore: Send + Sync {
    /// Claims the right to ask a model for a title. Returns the present one; `None` if the user gave it, it was copied, or a model was
    /// asked before.
    async fn claim_title(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<String>>;

    /// Books the usage, also for the day, and sets the title unless the conversation has got another one meanwhile. Appends
    /// `conversation.updated` if it is set.
    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>>;
}
