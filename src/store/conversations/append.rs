//! Appends existing messages to a conversation.

use serde::{Deserialize, Serialize};

use crate::domain::conversation::{Message, Part};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::conversations::fork::CopiedTurn;
use crate::support::clock::UnixMillis;
use crate::support::ids::SharedIds;

/// Messages to append to a conversation without an unfinished run. Nothing is executed.
#[derive(Clone)]
pub struct AppendMessages {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    /// The messages by turn. Each turn becomes a run that has ended.
    pub turns: Vec<CopiedTurn>,
    /// A text to add to the conversation's part of the system prompt.
    pub system_prompt: Option<String>,
    /// Limit of that part, in characters.
    pub max_prompt_chars: usize,
    /// Limit of uploaded files in the messages of a conversation, including these.
    pub max_files: u32,
    /// Generates new ids for the messages and their runs.
    pub ids: SharedIds,
    pub now: UnixMillis,
}

/// The outcome of an append. Stored with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppendOutcome {
    Appended {
        messages: Vec<Message>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run is unfinished. Nothing was stored.
    Active { run_id: RunId },
    /// The system prompt would have too many characters. Nothing was stored.
    LongPrompt { chars: usize },
    /// The conversation would have too many uploaded files. Nothing was stored.
    TooManyFiles { files: u32 },
    /// The conversation is missing, or belongs to another owner.
    NoConversation,
}

impl AppendMessages {
    /// Returns the conversation's part of the system prompt with the new text.
    pub(in crate::store) fn prompt_after(&self, before: Option<&str>) -> Option<String> {
        let added = self.system_prompt.as_deref()?;
        Some(before.map_or_else(|| added.to_owned(), |before| format!("{before}\n\n{added}")))
    }

    pub(in crate::store) fn has_files(&self) -> bool {
        let mut messages = self.turns.iter().flat_map(|turn| &turn.messages);
        messages.any(|(_, message)| message.parts.iter().filter_map(Part::file_id).next().is_some())
    }
}
