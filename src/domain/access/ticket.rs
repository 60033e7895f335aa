//! Tickets: credentials for event streams, for browsers that cannot send an API key.

use crate::domain::ids::{ConversationId, RunId, UserId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketTarget {
    Run(RunId),
    Conversation(ConversationId),
    Socket,
}

/// The stored value for a WebSocket. No conversation id looks like this.
const SOCKET: &str = "socket";

impl TicketTarget {
    /// Returns the id, or the value for a WebSocket.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Run(id) => id.as_str(),
            Self::Conversation(id) => id.as_str(),
            Self::Socket => SOCKET,
        }
    }

    pub fn from_name(word: &str) -> Option<Self> {
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
    /// The hash of the key that created the ticket; `None` on a server without keys.
    pub key_hash: Option<String>,
    /// The hash of the browser session that created the ticket, if there is one.
    pub session_hash: Option<String>,
    pub target: TicketTarget,
    /// The web origin of the page that requested the ticket; `None` for other clients.
    pub origin: Option<String>,
}
