//! Questions to a human: asked by a run, stored, and answered once.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::ids::{CallId, ConversationId, InputId, RunId};
use crate::domain::tool::approval::{ApprovalScope, ApprovalTerms};
use crate::domain::words::words;

/// What is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// Whether a tool call took effect whose outcome nobody knows.
    UnknownOutcome,
    /// What a model wants to know of its user.
    Question,
    /// What an MCP server wants to know before it goes on with a call.
    Elicitation,
    /// Whether a tool may be called. A resource of its own on the wire.
    Approval,
}

words!(InputKind {
    UnknownOutcome = "unknown_outcome",
    Question = "question",
    Elicitation = "elicitation",
    Approval = "approval",
});

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
    /// Nobody answered in time, and the run went on as if the answer were not known.
    Expired,
    /// The run ended without an answer, or before it acted on it.
    Cancelled,
}

words!(InputState {
    Pending = "pending",
    Answered = "answered",
    Applied = "applied",
    Expired = "expired",
    Cancelled = "cancelled",
});

/// One of the answers that a question allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputChoice {
    /// What is answered.
    pub value: String,
    /// What it means, for people.
    pub label: String,
}

impl InputChoice {
    pub fn all(choices: &[(&str, &str)]) -> Vec<Self> {
        choices.iter().map(|(value, label)| Self { value: (*value).to_owned(), label: (*label).to_owned() }).collect()
    }
}

/// What is asked.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    /// In words.
    pub text: String,
    /// The answers that are allowed. If there are none, the answer is in words.
    pub choices: Vec<InputChoice>,
    /// The tool whose call it is about.
    pub tool: Option<String>,
    /// The arguments of that call.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
    /// JSON Schema of the form that a model wants filled in: an object with plain values.
    #[schema(value_type = Option<Object>)]
    pub form: Option<Value>,
    /// What an MCP server asks for.
    pub elicitation: Option<Box<Elicitation>>,
    /// What an approval is bound to.
    #[schema(ignore)]
    pub approval: Option<Box<ApprovalTerms>>,
}

impl Question {
    /// Returns the question of an MCP server during a call of `tool`.
    pub fn of_server(text: String, tool: &str, elicitation: Elicitation) -> Self {
        Self {
            text,
            choices: InputChoice::all(&ELICITATION_CHOICES),
            tool: Some(tool.to_owned()),
            elicitation: Some(Box::new(elicitation)),
            ..Self::default()
        }
    }

    /// Returns the form of a model's or a server's question.
    pub fn form(&self) -> Option<&Value> {
        self.form.as_ref().or_else(|| self.elicitation.as_ref()?.requested_schema.as_ref())
    }
}

/// The answer that gives the requested input.
pub const ACCEPT: &str = "accept";
/// The answer that gives no input; the asker may continue without.
pub const DECLINE: &str = "decline";
/// The answer that ends the call.
pub const CANCEL: &str = "cancel";

const ELICITATION_CHOICES: [(&str, &str); 3] =
    [(ACCEPT, "Give it what it asks for"), (DECLINE, "Give it nothing; it may go on without"), (CANCEL, "Stop what it is doing")];

/// What an MCP server asks for: a form to fill in, or a page to visit. Nothing else of it is believed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Elicitation {
    /// The server that asks.
    pub server: String,
    /// JSON Schema of the form: an object with plain values.
    #[schema(value_type = Option<Object>)]
    pub requested_schema: Option<Value>,
    /// The page: an `https:` URL, or one of this machine. It is shown and never fetched.
    pub url: Option<String>,
}

/// What a human answers.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputAnswer {
    /// The `value` of one of the question's choices; empty for an answer in words alone.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub choice: String,
    /// What else is to be said. The model reads it.
    pub text: Option<String>,
    /// The form that was asked for, filled in. Not in the event of the answer.
    #[schema(value_type = Option<Object>)]
    pub content: Option<Value>,
    /// How far an approval holds.
    #[schema(ignore)]
    pub scope: Option<ApprovalScope>,
    /// What an approved call is made with instead of the arguments that were asked for.
    #[schema(ignore)]
    pub arguments: Option<Value>,
}

impl InputAnswer {
    /// Returns an answer to a question that is no approval.
    pub fn new(choice: impl Into<String>, text: Option<String>) -> Self {
        Self { choice: choice.into(), text, content: None, scope: None, arguments: None }
    }
}

/// A question of a run.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputRequest {
    /// Its id.
    pub id: InputId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The run that asks.
    pub run_id: RunId,
    /// The tool call that it is about.
    pub call_id: Option<CallId>,
    /// What is asked about.
    pub kind: InputKind,
    /// What is asked.
    pub question: Question,
    /// Where it stands.
    pub state: InputState,
    /// The answer, once there is one.
    pub answer: Option<InputAnswer>,
    /// Milliseconds until it takes no answer any more, by the database's clock when it was asked or loaded; only for the run's
    /// worker.
    #[serde(skip)]
    pub expires_in_ms: Option<u64>,
}

impl InputRequest {
    /// Returns a pending question about a call, which expires after so many milliseconds; 0 for never.
    pub fn about(
        call: &CallId,
        id: InputId,
        (run_id, conversation_id): (RunId, ConversationId),
        kind: InputKind,
        question: Question,
        expires_ms: u64,
    ) -> Self {
        Self {
            id,
            conversation_id,
            run_id,
            call_id: Some(call.clone()),
            kind,
            question,
            state: InputState::Pending,
            answer: None,
            expires_in_ms: Some(expires_ms).filter(|limit| *limit > 0),
        }
    }
}

/// A question as its owner sees it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputRecord {
    /// The question.
    #[serde(flatten)]
    pub request: InputRequest,
    /// Who answered.
    pub resolved_by: Option<String>,
    /// When it was asked, RFC 3339.
    pub created_at: String,
    /// When it was answered, its time was over, or its run ended.
    pub resolved_at: Option<String>,
    /// From when on it takes no answer any more.
    pub expires_at: Option<String>,
}
