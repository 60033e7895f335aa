//! The rows that a batch of writes changes, table by table.
//!
//! A batch is one statement, in which no part sees the rows of another: changes of one run that build on each other are joined
//! here first. Pure functions.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::queue::millis;
use super::settle::Ended;
use super::statement::{self, Part};
use crate::domain::access::audit::AuditOutcome;
use crate::domain::conversation::ConversationStatus;
use crate::domain::conversation::message::Message;
use crate::domain::event::NewEvent;
use crate::domain::ids::{CallId, GrantId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::budget::Amount;
use crate::domain::run::change::{Change, ReleaseCause, StepKind, StepStatus};
use crate::domain::run::handle::Handle;
use crate::domain::run::record::{Fence, RunWrite};
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::store::runs::budget;
use crate::store::runs::compose;
use crate::store::{StoreError, StoreResult, rows};
use crate::support::json;
use crate::support::text::{storable, storable_json};

const NOT_PLANNED: &str = "a tool call is started that is not planned";
const NOT_UNDER_WAY: &str = "a tool call that is not under way gets a handle";
const SECOND_OUTCOME: &str = "a tool call gets a second outcome";

/// All writes under one fence.
pub(super) struct Fenced<'a> {
    pub(super) fence: &'a Fence,
    pub(super) events: i64,
    /// How many messages must have joined the conversation's runs for the run to end.
    pub(super) joined: Option<i64>,
    /// The least number that the log must have come to.
    pub(super) after: i64,
    /// Whether the fence is given up: the run ends or is released.
    pub(super) lets_go: bool,
    /// The status that the end of the run calls for in its conversation.
    pub(super) ends_as: Option<ConversationStatus>,
    /// Whether a write broke a rule: what was written after it would leave a hole in the log.
    is_broken: bool,
}

/// Where a write stands among those of its fence.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Its fence's place in [`Folded::fences`].
    pub(super) fence: usize,
    /// Events of earlier writes under the same fence.
    pub(super) offset: i64,
}

/// A `conversation.updated` under a fence whose run ends.
pub(super) struct Update<'a> {
    /// Its fence's place in [`Folded::fences`].
    pub(super) fence: usize,
    /// Its place among the fence's events, counted from 1.
    pub(super) place: i64,
    pub(super) event: &'a NewEvent,
    /// Whether it tells what came of the end.
    pub(super) is_final: bool,
}

/// Rows to change in one table, tied to a fence by `ord`.
#[derive(Default)]
pub(super) struct Tables {
    runs: Vec<RunPatch>,
    spending: Vec<SpendingRow>,
    tool_sets: Vec<ToolSet>,
    steps_begun: Vec<StepRow>,
    steps_ended: Vec<StepRow>,
    messages: Vec<MessageRow>,
    calls: Vec<CallRow>,
    calls_changed: Vec<CallChange>,
    audit: Vec<AuditRow>,
    inputs: Vec<InputRow>,
    inputs_closed: Vec<InputClosed>,
    summaries: Vec<SummaryRow>,
    conversations: Vec<ConversationPatch>,
    refused: Option<&'static str>,
}

/// A batch, folded.
pub(super) struct Folded<'a> {
    /// In the order of conversation ids, which is the order of locks.
    pub(super) fences: Vec<Fenced<'a>>,
    /// For each write; `None` for one that comes after its fence was given up, that breaks a rule, or that comes after one that does.
    pub(super) places: Vec<Option<Place>>,
    /// A rule that a change breaks in the light of another one of the batch.
    pub(super) refused: Option<&'static str>,
    /// Every event with its fence and its place among the fence's events, counted from 1.
    pub(super) events: Vec<(i32, i64, &'a NewEvent)>,
    /// Updates that are written after the conversation of an ended run is settled.
    pub(super) updates: Vec<Update<'a>>,
    /// The other tables that change, with their rows as JSON lists.
    pub(super) lists: Vec<(Part, String)>,
}

#[derive(Serialize, Default)]
struct RunPatch {
    ord: usize,
    status: Option<&'static str>,
    reason: Option<&'static str>,
    started: bool,
    tools_hash: Option<String>,
    contexts: Option<String>,
    counters: Option<String>,
    usage: Option<String>,
    finished: bool,
    finish_reason: Option<&'static str>,
    error: Option<String>,
    last_place: Option<i64>,
    released: bool,
    after_ms: Option<i64>,
    claim_cause: Option<&'static str>,
    /// Questions that the same batch closes: for its statement they are still open.
    closed: Vec<String>,
}

