//! Tools as the loop sees them, and the durable state of one call.

pub mod approval;
pub mod call_record;
pub mod form;
pub mod mcp_server;
pub mod pin;
pub mod preview;
pub mod tool_filter;
pub mod tool_names;

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::content::ToolContent;
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::run::handle::Handle;
use crate::domain::run::undo::UndoRule;
use crate::domain::tool::approval::ToolSafety;
use crate::domain::tool::pin::Original;
use crate::domain::words::words;
use crate::support::json;

/// The tool that asks the user. It is part of the loop: its calls are questions.
pub const ASK_USER: &str = "ask_user";

/// What may happen to a call that was started when its worker died.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(tag = "class", rename_all = "snake_case")]
pub enum ReplayClass {
    /// Reads only: runs again.
    Read,
    /// Repeating changes nothing: runs again with the same arguments.
    Idempotent,
    /// Runs again with the same key, which stands in the named argument.
    Keyed {
        /// The argument that carries our key.
        argument: String,
    },
    /// Runs again with the same key, which stands in the named field of the call's `_meta`.
    KeyedMeta {
        /// The field of `_meta` that carries our key.
        field: String,
    },
    /// Another tool of the same server is asked first whether it took effect. If not, it runs again.
    Reconcile {
        /// The name of that tool at the server.
        tool: String,
    },
    /// Never runs again. What a newer version has stored and this one does not know is treated alike.
    #[default]
    #[serde(other)]
    Unsafe,
}

impl ReplayClass {
    /// Returns whether a started call may run again without a question to a human.
    pub fn may_repeat(&self) -> bool {
        matches!(self, Self::Read | Self::Idempotent | Self::Keyed { .. } | Self::KeyedMeta { .. })
    }
}

/// A tool on offer, frozen into a run when it starts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolDefinition {
    /// The name that models see: 1 to 64 of `[a-zA-Z0-9_-]`, unique in its set.
    pub name: String,
    /// The MCP server it comes from: its name in the configuration, or its id if somebody keeps it. Absent for built-in tools.
    pub server: Option<String>,
    /// Its name at the server, unchanged.
    pub tool: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments, always an object schema. Shared by all runs that are offered the tool.
    #[schema(value_type = Object)]
    pub parameters: Arc<Value>,
    /// What may happen to its calls after a crash.
    pub replay: ReplayClass,
    /// How its calls are taken back, if its server has a tool for that.
    pub undo: Option<UndoRule>,
    /// What a call of it would do, with `$arguments.NAME` in the place of arguments, if its server's entry says it.
    pub preview: Option<String>,
    /// SHA-256 of description, schema and hints: a changed tool is another tool.
    pub definition_hash: String,
    /// What decides whether a human is asked first.
    #[serde(default)]
    pub safety: ToolSafety,
    /// Hash of where its server is, if that can be changed while runs are under way: calls go nowhere else.
    pub destination: Option<String>,
    /// What its server wrote, for tools that have just been asked for: no run keeps it.
    #[serde(skip)]
    #[schema(ignore)]
    pub original: Option<Arc<Original>>,
}

impl ToolDefinition {
    /// Returns the definition of a tool without a server and without rules of safety.
    pub fn new(name: &str, description: impl Into<String>, parameters: Value, replay: ReplayClass) -> Self {
        Self {
            name: name.to_owned(),
            server: None,
            tool: name.to_owned(),
            description: description.into(),
            parameters: parameters.into(),
            replay,
            undo: None,
            preview: None,
            definition_hash: String::new(),
            safety: ToolSafety::default(),
            destination: None,
            original: None,
        }
    }

    /// Returns what a human's consent is bound to: the definition, and the address of the server.
    pub fn consent_hash(&self) -> Cow<'_, str> {
        match &self.destination {
            None => Cow::Borrowed(&self.definition_hash),
            Some(destination) => Cow::Owned(json::hash(&serde_json::json!([self.definition_hash, destination]))),
        }
    }
}

/// The deepest nesting of JSON from outside that becomes part of our own. Common parsers give up at 128 levels, and we wrap it.
pub const MAX_NESTING: usize = 64;

