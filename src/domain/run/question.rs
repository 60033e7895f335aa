//! Questions to a human. A run asks a question, the store keeps it, and it is answered at most once.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{CallId, ConversationId, InputId, RunId};
use crate::domain::tool::{ApprovalScope, ApprovalTerms};

named_enum! {
    /// The kind of a question.
    pub enum InputKind {
        /// Whether a tool call with an unknown outcome took effect.
        UnknownOutcome = "unknown_outcome",
        /// A question of the model to the user.
        Question = "question",
        /// A request of an MCP server for input during a call.
        Elicitation = "elicitation",
        /// Whether a tool may be called. An approval is a separate resource in the API.
        Approval = "approval",
        /// A call that the client of the run executes. A separate resource in the API.
        ClientTool = "client_tool",
    }
}

named_enum! {
    /// The state of a question. Each state except the first is reached at most once.
    pub enum InputState {
        /// The question has no answer yet.
        Pending = "pending",
        /// The answer is stored, and the run will act on it.
        Answered = "answered",
        /// The run has acted on the answer.
        Applied = "applied",
        /// The question expired without an answer. The run continued as if the answer were unknown.
        Expired = "expired",
        /// The run ended without an answer, or before it acted on the answer.
        Cancelled = "cancelled",
    }
}

/// One of the answers that a question allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputChoice {
    /// The value that an answer names.
    pub value: String,
    /// The meaning of the choice, for people.
    pub label: String,
}

impl InputChoice {
    pub fn all(choices: &[(&str, &str)]) -> Vec<Self> {
        choices.iter().map(|(value, label)| Self { value: (*value).to_owned(), label: (*label).to_owned() }).collect()
    }
}

/// The content of a question.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    /// The text of the question.
    pub text: String,
    /// The allowed answers. If the list is empty, the answer is free text.
    pub choices: Vec<InputChoice>,
    /// The tool whose call the question is about.
    pub tool: Option<String>,
    /// The arguments of that call.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
    /// JSON Schema of the form that a model wants filled in: an object with plain values.
    #[schema(value_type = Option<Object>)]
    pub form: Option<Value>,
    /// The request of an MCP server.
    pub elicitation: Option<Box<Elicitation>>,
    /// The terms of an approval, to which its answer is bound.
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

    /// Returns the form of a question, from the model or a server.
    pub fn form(&self) -> Option<&Value> {
        self.form.as_ref().or_else(|| self.elicitation.as_ref()?.requested_schema.as_ref())
    }
}

/// The answer that provides the requested input.
pub const ACCEPT: &str = "accept";
/// The answer that provides no input. The server may continue without it.
pub const DECLINE: &str = "decline";
/// The answer that ends the call.
pub const CANCEL: &str = "cancel";

const ELICITATION_CHOICES: [(&str, &str); 3] = [
    (ACCEPT, "Provide the requested input"),
    (DECLINE, "Provide nothing; the tool may continue without"),
    (CANCEL, "Stop the tool call"),
];

/// The request of an MCP server: a form to fill in, or a page to visit. The server's other fields are ignored.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Elicitation {
    /// The MCP server that asks.
    pub server: String,
    /// JSON Schema of the form: an object with plain values.
    #[schema(value_type = Option<Object>)]
    pub requested_schema: Option<Value>,
    /// The URL of the page: an `https:` URL, or a URL of this machine. Clients show it; the server never fetches it.
    pub url: Option<String>,
}

/// A human's answer to a question.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputAnswer {
    /// The `value` of one of the question's choices. Empty if the answer is only text.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub choice: String,
    /// Additional text for the model.
    pub text: Option<String>,
    /// The completed form. The event of the answer omits it.
    #[schema(value_type = Option<Object>)]
    pub content: Option<Value>,
    /// The scope of an approval.
    #[schema(ignore)]
    pub scope: Option<ApprovalScope>,
    /// The arguments of an approved call, if they differ from the requested arguments.
    #[schema(ignore)]
    pub arguments: Option<Value>,
}

impl InputAnswer {
    /// Returns an answer to a question that is not an approval.
    pub fn new(choice: impl Into<String>, text: Option<String>) -> Self {
        Self { choice: choice.into(), text, content: None, scope: None, arguments: None }
    }
}

/// A question of a run.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputRequest {
    /// The id of the question.
    pub id: InputId,
    /// The conversation of the run.
    pub conversation_id: ConversationId,
    /// The run that asks.
    pub run_id: RunId,
    /// The tool call that the question is about.
    pub call_id: Option<CallId>,
    /// The kind of the question.
    pub kind: InputKind,
    /// The content of the question.
    pub question: Question,
    /// The state of the question.
    pub state: InputState,
    /// The answer, if there is one.
    pub answer: Option<InputAnswer>,
    /// Milliseconds until the question expires, by the database's clock when it was asked or loaded. Present only for the run's
    /// worker.
    #[serde(skip)]
    pub expires_in_ms: Option<u64>,
}

impl InputRequest {
    /// Returns a pending question about a call. It expires after `expires_ms` milliseconds; 0 for never.
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

    /// Returns the answer of a user who declines the question.
    pub fn declining_answer(&self) -> InputAnswer {
        let choices = &self.question.choices;
        let declining = [DECLINE, CANCEL].into_iter().find(|value| choices.iter().any(|choice| choice.value == *value));
        match (declining, self.kind) {
            (Some(choice), _) => InputAnswer::new(choice, None),
            (None, InputKind::Question) => InputAnswer::new("", Some("The user gave no answer.".to_owned())),
            (None, _) => InputAnswer::new(choices.last().map(|choice| choice.value.clone()).unwrap_or_default(), None),
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
    /// The user who answered the question.
    pub resolved_by: Option<String>,
    /// When the question was asked, RFC 3339.
    pub created_at: String,
    /// When the question was answered or expired, or when its run ended, RFC 3339.
    pub resolved_at: Option<String>,
    /// When the question expires, RFC 3339.
    pub expires_at: Option<String>,
}