#[derive(Serialize)]
struct ToolSet {
    ord: usize,
    hash: String,
    definitions: String,
}

#[derive(Serialize)]
struct StepRow {
    ord: usize,
    step: u32,
    kind: Option<&'static str>,
    status: &'static str,
    begins: u32,
    ended: bool,
    usage: Option<String>,
}

#[derive(Serialize)]
struct MessageRow {
    ord: usize,
    place: i64,
    id: String,
    role: &'static str,
    body: String,
}

#[derive(Serialize)]
struct CallRow {
    ord: usize,
    id: String,
    message_id: String,
    step: u32,
    position: u32,
    provider_call_id: String,
    name: String,
    server: Option<String>,
    arguments: String,
    arguments_hash: String,
    replay: String,
    repair: Option<String>,
    state: &'static str,
    outcome: Option<String>,
    key: Option<String>,
    undoes: Option<String>,
    grant_id: Option<String>,
    started: bool,
    ended: bool,
}

#[derive(Default, Serialize)]
struct CallChange {
    ord: usize,
    id: String,
    /// `None` for a call that is only edited.
    state: Option<&'static str>,
    arguments: Option<String>,
    arguments_hash: Option<String>,
    outcome: Option<String>,
    /// Empty for one that is taken away.
    handle: Option<String>,
    grant_id: Option<String>,
    started: bool,
    ended: bool,
}

/// The usage of a run's reserved calls, by the day of the reservation.
#[derive(Serialize)]
struct SpendingRow {
    ord: usize,
    day: i64,
    tokens: i64,
    cost: i64,
    most: u64,
}

#[derive(Serialize)]
struct SummaryRow {
    ord: usize,
    covers: String,
    body: String,
}

#[derive(Serialize)]
struct AuditRow {
    ord: usize,
    id: String,
    /// `None` for a call that has a row already, which says this and its server.
    name: Option<String>,
    server: Option<String>,
    /// `None` if the row has it.
    arguments_hash: Option<String>,
    outcome: &'static str,
    /// `None` if the row has it, or nothing has let the call through.
    grant_id: Option<String>,
    duration_ms: i64,
}

#[derive(Serialize)]
struct InputRow {
    ord: usize,
    id: String,
    call_id: Option<String>,
    kind: &'static str,
    question: String,
    state: &'static str,
    expires_in_ms: Option<i64>,
}

#[derive(Serialize)]
struct InputClosed {
    ord: usize,
    id: String,
    state: &'static str,
}

#[derive(Serialize)]
struct ConversationPatch {
    ord: usize,
    status: &'static str,
}

pub(super) fn fold(writes: &[RunWrite]) -> StoreResult<Folded<'_>> {
    let mut fences: Vec<Fenced<'_>> = Vec::new();
    let mut known: HashMap<&Fence, usize> = HashMap::new();
    let mut sorted: Vec<&Fence> = writes.iter().map(|write| &write.fence).collect();
    sorted.sort_by_key(|fence| (&fence.conversation_id, &fence.run_id, fence.epoch));
    for fence in sorted {
        known.entry(fence).or_insert_with(|| {
            fences.push(Fenced { fence, events: 0, joined: None, after: 0, lets_go: false, ends_as: None, is_broken: false });
            fences.len() - 1
        });
    }
    let mut tables = Tables::default();
    let mut places = Vec::with_capacity(writes.len());
    let (mut events, mut updates) = (Vec::new(), Vec::new());
    for write in writes {
        let Some(index) = known.get(&write.fence).copied() else { continue };
        let Some(fenced) = fences.get_mut(index).filter(|fenced| !fenced.lets_go && !fenced.is_broken) else {
            places.push(None);
            continue;
        };
        if let Some(reason) = compose::broken_rule(write) {
            compose::report_broken_rule(write, reason);
            fenced.is_broken = true;
            places.push(None);
            continue;
        }
        fenced.after = fenced.after.max(write.after);
        let ord = i32::try_from(index).unwrap_or(i32::MAX);
        places.push(Some(Place { fence: index, offset: fenced.events }));
        let mut messages = 0;
        for change in &write.changes {
            let mut at = ChangeContext { ord: index, fenced, messages: &mut messages, write };
            match tables.add(&mut at, change) {
                Err(StoreError::Corrupt { .. }) => tables.refused = Some(rows::UNREADABLE),
                added => added?,
            }
        }
        let last = compose::final_update(write);
        for (at, event) in write.events.iter().enumerate() {
            fenced.events += 1;
            if event.kind == compose::UPDATED {
                updates.push(Update { fence: index, place: fenced.events, event, is_final: last == Some(at) });
            } else {
                events.push((ord, fenced.events, event));
            }
        }
    }
    let (updates, early): (Vec<_>, Vec<_>) = updates.into_iter().partition(|update| fences[update.fence].ends_as.is_some());
    events.extend(early.iter().map(|update| (i32::try_from(update.fence).unwrap_or(i32::MAX), update.place, update.event)));
    let refused = tables.refused;
    Ok(Folded { fences, places, refused, events, updates, lists: tables.into_lists()? })
}

