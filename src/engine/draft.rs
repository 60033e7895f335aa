//! A decision while it is being made.
//!
//! Changes take effect on a working copy as they are added, so that the rules of one decision see each other's results.

use std::sync::Arc;

use super::{Command, Decision, RunState, Surroundings, analysis, approval, budget, offer, plan, repeats, results, texts};
use crate::domain::agent::{AgentProfile, BreakerAction};
use crate::domain::approval::{ApprovalRequest, ApprovalState};
use crate::domain::change::{Change, ReleaseCause, RunCounters, StepKind, StepStatus};
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::EventBody;
use crate::domain::fold::MAX_JOINED_BYTES;
use crate::domain::ids::{CallId, InputId, MessageId, PartId};
use crate::domain::input::{InputKind, InputRequest, InputState};
use crate::domain::message::{Message, MessageStatus, Part, Role, TextPart, ToolContent};
use crate::domain::model::Usage;
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::prompt::ProvidedContext;
use crate::domain::run::{FinishReason, Notice, RunStatus, WaitReason};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::support::text;

pub(super) struct Draft<'a> {
    /// The state before the decision: complete, never changed.
    pub(super) base: &'a RunState,
    /// The state so far, without earlier messages and tool definitions.
    pub(super) work: RunState,
    around: &'a Surroundings<'a>,
    decision: Decision,
}

impl<'a> Draft<'a> {
    pub(super) fn new(base: &'a RunState, around: &'a Surroundings<'a>) -> Self {
        Self { base, work: base.scratch(), around, decision: Decision::default() }
    }

    /// The finished decision. Counters and usage stand before all other changes, because nothing may follow the run's end.
    pub(super) fn done(mut self) -> Decision {
        let lets_go = |change: &Change| matches!(change, Change::Finish { .. } | Change::Release { .. });
        let is_charged = self.is_charged();
        // Whoever lets go of the run with a call reserved makes none: it costs nothing.
        if is_charged || self.decision.changes.iter().any(lets_go) {
            self.decision.changes.splice(0..0, budget::settled(self.base, self.work.record.usage));
        }
        if is_charged {
            self.decision.changes.insert(0, Change::Usage(self.work.record.usage));
        }
        if self.work.record.counters != self.base.record.counters {
            self.decision.changes.insert(0, Change::Counters(self.work.record.counters.clone()));
        }
        self.decision
    }

