//! Tickets: credentials for event streams, for browsers that cannot send a key there.

use crate::domain::ids::{ConversationId, RunId, UserId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketTarget {
    Run(RunId),
    Conversation(ConversationId),
    Socket,
}

/// The word in the database. No id is spelled like this.
const SOCKET: &str = "socket";

impl TicketTarget {
    /// Returns the id, or the word of a socket.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Run(id) => id.as_str(),
            Self::Conversation(id) => id.as_str(),
            Self::Socket => SOCKET,
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        if word == SOCKET {
            return Some(Self::Socket);
        }
        let run = RunId::parse(word).ok().map(Self::Run);
        run.or_else(|| ConversationId::parse(word).ok().map(Self::Conversation))
    }
}

/// A ticket as stored, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTicket {
    pub owner: UserId,
    /// The hash of the key that created it; `None` on a server without keys.
    pub key_hash: Option<String>,
    pub target: TicketTarget,
    /// The web origin of the page that requested it; `None` if no page did.
    pub origin: Option<String>,
}
