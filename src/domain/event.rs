//! Events: the entries of a conversation's log.
//!
//! What is stored is what is sent: the data of an event is rendered once, before it is written, and every reader of every
//! wire gets those bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{ApprovalRequest, ApprovalScope, ApprovalState};
use super::context::ContextUnit;
use super::frame::{self, MAX_FRAME_JSON};
use super::ids::{CallId, ConversationId, InputId, MessageId, PartId, RunId, UserId};
use super::input::{InputAnswer, InputKind, InputState, Question};
use super::message::{Message, Part, Role, ToolContent};
use super::model::Usage;
use super::plan::{PlanStepState, PlannedStep};
use super::problem::ProblemBody;
use super::run::{FinishReason, Notice, WaitReason};
use super::tool_filter::ToolsOffered;
use crate::support::clock::UnixMillis;
use crate::support::text::storable_json;
use crate::support::tokens::Tokenizer;

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $word:literal { $($(#[$attr:meta])* $field:ident : $ty:ty,)* })*) => {
        /// What an event says. The name of its type on the wire is in [`EventBody::kind`].
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

            /// The type's name on the wire.
            #[must_use]
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
        /// Messages that are not part of the conversation any more, because the run takes their place.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        supersedes: Vec<MessageId>,
    }
    /// A worker took the run up for the first time.
    RunStarted = "run.started" {
        /// `provider/name`.
        model: String,
        /// The agent's name.
        agent: String,
        /// The agent's version.
        agent_version: u32,
        /// Servers that list more tools than the run is offered: beyond what a server may offer, too large, or malformed. Their state and the
        /// log of the server say more.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        left_out: Vec<String>,
    }
    /// Another attempt took the run up.
    RunResumed = "run.resumed" {
        /// `crash`, `handed_back`, `timer`, `approval` or `request`.
        cause: String,
    }
    /// A model call failed and will be made again.
    RunRetrying = "run.retrying" {
        /// The wait before it, in milliseconds.
        after_ms: u64,
        /// The failure.
        error: ProblemBody,
        /// The model that is asked now, where another takes over, as `provider/name`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        model: Option<String>,
    }
    /// What the request of a model step costs of its budget.
    ContextBudget = "context.budget" {
        /// What is counted.
        unit: ContextUnit,
        /// The whole budget.
        window: u64,
        /// What the request costs: instructions, tools and messages.
        used: u64,
        /// What is left beside what is kept free. Less than nothing, if it does not fit and nothing may be left out.
        remaining: i64,
        /// What has counted the tokens of its texts; they are estimated, if nothing has.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        tokenizer: Option<Tokenizer>,
    }
    /// The request would have been too large for its budget, or was for the model's window: the run goes on with a shorter one. What
    /// is stored is not touched.
    ContextCompacted = "context.compacted" {
        /// Messages that are left out from now on, oldest first.
        messages: u32,
        /// Texts, pictures and arguments of calls that are cut, and messages that have lost their thoughts.
        texts: u32,
        /// The newest message that is left out, if something stands for it in the conversation from now on.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        through: Option<MessageId>,
        /// What stands for all messages that are left out; empty, if nothing does.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        summary: Option<String>,
    }
    /// A provider refused a tool's definition, or its server has changed it: the tool is not offered in this run.
    ToolQuarantined = "tool.quarantined" {
        /// The tool's name.
        name: String,
        /// The provider's words, or ours.
        reason: String,
    }
    /// The provider refused a part of a request; the request was repeated without it. Later requests to the model leave such parts
    /// out as well.
    ModelAdapted = "model.adapted" {
        /// The model, as `provider/name`.
        model: String,
        /// `images_left_out`, `documents_left_out`, `audio_left_out`, `videos_left_out`, `tool_images_left_out`: the model takes no
        /// parts of this kind. `images_limited`: only the newest images are sent. `parts_left_out`: the provider could not read them.
        change: String,
        /// The provider's words.
        reason: String,
    }
    /// The run waits for something outside.
    RunWaiting = "run.waiting" {
        /// What for.
        reason: WaitReason,
        /// The id of what it waits for, if it has one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        id: Option<String>,
        /// In words, where the reason alone does not say it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        detail: Option<String>,
    }
    /// The run ended with an answer.
    RunCompleted = "run.completed" {
        /// Why it ended.
        finish_reason: FinishReason,
        /// Tokens used by all its model calls.
        usage: Usage,
        /// Why no model could be reached, where the answer is the agent's `final_text`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        error: Option<ProblemBody>,
        /// What is to be told about the answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        notice: Option<Notice>,
    }
    /// The run ended with an error.
    RunFailed = "run.failed" {
        /// The error.
        error: ProblemBody,
    }
    /// The run was ended by request.
    RunCancelled = "run.cancelled" {
        /// `user`, `interrupt` or `shutdown`; `copy` for a turn that was not copied to its end.
        by: String,
    }
    /// A user message was stored.
    MessageCreated = "message.created" {
        /// The whole message.
        message: Message,
    }
    /// An assistant or tool message begins.
    MessageStarted = "message.started" {
        /// Its id.
        message_id: MessageId,
        /// Who speaks.
        role: Role,
    }
    /// A model call, or a batch of tool calls, begins.
    StepStarted = "step.started" {
        /// Counts from 1 within the run.
        step: u32,
        /// `model` or `tools`.
        kind: String,
        /// Of a model call, where the agent narrows its tools down: how many are on offer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        tools: Option<ToolsOffered>,
    }
    /// The step is finished.
    StepCompleted = "step.completed" {
        /// The step.
        step: u32,
        /// Tokens, for model calls.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        usage: Option<Usage>,
    }
    /// Everything shown since the step began is void.
    StepReset = "step.reset" {
        /// The step.
        step: u32,
        /// `retry`, `crash` or `handed_back`: the step is made again. `failed` or `cancelled`: the run ends.
        /// `calls_dropped`: calls that came with the answer are not carried out. What is kept after the last two is shown again.
        /// `restarted`: the model began its answer anew, which follows. `continuation`: the answer was not the end of the work; it is
        /// kept as an internal message, and the run goes on.
        reason: String,
    }
    /// A part of a message begins.
    PartStarted = "part.started" {
        /// The message.
        message_id: MessageId,
        /// The part.
        part_id: PartId,
        /// Its place in the message.
        index: u32,
        /// `text`, `reasoning`, `tool_call` or `file`.
        kind: String,
        /// Our id of the call, for tool calls.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        call_id: Option<CallId>,
        /// The tool's name, for tool calls.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        name: Option<String>,
    }
    /// More of a part.
    PartDelta = "part.delta" {
        /// The part.
        part_id: PartId,
        /// Text, reasoning or argument text.
        delta: String,
    }
    /// The whole part: what counts.
    PartCompleted = "part.completed" {
        /// The message.
        message_id: MessageId,
        /// The part.
        part: Part,
    }
    /// The whole message.
    MessageCompleted = "message.completed" {
        /// The message with its finish reason and usage.
        message: Message,
    }
    /// A tool call was handed to its tool.
    ToolStarted = "tool.started" {
        /// The call.
        call_id: CallId,
        /// The tool's name.
        name: String,
        /// The MCP server, for tools that come from one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        server: Option<String>,
        /// The arguments as executed.
        arguments: Value,
        /// What was mended in the call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        repair: Option<super::tool::Repair>,
        /// The call that it takes back.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        undoes: Option<CallId>,
    }
    /// A tool says how far it is.
    ToolProgress = "tool.progress" {
        /// The call.
        call_id: CallId,
        /// How far.
        progress: f64,
        /// Of how much.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        total: Option<f64>,
        /// In words.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        message: Option<String>,
    }
    /// A tool call has its outcome.
    ToolCompleted = "tool.completed" {
        /// The call.
        call_id: CallId,
        /// The tool's name.
        name: String,
        /// The MCP server, for tools that come from one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        server: Option<String>,
        /// How it ended.
        state: super::tool::ToolCallState,
        /// What the model reads.
        content: Vec<ToolContent>,
        /// Whether it failed.
        is_error: bool,
        /// From start to answer.
        duration_ms: u64,
        /// Whether the model reads less than the tool said.
        truncated: bool,
        /// Whether the call can be taken back, with `undo_tool_call`.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        undoable: bool,
    }
    /// Nobody knows whether a call took effect, and it will not be repeated.
    ToolOutcomeUnknown = "tool.outcome_unknown" {
        /// The call.
        call_id: CallId,
        /// The tool's name.
        name: String,
        /// The MCP server, for tools that come from one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        server: Option<String>,
        /// The arguments.
        arguments: Value,
    }
    /// A plan was made.
    PlanCreated = "plan.created" {
        /// Its steps, in order.
        steps: Vec<PlannedStep>,
    }
    /// A step of the plan begins: what follows up to its end belongs to it.
    PlanStepStarted = "plan.step_started" {
        /// Counts from 1.
        step: u32,
    }
    /// A step of the plan has ended.
    PlanStepCompleted = "plan.step_completed" {
        /// Counts from 1.
        step: u32,
        /// `done`, `failed`, or `skipped`: the plan was given up, and the run goes on without it.
        state: PlanStepState,
        /// The call that was made for it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        call_id: Option<CallId>,
    }
    /// A human is asked.
    InputRequested = "input.requested" {
        /// The question's id, for the answer.
        id: InputId,
        /// What it is about.
        kind: InputKind,
        /// The tool call that it is about.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        call_id: Option<CallId>,
        /// What is asked, and what can be answered.
        question: Question,
    }
    /// A human is asked whether a tool may be called.
    ApprovalRequested = "approval.requested" {
        /// The approval's id, for the answer.
        id: InputId,
        /// The call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        call_id: Option<CallId>,
        /// What is asked.
        #[serde(flatten)]
        request: Box<ApprovalRequest>,
    }
    /// An approval is not open any more.
    ApprovalResolved = "approval.resolved" {
        /// The approval's id.
        id: InputId,
        /// The call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        call_id: Option<CallId>,
        /// `allowed`, `denied`, `expired`, or `cancelled`: the run ended first.
        status: ApprovalState,
        /// How far the answer holds. An answer that was given before and holds for this call, too, has no user.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        scope: Option<ApprovalScope>,
        /// What the call is made with instead.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        edited_arguments: Option<Value>,
        /// Why, in the words of whoever decided.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        reason: Option<String>,
        /// The user who decided.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        by: Option<UserId>,
    }
    /// A question is not open any more.
    InputResolved = "input.resolved" {
        /// The question's id.
        id: InputId,
        /// `answered`, `expired`, or `cancelled`: the run ended first.
        state: InputState,
        /// The answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        answer: Option<InputAnswer>,
        /// The user who answered.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        by: Option<UserId>,
    }
    /// Title or status changed.
    ConversationUpdated = "conversation.updated" {
        /// The title. In a run's write it is left to the store, which knows what it is when the write is committed.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        title: Option<String>,
        /// The status.
        status: super::conversation::ConversationStatus,
        /// Messages that are not part of the conversation any more, because it was rewound.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        supersedes: Vec<MessageId>,
    }
}

/// An event about to be stored. It has no `seq` yet: the transaction that stores it assigns one.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The type's name.
    pub kind: &'static str,
    /// The run it belongs to; absent for events of the conversation itself.
    pub run_id: Option<RunId>,
    /// The run's attempt, 0 before the first.
    pub attempt: u32,
    /// When it happened, by the clock of the node that saw it.
    pub at: UnixMillis,
    /// The data, rendered.
    pub data: String,
}