/// Where a change stands.
struct ChangeContext<'a, 'b> {
    ord: usize,
    fenced: &'a mut Fenced<'b>,
    /// Messages of the same write before it.
    messages: &'a mut i64,
    write: &'a RunWrite,
}

impl Tables {
    fn add(&mut self, at: &mut ChangeContext<'_, '_>, change: &Change) -> StoreResult<()> {
        let ord = at.ord;
        let run = at.fenced.fence.run_id.as_str();
        match change {
            Change::Status(status, reason) => {
                let patch = self.run(ord);
                patch.status = Some(status.as_str());
                patch.reason = reason.map(|reason| reason.as_str());
                self.conversation(ord, (*status).into());
            }
            Change::Started => self.run(ord).started = true,
            Change::FreezeTools(tools) => {
                let definitions = rows::encode("tool_sets", "definitions", run, tools)?;
                let hash = json::hash_bytes(definitions.as_bytes());
                self.run(ord).tools_hash = Some(hash.clone());
                self.tool_sets.push(ToolSet { ord, hash, definitions });
            }
            Change::KeepContexts(contexts) => {
                self.run(ord).contexts = Some(rows::encode_storable("runs", "contexts", run, contexts)?);
            }
            Change::Counters(counters) => {
                self.run(ord).counters = Some(rows::encode("runs", "counters", run, counters)?);
            }
            Change::Summarize(summary) => {
                let body = rows::encode_storable("context_summaries", "body", run, summary)?;
                // The last one counts: of a row, one statement makes one change.
                self.summaries.retain(|row| row.ord != ord);
                self.summaries.push(SummaryRow { ord, covers: summary.covers.to_string(), body });
            }
            Change::Usage(usage) => self.run(ord).usage = Some(rows::encode("runs", "usage", run, usage)?),
            Change::Settle { day, amount } => self.settle(ord, *day, *amount),
            Change::StepStarted { step, kind } => self.begin_step(ord, *step, *kind),
            Change::StepEnded { step, status, usage } => self.end_step(ord, run, *step, *status, usage.as_ref())?,
            Change::AddMessage(message) => self.add_message(at, message)?,
            Change::AddToolCalls(calls) => {
                for call in calls {
                    self.calls.push(call_row(ord, call)?);
                }
            }
            Change::ToolAsked(id) => self.begin_call(ord, id, ToolCallState::AwaitingApproval),
            Change::ToolEdited { id, arguments, hash } => self.edit_call(ord, id, arguments, hash)?,
            Change::ToolGranted { id, grant } => self.grant_call(ord, id, grant),
            Change::ToolStarted(id) => self.begin_call(ord, id, ToolCallState::Started),
            Change::ToolHandle(id, handle) => self.note_handle(ord, id, handle.as_ref()),
            Change::ToolFinished(id, outcome) => self.finish_call(ord, id, outcome)?,
            Change::AskInput(request) => self.inputs.push(InputRow {
                ord,
                id: request.id.to_string(),
                call_id: request.call_id.as_ref().map(CallId::to_string),
                kind: request.kind.as_str(),
                question: rows::encode_storable("input_requests", "question", request.id.as_str(), &request.question)?,
                state: request.state.as_str(),
                expires_in_ms: request.expires_in_ms.map(millis),
            }),
            Change::InputClosed { id, state } => match self.inputs.iter_mut().find(|row| row.id == id.as_str()) {
                Some(row) => row.state = state.as_str(),
                None => self.inputs_closed.push(InputClosed { ord, id: id.to_string(), state: state.as_str() }),
            },
            Change::Finish { status, finish_reason, error, joined } => {
                at.fenced.joined = *joined;
                self.finish(at, *status, *finish_reason, error.as_ref())?;
            }
            Change::Release { after_ms, cause } => {
                at.fenced.lets_go = true;
                let closed = self.inputs_closed.iter().filter(|row| row.ord == ord).map(|row| row.id.clone()).collect();
                let patch = self.run(ord);
                patch.released = true;
                patch.closed = closed;
                patch.after_ms = after_ms.map(|after| i64::try_from(after).unwrap_or(i64::MAX / 4));
                patch.claim_cause = Some(ReleaseCause::as_str(*cause));
            }
        }
        Ok(())
    }

