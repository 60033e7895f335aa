//! Taking a conversation back to an earlier message.

use serde::{Deserialize, Serialize};

use crate::domain::conversation::Conversation;
use crate::domain::conversation::message::{Message, Role};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};
use crate::store::{AcceptRun, Accepted, StoreResult, rows};
use crate::support::clock::UnixMillis;

/// A request to take messages out of a conversation: they are kept, and neither listed nor sent to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewind {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    pub from: RewindFrom,
    pub now: UnixMillis,
}

/// From where on messages are taken out, in the order in which models read them: run by run.
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

    /// Returns whether that message is superseded as well.
    pub fn takes_it(&self) -> bool {
        match self {
            Self::After(_) => false,
            Self::At(_) => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewound {
    /// The messages are superseded.
    Conversation {
        conversation: Box<Conversation>,
        /// The messages, in their order. Empty if there were none: then nothing has changed.
        superseded: Vec<MessageId>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run is under way or queued. Nothing has changed.
    Active { run_id: RunId },
    /// Tool calls would be left without their results. Nothing has changed.
    PartsCalls,
    /// The conversation has no such message, or not any more.
    NoMessage,
    /// The conversation is missing or another owner's.
    NoConversation,
}

/// The outcome of an edit. It is recorded with its key as the accepted message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Accepted")]
pub enum Edited {
    /// The message and those after it are not part of the conversation any more, and the new one is what came of
    /// [`crate::store::RunStore::accept_run`]. Where that has stored nothing, nothing was taken out.
    Accepted(Box<Accepted>),
    /// Tool calls would be left without their results. Nothing has changed.
    PartsCalls,
    /// The user has not sent the message. Nothing has changed.
    NotTheUsers,
    /// The conversation has no such message, or not any more.
    NoMessage,
}

impl From<Accepted> for Edited {
    fn from(accepted: Accepted) -> Self {
        Self::Accepted(Box::new(accepted))
    }
}

impl Edited {
    /// Adds the events of the rewind before those of the new message.
    pub(in crate::store) fn after(mut self, taken_out: Vec<StoredEvent>) -> Self {
        if let Self::Accepted(accepted) = &mut self
            && let Accepted::Run { events, .. } = &mut **accepted
        {
            events.splice(0..0, taken_out);
        }
        self
    }

    /// Returns the outcome if a message was stored.
    pub(in crate::store) fn stored(&self) -> Option<&Accepted> {
        match self {
            Self::Accepted(accepted) => Some(&**accepted).filter(|accepted| matches!(accepted, Accepted::Run { .. })),
            Self::PartsCalls | Self::NotTheUsers | Self::NoMessage => None,
        }
    }
}

/// Returns the rewind that precedes an edit.
pub(in crate::store) fn before_edit(accept: &AcceptRun, message: &MessageId) -> Rewind {
    let (owner, conversation_id) = (accept.owner.clone(), accept.conversation_id.clone());
    Rewind { owner, conversation_id, from: RewindFrom::At(message.clone()), now: accept.now }
}

/// Returns whether a message can be edited: the user has sent it.
pub(in crate::store) fn is_the_users(id: &MessageId, body: &str) -> StoreResult<bool> {
    let message: Message = rows::decode("messages", "body", id.as_str(), body)?;
    Ok(message.role == Role::User && !message.internal)
}

/// Returns the events of a rewind before an edit, or the outcome of the edit if the rewind was refused.
pub(in crate::store) fn taken_for_edit(rewound: Rewound) -> Result<Vec<StoredEvent>, Edited> {
    match rewound {
        Rewound::Conversation { events, .. } => Ok(events),
        Rewound::Active { run_id } => Err(Accepted::Busy { run_id }.into()),
        Rewound::PartsCalls => Err(Edited::PartsCalls),
        Rewound::NoMessage => Err(Edited::NoMessage),
        Rewound::NoConversation => Err(Accepted::NoConversation.into()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct TakenOut {
    pub first_seq: i64,
    pub position: i64,
    pub id: String,
    pub role: String,
}

/// The messages that are to be taken out, in their order; `None` if that would part calls from their results. The run of the first
/// message begins at `first_seq`.
pub(in crate::store) fn taken_out(mut messages: Vec<TakenOut>, first_seq: i64) -> Option<Vec<MessageId>> {
    messages.sort_unstable();
    // Within a run the results of an answer's calls come before its next answer; only a user's words may stand between.
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
        let message =
            |first_seq, position, role: &str| TakenOut { first_seq, position, id: format!("msg_{position}"), role: role.into() };
        let ids =
            |messages, first_seq| taken_out(messages, first_seq).map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(ids(vec![message(1, 7, "tool"), message(1, 5, "user")], 1), None);
        assert_eq!(ids(vec![message(1, 7, "tool"), message(1, 5, "assistant")], 1).unwrap(), ["msg_5", "msg_7"]);
        // Run by run, as models read them.
        assert_eq!(ids(vec![message(4, 3, "user"), message(1, 9, "assistant")], 1).unwrap(), ["msg_9", "msg_3"]);
        assert_eq!(ids(vec![message(4, 9, "tool")], 1).unwrap(), ["msg_9"], "of another run");
        assert_eq!(ids(Vec::new(), 1).unwrap(), [""; 0]);
    }
}
