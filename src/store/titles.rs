//! Titles that models make: the trait.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::budget::Amount;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::Usage;
use crate::support::clock::UnixMillis;

/// What came of asking a model for a title.
#[derive(Debug, Clone, PartialEq)]
pub struct TitleMade {
    /// Whose conversation it is.
    pub owner: UserId,
    /// The conversation.
    pub conversation: ConversationId,
    /// The title that it had when the model was asked.
    pub was: String,
    /// The one that the model has made; `None` if it has made none.
    pub title: Option<String>,
    /// Who was asked.
    pub model: String,
    /// What that has used, if it has used anything.
    pub usage: Option<Usage>,
    /// The run that it was made after, if that has a budget in which it counts: of its conversation or of the day.
    pub budget_of: Option<RunId>,
    /// When it is over.
    pub now: UnixMillis,
}

impl TitleMade {
    /// What stands in the books of the day, and of which run.
    pub(super) fn booked(&self) -> Option<(&RunId, Amount)> {
        Some((self.budget_of.as_ref()?, Amount::of(self.usage.as_ref()?)))
    }
}

/// Titles that models make. Each conversation has one made once at most.
#[async_trait]
pub trait TitleStore: Send + Sync {
    /// Notes that a model is asked for a title, and says which one there is. `None` if it has one that its user gave or that was copied,
    /// or a model was asked before.
    async fn claim_title(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<String>>;

    /// Keeps what came of it: what was used, also in the books of the day, and the title, unless the conversation has got another one meanwhile. Appends
    /// `conversation.updated` if it is kept.
    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>>;
}