    fn run(&mut self, ord: usize) -> &mut RunPatch {
        let at = self.runs.iter().position(|patch| patch.ord == ord).unwrap_or_else(|| {
            self.runs.push(RunPatch { ord, ..RunPatch::default() });
            self.runs.len() - 1
        });
        &mut self.runs[at]
    }

    fn conversation(&mut self, ord: usize, status: ConversationStatus) {
        self.conversations.retain(|patch| patch.ord != ord);
        self.conversations.push(ConversationPatch { ord, status: status.as_str() });
    }

    fn settle(&mut self, ord: usize, day: i64, amount: Amount) {
        let (tokens, cost) = budget::parts(amount);
        match self.spending.iter_mut().find(|row| row.ord == ord && row.day == day) {
            Some(row) => (row.tokens, row.cost) = (row.tokens.saturating_add(tokens), row.cost.saturating_add(cost)),
            None => self.spending.push(SpendingRow { ord, day, tokens, cost, most: budget::MOST }),
        }
    }

    fn begin_step(&mut self, ord: usize, step: u32, kind: StepKind) {
        if let Some(row) = self.steps_begun.iter_mut().find(|row| row.ord == ord && row.step == step) {
            row.begins += 1;
            row.status = StepStatus::Started.as_str();
            row.ended = false;
            row.usage = None;
            return;
        }
        // An end before it in the same batch is of the try before it, and is overwritten by this beginning.
        self.steps_ended.retain(|row| row.ord != ord || row.step != step);
        let (kind, status) = (Some(kind.as_str()), StepStatus::Started.as_str());
        self.steps_begun.push(StepRow { ord, step, kind, status, begins: 1, ended: false, usage: None });
    }

    fn end_step(&mut self, ord: usize, run: &str, step: u32, status: StepStatus, usage: Option<&Usage>) -> StoreResult<()> {
        let usage = usage.map(|usage| rows::encode("run_steps", "usage", run, usage)).transpose()?;
        let same = |row: &&mut StepRow| row.ord == ord && row.step == step;
        let found = self.steps_begun.iter_mut().find(same).or(self.steps_ended.iter_mut().find(same));
        match found {
            Some(row) => {
                row.status = status.as_str();
                row.ended = true;
                row.usage = usage.or(row.usage.take());
            }
            None => {
                let status = status.as_str();
                self.steps_ended.push(StepRow { ord, step, kind: None, status, begins: 0, ended: true, usage });
            }
        }
        Ok(())
    }

    /// A message's place is among the numbers of its write's events: a write with a message has an event for it.
    fn add_message(&mut self, at: &mut ChangeContext<'_, '_>, message: &Message) -> StoreResult<()> {
        *at.messages += 1;
        self.messages.push(MessageRow {
            ord: at.ord,
            place: at.fenced.events + *at.messages,
            id: message.id.as_str().to_owned(),
            role: message.role.as_str(),
            body: rows::encode_storable("messages", "body", message.id.as_str(), message)?,
        });
        Ok(())
    }