impl NewEvent {
    /// Renders `body`.
    #[must_use]
    pub fn new(body: &EventBody, run_id: Option<RunId>, attempt: u32, at: UnixMillis) -> Self {
        Self { kind: body.kind(), run_id, attempt, at, data: render_data(body) }
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

/// The data of a `part.delta`, which is the one event that is rendered thousands of times a second.
#[must_use]
pub fn part_delta_data(part_id: &PartId, delta: &str) -> String {
    let text = Value::from(delta).to_string();
    storable_json(format!("{{\"part_id\":\"{part_id}\",\"delta\":{text}}}"))
}

/// An event as stored. Cheap to share: every reader of a conversation gets the same one.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Its number in the conversation.
    pub seq: i64,
    /// The type's name. May be one that this version does not know.
    pub kind: std::borrow::Cow<'static, str>,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The run, for events of a run.
    pub run_id: Option<RunId>,
    /// The run's attempt.
    pub attempt: u32,
    /// When it happened.
    pub at: UnixMillis,
    /// The data, rendered.
    pub data: String,
}

/// A stored event that is passed around.
pub type SharedEvent = Arc<StoredEvent>;

impl StoredEvent {
    /// The envelope as one line of JSON, whole.
    #[must_use]
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

    /// Returns the envelope as it goes into a frame: whole if it fits, else shortened, with the URL of a page that has it whole. Live
    /// or read again, it is the same.
    #[must_use]
    pub fn frame(&self) -> String {
        let page = || format!("/api/v1/conversations/{}/events?after={}&limit=1", self.conversation_id, self.seq - 1);
        frame::fit(self.envelope(), MAX_FRAME_JSON, || Some(page()))
    }

    /// Whether the event ends its run.
    #[must_use]
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
        let stored = StoredEvent {
            seq: 41,
            kind: new.kind.into(),
            conversation_id: ConversationId::parse("conv_01980000000070008000000000000003").unwrap(),
            run_id: new.run_id,
            attempt: new.attempt,
            at: new.at,
            data: new.data,
        };
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
