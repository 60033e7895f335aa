//! Tools as the engine sees them, and the durable state of one call.
//!
//! Owns their values, and the rules for approvals. Must not know how a tool is called.

pub mod approval;
pub mod call_record;
pub mod client_tool;
pub mod closed_calls;
pub mod form;
pub mod mcp_server;
pub mod preview;
pub mod tool_filter;
pub mod tool_name_check;
pub mod tool_review;

pub use approval::{
    ApprovalMode, ApprovalPolicy, ApprovalRequest, ApprovalScope, ApprovalState, ApprovalTerms, OnDeny, ToolGrant, ToolSafety,
};
pub use call_record::ToolCallRecord;
pub use client_tool::{ClientCall, ClientTool};
pub use closed_calls::ProgressAtEnd;
pub use mcp_server::McpServerRecord;
pub use tool_filter::{OfferedTools, RankedTools, SelectionMethod, ServerHint, ToolFilter, ToolFilterMode, ToolSelection};
pub use tool_review::{Original, ReviewedDefinition, ToolReview, ToolReviewStatus};

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::ToolContent;
use crate::domain::enum_names::named_enum;
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::run::{Handle, UndoRule};
use crate::support::json;

/// The tool that asks the user. The engine implements it: its calls become questions.
pub const ASK_USER: &str = "ask_user";

/// The replay class of a tool. It says how a call continues after its worker crashed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(tag = "class", rename_all = "snake_case")]
pub enum ReplayClass {
    /// The tool only reads, so the call runs again.
    Read,
    /// The tool is idempotent, so the call runs again with the same arguments.
    Idempotent,
    /// The call runs again with the same key in the named argument.
    Keyed {
        /// The argument that carries the key.
        argument: String,
    },
    /// The call runs again with the same key in the named field of its `_meta`.
    KeyedMeta {
        /// The field of `_meta` that carries the key.
        field: String,
    },
    /// Another tool of the same MCP server first tells whether the call took effect. If it did not, the call runs again.
    Reconcile {
        /// The name of that tool at the server.
        tool: String,
    },
    /// The call never runs again. Values from newer versions that this version does not know are read as this one.
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

/// A tool that is offered to the model. A run freezes the definition when it starts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolDefinition {
    /// The name that models see: 1 to 64 of `[a-zA-Z0-9_-]`, unique in its set.
    pub name: String,
    /// The MCP server of the tool: its name in the configuration, or the id of a user server. Absent for built-in tools.
    pub server: Option<String>,
    /// The tool's name at the server, unchanged.
    pub tool: String,
    /// The description for the model.
    pub description: String,
    /// JSON Schema of the arguments, always an object schema. All runs that are offered the tool share it.
    #[schema(value_type = Object)]
    pub parameters: Arc<Value>,
    /// The replay class of the calls.
    pub replay: ReplayClass,
    /// How its calls are undone, if its server has a tool for that.
    pub undo: Option<UndoRule>,
    /// A template of the call's preview from the server's entry. `$arguments.NAME` stands for an argument.
    pub preview: Option<String>,
    /// SHA-256 of description, schema and hints. A changed tool is a different tool.
    pub definition_hash: String,
    /// Facts that decide whether a human is asked first.
    #[serde(default)]
    pub safety: ToolSafety,
    /// Whether the client of the run executes the calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub by_client: bool,
    /// Hash of the server's address, if it can change during a run. Calls go to no other address.
    pub destination: Option<String>,
    /// The server's original definition. Present only for tools that were just listed; runs do not store it.
    #[serde(skip)]
    #[schema(ignore)]
    pub original: Option<Arc<Original>>,
}

impl ToolDefinition {
    /// Returns the definition of a tool without a server and without safety facts.
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
            by_client: false,
            destination: None,
            original: None,
        }
    }

    /// Returns the hash that an approval applies to: the definition, and the server's address.
    pub fn consent_hash(&self) -> Cow<'_, str> {
        match &self.destination {
            None => Cow::Borrowed(&self.definition_hash),
            Some(destination) => Cow::Owned(json::hash(&serde_json::json!([self.definition_hash, destination]))),
        }
    }
}

/// The deepest accepted nesting of external JSON that is stored or sent inside other JSON. Common parsers stop at 128 levels.
pub const MAX_NESTING: usize = 64;

named_enum! {
    /// The state of a tool call. `Done` to `Unknown` are outcomes: a call reaches exactly one of them, once.
    #[derive(Hash)]
    pub enum ToolCallState {
        /// The call is stored and has not started.
        Planned = "planned",
        /// The call waits for an approval.
        AwaitingApproval = "awaiting_approval",
        /// The call may have reached the tool.
        Started = "started",
        /// The tool answered.
        Done = "done",
        /// The tool answered with an error, or the call could not be carried out.
        Failed = "failed",
        /// A human denied the call.
        Denied = "denied",
        /// The run was cancelled before the call had an outcome.
        Cancelled = "cancelled",
        /// The call started, its worker crashed, and the outcome is unknown.
        Unknown = "unknown",
    }
}

impl ToolCallState {
    pub fn is_outcome(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Denied | Self::Cancelled | Self::Unknown)
    }
}

/// The result of a call whose outcome is unknown, as clients see it until a message has the reason.
pub const UNKNOWN_OUTCOME: &str = "this call may or may not have taken effect";

/// The stored row of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Generated by this server. Also the idempotency key of keyed tools.
    pub id: CallId,
    pub run_id: RunId,
    /// The assistant message that holds the call.
    pub message_id: MessageId,
    pub step: u32,
    /// Position among the calls of the message.
    pub position: u32,
    /// Sent back to the provider. May be empty.
    pub provider_call_id: String,
    /// The tool's name, or the name that the model used if no such tool exists.
    pub name: String,
    pub server: Option<String>,
    pub repair: Option<Repair>,
    /// The idempotency key that replaces `id`: the key of the first call, if this call repeats it.
    pub key: Option<CallId>,
    /// The call of an earlier run that this one undoes.
    pub undoes: Option<CallId>,
    /// The handle from which an unfinished call continues.
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

    /// Returns whether the model's arguments were a JSON object, or could be repaired. Otherwise `_raw` contains their text.
    pub fn is_readable(&self) -> bool {
        self.arguments.get("_raw").is_none()
    }

    /// Returns whether the call has neither reached its tool nor has an outcome.
    pub fn has_not_begun(&self) -> bool {
        matches!(self.state, ToolCallState::Planned | ToolCallState::AwaitingApproval)
    }
}

/// Repairs of a tool call before it was checked. The message keeps the model's original text.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repair {
    /// The name that the model wrote, if it differs from the tool's name.
    pub name: Option<String>,
    /// How the tool was matched: `spelling`, `prefix`, `alias` or `similarity`.
    pub matched_by: Option<String>,
    /// Repairs of the arguments' text, such as `trailing_comma`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub arguments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub state: ToolCallState,
    /// The complete content. The model reads a part of it.
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
    /// The server could not be asked, or its answer was unclear; with the reason.
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