    /// A call is handed to its tool, or to a human first.
    fn begin_call(&mut self, ord: usize, id: &CallId, next: ToolCallState) {
        let (state, started) = (next.as_str(), next == ToolCallState::Started);
        let (planned, asked) = (ToolCallState::Planned.as_str(), ToolCallState::AwaitingApproval.as_str());
        let may_follow = |now: &'static str| now == planned || started && now == asked;
        if let Some(row) = self.added_call(id) {
            if may_follow(row.state) {
                (row.state, row.started) = (state, started);
            } else {
                self.refused = Some(NOT_PLANNED);
            }
            return;
        }
        let change = self.changed_call(ord, id);
        // Without a state here, the state is that of the database, which the statement checks.
        if change.state.is_none_or(may_follow) {
            (change.state, change.started) = (Some(state), started);
        } else {
            self.refused = Some(NOT_PLANNED);
        }
    }

    fn edit_call(&mut self, ord: usize, id: &CallId, arguments: &Value, hash: &str) -> StoreResult<()> {
        let arguments = rows::encode_storable("tool_calls", "arguments", id.as_str(), arguments)?;
        let hash = hash.to_owned();
        if let Some(row) = self.added_call(id) {
            // With other arguments it is another call.
            (row.arguments, row.arguments_hash, row.key) = (arguments, hash, None);
        } else {
            let change = self.changed_call(ord, id);
            (change.arguments, change.arguments_hash) = (Some(arguments), Some(hash));
        }
        Ok(())
    }

    fn grant_call(&mut self, ord: usize, id: &CallId, grant: &GrantId) {
        let grant_id = Some(grant.as_str().to_owned());
        match self.added_call(id) {
            Some(row) => row.grant_id = grant_id,
            None => self.changed_call(ord, id).grant_id = grant_id,
        }
    }

    fn note_handle(&mut self, ord: usize, id: &CallId, handle: Option<&Handle>) {
        // No call is made and handed to its tool in one batch.
        if self.added_call(id).is_some() {
            self.refused = Some(NOT_UNDER_WAY);
            return;
        }
        let change = self.changed_call(ord, id);
        if change.outcome.is_some() {
            self.refused = Some(NOT_UNDER_WAY);
        } else {
            change.handle = Some(handle.map(|handle| storable(&handle.to_stored()).into_owned()).unwrap_or_default());
        }
    }

    fn finish_call(&mut self, ord: usize, id: &CallId, outcome: &ToolOutcome) -> StoreResult<()> {
        self.audit(ord, id, outcome);
        let state = outcome.state.as_str();
        let outcome = Some(rows::encode_storable("tool_calls", "outcome", id.as_str(), outcome)?);
        if let Some(row) = self.added_call(id) {
            if row.outcome.is_some() {
                self.refused = Some(SECOND_OUTCOME);
            } else {
                (row.state, row.outcome, row.ended) = (state, outcome, true);
            }
            return Ok(());
        }
        let change = self.changed_call(ord, id);
        if change.outcome.is_some() {
            self.refused = Some(SECOND_OUTCOME);
        } else {
            (change.state, change.outcome, change.ended) = (Some(state), outcome, true);
        }
        Ok(())
    }

    /// Returns a call that the batch adds.
    fn added_call(&mut self, id: &CallId) -> Option<&mut CallRow> {
        self.calls.iter_mut().find(|row| row.id == id.as_str())
    }

    /// Returns the change of a call that was added before.
    fn changed_call(&mut self, ord: usize, id: &CallId) -> &mut CallChange {
        let at = self.calls_changed.iter().position(|change| change.id == id.as_str()).unwrap_or_else(|| {
            self.calls_changed.push(CallChange { ord, id: id.to_string(), ..CallChange::default() });
            self.calls_changed.len() - 1
        });
        &mut self.calls_changed[at]
    }

    fn audit(&mut self, ord: usize, id: &CallId, outcome: &ToolOutcome) {
        let Some(ended) = AuditOutcome::of(outcome.state) else { return };
        let made = self.calls.iter().find(|row| row.id == id.as_str());
        let edited = self.calls_changed.iter().find(|change| change.id == id.as_str());
        self.audit.push(AuditRow {
            ord,
            id: id.as_str().to_owned(),
            name: made.map(|row| row.name.clone()),
            server: made.and_then(|row| row.server.clone()),
            arguments_hash: match made {
                Some(row) => Some(row.arguments_hash.clone()),
                None => edited.and_then(|change| change.arguments_hash.clone()),
            },
            outcome: ended.as_str(),
            grant_id: made.map_or_else(|| edited.and_then(|change| change.grant_id.clone()), |row| row.grant_id.clone()),
            duration_ms: millis(outcome.duration_ms),
        });
    }

