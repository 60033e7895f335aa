//! A decision under construction: a working copy that applies each change at once, so that later rules of the decision see it. Must not
//! know the rules.

use std::sync::Arc;

use crate::domain::agent::{AgentProfile, ProvidedContext};
use crate::domain::conversation::delta_compaction::MAX_JOINED_BYTES;
use crate::domain::conversation::{ConversationStatus, Message, Part, Role, TextPart};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, MessageId, PartId};
use crate::domain::model::{ModelRequest, Usage};
use crate::domain::run::{
    Change, FinishReason, InputKind, InputRequest, InputState, NewRequestRecord, Question, RecordSources, ReleaseCause,
    RequestBudget, RequestDigest, RunCounters, RunRecord, RunStatus, StepKind, StepStatus, WaitReason,
};
use crate::domain::tool::{ApprovalRequest, ApprovalState, ClientCall, OfferedTools, ToolDefinition};
use crate::engine::machine::decision::{Command, Decision, DecisionEnvironment};
use crate::engine::machine::state::{RunFacts, RunState, apply, working_copy};
use crate::engine::request::request_source::RequestSource;
use crate::support::text;

pub struct DecisionBuilder<'a> {
    pub(in crate::engine) facts: &'a RunFacts,
    /// The rows before the decision.
    pub before: &'a RunRecord,
    /// The rows with the changes so far, without earlier messages and tool definitions.
    pub progress: RunRecord,
    environment: &'a DecisionEnvironment<'a>,
    /// The digest of the run's last recorded request.
    recorded: Option<&'a RequestDigest>,
    decision: Decision,
}

impl<'a> DecisionBuilder<'a> {
    pub fn new(state: &'a RunState, environment: &'a DecisionEnvironment<'a>) -> Self {
        let (facts, before) = (&state.facts, &state.record);
        let (progress, recorded) = (working_copy(before), state.recorded.as_deref());
        Self { facts, before, progress, environment, recorded, decision: Decision::default() }
    }

    /// Puts counters, usage and the charge for a reserved call before all other changes, because no change may follow the run's end.
    pub fn into_decision(mut self, charge: Option<Change>) -> Decision {
        let is_charged = self.is_charged();
        self.decision.changes.splice(0..0, charge);
        if is_charged {
            self.decision.changes.insert(0, Change::SetUsage(self.progress.usage));
        }
        if self.progress.counters != self.before.counters {
            self.decision.changes.insert(0, Change::SetCounters(self.progress.counters.clone()));
        }
        self.decision
    }

    /// Returns whether the decision ends the run or gives up its lease.
    pub fn releases_lease(&self) -> bool {
        self.decision.changes.iter().any(|change| matches!(change, Change::Finish { .. } | Change::Release { .. }))
    }

