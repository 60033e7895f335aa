//! Where a conversation stands, in the words of those ancestors that had words for it.

use serde::Deserialize;
use utoipa::ToSchema;

use super::conversation::ConversationStatus;
use super::run::WaitReason;

/// Whose words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatusWords {
    /// `idle`, `processing` (it waits for a worker), `locked` (a worker has it), `tool_loop`, `awaiting_approval`, `awaiting_input`,
    /// `failed`.
    Cms,
    /// `idle`, `thinking`, `calling_tools`, `error`.
    Chat,
}

impl StatusWords {
    /// The name of whose words they are.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cms => "cms",
            Self::Chat => "chat",
        }
    }

    /// The word for a status; `reason` is what its run waits for, if it does.
    #[must_use]
    pub fn word(self, status: ConversationStatus, reason: Option<WaitReason>) -> &'static str {
        let asks = matches!(reason, Some(WaitReason::Approval | WaitReason::Input));
        match (self, status) {
            (_, ConversationStatus::Idle) => "idle",
            (Self::Cms, ConversationStatus::Queued) => "processing",
            (Self::Cms, ConversationStatus::Processing) => "locked",
            (Self::Cms, ConversationStatus::ToolLoop) => "tool_loop",
            (Self::Cms, ConversationStatus::Waiting) => match reason {
                Some(WaitReason::Approval) => "awaiting_approval",
                Some(WaitReason::Input) => "awaiting_input",
                Some(WaitReason::Backoff | WaitReason::Budget) | None => "processing",
            },
            (Self::Cms, ConversationStatus::Failed) => "failed",
            // Whoever is asked is asked about a tool.
            (Self::Chat, ConversationStatus::ToolLoop) => "calling_tools",
            (Self::Chat, ConversationStatus::Waiting) if asks => "calling_tools",
            (Self::Chat, ConversationStatus::Queued | ConversationStatus::Processing | ConversationStatus::Waiting) => "thinking",
            (Self::Chat, ConversationStatus::Failed) => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_word_of_each_ancestor() {
        let reasons =
            [None, Some(WaitReason::Approval), Some(WaitReason::Input), Some(WaitReason::Backoff), Some(WaitReason::Budget)];
        let words = |of: StatusWords| {
            let all = ConversationStatus::ALL.into_iter().flat_map(|status| reasons.map(|reason| of.word(status, reason)));
            all.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(words(StatusWords::Chat), ["calling_tools", "error", "idle", "thinking"]);
        let cms = ["awaiting_approval", "awaiting_input", "failed", "idle", "locked", "processing", "tool_loop"];
        assert_eq!(words(StatusWords::Cms), cms);
        assert_eq!(StatusWords::Chat.word(ConversationStatus::Waiting, Some(WaitReason::Backoff)), "thinking");
    }
}
