//! The list of an owner's conversations: its items, and hints about their changes.

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

/// A conversation whose item may have changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListHint {
    pub conversation: ConversationId,
    /// The owner of a deleted conversation, whom no row names any more.
    pub deleted_from: Option<UserId>,
}
