//! Taking a conversation back to an earlier message.

use serde::{Deserialize, Serialize};

use super::{AcceptRun, Accepted, StoreResult, rows};
use crate::domain::conversation::Conversation;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};
use crate::domain::message::{Message, Role};
use crate::support::clock::UnixMillis;

/// A request to take messages out of a conversation: they are kept, and neither listed nor sent to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewind {
    /// Whose it is.
    pub owner: UserId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// From where on.
    pub from: RewindFrom,
    /// When it came.
    pub now: UnixMillis,
}

/// From where on messages are taken out, in the order in which models read them: run by run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewindFrom {
    /// Those after this one.
    After(MessageId),
    /// This one and those after it.
    At(MessageId),
}

impl RewindFrom {
    /// The message that it speaks of.
    #[must_use]
    pub fn message(&self) -> &MessageId {
        match self {
            Self::After(id) | Self::At(id) => id,
        }
    }

    /// Whether that message is taken out, too.
    #[must_use]
    pub fn takes_it(&self) -> bool {
        match self {
            Self::After(_) => false,
            Self::At(_) => true,
        }
    }
}

/// What came of a request to rewind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewound {
    /// The messages are not part of the conversation any more.
    Conversation {
        /// The conversation as it is now.
        conversation: Box<Conversation>,
        /// The messages, in their order. Empty if there were none: then nothing has changed.
        superseded: Vec<MessageId>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run is under way or queued. Nothing has changed.
    Active {
        /// The run.
        run_id: RunId,
    },
    /// Calls would be left in the conversation without their results. Nothing has changed.
    PartsCalls,
    /// No such message in the conversation, or not any more.
    NoMessage,
    /// No such conversation, or somebody else's.
    NoConversation,
}

/// What came of a request to say a message anew. It is recorded with its key as what was accepted.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Accepted")]
pub enum Edited {
    /// The message and those after it are not part of the conversation any more, and the new one is what came of
    /// [`super::RunStore::accept_run`]. Where that has stored nothing, nothing was taken out.
    Accepted(Box<Accepted>),
    /// Calls would be left in the conversation without their results. Nothing has changed.
    PartsCalls,
    /// It is not a message that the user has sent. Nothing has changed.
    NotTheUsers,
    /// No such message in the conversation, or not any more.
    NoMessage,
}

impl From<Accepted> for Edited {
    fn from(accepted: Accepted) -> Self {
        Self::Accepted(Box::new(accepted))
    }
}

impl Edited {
    /// With the events of what was taken out before those of the new message.
    pub(super) fn after(mut self, taken_out: Vec<StoredEvent>) -> Self {
        if let Self::Accepted(accepted) = &mut self
            && let Accepted::Run { events, .. } = &mut **accepted
        {
            events.splice(0..0, taken_out);
        }
        self
    }

    /// What was stored, if anything was.
    pub(super) fn stored(&self) -> Option<&Accepted> {
        match self {
            Self::Accepted(accepted) => Some(&**accepted).filter(|accepted| matches!(accepted, Accepted::Run { .. })),
            Self::PartsCalls | Self::NotTheUsers | Self::NoMessage => None,
        }
    }
}

/// Taking out a message of the user's for the sake of the one that is to be accepted.
pub(super) fn before_edit(accept: &AcceptRun, message: &MessageId) -> Rewind {
    let (owner, conversation_id) = (accept.owner.clone(), accept.conversation_id.clone());
    Rewind { owner, conversation_id, from: RewindFrom::At(message.clone()), now: accept.now }
}

/// Whether people may say a message anew: they have sent it.
pub(super) fn is_the_users(id: &MessageId, body: &str) -> StoreResult<bool> {
    let message: Message = rows::decode("messages", "body", id.as_str(), body)?;
    Ok(message.role == Role::User && !message.internal)
}

/// What a refusal to take the message out means for its edit; the events if it was taken out.
pub(super) fn taken_for_edit(rewound: Rewound) -> Result<Vec<StoredEvent>, Edited> {
    match rewound {
        Rewound::Conversation { events, .. } => Ok(events),
        Rewound::Active { run_id } => Err(Accepted::Busy { run_id }.into()),
        Rewound::PartsCalls => Err(Edited::PartsCalls),
        Rewound::NoMessage => Err(Edited::NoMessage),
        Rewound::NoConversation => Err(Accepted::NoConversation.into()),
    }
}

/// A message that is to be taken out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TakenOut {
    /// Where its run begins.
    pub first_seq: i64,
    /// Its place in the conversation.
    pub position: i64,
    /// Which one it is.
    pub id: String,
    /// Its role, as a word.
    pub role: String,
}

/// The messages that are to be taken out, in their order; `None` if that would part calls from their results. The run of the first
/// message begins at `first_seq`.
pub(super) fn taken_out(mut messages: Vec<TakenOut>, first_seq: i64) -> Option<Vec<MessageId>> {
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
