//! Events: the entries of a conversation's log. The data of an event is rendered once, before it is written, and every reader gets
//! those bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::conversation::message::{Message, Part, Role, ToolContent};
use crate::domain::frame::{self, MAX_FRAME_JSON};
use crate::domain::ids::{CallId, ConversationId, InputId, MessageId, PartId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::context::ContextUnit;
use crate::domain::run::input::{InputAnswer, InputKind, InputState, Question};
use crate::domain::run::plan::{PlanStepState, PlannedStep};
use crate::domain::run::{FinishReason, Notice, WaitReason};
use crate::domain::tool::approval::{ApprovalRequest, ApprovalScope, ApprovalState};
use crate::domain::tool::tool_filter::ToolsOffered;
use crate::support::clock::UnixMillis;
use crate::support::text::storable_json;
use crate::support::tokens::Tokenizer;

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $word:literal { $($(#[$attr:meta])* $field:ident : $ty:ty,)* })*) => {
        /// The content of an event. [`EventBody::kind`] is its name on the wire.
        #[serde_with::skip_serializing_none]
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", content = "data")]
        pub enum EventBody {
            $(
                $(#[$doc])*
                #[serde(rename = $word)]
                $variant { $($(#[$attr])* $field: $ty,)* },
            )*
        }

        impl EventBody {
            /// The names of all types that are stored.
            pub const KINDS: &'static [&'static str] = &[$($word,)*];

            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $word,)* }
            }
        }
    };
}

events! {
    /// A run was accepted.
    RunQueued = "run.queued" {
        /// Runs of the same conversation that come first.
        position: u32,
        /// Messages that this run replaces in the conversation.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        supersedes: Vec<MessageId>,
    }
    /// A worker claimed the run for the first time.
    RunStarted = "run.started" {
        model: String,
        agent: String,
        agent_version: u32,
        /// Servers that list more tools than the run is offered: more than the limit, too large, or malformed.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        left_out: Vec<String>,
    }
    /// The run goes on after another claim.
    RunResumed = "run.resumed" {
        /// `crash`, `handed_back`, `timer`, `approval` or `request`.
        cause: String,
    }
    /// A model call failed and will be made again.
    RunRetrying = "run.retrying" {
        after_ms: u64,
        error: ProblemBody,
        /// The fallback model that takes over, as `provider/name`.
        model: Option<String>,
    }
    /// The size of a model step's request in its budget.
    ContextBudget = "context.budget" {
        unit: ContextUnit,
        window: u64,
        /// Instructions, tools and messages.
        used: u64,
        /// Negative if the request does not fit and nothing may be left out.
        remaining: i64,
        /// Absent if the tokens are estimated.
        tokenizer: Option<Tokenizer>,
    }
    /// The request was too large for its budget or for the model's window; the run continues with a shorter one. Stored messages
    /// stay.
    ContextCompacted = "context.compacted" {
        /// Messages that are left out from now on, oldest first.
        messages: u32,
        /// Texts, pictures and arguments of calls that are cut, and messages that lost their reasoning.
        texts: u32,
        /// The newest message that is left out, if a summary replaces it in later requests.
        through: Option<MessageId>,
        /// The summary that replaces the messages that are left out.
        summary: Option<String>,
    }
    /// A provider refused a tool's definition, or its server changed it: the tool is not offered in this run.
    ToolQuarantined = "tool.quarantined" {
        name: String,
        reason: String,
    }
    /// The provider refused a part of a request, which was repeated without it. Later requests to the model omit such parts.
    ModelAdapted = "model.adapted" {
        model: String,
        /// `images_left_out`, `documents_left_out`, `audio_left_out`, `videos_left_out`, `tool_images_left_out`: the model takes no
        /// parts of this kind. `images_limited`: only the newest images are sent. `parts_left_out`: the provider could not read
        /// them.
        change: String,
        reason: String,
    }
    RunWaiting = "run.waiting" {
        reason: WaitReason,
        id: Option<String>,
        /// Explains the reason, where the reason alone does not.
        detail: Option<String>,
    }
    /// The run ended with an answer.
    RunCompleted = "run.completed" {
        finish_reason: FinishReason,
        usage: Usage,
        /// Why no model could be reached, if the answer is the agent's `final_text`.
        error: Option<ProblemBody>,
        notice: Option<Notice>,
    }
    RunFailed = "run.failed" {
        error: ProblemBody,
    }
    /// The run was ended by request.
    RunCancelled = "run.cancelled" {
        /// `user`, `interrupt` or `shutdown`; `copy` for a turn that was not copied to its end.
        by: String,
    }
    /// A user message was stored.
    MessageCreated = "message.created" {
        message: Message,
    }
    MessageStarted = "message.started" {
        message_id: MessageId,
        role: Role,
    }
    /// A model call, or a batch of tool calls, begins.
    StepStarted = "step.started" {
        /// Counts from 1 within the run.
        step: u32,
        /// `model` or `tools`.
        kind: String,
        /// The number of tools on offer, if the agent narrows its tools down.
        tools: Option<ToolsOffered>,
    }
    StepCompleted = "step.completed" {
        step: u32,
        usage: Option<Usage>,
    }
    /// Everything shown since the step began is void.
    StepReset = "step.reset" {
        step: u32,
        /// `retry`, `crash` or `handed_back`: the step is repeated. `failed` or `cancelled`: the run ends. `calls_dropped`: calls
        /// of the answer are not executed. Words that are kept after the last two are shown again. `restarted`: the model began its
        /// answer again. `continuation`: the answer was not final; it is kept as an internal message.
        reason: String,
    }
    PartStarted = "part.started" {
        message_id: MessageId,
        part_id: PartId,
        index: u32,
        /// `text`, `reasoning`, `tool_call` or `file`.
        kind: String,
        /// Present for tool calls, as is `name`.
        call_id: Option<CallId>,
        name: Option<String>,
    }
    /// More of a part.
    PartDelta = "part.delta" {
        part_id: PartId,
        /// Text, reasoning or argument text.
        delta: String,
    }
    /// The whole part: what counts.
    PartCompleted = "part.completed" {
        message_id: MessageId,
        part: Part,
    }
    MessageCompleted = "message.completed" {
        message: Message,
    }
    /// A tool call was handed to its tool.
    ToolStarted = "tool.started" {
        call_id: CallId,
        name: String,
        server: Option<String>,
        /// As executed.
        arguments: Value,
        repair: Option<crate::domain::tool::Repair>,
        /// The call that this call undoes.
        undoes: Option<CallId>,
    }
    /// A tool says how far it is.
    ToolProgress = "tool.progress" {
        call_id: CallId,
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    }
    ToolCompleted = "tool.completed" {
        call_id: CallId,
        name: String,
        server: Option<String>,
        state: crate::domain::tool::ToolCallState,
        content: Vec<ToolContent>,
        is_error: bool,
        duration_ms: u64,
        /// Whether the model reads less than the tool returned.
        truncated: bool,
        /// Whether `undo_tool_call` can undo the call.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        undoable: bool,
    }
    /// It is unknown whether a call took effect, and it will not be repeated.
    ToolOutcomeUnknown = "tool.outcome_unknown" {
        call_id: CallId,
        name: String,
        server: Option<String>,
        arguments: Value,
    }
    PlanCreated = "plan.created" {
        steps: Vec<PlannedStep>,
    }
    /// A step of the plan begins. Events up to its end belong to it.
    PlanStepStarted = "plan.step_started" {
        /// Counts from 1.
        step: u32,
    }
    PlanStepCompleted = "plan.step_completed" {
        step: u32,
        /// `done`, `failed`, or `skipped`: the plan was given up, and the run continues without it.
        state: PlanStepState,
        call_id: Option<CallId>,
    }
    InputRequested = "input.requested" {
        id: InputId,
        kind: InputKind,
        call_id: Option<CallId>,
        question: Question,
    }
    /// A human is asked whether a tool may be called.
    ApprovalRequested = "approval.requested" {
        id: InputId,
        call_id: Option<CallId>,
        #[serde(flatten)]
        request: Box<ApprovalRequest>,
    }
    /// An approval is not open any more.
    ApprovalResolved = "approval.resolved" {
        id: InputId,
        call_id: Option<CallId>,
        /// `allowed`, `denied`, `expired`, or `cancelled`: the run ended first.
        status: ApprovalState,
        /// An answer given before that also covers this call has no user.
        scope: Option<ApprovalScope>,
        /// The arguments of the call after a human changed them.
        edited_arguments: Option<Value>,
        reason: Option<String>,
        by: Option<UserId>,
    }
    /// A question is not open any more.
    InputResolved = "input.resolved" {
        id: InputId,
        /// `answered`, `expired`, or `cancelled`: the run ended first.
        state: InputState,
        answer: Option<InputAnswer>,
        by: Option<UserId>,
    }
    /// Title or status changed.
    ConversationUpdated = "conversation.updated" {
        /// Left to the store in a run's write: it knows the title at the commit.
        title: Option<String>,
        status: crate::domain::conversation::ConversationStatus,
        /// Messages that a rewind removed from the conversation.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        supersedes: Vec<MessageId>,
    }
}

/// An event about to be stored. It has no `seq` yet: the transaction that stores it assigns one.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub kind: &'static str,
    /// Absent for events of the conversation itself.
    pub run_id: Option<RunId>,
    /// 0 before the first attempt.
    pub attempt: u32,
    pub at: UnixMillis,
    pub data: String,
}

impl NewEvent {
    pub fn new(body: &EventBody, run_id: Option<RunId>, attempt: u32, at: UnixMillis) -> Self {
        Self { kind: body.kind(), run_id, attempt, at, data: render_data(body) }
    }

    /// Returns the event as it is stored in the log of a conversation.
    pub fn stored(self, conversation_id: ConversationId, seq: i64) -> StoredEvent {
        let Self { kind, run_id, attempt, at, data } = self;
        StoredEvent { seq, kind: kind.into(), conversation_id, run_id, attempt, at, data }
    }
}

fn render_data(body: &EventBody) -> String {
    if let EventBody::PartDelta { part_id, delta } = body {
        return part_delta_data(part_id, delta);
    }
    // Adjacent tagging renders as {"type":"...","data":{...}}; only the data is kept.
    let rendered = serde_json::to_string(body).unwrap_or_default();
    let data = rendered
        .strip_prefix("{\"type\":\"")
        .and_then(|rest| rest.strip_prefix(body.kind()))
        .and_then(|rest| rest.strip_prefix("\",\"data\":"))
        .and_then(|rest| rest.strip_suffix('}'));
    storable_json(data.unwrap_or("{}").to_owned())
}

/// Renders a `part.delta`, the one event that is rendered thousands of times a second.
pub fn part_delta_data(part_id: &PartId, delta: &str) -> String {
    let text = Value::from(delta).to_string();
    storable_json(format!("{{\"part_id\":\"{part_id}\",\"delta\":{text}}}"))
}

/// An event as stored. Shared by every reader of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    pub seq: i64,
    /// May be a type that this version does not know.
    pub kind: std::borrow::Cow<'static, str>,
    pub conversation_id: ConversationId,
    pub run_id: Option<RunId>,
    pub attempt: u32,
    pub at: UnixMillis,
    pub data: String,
}

