//! Tickets: what a browser shows instead of a key where it cannot send one.

use super::ids::{ConversationId, RunId, UserId};

/// What a ticket opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketTarget {
    /// The event stream of a run.
    Run(RunId),
    /// The event stream of a conversation.
    Conversation(ConversationId),
    /// A WebSocket.
    Socket,
}

/// The word of [`TicketTarget::Socket`] in the database. No id is spelled like this.
const SOCKET: &str = "socket";

impl TicketTarget {
    /// As it stands in the database: the id, or a word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Run(id) => id.as_str(),
            Self::Conversation(id) => id.as_str(),
            Self::Socket => SOCKET,
        }
    }

    /// Reads what [`TicketTarget::as_str`] wrote.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        if word == SOCKET {
            return Some(Self::Socket);
        }
        let run = RunId::parse(word).ok().map(Self::Run);
        run.or_else(|| ConversationId::parse(word).ok().map(Self::Conversation))
    }
}

/// A ticket as it is kept, without the secret that its holder shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTicket {
    /// On whose behalf it opens something.
    pub owner: UserId,
    /// The hash of the key that it was made with; `None` on a server without keys.
    pub key_hash: Option<String>,
    /// What it opens.
    pub target: TicketTarget,
    /// The web origin of the page that asked for it; `None` if no page did.
    pub origin: Option<String>,
}
