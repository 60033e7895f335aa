//! Tools: their definitions and names, and the tool executor.
//!
//! Owns the built-in tools and the connections to MCP servers. Must not know runs, events or the database: the worker writes durable rows
//! before and after each execution.

mod builtin;
pub mod context_providers;
mod executor;
pub mod invisible_chars;
pub mod mcp;
pub mod model_tool_names;
mod options;
mod reconcile;
pub mod schema;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::domain::agent::ServerNote;
use crate::domain::conversation::Role;
use crate::domain::ids::{ConversationId, McpServerId, UserId};
use crate::domain::model::ModelOptions;
use crate::domain::run::{Elicitation, InputAnswer, InputRequired};
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};

pub use builtin::OPTIONAL as OPTIONAL_TOOLS;
pub use executor::ToolExecutor;
pub use options::ToolExecutorOptions;

#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// A question of a server to the user during a call (elicitation).
#[derive(Debug)]
pub struct ElicitationRequest {
    pub text: String,
    pub elicitation: Elicitation,
    /// Dropped without a value if the user does not answer.
    pub answer: oneshot::Sender<InputAnswer>,
}

/// The id of the MCP task that replaces the result of a call.
#[derive(Debug)]
pub struct Handle {
    pub id: String,
    /// Completed when the id is stored, so that another process can continue; dropped if it cannot be stored.
    pub stored: oneshot::Sender<()>,
}

/// A request of a server for an answer of a model (sampling).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingRequest {
    /// The system prompt; empty for none.
    pub system: String,
    /// The messages, in alternating roles, the first of the user.
    pub turns: Vec<(Role, String)>,
    pub options: ModelOptions,
}

/// The answer of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplingAnswer {
    pub model: String,
    pub text: String,
    /// Whether the output limit cut the text.
    pub is_cut: bool,
}

#[derive(Debug)]
pub struct SamplingCall {
    pub request: SamplingRequest,
    /// Receives the answer, or the reason why there is none.
    pub answer: oneshot::Sender<Result<SamplingAnswer, String>>,
}

/// An intermediate report of a call.
#[derive(Debug)]
pub enum Report {
    Progress(Progress),
    /// Asks the user. The time limit of the call is suspended until the answer.
    Asks(Box<ElicitationRequest>),
    /// Asks a model. The time limit of the call is suspended until the answer.
    Samples(Box<SamplingCall>),
    /// The server continues with a task that can be polled.
    Handle(Handle),
    /// The server requires input before it continues. The execution then ends without an outcome.
    Pauses(Box<InputRequired>),
}

/// The channel for reports of a call. Bounded: a full channel drops progress.
pub type ProgressSender = tokio::sync::mpsc::Sender<Report>;

/// Looks up a variable of this process's environment.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub use mcp::oauth::AuthState;

/// The status of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct ServerStatus {
    /// The id of the MCP server.
    pub id: McpServerId,
    /// The name of the MCP server.
    pub name: String,
    /// `unknown` (not tried yet), `starting`, `ok` or `error`.
    pub status: String,
    /// When the state began, RFC 3339, as far as this process knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The redacted reason for the error. Visible to administrators and to the owner of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of failures in a row: a lost connection, and failed attempts to connect.
    #[serde(skip)]
    pub failures: u32,
    /// When the next attempt to connect is planned, RFC 3339.
    #[serde(skip)]
    pub next_attempt_at: Option<String>,
    /// The redacted end of its process's standard error stream. Visible to administrators and to the owner of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Number of tools that the server offers.
    pub tools: usize,
    /// Whether the server lists more tools than it offers. Tools are left out if they exceed a limit, are too large, or are
    /// malformed. The log names them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
    /// Whether the server requires a login, as far as this process knows.
    pub auth: AuthState,
    /// The owner of a user server that only this user may use.
    #[serde(skip)]
    pub owner: Option<UserId>,
}

impl ServerStatus {
    /// Returns the status of a server that was not tried yet.
    pub fn unknown(id: McpServerId, name: String, owner: Option<UserId>) -> Self {
        Self {
            id,
            name,
            status: "unknown".to_owned(),
            since: None,
            error: None,
            failures: 0,
            next_attempt_at: None,
            stderr: None,
            tools: 0,
            left_out: false,
            auth: AuthState::None,
            owner,
        }
    }
}

/// The permission of a call to run while this process holds its run.
#[derive(Clone)]
pub struct CallPermit {
    pub token: CancellationToken,
    /// The conversation of the run; absent for a call without a run.
    pub conversation: Option<ConversationId>,
    is_held: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl CallPermit {
    /// Returns a permit that ends with `token`; `is_held` returns whether this process still holds the run.
    pub fn new(token: CancellationToken, is_held: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { token, conversation: None, is_held: Arc::new(is_held) }
    }

    /// Names the conversation of the run, for servers.
    pub fn for_conversation(self, conversation: ConversationId) -> Self {
        Self { conversation: Some(conversation), ..self }
    }

    /// Returns whether the call may still be sent. Checked directly before sending: while the call waited for a slot or for a start, the
    /// process may have been suspended, and another worker may have claimed the run.
    pub fn is_held(&self) -> bool {
        (self.is_held)()
    }
}

/// How a call is limited, observed and stopped.
#[derive(Clone)]
pub struct CallControl {
    pub timeout: Duration,
    pub progress: ProgressSender,
    pub permit: CallPermit,
}

/// Creates the permit of a call without a run.
impl From<CancellationToken> for CallPermit {
    fn from(token: CancellationToken) -> Self {
        Self::new(token, || true)
    }
}

/// The interface of the tools for the worker and the API.
#[async_trait]
pub trait Toolbox: Send + Sync {
    /// Returns all tools on offer to the runs of `owner`, with unique names, in a stable order. Connects to servers that are not connected
    /// yet; a server that cannot be reached is omitted and reported by [`Toolbox::servers`].
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>>;

    /// Executes one call of a run of `owner`: validates the arguments against the frozen definition, and calls within a time limit.
    ///
    /// Never fails: an error is an outcome that the model can read. Cancelling a call notifies its server and returns at once, with the
    /// outcome `Cancelled` if the call was not sent and `Unknown` otherwise. A call whose permit [is not held](CallPermit::is_held) any
    /// more is not sent. A call that has reported [`Report::Pauses`] has no outcome: it is executed again with the answers.
    async fn execute(&self, owner: &UserId, definition: &ToolDefinition, call: &ToolCall, control: CallControl) -> ToolOutcome;

    /// Asks the server of a call of the class `reconcile` whether it took effect, within `timeout`. Every error gives `Unclear`.
    async fn reconcile(
        &self,
        _owner: &UserId,
        _definition: &ToolDefinition,
        _call: &ToolCall,
        _timeout: Duration,
        _cancel: CancellationToken,
    ) -> Reconciled {
        Reconciled::Unclear("no server can be asked".to_owned())
    }

    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus>;

    /// Describes the same servers for a model, without connecting.
    async fn notes(&self, _owner: &UserId) -> Vec<ServerNote> {
        Vec::new()
    }

    async fn shutdown(&self);
}