/// State of one call. `Done` to `Unknown` are outcomes: exactly one of them is reached, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallState {
    /// Stored, not begun.
    Planned,
    /// A human is asked.
    AwaitingApproval,
    /// May have reached the tool.
    Started,
    /// Answered.
    Done,
    /// Answered with an error, or could not be carried out.
    Failed,
    /// A human said no.
    Denied,
    /// The run was cancelled first.
    Cancelled,
    /// It was started, its worker died, and nobody knows whether it took effect.
    Unknown,
}

words!(ToolCallState {
    Planned = "planned",
    AwaitingApproval = "awaiting_approval",
    Started = "started",
    Done = "done",
    Failed = "failed",
    Denied = "denied",
    Cancelled = "cancelled",
    Unknown = "unknown",
});

impl ToolCallState {
    pub fn is_outcome(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Denied | Self::Cancelled | Self::Unknown)
    }
}

/// The durable row of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Generated by this server, and the key that keyed tools are given.
    pub id: CallId,
    pub run_id: RunId,
    /// The assistant message that holds the call.
    pub message_id: MessageId,
    pub step: u32,
    /// Position among the calls of the message.
    pub position: u32,
    /// Echoed back to the provider; possibly empty.
    pub provider_call_id: String,
    /// The name that the model used, if no tool has it.
    pub name: String,
    pub server: Option<String>,
    pub repair: Option<Repair>,
    /// The key that the tool is given instead of `id`: that of the first call, if this one repeats it.
    pub key: Option<CallId>,
    /// The call of an earlier run that this one undoes.
    pub undoes: Option<CallId>,
    /// How to continue the call while its server has not finished it.
    pub handle: Option<Handle>,
    /// The arguments as executed.
    pub arguments: Value,
    pub arguments_hash: String,
    pub replay: ReplayClass,
    pub state: ToolCallState,
    pub outcome: Option<ToolOutcome>,
}

impl ToolCall {
    /// Returns the first call of a message, planned with arguments that no model wrote.
    pub fn planned(id: CallId, (run_id, message_id): (RunId, MessageId), tool: &ToolDefinition, arguments: Value) -> Self {
        Self {
            id,
            run_id,
            message_id,
            step: 1,
            position: 0,
            provider_call_id: String::new(),
            name: tool.name.clone(),
            server: tool.server.clone(),
            repair: None,
            key: None,
            undoes: None,
            handle: None,
            arguments_hash: json::hash(&arguments),
            arguments,
            replay: tool.replay.clone(),
            state: ToolCallState::Planned,
            outcome: None,
        }
    }

    /// Returns the key by which the tool recognizes a repeated request.
    pub fn key(&self) -> &CallId {
        self.key.as_ref().unwrap_or(&self.id)
    }

    /// Returns whether the model's arguments were a JSON object, or could be repaired. Otherwise `_raw` holds their text.
    pub fn is_readable(&self) -> bool {
        self.arguments.get("_raw").is_none()
    }

    /// Returns whether the call has neither reached its tool nor has an outcome.
    pub fn has_not_begun(&self) -> bool {
        matches!(self.state, ToolCallState::Planned | ToolCallState::AwaitingApproval)
    }
}

/// What was mended in a call before it was judged. What the model wrote stands in its message.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repair {
    /// The name that the model wrote, if the tool has another.
    pub name: Option<String>,
    /// Why this tool is meant: `spelling`, `prefix`, `alias` or `similarity`.
    pub matched_by: Option<String>,
    /// What was mended in the text of the arguments, such as `trailing_comma`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub arguments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub state: ToolCallState,
    /// The whole content. The model reads a part of it.
    pub content: Vec<ToolContent>,
    pub is_error: bool,
    /// 0 for calls that never ran.
    pub duration_ms: u64,
}

/// The server's answer about a call whose outcome was unknown.
#[derive(Debug, Clone, PartialEq)]
pub enum Reconciled {
    /// The call took effect, with this outcome.
    Happened(ToolOutcome),
    /// The call did not take effect, and never will: it may run again.
    DidNotHappen,
    /// The server could not be asked, or did not say; with the reason.
    Unclear(String),
}

impl Reconciled {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Happened(_) => "happened",
            Self::DidNotHappen => "did_not_happen",
            Self::Unclear(_) => "unclear",
        }
    }
}

impl ToolOutcome {
    /// Returns the outcome of a call that did not run or did not succeed.
    pub fn failed(text: impl Into<String>, duration_ms: u64) -> Self {
        Self { state: ToolCallState::Failed, content: vec![ToolContent::text(text)], is_error: true, duration_ms }
    }
}
