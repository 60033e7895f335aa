//! The status of a conversation in the vocabularies of earlier products.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::conversation::ConversationStatus;
use crate::domain::run::WaitReason;
use crate::domain::run::change::StepKind;

/// A vocabulary for the status of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatusWords {
    /// The vocabulary of the agent `cms`: `idle`, `processing`, `locked`, `tool_loop`, `awaiting_approval`, `awaiting_input`,
    /// `failed`. `processing`: the run waits for a worker, or a model call is running. `locked`: a worker has claimed the run and
    /// has not begun. `tool_loop`: the run has made its first tool calls and has not ended.
    Cms,
    /// The vocabulary of the agent `chat`: `idle`, `thinking`, `calling_tools`, `error`.
    Chat,
}

impl StatusWords {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cms => "cms",
            Self::Chat => "chat",
        }
    }

    /// Returns the word for a status. `reason` is why the run waits, and `reached` is the run's progress if it has begun.
    pub fn word(self, status: ConversationStatus, reason: Option<WaitReason>, reached: Option<StepKind>) -> &'static str {
        let asks = reason.is_some_and(WaitReason::needs_answer);
        match (self, status) {
            (_, ConversationStatus::Idle) => "idle",
            (Self::Cms, ConversationStatus::ToolLoop) => "tool_loop",
            (Self::Cms, ConversationStatus::Waiting) if asks => match reason {
                Some(WaitReason::Approval) => "awaiting_approval",
                // Clients of `cms` have no other word for a wait for a tool.
                Some(WaitReason::ClientTool) => "tool_loop",
                Some(WaitReason::Input | WaitReason::Backoff | WaitReason::Budget) | None => "awaiting_input",
            },
            (Self::Cms, ConversationStatus::Queued | ConversationStatus::Processing | ConversationStatus::Waiting) => match reached
            {
                Some(StepKind::Tools) => "tool_loop",
                None if status == ConversationStatus::Processing => "locked",
                Some(StepKind::Model) | None => "processing",
            },
            (Self::Cms, ConversationStatus::Failed) => "failed",
            // All questions concern tools.
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
        let reasons = std::iter::once(None).chain(WaitReason::ALL.map(Some));
        let words = |of: StatusWords| {
            let steps = [None, Some(StepKind::Model), Some(StepKind::Tools)];
            let all = ConversationStatus::ALL.into_iter().flat_map(|status| reasons.clone().map(move |reason| (status, reason)));
            let all = all.flat_map(|(status, reason)| steps.map(|reached| of.word(status, reason, reached)));
            all.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(words(StatusWords::Chat), ["calling_tools", "error", "idle", "thinking"]);
        let cms = ["awaiting_approval", "awaiting_input", "failed", "idle", "locked", "processing", "tool_loop"];
        assert_eq!(words(StatusWords::Cms), cms);
        assert_eq!(StatusWords::Chat.word(ConversationStatus::Waiting, Some(WaitReason::Backoff), None), "thinking");
    }

    #[test]
    fn cms_status_is_loop_from_first_call_to_end() {
        let word = |status, reached| StatusWords::Cms.word(status, None, reached);
        for (status, reached, expected) in [
            (ConversationStatus::Queued, None, "processing"),
            (ConversationStatus::Processing, None, "locked"),
            (ConversationStatus::Processing, Some(StepKind::Model), "processing"),
            (ConversationStatus::Processing, Some(StepKind::Tools), "tool_loop"),
            (ConversationStatus::Queued, Some(StepKind::Tools), "tool_loop"),
            (ConversationStatus::Idle, Some(StepKind::Tools), "idle"),
        ] {
            assert_eq!(word(status, reached), expected, "{status:?} {reached:?}");
        }
    }
}
