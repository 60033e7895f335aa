//! Tools: where they come from, what they are called, and the one door through which they are executed.
//!
//! Owns the registry and the connections to MCP servers. Must not know runs, events or the database: durable rows are written
//! by the worker before and after it knocks at the door.

mod builtin;
pub mod contexts;
mod door;
pub mod mcp;
pub mod names;
mod reconcile;
pub mod schema;
pub mod visible;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::domain::handle::Pause;
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::input::{Elicitation, InputAnswer};
use crate::domain::message::Role;
use crate::domain::model::ModelOptions;
use crate::domain::prompt::ServerNote;
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};

pub use builtin::OPTIONAL as OPTIONAL_TOOLS;
pub use door::{Door, DoorOptions};

/// How far a tool is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// How far.
    pub progress: f64,
    /// Of how much.
    pub total: Option<f64>,
    /// In words.
    pub message: Option<String>,
}

/// What a server asks its user in the middle of a call.
#[derive(Debug)]
pub struct Asks {
    /// In words.
    pub text: String,
    /// What it asks for.
    pub elicitation: Elicitation,
    /// Where the answer goes. Dropped without one: nobody has answered.
    pub answer: tokio::sync::oneshot::Sender<InputAnswer>,
}

/// The name under which a server works on a call.
#[derive(Debug)]
pub struct Handle {
    /// What it is asked for with.
    pub id: String,
    /// Told when the name is stored: whoever takes the call up then goes on from there. Dropped if it cannot be.
    pub stored: tokio::sync::oneshot::Sender<()>,
}

/// What a server wants a model to say.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingRequest {
    /// The system prompt; empty for none.
    pub system: String,
    /// Who says what, in turns, the user first.
    pub turns: Vec<(Role, String)>,
    /// How the model answers; the most tokens are among it.
    pub options: ModelOptions,
}

/// What the model has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampled {
    /// Which model.
    pub model: String,
    /// Its words.
    pub text: String,
    /// Whether they ended with the room for them.
    pub is_cut: bool,
}

/// Such a request, and where the answer goes, or in words why there is none.
#[derive(Debug)]
pub struct Samples {
    /// What is asked.
    pub request: SamplingRequest,
    /// Whoever waits for it.
    pub answer: oneshot::Sender<Result<Sampled, String>>,
}

/// What a call says before its end.
#[derive(Debug)]
pub enum Report {
    /// How far it is.
    Progress(Progress),
    /// What its server asks. Its time does not run until there is an answer.
    Asks(Box<Asks>),
    /// What its server wants a model to say. Its time does not run until there is an answer.
    Samples(Box<Samples>),
    /// Its server goes on by itself, and can be asked for what becomes of it.
    Handle(Handle),
    /// Its server lets go of it until it knows more. Nothing follows but the end of the execution, whose outcome is none.
    Pauses(Box<Pause>),
}

/// Where a call reports. Bounded: a full channel drops progress.
pub type ProgressSender = tokio::sync::mpsc::Sender<Report>;

/// Looks up a variable of this process's environment.
pub type Environment = std::sync::Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub use mcp::oauth::AuthState;

/// How a source of tools is doing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct ServerStatus {
    /// Its id.
    pub id: McpServerId,
    /// The server's name.
    pub name: String,
    /// `unknown` (not tried yet), `starting`, `ok` or `error`.
    pub status: String,
    /// Since when, RFC 3339, as far as this process knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Why it is in error, redacted. Only administrators see it, and whoever keeps the server for themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of what its process said on its standard error stream, redacted. Only administrators see it, and whoever keeps the
    /// server for themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// How many tools it offers.
    pub tools: usize,
    /// Whether it lists more, which are left out: beyond what a server may offer, too large, or malformed. The log says which.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
    /// Whether it wants a login, as far as this process knows.
    pub auth: AuthState,
    /// Whose alone it is.
    #[serde(skip)]
    pub owner: Option<UserId>,
}

/// As long as a call may go on.
#[derive(Clone)]
pub struct CallPermit {
    /// Ends the call.
    pub token: CancellationToken,
    is_held: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl CallPermit {
    /// A permit that ends with `token`; `is_held` says whether the run of the call is still here.
    #[must_use]
    pub fn new(token: CancellationToken, is_held: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { token, is_held: Arc::new(is_held) }
    }

    /// Whether the call may still leave the process. To be asked in the moment before it does: it may have waited for its turn or for
    /// its server to start, and the process may have slept meanwhile and lost the run to somebody else.
    #[must_use]
    pub fn is_held(&self) -> bool {
        (self.is_held)()
    }
}

/// For a call of nobody's run.
impl From<CancellationToken> for CallPermit {
    fn from(token: CancellationToken) -> Self {
        Self::new(token, || true)
    }
}

/// The tools as the worker and the API use them.
#[async_trait]
pub trait Toolbox: Send + Sync {
    /// All tools on offer to the runs of `owner` now, with unique names, in a stable order. Connects to servers that are not
    /// connected yet; a server that cannot be reached is left out and reported by [`Toolbox::servers`].
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>>;

    /// Carries out one call of a run of `owner`: validates the arguments against the frozen definition and executes it within a time
    /// limit. Never fails: what goes wrong is an outcome that the model can read. A cancelled call returns as soon as the
    /// token of its permit is, having told its server; its outcome then is `Cancelled` if nothing was sent and `Unknown` otherwise.
    /// One whose permit [is not held](CallPermit::is_held) any more is not sent. A call that has reported [`Report::Pauses`] has no outcome: it is executed again when its handle has the answers.
    async fn execute(
        &self,
        owner: &UserId,
        definition: &ToolDefinition,
        call: &ToolCall,
        timeout: Duration,
        progress: ProgressSender,
        permit: CallPermit,
    ) -> ToolOutcome;

    /// Asks the server of a call of the class `reconcile` whether it took effect, within `timeout`. Whatever goes wrong is
    /// unclear.
    async fn reconcile(
        &self,
        _owner: &UserId,
        _definition: &ToolDefinition,
        _call: &ToolCall,
        _timeout: Duration,
        _cancel: CancellationToken,
    ) -> Reconciled {
        Reconciled::Unclear("there is nobody to be asked".to_owned())
    }

    /// The state of each server whose tools the runs of `owner` are offered.
    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus>;

    /// The same servers, as a model may be told of them. Connects to none.
    async fn notes(&self, _owner: &UserId) -> Vec<ServerNote> {
        Vec::new()
    }

    /// Ends all servers with their process groups.
    async fn shutdown(&self);
}
