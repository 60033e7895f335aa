//! Events: the entries of a conversation's log. An event's data is rendered once, before it is stored, and every reader receives
//! those bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::{Message, Part, Role, ToolContent};
use crate::domain::frame_limit::{self, MAX_FRAME_JSON};
use crate::domain::ids::{CallId, ConversationId, InputId, MessageId, PartId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::{
    ContextUnit, FinishReason, InputAnswer, InputKind, InputState, Notice, PlanStepState, PlannedStep, Question, RunOutput,
    WaitReason,
};
use crate::domain::tool::{ApprovalRequest, ApprovalScope, ApprovalState, ClientCall, OfferedTools};
use crate::support::clock::UnixMillis;
use crate::support::text::storable_json;
use crate::support::tokens::Tokenizer;

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $word:literal { $($(#[$attr:meta])* $field:ident : $ty:ty,)* })*) => {
        /// An event of a conversation's log. Clients must ignore types that they do not know.
        #[serde_with::skip_serializing_none]
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(tag = "type", content = "data")]
        #[schema(as = Event)]
        pub enum EventBody {
            $(
                $(#[$doc])*
                #[serde(rename = $word)]
                #[schema(rename = $word)]
                $variant { $($(#[$attr])* $field: $ty,)* },
            )*
        }

        impl EventBody {
            /// The names of all stored event types.
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
        /// Number of runs of the same conversation that come first.
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
        /// Servers that list more tools than the run offers, because there are too many, or they are too large or malformed.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        left_out: Vec<String>,
    }
    /// The run continues after another claim.
    RunResumed = "run.resumed" {
        /// `crash`, `handed_back`, `timer`, `request` (also after an answer), or `reload` (the worker could not read or write the
        /// run's rows).
        cause: String,
    }
    /// A model call failed and will be retried.
    RunRetrying = "run.retrying" {
        after_ms: u64,
        error: ProblemBody,
        /// The fallback model that is used from now on, as `provider/name`.
        model: Option<String>,
    }
    /// The size of a model request, compared with its budget.
    ContextBudget = "context.budget" {
        unit: ContextUnit,
        window: u64,
        /// Instructions, tools and messages together.
        used: u64,
        /// Negative if the request does not fit and nothing more may be left out.
        remaining: i64,
        /// Absent if the tokens are estimated.
        tokenizer: Option<Tokenizer>,
    }
    /// The request was too large for its budget or for the model's window. The run continues with a shorter request. Stored
    /// messages do not change.
    ContextCompacted = "context.compacted" {
        /// Number of messages that requests omit from now on, oldest first.
        messages: u32,
        /// Number of texts, pictures and arguments that are cut, and of messages without their reasoning.
        texts: u32,
        /// The newest omitted message, if a summary replaces it in later requests.
        through: Option<MessageId>,
        /// The summary that replaces the omitted messages.
        summary: Option<String>,
    }
    /// A tool failed too often, so that its circuit breaker opened.
    ToolBreakerOpened = "tool.breaker_opened" {
        /// Absent where names that no tool has were called too often.
        name: Option<String>,
        failures: u32,
        /// `drop_tool`: the tool is not offered any more. `force_final`: the next model call is the last one, without tools.
        action: crate::domain::agent::BreakerAction,
    }
    /// A server changed the definition of a tool, and no human has accepted it yet. The run does not offer the tool.
    ToolQuarantined = "tool.quarantined" {
        name: String,
        reason: String,
    }
    /// The provider refused a part of a request, and the request was repeated without it. Later requests to the model omit such
    /// parts.
    ModelAdapted = "model.adapted" {
        model: String,
        /// `images_left_out`, `documents_left_out`, `audio_left_out`, `videos_left_out`, `tool_images_left_out`: the model takes no
        /// parts of this kind. `images_limited`: only the newest images are sent. `parts_left_out`: the provider could not read
        /// them. Other values name other changes, some with a detail after a colon, such as `tools_limited:64`.
        change: String,
        reason: String,
    }
    /// The run waits.
    RunWaiting = "run.waiting" {
        reason: WaitReason,
        id: Option<String>,
        /// Explains the reason, if the reason alone does not.
        detail: Option<String>,
    }
    /// The run ended with an answer.
    RunCompleted = "run.completed" {
        finish_reason: FinishReason,
        usage: Usage,
        /// The answer.
        output: Option<RunOutput>,
        /// Why no model could be reached. Present if the answer is the agent's `final_text`.
        error: Option<ProblemBody>,
        notice: Option<Notice>,
    }
    /// The run ended with an error.
    RunFailed = "run.failed" {
        error: ProblemBody,
    }
    /// The run was cancelled.
    RunCancelled = "run.cancelled" {
        /// `user`, `interrupt` or `shutdown`. `copy` for a copied run whose end was not copied.
        by: String,
    }
    /// A user message was stored.
    MessageCreated = "message.created" {
        message: Message,
    }
    /// An assistant or tool message begins.
    MessageStarted = "message.started" {
        message_id: MessageId,
        role: Role,
    }
    /// A model call or a batch of tool calls begins.
    StepStarted = "step.started" {
        /// Counts from 1 within the run.
        step: u32,
        /// `model` or `tools`.
        kind: String,
        /// The number of offered tools, if the agent selects among its tools.
        tools: Option<OfferedTools>,
    }
    /// A step is finished.
    StepCompleted = "step.completed" {
        step: u32,
        usage: Option<Usage>,
    }
    /// Everything that the step has shown so far is void.
    StepReset = "step.reset" {
        step: u32,
        /// `retry`, `crash` or `handed_back`: the step is repeated. `failed` or `cancelled`: the run ends. `calls_dropped`: calls
        /// of the answer are not executed. After `cancelled` and `calls_dropped`, kept text is sent again. `restarted`: the model
        /// began its answer again. `malformed`: the answer does not have the requested format. `unfenced`: a code fence is removed,
        /// and the rest is sent again. `plan`: the model of a plan step called no tool. `continuation`: the answer was not final;
        /// it is kept as an internal message.
        reason: String,
    }
    /// A part of a message begins.
    PartStarted = "part.started" {
        message_id: MessageId,
        part_id: PartId,
        index: u32,
        /// `text`, `reasoning`, `tool_call`, `image` or `source`.
        kind: String,
        /// Present for tool calls, as is `name`.
        call_id: Option<CallId>,
        name: Option<String>,
    }
    /// The next piece of a part.
    PartDelta = "part.delta" {
        part_id: PartId,
        /// Text, reasoning or argument text.
        delta: String,
    }
    /// The complete part, which replaces its deltas.
    PartCompleted = "part.completed" {
        message_id: MessageId,
        part: Part,
    }
    /// The whole message, as stored.
    MessageCompleted = "message.completed" {
        message: Message,
    }
    /// A tool call was sent to its tool.
    ToolStarted = "tool.started" {
        call_id: CallId,
        name: String,
        server: Option<String>,
        /// The arguments with which the call is executed.
        #[schema(value_type = Object)]
        arguments: Value,
        repair: Option<crate::domain::tool::Repair>,
        /// The call that this call undoes.
        undoes: Option<CallId>,
    }
    /// The client of the run is to execute a call of its tool, and to send the result.
    ToolRequested = "tool.requested" {
        #[serde(flatten)]
        call: ClientCall,
    }
    /// A tool reports its progress.
    ToolProgress = "tool.progress" {
        call_id: CallId,
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    }
    /// The outcome of a tool call.
    ToolCompleted = "tool.completed" {
        call_id: CallId,
        name: String,
        server: Option<String>,
        state: crate::domain::tool::ToolCallState,
        content: Vec<ToolContent>,
        is_error: bool,
        duration_ms: u64,
        /// Whether the model reads only a part of the result.
        truncated: bool,
        /// Whether `undo_tool_call` can undo the call.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        undoable: bool,
    }
    /// The call may or may not have taken effect, and it will not be repeated.
    ToolOutcomeUnknown = "tool.outcome_unknown" {
        call_id: CallId,
        name: String,
        server: Option<String>,
        #[schema(value_type = Object)]
        arguments: Value,
    }
    /// The planner has written a plan.
    PlanCreated = "plan.created" {
        steps: Vec<PlannedStep>,
    }
    /// The plan, or the planner's answer in its place, was given up: the run continues without it.
    PlanRejected = "plan.rejected" {
        reason: String,
    }
    /// A step of the plan begins. The events up to its end belong to it.
    PlanStepStarted = "plan.step_started" {
        /// Counts from 1.
        step: u32,
    }
    /// A step of the plan ends.
    PlanStepCompleted = "plan.step_completed" {
        step: u32,
        /// `done`, `failed` or `skipped`. `skipped`: the plan was given up, and the run continues without it.
        state: PlanStepState,
        call_id: Option<CallId>,
    }
    /// A human is asked a question.
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
    /// An approval was decided, or is no longer open.
    ApprovalResolved = "approval.resolved" {
        id: InputId,
        call_id: Option<CallId>,
        /// `allowed`, `denied`, `expired`, or `cancelled`: the run ended first.
        status: ApprovalState,
        /// The scope of the answer. If `by` is absent, an earlier answer also covers this call.
        scope: Option<ApprovalScope>,
        /// The arguments of the call after a human changed them.
        #[schema(value_type = Option<Object>)]
        edited_arguments: Option<Value>,
        reason: Option<String>,
        by: Option<UserId>,
    }
    /// A question was answered, or is no longer open.
    InputResolved = "input.resolved" {
        id: InputId,
        /// `answered`, `expired`, or `cancelled`: the run ended first.
        state: InputState,
        answer: Option<InputAnswer>,
        by: Option<UserId>,
    }
    /// The title or the status changed.
    ConversationUpdated = "conversation.updated" {
        // In a run's write, the store sets the title, because it knows the title at the commit.
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

/// Renders a `part.delta`, the most frequent event.
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

/// The data of a `part.delta`.
#[derive(Deserialize)]
struct Delta {
    part_id: PartId,
    delta: String,
}

impl StoredEvent {
    /// Parses the body; `None` for a type that this version does not know.
    pub fn body(&self) -> Option<EventBody> {
        if self.kind == "part.delta" {
            // The most frequent event is parsed once.
            let Delta { part_id, delta } = serde_json::from_str(&self.data).ok()?;
            return Some(EventBody::PartDelta { part_id, delta });
        }
        // Checked alone first, so that the data cannot end the object around it.
        let data: &serde_json::value::RawValue = serde_json::from_str(&self.data).ok()?;
        serde_json::from_str(&format!("{{\"type\":\"{}\",\"data\":{}}}", self.kind, data)).ok()
    }

    /// Returns the complete envelope as one line of JSON.
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

    /// Returns the envelope for a frame. If it does not fit, returns the shortened form with the URL of the complete event.
    pub fn frame(&self) -> String {
        let page = || format!("/api/v1/conversations/{}/events?after={}&limit=1", self.conversation_id, self.seq - 1);
        frame_limit::fit(self.envelope(), MAX_FRAME_JSON, || Some(page()))
    }

    /// Returns whether the event may change the item of its conversation in the owner's list.
    pub fn changes_list(&self) -> bool {
        ["conversation.", "run.", "message.", "approval.", "input."].iter().any(|prefix| self.kind.starts_with(prefix))
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
