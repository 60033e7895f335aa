//! Questions to a human: asked by a run, stored, and answered once.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ids::{CallId, ConversationId, InputId, RunId};

/// What is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// Whether a tool call took effect whose outcome nobody knows.
    UnknownOutcome,
}

impl InputKind {
    /// The word on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownOutcome => "unknown_outcome",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::UnknownOutcome].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Where a question stands. Each state but the first is reached once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputState {
    /// Nobody has answered.
    Pending,
    /// The answer is stored, and the run will act on it.
    Answered,
    /// The run has acted on the answer.
    Applied,
    /// The run ended without an answer, or before it acted on it.
    Cancelled,
}

impl InputState {
    /// The word on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Answered => "answered",
            Self::Applied => "applied",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Pending, Self::Answered, Self::Applied, Self::Cancelled].into_iter().find(|state| state.as_str() == word)
    }
}

/// One of the answers that a question allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputChoice {
    /// What is answered.
    pub value: String,
    /// What it means, for people.
    pub label: String,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    /// In words.
    pub text: String,
    /// The answers that are allowed.
    pub choices: Vec<InputChoice>,
    /// The tool whose call it is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tool: Option<String>,
    /// The arguments of that call.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
}

/// What a human answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputAnswer {
    /// The `value` of one of the question's choices.
    pub choice: String,
    /// What else is to be said. The model reads it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
}

/// A question of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputRequest {
    /// Its id.
    pub id: InputId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The run that asks.
    pub run_id: RunId,
    /// The tool call that it is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub call_id: Option<CallId>,
    /// What is asked about.
    pub kind: InputKind,
    /// What is asked.
    pub question: Question,
    /// Where it stands.
    pub state: InputState,
    /// The answer, once there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub answer: Option<InputAnswer>,
}

/// A question as its owner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputRecord {
    /// The question.
    #[serde(flatten)]
    pub request: InputRequest,
    /// Who answered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resolved_by: Option<String>,
    /// When it was asked, RFC 3339.
    pub created_at: String,
    /// When it was answered, or its run ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resolved_at: Option<String>,
    /// From when on it takes no answer any more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_at: Option<String>,
}
