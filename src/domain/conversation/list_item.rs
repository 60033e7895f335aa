//! The list of an owner's conversations: its items, and hints about changes that the owner's feeds show.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, InputId, UserId};
use crate::domain::run::InputKind;

/// A question that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct OpenQuestion {
    /// The id of the approval or the question.
    pub id: InputId,
    /// The kind of the question.
    pub kind: InputKind,
}

/// A conversation as lists show it, with its open questions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListItem {
    /// Has none of the fields that lists omit.
    pub conversation: Conversation,
    /// Ordered by age, the oldest first.
    pub open_questions: Vec<OpenQuestion>,
}

/// A change that the feeds of an owner may have to show.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListHint {
    /// The item of the conversation may have changed.
    Changed(ConversationId),
    /// The conversation was deleted from the list of this owner, whom no row names any more.
    Removed(ConversationId, UserId),
    /// The tool reviews of this owner's servers may have changed; `None` for servers that all users may use.
    Reviews(Option<UserId>),
}
