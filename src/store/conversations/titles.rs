//! Titles that models generate: the trait.

use async_trait::async_trait;

use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::run::Amount;
use crate::store::StoreResult;
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedTitle {
    pub owner: UserId,
    pub conversation: ConversationId,
    /// The title when the model was called.
    pub was: String,
    /// The title that the model generated, if any.
    pub title: Option<String>,
    pub model: String,
    pub usage: Option<Usage>,
    /// The run that the title was generated after, if its cost counts in a budget of the conversation or the day.
    pub budget_of: Option<RunId>,
    pub now: UnixMillis,
}

impl GeneratedTitle {
    /// Returns the amount to book for the day, and its run.
    pub(in crate::store) fn booked(&self) -> Option<(&RunId, Amount)> {
        Some((self.budget_of.as_ref()?, Amount::of(self.usage.as_ref()?)))
    }
}

/// Titles that models generate, at most one per conversation.
#[async_trait]
#[warn(missing_docs)]
pub trait TitleStore: Send + Sync {
    /// Claims the right to generate a title. Returns the present title. `None` if the user set it, it was copied, or a model was
    /// called before.
    async fn claim_title(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<String>>;

    /// Books the usage, also for the day, and sets the title unless the conversation got another one meanwhile. Appends
    /// `conversation.updated` if the title was set.
    async fn finish_title(&self, title: GeneratedTitle) -> StoreResult<Vec<StoredEvent>>;
}
