//! The store, the model and the tools as the engine sees them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::{Message, Part, Role, TextPart, ToolContent};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId, UserId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelRequest, Usage};
use crate::domain::problem::ProblemBody;
use crate::domain::run::budget::{Amount, LostReservation, ReservationOutcome, ReservationRequest};
use crate::domain::run::change::{Change, ReleaseCause, StepKind, StepStatus};
use crate::domain::run::context::{Capacity, ContextStrategy};
use crate::domain::run::question::{InputAnswer, InputKind, InputRequest, InputState};
use crate::domain::run::record::{ClaimCause, Fence, RunRecord};
use crate::domain::run::request_record::{MAX_RECORD_BYTES, SentTool, text_limits};
use crate::domain::run::step_request::{RecordedSteps, StepRequest};
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::approval::ToolGrant;
use crate::domain::tool::tool_filter::{RankedTools, SelectionMethod};
use crate::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::engine::request::build::{PreparedRequest, prepare_request};
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::window::remaining::TokenBudget;
use crate::engine::{
    Assembler, Command, Decision, DecisionEnvironment, Input, PartialAnswer, RunFacts, RunState, StreamItem, model_request,
};
use crate::engine::{check_sendable, decide};
use crate::support::clock::UnixMillis;
use crate::support::ids::SequentialIds;

pub(super) const NOW: UnixMillis = UnixMillis(1_767_225_600_000);

pub(super) fn tool(name: &str, replay: ReplayClass) -> ToolDefinition {
    ToolDefinition { server: Some("files".to_owned()), ..ToolDefinition::new(name, "", json!({"type": "object"}), replay) }
}

/// Returns the tools: `read` may be repeated, `write` may not, and `paid` reconciles `pay`.
pub(super) fn tools() -> Vec<Arc<ToolDefinition>> {
    let pay = ReplayClass::Reconcile { tool: "paid".to_owned() };
    vec![tool("pay", pay).into(), tool("read", ReplayClass::Read).into(), tool("write", ReplayClass::Unsafe).into()]
}

