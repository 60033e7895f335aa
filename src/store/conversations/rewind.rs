//! Rewinds a conversation to an earlier message, and replaces a message by an edited one.

use serde::{Deserialize, Serialize};

use crate::domain::conversation::{Conversation, Role};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};
use crate::store::{AcceptOutcome, AcceptRun};
use crate::support::clock::UnixMillis;

/// A request to remove messages from a conversation. They stay stored, but are neither listed nor sent to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewind {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    pub from: RewindFrom,
    pub now: UnixMillis,
}

/// The first removed message, in the order in which models read: run by run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewindFrom {
    After(MessageId),
    At(MessageId),
}

impl RewindFrom {
    pub fn message(&self) -> &MessageId {
        match self {
            Self::After(id) | Self::At(id) => id,
        }
    }

    /// Returns whether that message is superseded too.
    pub fn takes_it(&self) -> bool {
        matches!(self, Self::At(_))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewindOutcome {
    /// The messages are superseded.
    Conversation {
        conversation: Box<Conversation>,
        /// The superseded messages in order. Empty if nothing has changed.
        superseded: Vec<MessageId>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run is unfinished. Nothing was changed.
    Active { run_id: RunId },
    /// Tool calls would be separated from their results. Nothing was changed.
    PartsCalls,
    /// The conversation does not contain this message, or no longer does.
    NoMessage,
    /// The conversation is missing, or belongs to another owner.
    NoConversation,
}

/// The outcome of an edit. It is stored with the idempotency key, like the outcome of a new message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "AcceptOutcome")]
pub enum EditOutcome {
    /// The message and all later ones were removed, and the new message was accepted as by [`crate::store::RunStore::accept_run`].
    /// If that stored nothing, nothing was removed.
    Accepted(Box<AcceptOutcome>),
    /// Tool calls would be separated from their results. Nothing was changed.
    PartsCalls,
    /// The message is not a message of the user. Nothing was changed.
    NotTheUsers,
    /// The conversation does not contain this message, or no longer does.
    NoMessage,
}

impl From<AcceptOutcome> for EditOutcome {
    fn from(accepted: AcceptOutcome) -> Self {
        Self::Accepted(Box::new(accepted))
    }
}

impl EditOutcome {
    /// Adds the events of the rewind before those of the new message.
    pub(in crate::store) fn after(mut self, taken_out: Vec<StoredEvent>) -> Self {
        if let Self::Accepted(accepted) = &mut self
            && let AcceptOutcome::Run { events, .. } = &mut **accepted
        {
            events.splice(0..0, taken_out);
        }
        self
    }

    /// Returns the outcome if a message was stored.
    pub(in crate::store) fn stored(&self) -> Option<&AcceptOutcome> {
        match self {
            Self::Accepted(accepted) => Some(&**accepted).filter(|accepted| matches!(accepted, AcceptOutcome::Run { .. })),
            Self::PartsCalls | Self::NotTheUsers | Self::NoMessage => None,
        }
    }
}

/// Returns the rewind that precedes an edit.
pub fn before_edit(accept: &AcceptRun, message: &MessageId) -> Rewind {
    let (owner, conversation_id) = (accept.owner.clone(), accept.conversation_id.clone());
    Rewind { owner, conversation_id, from: RewindFrom::At(message.clone()), now: accept.now }
}

/// Returns the events of the rewind before an edit, or the outcome of the edit if the rewind was refused.
pub fn taken_for_edit(rewound: RewindOutcome) -> Result<Vec<StoredEvent>, EditOutcome> {
    match rewound {
        RewindOutcome::Conversation { events, .. } => Ok(events),
        RewindOutcome::Active { run_id } => Err(AcceptOutcome::Busy { run_id }.into()),
        RewindOutcome::PartsCalls => Err(EditOutcome::PartsCalls),
        RewindOutcome::NoMessage => Err(EditOutcome::NoMessage),
        RewindOutcome::NoConversation => Err(AcceptOutcome::NoConversation.into()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovedMessage {
    pub first_seq: i64,
    pub position: i64,
    pub id: String,
    pub role: String,
}

/// Returns the messages to remove, in order. `None` if that would separate calls from their results. The run of the first message
/// begins at `first_seq`.
pub fn removed_messages(mut messages: Vec<RemovedMessage>, first_seq: i64) -> Option<Vec<MessageId>> {
    messages.sort_unstable();
    // Within a run, the results of a call precede the next answer. Only user messages may be between them.
    let of_run = messages.iter().take_while(|message| message.first_seq == first_seq);
    let next = of_run.map(|message| message.role.as_str()).find(|role| *role != Role::User.as_str());
    if next == Some(Role::Tool.as_str()) {
        return None;
    }
    Some(messages.into_iter().map(|message| MessageId::from_stored(message.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_with_their_calls() {
        let message = |first_seq, position, role: &str| RemovedMessage {
            first_seq,
            position,
            id: format!("msg_{position}"),
            role: role.into(),
        };
        let ids = |messages, first_seq| {
            removed_messages(messages, first_seq).map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(ids(vec![message(1, 7, "tool"), message(1, 5, "user")], 1), None);
        assert_eq!(ids(vec![message(1, 7, "tool"), message(1, 5, "assistant")], 1).unwrap(), ["msg_5", "msg_7"]);
        // Ordered by run, as models read them.
        assert_eq!(ids(vec![message(4, 3, "user"), message(1, 9, "assistant")], 1).unwrap(), ["msg_9", "msg_3"]);
        assert_eq!(ids(vec![message(4, 9, "tool")], 1).unwrap(), ["msg_9"], "the call is in another run");
        assert_eq!(ids(Vec::new(), 1).unwrap(), [""; 0]);
    }
}