    fn finish(
        &mut self,
        at: &mut ChangeContext<'_, '_>,
        status: RunStatus,
        finish_reason: Option<FinishReason>,
        error: Option<&ProblemBody>,
    ) -> StoreResult<()> {
        let last = compose::terminal_event(at.write).map(|index| at.fenced.events + 1 + i64::try_from(index).unwrap_or(0));
        let error =
            error.map(|error| rows::encode_storable("runs", "error", at.fenced.fence.run_id.as_str(), error)).transpose()?;
        at.fenced.lets_go = true;
        at.fenced.ends_as = Some(status.into());
        // The conversation is settled by a later statement, which can see runs that were queued meanwhile.
        self.conversations.retain(|patch| patch.ord != at.ord);
        let patch = self.run(at.ord);
        patch.status = Some(status.as_str());
        patch.reason = None;
        patch.finished = true;
        patch.finish_reason = finish_reason.map(FinishReason::as_str);
        patch.error = error;
        patch.last_place = last;
        Ok(())
    }

    fn into_lists(self) -> StoreResult<Vec<(Part, String)>> {
        fn list<T: Serialize>(table: &'static str, part: Part, rows: &[T]) -> StoreResult<Option<(Part, String)>> {
            if rows.is_empty() {
                return Ok(None);
            }
            Ok(Some((part, rows::encode(table, "*", "", &rows).map(storable_json)?)))
        }
        let lists = [
            list("runs", statement::RUNS, &self.runs)?,
            list("spending", statement::SPENDING, &self.spending)?,
            list("tool_sets", statement::TOOL_SETS, &self.tool_sets)?,
            list("run_steps", statement::STEPS_BEGUN, &self.steps_begun)?,
            list("run_steps", statement::STEPS_ENDED, &self.steps_ended)?,
            list("messages", statement::MESSAGES, &self.messages)?,
            list("tool_calls", statement::CALLS, &self.calls)?,
            list("tool_calls", statement::CALLS_CHANGED, &self.calls_changed)?,
            list("tool_audit", statement::AUDIT, &self.audit)?,
            list("input_requests", statement::INPUTS, &self.inputs)?,
            list("input_requests", statement::INPUTS_CLOSED, &self.inputs_closed)?,
            list("context_summaries", statement::SUMMARIES, &self.summaries)?,
            list("conversations", statement::CONVERSATIONS, &self.conversations)?,
        ];
        Ok(lists.into_iter().flatten().collect())
    }
}

fn call_row(ord: usize, call: &ToolCall) -> StoreResult<CallRow> {
    let id = call.id.as_str();
    let outcome = &call.outcome;
    Ok(CallRow {
        ord,
        id: id.to_owned(),
        message_id: call.message_id.as_str().to_owned(),
        step: call.step,
        position: call.position,
        provider_call_id: call.provider_call_id.clone(),
        name: call.name.clone(),
        server: call.server.clone(),
        arguments: rows::encode_storable("tool_calls", "arguments", id, &call.arguments)?,
        arguments_hash: call.arguments_hash.clone(),
        replay: rows::encode("tool_calls", "replay", id, &call.replay)?,
        repair: call.repair.as_ref().map(|repair| rows::encode_storable("tool_calls", "repair", id, repair)).transpose()?,
        state: call.state.as_str(),
        outcome: outcome.as_ref().map(|outcome| rows::encode_storable("tool_calls", "outcome", id, outcome)).transpose()?,
        key: call.key.as_ref().map(|key| key.as_str().to_owned()),
        undoes: call.undoes.as_ref().map(|undone| undone.as_str().to_owned()),
        grant_id: None,
        started: call.state == ToolCallState::Started,
        ended: outcome.is_some(),
    })
}

/// The conversations whose runs have ended, of those fences that still hold.
pub(super) fn ended<'a>(fences: &[Fenced<'a>], holds: impl Fn(usize) -> bool) -> Vec<Ended<'a>> {
    fences
        .iter()
        .enumerate()
        .filter(|(index, _)| holds(*index))
        .filter_map(|(_, Fenced { fence, ends_as, .. })| {
            ends_as.map(|status| Ended { conversation: &fence.conversation_id, run: &fence.run_id, status })
        })
        .collect()
}