pub type SharedEvent = Arc<StoredEvent>;

impl StoredEvent {
    /// The envelope as one line of JSON, whole.
    pub fn envelope(&self) -> String {
        use std::fmt::Write as _;
        let mut out = String::with_capacity(self.data.len() + 220);
        // Writing to a String cannot fail.
        let _ = write!(out, "{{\"seq\":{},\"type\":\"{}\",\"conversation_id\":\"{}\"", self.seq, self.kind, self.conversation_id);
        if let Some(run_id) = &self.run_id {
            let _ = write!(out, ",\"run_id\":\"{run_id}\",\"attempt\":{}", self.attempt);
        }
        let _ = write!(out, ",\"at\":\"{}\",\"data\":{}}}", self.at.to_rfc3339(), self.data);
        out
    }

    /// Returns the envelope as it goes into a frame: whole if it fits, else shortened, with the URL of a page that has it whole.
    pub fn frame(&self) -> String {
        let page = || format!("/api/v1/conversations/{}/events?after={}&limit=1", self.conversation_id, self.seq - 1);
        frame::fit(self.envelope(), MAX_FRAME_JSON, || Some(page()))
    }

    pub fn ends_run(&self) -> bool {
        matches!(self.kind.as_ref(), "run.completed" | "run.failed" | "run.cancelled")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_is_json_with_the_promised_fields() {
        let run_id = RunId::parse("run_01980000000070008000000000000001").unwrap();
        let part_id = PartId::parse("part_01980000000070008000000000000002").unwrap();
        let body = EventBody::PartDelta { part_id, delta: "a\"b\u{0}c\\u0000\n".to_owned() };
        let new = NewEvent::new(&body, Some(run_id.clone()), 1, UnixMillis(0));
        let stored = new.stored(ConversationId::parse("conv_01980000000070008000000000000003").unwrap(), 41);
        let value: Value = serde_json::from_str(&stored.envelope()).unwrap();
        assert_eq!(value["seq"], 41);
        assert_eq!(value["type"], "part.delta");
        assert_eq!(value["run_id"], run_id.as_str());
        assert_eq!(value["at"], "1970-01-01T00:00:00.000Z");
        assert_eq!(value["data"]["delta"], "a\"b\u{fffd}c\\u0000\n");
    }

    #[test]
    fn data_has_no_type_tag() {
        let body = EventBody::RunQueued { position: 0, supersedes: Vec::new() };
        assert_eq!(NewEvent::new(&body, None, 0, UnixMillis(0)).data, r#"{"position":0}"#);
    }
}