    pub(super) fn profile(&self) -> &'a AgentProfile {
        &self.base.record.profile
    }

    pub(super) fn counters(&mut self) -> &mut RunCounters {
        &mut self.work.record.counters
    }

    pub(super) fn charge(&mut self, usage: Usage) {
        self.work.record.usage.add(usage);
    }

    /// Whether the decision charges anything.
    pub(super) fn is_charged(&self) -> bool {
        self.work.record.usage != self.base.record.usage
    }

    pub(super) fn event(&mut self, event: EventBody) {
        self.decision.events.push(event);
    }

    pub(super) fn change(&mut self, change: Change) {
        self.work.apply(std::slice::from_ref(&change));
        self.decision.changes.push(change);
    }

    pub(super) fn command(&mut self, command: Command) {
        self.decision.commands.push(command);
    }

    pub(super) fn message_id(&self) -> MessageId {
        MessageId::generate(self.around.ids)
    }

    pub(super) fn input_id(&self) -> InputId {
        InputId::generate(self.around.ids)
    }

    pub(super) fn part_id(&self) -> PartId {
        PartId::generate(self.around.ids)
    }

    /// The run's tools.
    pub(super) fn tools(&self) -> &[Arc<ToolDefinition>] {
        self.work.record.tools.as_deref().or(self.base.record.tools.as_deref()).unwrap_or_default()
    }

    /// What context providers have said of the turn.
    pub(super) fn contexts(&self) -> &[ProvidedContext] {
        self.work.record.contexts.as_deref().or(self.base.record.contexts.as_deref()).unwrap_or_default()
    }

    /// The newest message of this run.
    pub(super) fn newest_message(&self) -> Option<&Message> {
        let newest = self.work.record.history.last().or(self.base.record.history.last())?;
        (newest.run_id == self.base.record.fence.run_id).then_some(newest)
    }

    /// Whether the run's own time limit has passed.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.is_out_of_time_after(0)
    }

    /// Whether it will have passed after a wait.
    pub(super) fn is_out_of_time_after(&self, wait_ms: u64) -> bool {
        let limit = self.profile().max_run_ms;
        limit > 0 && self.around.elapsed_ms.saturating_add(wait_ms) >= limit
    }

    /// Milliseconds until the run's own time limit; `None` without one.
    pub(super) fn time_left(&self) -> Option<u64> {
        let limit = self.profile().max_run_ms;
        (limit > 0).then(|| limit.saturating_sub(self.around.elapsed_ms))
    }

    // Status.

    pub(super) fn set_status(&mut self, status: RunStatus, reason: Option<WaitReason>) {
        let record = &self.work.record;
        if record.status == status && record.reason == reason {
            return;
        }
        let shown_before = ConversationStatus::from(record.status);
        self.change(Change::Status(status, reason));
        let shown = ConversationStatus::from(status);
        if shown != shown_before {
            self.conversation_updated(shown);
        }
    }

    fn conversation_updated(&mut self, status: ConversationStatus) {
        self.event(EventBody::ConversationUpdated { title: None, status, supersedes: Vec::new() });
    }

    // Steps.

    pub(super) fn start_step(&mut self, step: u32, kind: StepKind) {
        let tools = offer::announced(self, kind);
        self.event(EventBody::StepStarted { step, kind: kind.as_str().to_owned(), tools });
        self.change(Change::StepStarted { step, kind });
    }

    pub(super) fn complete_step(&mut self, step: u32, usage: Option<Usage>) {
        self.event(EventBody::StepCompleted { step, usage });
        self.change(Change::StepEnded { step, status: StepStatus::Completed, usage });
    }

    pub(super) fn abandon_step(&mut self, step: u32) {
        self.change(Change::StepEnded { step, status: StepStatus::Abandoned, usage: None });
    }

    /// Everything shown since the step began is void. Whoever reads the log drops it, as the rows never had it.
    pub(super) fn reset(&mut self, step: u32, reason: &str) {
        self.event(EventBody::StepReset { step, reason: reason.to_owned() });
    }

    /// The number of the model step that is under way.
    pub(super) fn open_model_step(&self) -> Option<u32> {
        self.work.open_step().filter(|row| row.kind == StepKind::Model).map(|row| row.step)
    }

    /// The number of the tool step that is under way.
    pub(super) fn open_tool_step(&self) -> Option<u32> {
        self.work.open_step().filter(|row| row.kind == StepKind::Tools).map(|row| row.step)
    }

    // Messages.

    fn message(&self, role: Role, parts: Vec<Part>) -> Message {
        let fence = &self.base.record.fence;
        Message {
            id: self.message_id(),
            conversation_id: fence.conversation_id.clone(),
            run_id: fence.run_id.clone(),
            role,
            status: MessageStatus::Complete,
            parts,
            finish_reason: None,
            model: None,
            usage: None,
            internal: false,
            feedback: None,
            created_at: self.around.now.to_rfc3339(),
        }
    }

    fn text_part(&self, text: &str) -> Part {
        Part::Text(TextPart { id: self.part_id(), text: text.to_owned() })
    }

    /// A hint to the model, which clients hide.
    pub(super) fn hint(&mut self, text: &str) {
        let message = Message { internal: true, ..self.message(Role::User, vec![self.text_part(text)]) };
        self.event(EventBody::MessageCreated { message: message.clone() });
        self.change(Change::AddMessage(message));
    }

    /// Keeps an answer that is not the end of the work for the model alone. Whoever has seen it drops it, as whoever reads the rows
    /// is told to hide it.
    pub(super) fn set_aside(&mut self, step: u32, message: Message) {
        let message = Message { internal: true, ..message };
        self.reset(step, "continuation");
        self.event(EventBody::MessageCreated { message: message.clone() });
        self.change(Change::AddMessage(message));
    }

    /// The next model call is the last one, and gets no tools.
    pub(super) fn force_final(&mut self, hint: &str) {
        self.counters().force_final = true;
        self.hint(hint);
    }

    /// An assistant message that no model wrote, shown like one.
    pub(super) fn say(&mut self, text: &str, finish_reason: FinishReason) {
        let part = self.text_part(text);
        let message = Message { finish_reason: Some(finish_reason), ..self.message(Role::Assistant, vec![part]) };
        self.show(&message);
        self.event(EventBody::MessageCompleted { message: message.clone() });
        self.change(Change::AddMessage(message));
    }

    /// Shows the words of an assistant message all at once, up to its end.
    pub(super) fn show(&mut self, message: &Message) {
        let message_id = &message.id;
        self.event(EventBody::MessageStarted { message_id: message_id.clone(), role: message.role });
        for (part, index) in message.parts.iter().zip(0_u32..) {
            let (kind, text) = match part {
                Part::Text(part) => ("text", &part.text),
                Part::Reasoning(part) => ("reasoning", &part.text),
                Part::ToolCall(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) => continue,
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
            for delta in text::pieces(text, MAX_JOINED_BYTES) {
                self.event(EventBody::PartDelta { part_id: part_id.clone(), delta: delta.to_owned() });
            }
            self.event(EventBody::PartCompleted { message_id: message_id.clone(), part: part.clone() });
        }
    }

    /// The results of a step's calls as one message, in call order.
    pub(super) fn add_tool_message(&mut self, step: u32) {
        let limit = self.profile().tool_result_chars;
        let part = |call: &ToolCall| {
            let mut part = results::part(self.part_id(), call, limit);
            // One that was answered with an earlier one has done nothing that could be taken back.
            let is_quoted =
                || repeats::answered_before((self.profile(), self.tools(), &self.work.record), std::iter::empty(), call).is_some();
            part.undoable = call.state == ToolCallState::Done && self.has_undo(&call.name) && !is_quoted();
            if let Some(repair) = &call.repair {
                part.content.insert(0, ToolContent::text(texts::mended(repair, &call.name)));
            }
            if approval::is_edited(self, call) {
                part.content.insert(0, ToolContent::text(texts::edited_arguments(&call.arguments)));
            }
            Part::ToolResult(part)
        };
        let parts = self.work.batch(step).map(part).collect();
        let message = self.message(Role::Tool, parts);
        self.event(EventBody::MessageStarted { message_id: message.id.clone(), role: Role::Tool });
        self.event(EventBody::MessageCompleted { message: message.clone() });
        self.change(Change::AddMessage(message));
    }

    // Calls.

    /// A call is handed to its tool, for the first time or again.
    pub(super) fn run_call(&mut self, id: &CallId) {
        self.start_call(id);
        self.follow_call(id);
    }

    /// Tells that a call is handed to its tool.
    pub(super) fn start_call(&mut self, id: &CallId) {
        let Some(call) = self.work.record.call(id).cloned() else { return };
        self.event(EventBody::ToolStarted {
            call_id: call.id.clone(),
            name: call.name.clone(),
            server: call.server.clone(),
            arguments: call.arguments.clone(),
            repair: call.repair.clone(),
            undoes: call.undoes.clone(),
        });
        if call.has_not_begun() {
            self.change(Change::ToolStarted(call.id.clone()));
        }
    }

    /// The server of a call works on it under a name: it is asked for that, and nobody sees a second start.
    pub(super) fn follow_call(&mut self, id: &CallId) {
        if let Some(call) = self.work.record.call(id).cloned() {
            self.command(Command::RunTool(call));
        }
    }

    /// The server of a call that was started is asked what became of it.
    pub(super) fn reconcile_call(&mut self, id: &CallId) {
        if let Some(call) = self.work.record.call(id).cloned() {
            self.command(Command::Reconcile(call));
        }
    }

    /// A call that an earlier run may have made counts as made from now on, and its server is asked. Its `tool.started` stands in the log of
    /// that run; another one follows if it is handed to its tool.
    pub(super) fn take_over_call(&mut self, id: &CallId) {
        self.change(Change::ToolStarted(id.clone()));
        self.reconcile_call(id);
    }

    /// A call gets its one outcome.
    pub(super) fn finish_call(&mut self, id: &CallId, mut outcome: ToolOutcome) {
        let Some(call) = self.work.record.call(id).filter(|call| !call.state.is_outcome()) else { return };
        let (name, server, arguments) = (call.name.clone(), call.server.clone(), call.arguments.clone());
        let is_made = call.state == ToolCallState::Started;
        // One that has its outcome otherwise needs nobody's consent any more.
        if let Some(question) = self.work.question_about(id).filter(|question| question.kind == InputKind::Approval).cloned() {
            self.close_question(&question, InputState::Cancelled);
        }
        if outcome.state == ToolCallState::Failed {
            self.trip_breaker(&name, &mut outcome);
        }
        let event = if outcome.state == ToolCallState::Unknown {
            EventBody::ToolOutcomeUnknown { call_id: id.clone(), name, server, arguments }
        } else {
            let (content, cut) = results::cut(&outcome.content, self.profile().tool_result_chars);
            // A repeated call is answered without being made.
            let undoable = is_made && outcome.state == ToolCallState::Done && self.has_undo(&name);
            EventBody::ToolCompleted {
                call_id: id.clone(),
                name,
                server,
                state: outcome.state,
                content,
                is_error: outcome.is_error,
                duration_ms: outcome.duration_ms,
                truncated: cut == results::Cut::Shortened,
                undoable,
            }
        };
        self.event(event);
        self.change(Change::ToolFinished(id.clone(), outcome));
    }

    /// Whether calls of a tool can be taken back.
    pub(super) fn has_undo(&self, name: &str) -> bool {
        let tools = || self.base.record.tools.iter().flatten();
        let rule = tools().find(|tool| tool.name == name).and_then(|tool| Some((&tool.server, tool.undo.as_ref()?)));
        rule.is_some_and(|(server, rule)| tools().any(|tool| tool.server == *server && tool.tool == rule.tool))
    }

    /// Takes a tool away whose failure about to be stored is one too many.
    fn trip_breaker(&mut self, name: &str, outcome: &mut ToolOutcome) {
        let profile = self.profile();
        let failures = self.failures(name).saturating_add(1);
        let is_real = self.base.record.tools.iter().flatten().any(|tool| tool.name == name);
        if profile.breaker_failures == 0 || failures < profile.breaker_failures || !is_real {
            return;
        }
        match profile.breaker_action {
            BreakerAction::DropTool => {
                let dropped = &mut self.counters().dropped_tools;
                if !dropped.iter().any(|known| known == name) {
                    dropped.push(name.to_owned());
                    outcome.content.push(ToolContent::text(texts::last_failure(name, failures)));
                }
            }
            // Judged when the whole batch has its outcomes.
            BreakerAction::ForceFinal => {}
        }
    }

    /// How often a tool has failed by now: in this run, and before it as far as that counts. Calls that the loop itself did not let
    /// through are `Cancelled`, not `Failed`.
    pub(super) fn failures(&self, name: &str) -> u32 {
        let in_state = |state: ToolCallState| {
            self.work.record.calls.iter().filter(move |call| call.name == name && call.state == state).count()
        };
        let before = self.work.record.counters.failed_before.get(name).filter(|_| in_state(ToolCallState::Done) == 0);
        let failed = u32::try_from(in_state(ToolCallState::Failed)).unwrap_or(u32::MAX);
        failed.saturating_add(before.copied().unwrap_or(0))
    }

    /// Whether a tool has failed once too often. One that has failed in this run only has: what has broken before may have been mended,
    /// and nobody would know if it were never called again.
    pub(super) fn is_broken(&self, name: &str) -> bool {
        let limit = self.profile().breaker_failures;
        let fails_now = |call: &Arc<ToolCall>| call.name == name && call.state == ToolCallState::Failed;
        limit > 0 && self.failures(name) >= limit && self.work.record.calls.iter().any(fails_now)
    }

    // Questions.

    /// A human is asked.
    pub(super) fn ask(&mut self, request: InputRequest) {
        let InputRequest { id, call_id, kind, question, .. } = request.clone();
        self.event(match ApprovalRequest::of(&question) {
            Some(request) => EventBody::ApprovalRequested { id, call_id, request: Box::new(request) },
            None => EventBody::InputRequested { id, kind, call_id, question },
        });
        self.change(Change::AskInput(request));
    }

    /// The questions that are left are not open any more, because the run ends.
    fn close_questions(&mut self) {
        for request in std::mem::take(&mut self.work.record.inputs) {
            self.close_question(&request, InputState::Cancelled);
        }
    }

    /// A question is not open any more. One that has its answer keeps it, though nothing follows from it, and has been told already.
    pub(super) fn close_question(&mut self, request: &InputRequest, state: InputState) {
        if request.answer.is_some() {
            self.change(Change::InputClosed { id: request.id.clone(), state: InputState::Applied });
            return;
        }
        let InputRequest { id, call_id, kind, .. } = request.clone();
        self.event(match kind {
            InputKind::UnknownOutcome | InputKind::Question | InputKind::Elicitation => {
                EventBody::InputResolved { id: id.clone(), state, answer: None, by: None }
            }
            InputKind::Approval => EventBody::ApprovalResolved {
                id: id.clone(),
                call_id,
                status: ApprovalState::of(state, None),
                scope: None,
                edited_arguments: None,
                reason: None,
                by: None,
            },
        });
        self.change(Change::InputClosed { id, state });
    }

    // Ends.

    /// Gives every open call its outcome and closes the open step, so that the history can be sent whatever ended the run. What
    /// an unfinished model step has shown and nobody has kept is void, for `reason`.
    fn settle(&mut self, reason: &str) {
        self.close_questions();
        let open: Vec<(CallId, ToolOutcome)> = self
            .work
            .record
            .calls
            .iter()
            .filter_map(|call| {
                let (state, text) = match call.state {
                    ToolCallState::Planned | ToolCallState::AwaitingApproval => (ToolCallState::Cancelled, texts::NEVER_BEGUN),
                    ToolCallState::Started if call.replay.may_repeat() => (ToolCallState::Cancelled, texts::STOPPED_AT_END),
                    ToolCallState::Started => (ToolCallState::Unknown, texts::UNKNOWN_AT_END),
                    ToolCallState::Done
                    | ToolCallState::Failed
                    | ToolCallState::Denied
                    | ToolCallState::Cancelled
                    | ToolCallState::Unknown => return None,
                };
                Some((call.id.clone(), ToolOutcome { state, ..ToolOutcome::failed(text, 0) }))
            })
            .collect();
        for (id, outcome) in open {
            self.finish_call(&id, outcome);
        }
        if let Some(step) = self.open_tool_step() {
            self.add_tool_message(step);
            self.complete_step(step, None);
        }
        if let Some(step) = self.open_model_step() {
            self.reset(step, reason);
            self.abandon_step(step);
        }
        plan::end(self);
    }

    /// The end of a run whose models all failed and whose profile has words for that: the user has an answer, and the run says
    /// what it is worth.
    pub(super) fn complete_without_model(&mut self, text: &str, error: ProblemBody) {
        self.settle("failed");
        self.say(text, FinishReason::Stop);
        self.finish_completed(FinishReason::Stop, Some(error));
    }

    pub(super) fn complete(&mut self, finish_reason: FinishReason) {
        self.finish_completed(finish_reason, None);
    }

    fn finish_completed(&mut self, finish_reason: FinishReason, error: Option<ProblemBody>) {
        let joined = Some(self.base.record.joined);
        let usage = self.work.record.usage;
        self.conversation_updated(ConversationStatus::from(RunStatus::Completed));
        let notice = analysis::ends_with_empty_claim(self).then_some(Notice::NothingWritten);
        self.event(EventBody::RunCompleted { finish_reason, usage, error: error.clone(), notice });
        self.change(Change::Finish { status: RunStatus::Completed, finish_reason: Some(finish_reason), error, joined });
        self.command(Command::Stop);
    }

    pub(super) fn fail(&mut self, code: ProblemCode, detail: impl Into<String>) {
        self.end_with(code.body(detail));
    }

    /// Fails the run with an error that would come again, although others with its code may not.
    pub(super) fn fail_for_good(&mut self, code: ProblemCode, detail: impl Into<String>) {
        self.end_with(ProblemBody { retryable: false, ..code.body(detail) });
    }

    fn end_with(&mut self, mut error: ProblemBody) {
        self.settle("failed");
        // A run that was there to take a call back cannot be resumed.
        error.retryable &= !self.only_undoes();
        self.conversation_updated(ConversationStatus::from(RunStatus::Failed));
        self.event(EventBody::RunFailed { error: error.clone() });
        self.change(Change::Finish { status: RunStatus::Failed, finish_reason: None, error: Some(error), joined: None });
        self.command(Command::Stop);
    }

    /// Returns whether the run was made to take a call back, and no message of a user has joined it.
    fn only_undoes(&self) -> bool {
        let record = &self.base.record;
        let is_asked = |message: &Message| message.role == Role::User && !message.internal && message.run_id == record.fence.run_id;
        record.calls.iter().any(|call| call.undoes.is_some()) && !record.history.iter().any(is_asked)
    }

    pub(super) fn cancel(&mut self, by: String) {
        self.settle("cancelled");
        self.conversation_updated(ConversationStatus::from(RunStatus::Cancelled));
        self.event(EventBody::RunCancelled { by });
        let finish_reason = Some(FinishReason::Cancelled);
        self.change(Change::Finish { status: RunStatus::Cancelled, finish_reason, error: None, joined: None });
        self.command(Command::Stop);
    }

    /// Gives up the lease of a run that has not ended.
    pub(super) fn release(&mut self, after_ms: Option<u64>, cause: ReleaseCause) {
        self.change(Change::Release { after_ms, cause });
        self.command(Command::Stop);
    }
}