/// A part of a scripted answer.
#[derive(Debug, Clone)]
pub(super) enum Say {
    Reasoning(&'static str),
    Text(&'static str),
    Words(String),
    Call(&'static str, String),
}

pub(super) fn call(name: &'static str, arguments: &Value) -> Say {
    Say::Call(name, arguments.to_string())
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub(super) status: RunStatus,
    pub(super) reason: Option<FinishReason>,
    pub(super) error: Option<ProblemBody>,
}

/// A run with its rows, its worker's memory, and the external state that the engine must respect.
pub(super) struct World {
    pub(super) ids: SequentialIds,
    /// The rows, which are updated from the changes independently of `RunState::apply`.
    pub(super) rows: RunRecord,
    pub(super) events: Vec<EventBody>,
    pub(super) ending: Option<Ending>,
    /// The worker's memory, or `None` while no worker has the run.
    pub(super) state: Option<RunState>,
    /// The request of the model call under way.
    pub(super) asked: Option<ModelRequest>,
    /// The stored records of requests, by step.
    pub(super) recorded: BTreeMap<u32, String>,
    /// The deltas of the call so far, and the number of tool calls in it.
    saying: Option<(Assembler, usize)>,
    pub(super) under_way: Vec<ToolCall>,
    /// Calls that are being reconciled.
    pub(super) in_question: Vec<ToolCall>,
    /// The parts of user messages in any request.
    pub(super) asked_about: HashSet<PartId>,
    /// How often each call was sent to its tool.
    pub(super) executions: HashMap<CallId, u32>,
    /// The grants from approvals.
    pub(super) grants: Vec<ToolGrant>,
    pub(super) released: Option<(Option<u64>, ReleaseCause)>,
    pub(super) elapsed_ms: u64,
    /// The usage of abandoned calls.
    pub(super) spent: Usage,
    pub(super) decisions: u32,
    /// The context windows of the models.
    pub(super) capacities: Vec<(String, Capacity)>,
    /// The store's next answers to reservations. After them, every reservation is granted.
    pub(super) reservations: VecDeque<ReservationOutcome>,
    /// The reserved amounts, and the settled ones.
    pub(super) reserved: Vec<Amount>,
    pub(super) settled: Vec<Amount>,
    /// The current reservation.
    pub(super) held: Option<LostReservation>,
}

/// A message with its parts. An incomplete part is `None`.
type Shown = (MessageId, Vec<(PartId, Option<Part>)>);

impl World {
    pub(super) fn new(profile: AgentProfile) -> Self {
        let ids = SequentialIds::default();
        let fence = Fence { run_id: RunId::generate(&ids), conversation_id: ConversationId::generate(&ids), epoch: 1 };
        let rows = RunRecord::first(fence, UserId::generate(&ids), profile);
        let mut world = Self {
            ids,
            rows,
            events: Vec::new(),
            ending: None,
            state: None,
            asked: None,
            recorded: BTreeMap::new(),
            saying: None,
            under_way: Vec::new(),
            in_question: Vec::new(),
            asked_about: HashSet::new(),
            executions: HashMap::new(),
            grants: Vec::new(),
            released: None,
            elapsed_ms: 0,
            spent: Usage::default(),
            decisions: 0,
            capacities: Vec::new(),
            reservations: VecDeque::new(),
            reserved: Vec::new(),
            settled: Vec::new(),
            held: None,
        };
        let question = world.user("What is in the file?");
        world.rows.history.push(question);
        world
    }

    pub(super) fn started(profile: AgentProfile) -> Self {
        let mut world = Self::new(profile);
        world.claim(ClaimCause::First);
        world
    }

    pub(super) fn user(&self, text: &str) -> Message {
        Message {
            created_at: NOW.to_rfc3339(),
            ..Message::new(
                MessageId::generate(&self.ids),
                (self.rows.fence.run_id.clone(), self.rows.fence.conversation_id.clone()),
                Role::User,
                vec![Part::Text(TextPart { id: PartId::generate(&self.ids), text: text.to_owned() })],
            )
        }
    }

    /// Lets a message join the run, and notifies its worker at once, if there is one.
    pub(super) fn join(&mut self, text: &str) -> Message {
        let message = self.user(text);
        self.rows.history.push(message.clone());
        self.rows.joined += 1;
        if self.state.is_some() {
            assert_eq!(self.feed(Input::Joined(message.clone())), Decision::default());
            assert_eq!(self.feed(Input::Joined(message.clone())), Decision::default());
        }
        message
    }

    // The worker.

    pub(super) fn decide(&mut self, input: Input) -> Decision {
        let around = DecisionEnvironment { now: NOW, ids: &self.ids, elapsed_ms: self.elapsed_ms, spent: self.spent };
        decide(self.state.as_mut().expect("somebody holds the run"), input, &around)
    }

    /// Decides, commits and executes the commands. Tools are ranked by name.
    pub(super) fn feed(&mut self, input: Input) -> Decision {
        let decision = self.decide(input);
        self.commit(&decision);
        self.carry_out(&decision);
        if decision.commands.contains(&Command::RankTools) {
            self.rank();
        }
        if let Some(Command::Reserve(reserve)) = decision.commands.first() {
            return self.reserve(*reserve);
        }
        decision
    }

    fn reserve(&mut self, reserve: ReservationRequest) -> Decision {
        self.reserved.push(reserve.amount);
        let answer = self.reservations.pop_front().unwrap_or(ReservationOutcome::Granted { day: 1 });
        self.held = match answer {
            ReservationOutcome::Granted { day } => Some(LostReservation { day, amount: reserve.amount }),
            ReservationOutcome::Busy | ReservationOutcome::Spent { .. } => None,
        };
        self.feed(Input::Reserved(reserve, answer))
    }

    fn rank(&mut self) {
        let state = self.state.as_ref().expect("somebody holds the run");
        let names = state.usable_tools().into_iter().map(|tool| tool.name.clone()).collect();
        self.feed(Input::ToolsRanked(RankedTools { by: SelectionMethod::Lexical, names }));
    }

    /// Decides and commits. Then the worker crashes.
    pub(super) fn feed_and_die(&mut self, input: Input) {
        let decision = self.decide(input);
        self.commit(&decision);
        self.die();
    }

    pub(super) fn die(&mut self) {
        self.state = None;
        self.spent = Usage::default();
        self.asked = None;
        self.saying = None;
        self.under_way.clear();
        self.in_question.clear();
    }

    /// Claims the run.
    pub(super) fn claim(&mut self, cause: ClaimCause) -> Decision {
        self.claim_with(cause, tools())
    }

    pub(super) fn claim_with(&mut self, cause: ClaimCause, tools: Vec<Arc<ToolDefinition>>) -> Decision {
        self.load(cause);
        self.feed(Input::Claimed { tools, contexts: None, finished: Vec::new() })
    }

    pub(super) fn load(&mut self, cause: ClaimCause) {
        assert!(self.ending.is_none(), "a run that has ended cannot be claimed");
        if cause != ClaimCause::First {
            self.rows.attempt += 1;
        }
        self.rows.cause = cause;
        self.rows.crashes = if cause == ClaimCause::Crash { self.rows.crashes + 1 } else { self.rows.crashes };
        self.released = None;
        self.rows.lost = self.held;
        let mut state = RunState::load(self.loaded());
        state.set_facts(RunFacts { grants: self.grants.clone(), capacities: self.capacities.clone(), ..RunFacts::default() });
        self.state = Some(state);
    }

    /// Returns the rows as a store loads them: of summarized messages, only the user's question.
    pub(super) fn loaded(&self) -> RunRecord {
        let mut rows = self.rows.clone();
        let at = |covers: &MessageId| 1 + rows.history.iter().position(|message| message.id == *covers).unwrap();
        let later = rows.history.split_off(rows.summary.as_ref().map_or(0, |summary| at(&summary.covers)));
        let asked = rows.summary.as_ref().map(|summary| summary.asked.clone()).unwrap_or_default();
        let is_own = |message: &Message| message.run_id == rows.fence.run_id && message.role == Role::User;
        rows.history.retain(|message| is_own(message) || asked.contains(&message.id));
        rows.covered = rows.history.len();
        rows.history.extend(later);
        rows
    }

    /// Checks that the stored record and the rows give the request of the open step.
    fn check_record(&self, request: &ModelRequest) {
        let step = self.rows.steps.last().expect("a step has begun").step;
        let rebuilt = self.rebuilt(step);
        let is_left_out = !rebuilt.missing.is_empty();
        if is_left_out {
            let bytes = serde_json::to_string(&request.messages).unwrap().len();
            assert!(bytes + 1_000 > MAX_RECORD_BYTES, "{bytes} bytes are left out: {:?}", rebuilt.missing);
        } else {
            assert_eq!(rebuilt.missing, [""; 0]);
        }
        assert_eq!((&rebuilt.model, rebuilt.system.as_ref()), (&request.model, Some(&request.system)));
        assert_eq!((&rebuilt.options, rebuilt.window), (&json!(request.options), request.window));
        assert_eq!(rebuilt.tools, request.tools.iter().map(|tool| SentTool::of(tool)).collect::<Vec<_>>());
        // The messages of tools have the id of their answer in a request, and their own id in rows.
        let sent = |messages: &[Message]| -> Vec<_> {
            let id = |message: &Message| (message.role != Role::Tool).then(|| message.id.clone());
            messages.iter().map(|message| (id(message), message.role, message.internal, message.parts.clone())).collect()
        };
        if !is_left_out {
            assert_eq!(sent(&rebuilt.messages), sent(&request.messages));
            let limits = request.messages.iter().flat_map(text_limits).collect::<BTreeMap<_, _>>();
            assert_eq!(rebuilt.text_limits, limits);
        }
    }

    /// Returns the request of a step, rebuilt from the rows.
    pub(super) fn rebuilt(&self, step: u32) -> StepRequest {
        let records = self.recorded.iter().map(|(step, text)| (*step, serde_json::from_str(text).unwrap()));
        let recorded = RecordedSteps::new(records);
        let known = self.rows.history.iter().map(|message| (message.id.clone(), message.clone())).collect();
        let tools = self.rows.tools.clone().unwrap_or_default();
        recorded.rebuild(&self.rows.fence.run_id, step, &known, &tools).expect("the step has a record")
    }

    fn carry_out(&mut self, decision: &Decision) {
        for command in &decision.commands {
            match command {
                Command::CallModel(request) => {
                    assert!(self.asked.is_none() && self.under_way.is_empty(), "one step at a time");
                    let request = (**request).clone();
                    assert_eq!(request, model_request(self.state.as_ref().unwrap()), "the rows make the same request");
                    self.check_record(&request);
                    check_sendable(&request.messages).unwrap();
                    let room = room(&RequestSource::of(self.state.as_ref().unwrap()));
                    let may_exceed = self.rows.profile.context.strategy == ContextStrategy::None;
                    assert!(may_exceed || room.is_none_or(|room| room.remaining >= 0), "{room:?}");
                    let user = request.messages.iter().filter(|message| message.role == Role::User);
                    self.asked_about.extend(user.flat_map(|message| &message.parts).map(|part| part.id().clone()));
                    self.asked = Some(request);
                }
                Command::RankTools | Command::Reserve(_) => {
                    assert!(self.asked.is_none() && self.under_way.is_empty(), "one step at a time");
                }
                Command::RunTool(call) => {
                    let row = self.rows.calls.iter().find(|row| row.id == call.id).expect("the call has a row");
                    assert_eq!(row.state, ToolCallState::Started, "committed before it is carried out");
                    assert!(row.arguments.get("_raw").is_none(), "arguments that are no JSON object are never executed");
                    *self.executions.entry(call.id.clone()).or_default() += 1;
                    self.under_way.push((**call).clone());
                }
                Command::Reconcile(call) => {
                    assert_eq!(call.state, ToolCallState::Started);
                    self.in_question.push((**call).clone());
                }
                Command::Stop => self.die(),
            }
        }
    }

    // The store.

    pub(super) fn commit(&mut self, decision: &Decision) {
        self.decisions += 1;
        self.spent = Usage::default();
        for event in &decision.events {
            let ended = self.events.iter().any(ends_run);
            assert!(!ended, "{} follows the end of the run", event.kind());
            self.events.push(event.clone());
        }
        for change in &decision.changes {
            assert!(self.ending.is_none(), "{change:?} follows the end of the run");
            assert!(self.released.is_none(), "{change:?} follows the release");
            self.store(change);
        }
        if let Some(state) = &mut self.state {
            state.apply(&decision.changes);
            // Memory and rows must agree.
            let later = &state.record.history[state.record.covered..];
            assert!(self.rows.history.ends_with(later));
            assert_eq!(state.record.summary, self.rows.summary);
            assert_eq!(state.record.calls, self.rows.calls);
            assert_eq!(state.record.steps, self.rows.steps);
            // A worker sees answers when it loads the run again.
            let asked = |record: &RunRecord| record.inputs.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
            assert_eq!(asked(&state.record), asked(&self.rows));
            assert_eq!(state.record.counters, self.rows.counters);
            assert_eq!(state.record.joined, self.rows.joined);
            assert_eq!(state.record.status, self.rows.status);
        }
        assert_eq!(self.ending.is_some(), self.events.last().is_some_and(ends_run), "the last event of a run is its end");
    }

    fn store(&mut self, change: &Change) {
        let rows = &mut self.rows;
        match change {
            Change::SetStatus(status, reason) => {
                assert!(!status.is_terminal());
                (rows.status, rows.reason) = (*status, *reason);
            }
            Change::Start => {}
            Change::FreezeTools(tools) => {
                assert!(rows.tools.replace(tools.clone()).is_none(), "tools are frozen once");
            }
            Change::StoreContexts(contexts) => {
                assert!(rows.contexts.replace(contexts.clone()).is_none(), "providers are asked once");
            }
            Change::SetCounters(counters) => rows.counters = counters.clone(),
            Change::SetSummary(summary) => rows.summary = Some(summary.clone()),
            Change::SetUsage(usage) => rows.usage = *usage,
            Change::ChargeBudget { day: _, amount } => {
                self.settled.push(*amount);
                (self.held, rows.lost) = (None, None);
            }
            Change::StartStep { step, kind, request } => {
                assert_eq!(request.is_some(), *kind == StepKind::Model, "each model step has a record");
                self.recorded.extend(request.as_ref().map(|request| (*step, request.text.clone())));
                assert!(rows.steps.iter().all(|row| row.step == *step || row.status != StepStatus::Started), "one step at a time");
                match rows.steps.iter_mut().find(|row| row.step == *step) {
                    Some(row) => {
                        assert_eq!(row.kind, *kind);
                        assert_ne!(row.status, StepStatus::Completed, "a finished step stays finished");
                        row.status = StepStatus::Started;
                    }
                    None => {
                        assert_eq!(*step as usize, rows.steps.len() + 1, "steps count from 1 without a gap");
                        rows.steps.push(crate::domain::run::change::StepRow {
                            run_id: rows.fence.run_id.clone(),
                            step: *step,
                            kind: *kind,
                            status: StepStatus::Started,
                        });
                    }
                }
            }
            Change::EndStep { step, status, .. } => {
                let row = rows.steps.iter_mut().find(|row| row.step == *step).expect("the step has begun");
                assert_eq!(row.status, StepStatus::Started);
                row.status = *status;
            }
            Change::AddMessage(message) => {
                assert!(rows.history.iter().all(|known| known.id != message.id));
                rows.history.push(message.clone());
            }
            Change::AddToolCalls(calls) => {
                for call in calls {
                    assert!(rows.calls.iter().all(|known| known.id != call.id));
                    assert!(rows.history.iter().any(|message| message.id == call.message_id), "a call belongs to a message");
                    assert_eq!(call.state, ToolCallState::Planned);
                    rows.calls.push(Arc::new(call.clone()));
                }
            }
            Change::GrantCall { id, grant: _ } => assert!(row_of(&mut rows.calls, id).has_not_begun()),
            Change::StartCall(id) => {
                let row = row_of(&mut rows.calls, id);
                assert!(row.has_not_begun());
                row.state = ToolCallState::Started;
            }
            Change::SetHandle(id, handle) => {
                let row = row_of(&mut rows.calls, id);
                assert_eq!(row.state, ToolCallState::Started);
                row.handle.clone_from(handle);
            }
            Change::RequestApproval(id) => {
                let row = row_of(&mut rows.calls, id);
                assert_eq!(row.state, ToolCallState::Planned);
                row.state = ToolCallState::AwaitingApproval;
            }
            Change::EditCall { id, arguments, hash } => {
                let row = row_of(&mut rows.calls, id);
                assert!(row.has_not_begun());
                (row.arguments, row.arguments_hash, row.key) = (arguments.clone(), hash.clone(), None);
            }
            Change::FinishCall(id, outcome) => {
                let row = row_of(&mut rows.calls, id);
                assert!(!row.state.is_outcome(), "a call has one outcome");
                assert!(outcome.state.is_outcome());
                row.state = outcome.state;
                row.outcome = Some(outcome.clone());
            }
            Change::RequestInput(request) => {
                let is_other = |known: &InputRequest| known.call_id != request.call_id || known.kind == InputKind::Elicitation;
                assert!(rows.inputs.iter().all(is_other), "one open question for each call, except those of servers");
                rows.inputs.push(request.clone());
            }
            Change::CloseInput { id, state } => {
                let at = rows.inputs.iter().position(|row| row.id == *id).expect("the question is open");
                let row = rows.inputs.remove(at);
                let is_right = match state {
                    InputState::Applied => row.state == InputState::Answered,
                    InputState::Expired => row.state == InputState::Pending && row.expires_in_ms == Some(0),
                    InputState::Cancelled => true,
                    InputState::Pending | InputState::Answered => false,
                };
                assert!(is_right, "{row:?} becomes {state:?}");
            }
            Change::Finish { status, finish_reason, error, joined } => {
                assert!(status.is_terminal());
                assert!(joined.is_none_or(|heard| heard == rows.joined), "the end includes every message");
                assert_eq!(joined.is_some(), *status == RunStatus::Completed);
                let has_last_words = *status == RunStatus::Completed && rows.profile.final_text.is_some();
                assert!(has_last_words || error.is_some() == (*status == RunStatus::Failed));
                assert!(rows.inputs.is_empty(), "no question is left open");
                (rows.status, rows.reason) = (*status, None);
                self.ending = Some(Ending { status: *status, reason: *finish_reason, error: error.clone() });
            }
            Change::Release { after_ms, cause } => self.released = Some((*after_ms, *cause)),
        }
    }

    // The model and the tools.

    /// Streams a part of the model's answer through the assembler.
    pub(super) fn show(&mut self, say: &[Say]) {
        let state = self.state.as_ref().expect("somebody holds the run");
        let fresh = || (Assembler::of(state, &model_request(state)), 0);
        let (assembler, calls) = self.saying.get_or_insert_with(fresh);
        let mut shown = Vec::new();
        for piece in say {
            match piece {
                Say::Reasoning(text) => shown.extend(assembler.push(ModelEvent::Reasoning((*text).to_owned()), &self.ids)),
                Say::Text(text) => shown.extend(assembler.push(ModelEvent::Text((*text).to_owned()), &self.ids)),
                Say::Words(text) => shown.extend(assembler.push(ModelEvent::Text(text.clone()), &self.ids)),
                Say::Call(name, arguments) => {
                    let index = *calls;
                    *calls += 1;
                    let begun = ModelEvent::ToolCallStarted { index, provider_call_id: String::new(), name: (*name).to_owned() };
                    shown.extend(assembler.push(begun, &self.ids));
                    shown.extend(assembler.push(ModelEvent::ToolCallArguments { index, delta: arguments.clone() }, &self.ids));
                }
            }
        }
        self.see(shown);
    }

    fn see(&mut self, shown: Vec<StreamItem>) {
        self.events.extend(shown.into_iter().map(|item| match item {
            StreamItem::Event(event) => event,
            StreamItem::Delta(part_id, delta) => EventBody::PartDelta { part_id, delta },
        }));
    }

    /// Returns the input for a scripted answer.
    pub(super) fn answer(&mut self, say: &[Say], finish: ModelFinish) -> Input {
        self.show(say);
        self.asked = None;
        let (mut assembler, _) = self.saying.take().expect("the model has been heard");
        assembler.push(ModelEvent::Usage(Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() }), &self.ids);
        let shown = assembler.push(ModelEvent::Finished(finish), &self.ids);
        self.see(shown);
        let (message, turn, closing) = assembler.finish(&self.ids, NOW).unwrap();
        Input::ModelFinished { message, turn, closing }
    }

    /// Abandons the model call.
    pub(super) fn hang_up(&mut self) -> Option<PartialAnswer> {
        self.asked = None;
        let (assembler, _) = self.saying.take()?;
        self.spent.add(assembler.spent());
        assembler.partial(NOW)
    }

    pub(super) fn says(&mut self, say: &[Say], finish: ModelFinish) -> Decision {
        let input = self.answer(say, finish);
        self.feed(input)
    }

    pub(super) fn says_text(&mut self, text: &'static str) -> Decision {
        self.says(&[Say::Text(text)], ModelFinish::Stop)
    }

    pub(super) fn calls(&mut self, calls: &[Say]) -> Decision {
        self.says(calls, ModelFinish::ToolCalls)
    }

    pub(super) fn fails(&mut self, kind: ModelErrorKind) -> Decision {
        self.hang_up();
        self.feed(Input::ModelFailed(ModelError::new(kind, "no luck")))
    }

    /// Completes the `at`-th tool call under way with this text.
    pub(super) fn tool_says(&mut self, at: usize, text: &str) -> Decision {
        let outcome = done(text);
        self.tool_ends(at, outcome)
    }

    pub(super) fn tool_fails(&mut self, at: usize) -> Decision {
        self.tool_ends(at, ToolOutcome::failed("it broke", 3))
    }

    pub(super) fn tool_ends(&mut self, at: usize, outcome: ToolOutcome) -> Decision {
        let call = self.under_way.remove(at);
        self.feed(Input::ToolFinished(call.id, outcome))
    }

    /// Answers the reconciliation of the `at`-th call in question.
    pub(super) fn server_says(&mut self, at: usize, answer: Reconciled) -> Decision {
        let call = self.in_question.remove(at);
        self.feed(Input::Reconciled(call.id, answer))
    }

    /// Answers the oldest open approval. Returns false if there is none.
    pub(super) fn human_decides(&mut self, choice: &str, arguments: Option<Value>) -> bool {
        let Some(row) = self.rows.inputs.iter_mut().find(|row| row.state == InputState::Pending) else { return false };
        row.state = InputState::Answered;
        row.answer = Some(InputAnswer { arguments, ..InputAnswer::new(choice, Some("not today".to_owned())) });
        true
    }

    /// Answers the oldest open question. Returns false if there is none.
    pub(super) fn human_says(&mut self, choice: &str) -> bool {
        let Some(row) = self.rows.inputs.iter_mut().find(|row| row.state == InputState::Pending) else { return false };
        row.state = InputState::Answered;
        row.answer = Some(InputAnswer::new(choice, Some("I looked".to_owned())));
        true
    }

    // Queries of the tests.

    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.events.iter().map(EventBody::kind).collect()
    }

    pub(super) fn states(&self) -> Vec<ToolCallState> {
        self.rows.calls.iter().map(|call| call.state).collect()
    }

    pub(super) fn ended(&self) -> &Ending {
        self.ending.as_ref().expect("the run has ended")
    }

    pub(super) fn error_code(&self) -> &str {
        &self.ended().error.as_ref().expect("the run has failed").code
    }

    /// Returns the messages that a client rebuilds from the log alone. Panics if the log leaves a part open, or a message
    /// differs from its parts.
    pub(super) fn followed(&self) -> Vec<Message> {
        let mut whole = Vec::new();
        let mut open: Vec<Shown> = Vec::new();
        for event in &self.events {
            match event {
                EventBody::MessageCreated { message } => whole.push(message.clone()),
                EventBody::MessageStarted { message_id, .. } => open.push((message_id.clone(), Vec::new())),
                EventBody::PartStarted { message_id, part_id, .. } => {
                    let (_, parts) = open.iter_mut().find(|(id, _)| id == message_id).expect("a part of an open message");
                    parts.push((part_id.clone(), None));
                }
                EventBody::PartCompleted { message_id, part } => {
                    let (_, parts) = open.iter_mut().find(|(id, _)| id == message_id).expect("a part of an open message");
                    let (_, slot) = parts.iter_mut().find(|(id, _)| id == part.id()).expect("the part was started");
                    assert!(slot.replace(part.clone()).is_none(), "a part is completed once");
                }
                EventBody::MessageCompleted { message } => {
                    let at = open.iter().position(|(id, _)| *id == message.id).expect("the message was started");
                    let (_, parts) = open.remove(at);
                    if message.role == Role::Assistant {
                        let parts: Vec<Part> =
                            parts.into_iter().map(|(id, part)| part.unwrap_or_else(|| panic!("{id} is not completed"))).collect();
                        assert_eq!(parts, message.parts);
                    }
                    whole.push(message.clone());
                }
                EventBody::StepReset { .. } => open.clear(),
                event if ends_run(event) => assert!(open.is_empty(), "left open at the end: {open:?}"),
                _ => {}
            }
        }
        whole
    }

    /// Returns the nudges of the engine.
    pub(super) fn hints(&self) -> Vec<String> {
        self.rows.history.iter().filter(|message| message.internal).map(Message::text).collect()
    }

    /// Returns the results in the newest tool message, as the model reads them.
    pub(super) fn results(&self) -> Vec<String> {
        let Some(message) = self.rows.history.iter().rfind(|message| message.role == Role::Tool) else { return Vec::new() };
        let parts = message.parts.iter();
        parts
            .map(|part| match part {
                Part::ToolResult(result) => result.content.iter().map(content_text).collect(),
                _ => panic!("a tool message holds results"),
            })
            .collect()
    }

    /// Loads the rows as the conversation's next run does, and checks its request.
    pub(super) fn check_next_turn(&self) {
        let mut rows = self.rows.clone();
        rows.fence.run_id = RunId::generate(&self.ids);
        rows.calls.clear();
        rows.steps.clear();
        rows.counters = Default::default();
        let mut next = self.user("And now?");
        next.run_id = rows.fence.run_id.clone();
        rows.history.push(next);
        check_sendable(&model_request(&RunState::load(rows)).messages).unwrap();
    }
}

/// Returns the token budget of the model step, if it has one.
pub(super) fn room(source: &RequestSource<'_>) -> Option<TokenBudget> {
    prepare_request(source).token_budget(source)
}

/// Returns the request of the model step before tools become text, and its messages.
pub(super) fn parts(source: &RequestSource<'_>) -> (ModelRequest, Vec<Message>) {
    let PreparedRequest { frame, messages, .. } = prepare_request(source);
    (frame, messages)
}

pub(super) fn done(text: &str) -> ToolOutcome {
    ToolOutcome { state: ToolCallState::Done, content: vec![ToolContent::text(text)], is_error: false, duration_ms: 3 }
}

pub(super) fn content_text(content: &ToolContent) -> &str {
    content.as_text().unwrap_or_default()
}

pub(super) fn ends_run(event: &EventBody) -> bool {
    matches!(event.kind(), "run.completed" | "run.failed" | "run.cancelled")
}

/// Returns the mutable row of a call.
fn row_of<'a>(calls: &'a mut [Arc<ToolCall>], id: &CallId) -> &'a mut ToolCall {
    calls.iter_mut().find(|row| row.id == *id).map(Arc::make_mut).expect("the call has a row")
}
