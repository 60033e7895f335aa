//! Shares of conversations: the values.

use serde::{Deserialize, Serialize};

use crate::domain::conversation::shares::Share;
use crate::domain::ids::{ConversationId, ShareId, UserId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewShare {
    pub id: ShareId,
    pub owner: UserId,
    pub conversation_id: ConversationId,
    /// The hash of its token.
    pub hash: String,
    pub lifetime_ms: u64,
    pub limits: ShareLimits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareLimits {
    /// Limit of shares of one conversation that have not expired.
    pub per_conversation: u32,
    /// Limit of the messages of one share, in bytes of JSON.
    pub bytes: usize,
    /// Limit of the stored messages that are read for one share, in bytes.
    pub read_bytes: usize,
}

/// The outcome. Stored with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareOutcome {
    Shared(Share),
    /// The conversation has reached the limit of shares.
    TooMany,
    TooLarge,
    NoConversation,
}