    /// Returns the source of a request after the decision.
    pub fn source(&self) -> RequestSource<'_> {
        let Self { facts, before, progress: record, .. } = self;
        RequestSource {
            record,
            tools: self.tools(),
            contexts: self.contexts(),
            new_messages: &record.history,
            ..RequestSource::of_rows(before, facts)
        }
    }

    /// Returns the source of the request under way.
    pub fn source_before(&self) -> RequestSource<'a> {
        RequestSource::of_rows(self.before, self.facts)
    }

    pub fn profile(&self) -> &'a AgentProfile {
        &self.before.profile
    }

    pub fn counters(&mut self) -> &mut RunCounters {
        &mut self.progress.counters
    }

    pub fn charge(&mut self, usage: Usage) {
        self.progress.usage.add(usage);
    }

    pub fn is_charged(&self) -> bool {
        self.progress.usage != self.before.usage
    }

    pub fn event(&mut self, event: EventBody) {
        self.decision.events.push(event);
    }

    pub fn change(&mut self, change: Change) {
        apply(&mut self.progress, &change);
        self.decision.changes.push(change);
    }

    pub fn command(&mut self, command: Command) {
        self.decision.commands.push(command);
    }

    pub fn message_id(&self) -> MessageId {
        MessageId::generate(self.environment.ids)
    }

    pub fn part_id(&self) -> PartId {
        PartId::generate(self.environment.ids)
    }

    pub fn tools(&self) -> &[Arc<ToolDefinition>] {
        self.progress.tools.as_deref().or(self.before.tools.as_deref()).unwrap_or_default()
    }

    pub fn contexts(&self) -> &[ProvidedContext] {
        self.progress.contexts.as_deref().or(self.before.contexts.as_deref()).unwrap_or_default()
    }

    pub fn newest_message(&self) -> Option<&Message> {
        let newest = self.progress.history.last().or(self.before.history.last())?;
        (newest.run_id == self.before.fence.run_id).then_some(newest)
    }

    pub fn is_out_of_time(&self) -> bool {
        self.is_out_of_time_after(0)
    }

    pub fn is_out_of_time_after(&self, wait_ms: u64) -> bool {
        let limit = self.profile().max_run_ms;
        limit > 0 && self.environment.elapsed_ms.saturating_add(wait_ms) >= limit
    }

    /// Returns the milliseconds until the run's own time limit, if it has one.
    pub fn time_left(&self) -> Option<u64> {
        let limit = self.profile().max_run_ms;
        (limit > 0).then(|| limit.saturating_sub(self.environment.elapsed_ms))
    }

    // Status.

    pub fn set_status(&mut self, status: RunStatus, reason: Option<WaitReason>) {
        let record = &self.progress;
        if record.status == status && record.reason == reason {
            return;
        }
        let status_before = ConversationStatus::from(record.status);
        self.change(Change::SetStatus(status, reason));
        let status_after = ConversationStatus::from(status);
        if status_after != status_before {
            self.conversation_updated(status_after);
        }
    }

    pub fn conversation_updated(&mut self, status: ConversationStatus) {
        self.event(EventBody::ConversationUpdated { title: None, status, supersedes: Vec::new() });
    }

    // Steps.

    pub fn start_tool_step(&mut self, step: u32) {
        self.start_step(step, StepKind::Tools, None, None);
    }

    /// Starts the next model step, and records its request.
    pub fn start_model_step(&mut self, request: &ModelRequest, budget: Option<RequestBudget>, tools: Option<OfferedTools>) {
        let step = self.next_step(StepKind::Model);
        let source = self.source();
        let sources = RecordSources { history: source.history().collect(), tools: source.tools };
        let record = NewRequestRecord::of(step, request, budget, &sources, self.recorded);
        self.start_step(step, StepKind::Model, tools, Some(Box::new(record)));
    }

    fn start_step(&mut self, step: u32, kind: StepKind, tools: Option<OfferedTools>, request: Option<Box<NewRequestRecord>>) {
        self.event(EventBody::StepStarted { step, kind: kind.as_str().to_owned(), tools });
        self.change(Change::StartStep { step, kind, request });
    }

    pub fn complete_step(&mut self, step: u32, usage: Option<Usage>) {
        self.event(EventBody::StepCompleted { step, usage });
        self.change(Change::EndStep { step, status: StepStatus::Completed, usage });
    }

    pub fn abandon_step(&mut self, step: u32) {
        self.change(Change::EndStep { step, status: StepStatus::Abandoned, usage: None });
    }

    /// Tells clients to discard the parts that they saw since the step began. None of these parts is stored in a row.
    pub fn reset(&mut self, step: u32, reason: &str) {
        self.event(EventBody::StepReset { step, reason: reason.to_owned() });
    }

    pub fn open_model_step(&self) -> Option<u32> {
        self.progress.open_step().filter(|row| row.kind == StepKind::Model).map(|row| row.step)
    }

    pub fn open_tool_step(&self) -> Option<u32> {
        self.progress.open_step().filter(|row| row.kind == StepKind::Tools).map(|row| row.step)
    }

    /// Returns the number of the next step of a kind. A model step that ended without a result is repeated with its number.
    pub fn next_step(&self, kind: StepKind) -> u32 {
        match self.progress.steps.last() {
            None => 1,
            Some(row) if row.kind == kind && kind == StepKind::Model && row.status != StepStatus::Completed => row.step,
            Some(row) => row.step.saturating_add(1),
        }
    }

    // Messages.

    pub fn message(&self, role: Role, parts: Vec<Part>) -> Message {
        let of = self.before.fence.ids();
        Message { created_at: self.environment.now.to_rfc3339(), ..Message::new(self.message_id(), of, role, parts) }
    }

    fn text_part(&self, text: &str) -> Part {
        Part::Text(TextPart { id: self.part_id(), text: text.to_owned() })
    }

    /// Adds a hint for the model as an internal message, which clients do not show.
    pub fn hint(&mut self, text: &str) {
        self.add_hidden(self.message(Role::User, vec![self.text_part(text)]));
    }

    /// Stores an answer after which the run continues as an internal message, and tells clients to discard its parts.
    pub fn set_aside(&mut self, step: u32, message: Message) {
        self.reset(step, "continuation");
        self.add_hidden(message);
    }

    fn add_hidden(&mut self, message: Message) {
        let message = Message { internal: true, ..message };
        self.event(EventBody::MessageCreated { message: message.clone() });
        self.change(Change::AddMessage(message));
    }

    /// Makes the next model call a forced answer, without tools.
    pub fn force_final(&mut self, hint: &str) {
        self.counters().force_final = true;
        self.hint(hint);
    }

    /// Adds an assistant message that no model wrote. Clients show it like an answer.
    pub fn add_assistant_text(&mut self, text: &str, finish_reason: FinishReason) {
        let part = self.text_part(text);
        let message = Message { finish_reason: Some(finish_reason), ..self.message(Role::Assistant, vec![part]) };
        self.show(&message);
        self.complete_message(message);
    }

    pub fn complete_message(&mut self, message: Message) {
        self.event(EventBody::MessageCompleted { message: message.clone() });
        self.change(Change::AddMessage(message));
    }

    /// Adds the events that show an assistant message as a whole.
    pub fn show(&mut self, message: &Message) {
        let message_id = &message.id;
        self.event(EventBody::MessageStarted { message_id: message_id.clone(), role: message.role });
        for (part, index) in message.parts.iter().zip(0_u32..) {
            let (kind, text) = match part {
                Part::Text(part) => ("text", Some(&part.text)),
                Part::Reasoning(part) => ("reasoning", Some(&part.text)),
                Part::Image(_) => ("image", None),
                Part::Source(_) => ("source", None),
                Part::ToolCall(_) | Part::ToolResult(_) | Part::File(_) => continue,
            };
            let part_id = part.id();
            self.event(EventBody::PartStarted {
                message_id: message_id.clone(),
                part_id: part_id.clone(),
                index,
                kind: kind.to_owned(),
                call_id: None,
                name: None,
            });
            for delta in text.into_iter().flat_map(|text| text::pieces(text, MAX_JOINED_BYTES)) {
                self.event(EventBody::PartDelta { part_id: part_id.clone(), delta: delta.to_owned() });
            }
            self.event(EventBody::PartCompleted { message_id: message_id.clone(), part: part.clone() });
        }
    }

    // Calls.

    /// Sends a call to its tool, for the first time or again.
    pub fn run_call(&mut self, id: &CallId) {
        self.start_call(id);
        self.follow_call(id);
    }

    pub fn start_call(&mut self, id: &CallId) {
        let Some(call) = self.progress.call(id).cloned() else { return };
        self.event(EventBody::ToolStarted {
            call_id: call.id.clone(),
            name: call.name.clone(),
            server: call.server.clone(),
            arguments: call.arguments.clone(),
            repair: call.repair.clone(),
            undoes: call.undoes.clone(),
        });
        if call.has_not_begun() {
            self.change(Change::StartCall(call.id.clone()));
        }
    }

    /// Continues a started call without another `tool.started`: an MCP task, or a call whose server gets answers to its questions.
    pub fn follow_call(&mut self, id: &CallId) {
        if let Some(call) = self.progress.call(id).cloned() {
            self.command(Command::RunTool(call));
        }
    }

    pub fn reconcile_call(&mut self, id: &CallId) {
        if let Some(call) = self.progress.call(id).cloned() {
            self.command(Command::Reconcile(call));
        }
    }

    /// Takes over a call that an earlier run may have made: marks it as started, and asks its server. The log of that run has its
    /// `tool.started`; another one follows if the call is sent to its tool.
    pub fn take_over_call(&mut self, id: &CallId) {
        self.change(Change::StartCall(id.clone()));
        self.reconcile_call(id);
    }

    // Questions.

    /// Returns a question about a call, which expires after `expires_ms` milliseconds; 0 for never.
    pub fn question(&self, call: &CallId, kind: InputKind, question: Question, expires_ms: u64) -> InputRequest {
        let id = InputId::generate(self.environment.ids);
        InputRequest::about(call, id, self.before.fence.ids(), kind, question, expires_ms)
    }

    pub fn ask(&mut self, request: InputRequest) {
        let InputRequest { id, call_id, kind, question, .. } = request.clone();
        self.event(match (ApprovalRequest::of(&question), self.client_call(&request)) {
            (Some(request), _) => EventBody::ApprovalRequested { id, call_id, request: Box::new(request) },
            (None, Some(call)) => EventBody::ToolRequested { call },
            (None, None) => EventBody::InputRequested { id, kind, call_id, question },
        });
        self.change(Change::RequestInput(request));
    }

    /// Returns the call that a request to the client is about.
    fn client_call(&self, request: &InputRequest) -> Option<ClientCall> {
        let call_id = request.call_id.clone().filter(|_| request.kind == InputKind::ClientTool)?;
        let name = request.question.tool.clone().unwrap_or_default();
        let arguments = request.question.arguments.clone().unwrap_or_default();
        let expires_at = request.expires_in_ms.map(|left| self.environment.now.after(left).to_rfc3339());
        Some(ClientCall { call_id, name, arguments, expires_at })
    }

    /// Closes a question. An answered question becomes `applied` instead of `state`, because clients have seen its answer.
    pub fn close_question(&mut self, request: &InputRequest, state: InputState) {
        if request.answer.is_some() {
            self.change(Change::CloseInput { id: request.id.clone(), state: InputState::Applied });
            return;
        }
        let InputRequest { id, call_id, kind, .. } = request.clone();
        match kind {
            InputKind::UnknownOutcome | InputKind::Question | InputKind::Elicitation => {
                self.event(EventBody::InputResolved { id: id.clone(), state, answer: None, by: None });
            }
            InputKind::Approval => self.event(EventBody::ApprovalResolved {
                id: id.clone(),
                call_id,
                status: ApprovalState::of(state, None),
                scope: None,
                edited_arguments: None,
                reason: None,
                by: None,
            }),
            // The outcome of the call follows.
            InputKind::ClientTool => {}
        }
        self.change(Change::CloseInput { id, state });
    }

    pub fn release(&mut self, after_ms: Option<u64>, cause: ReleaseCause) {
        self.change(Change::Release { after_ms, cause });
        self.command(Command::Stop);
    }
}
