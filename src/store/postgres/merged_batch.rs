//! Merges a batch of writes into row changes, table by table.
//!
//! A batch is one statement, in which no part sees the rows of another part. So changes of one run that depend on each other are
//! merged here first. Pure functions.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Value, json};

use super::activate_next_run::EndedActiveRun;
use super::queue::millis;
use super::statement::{self, Part};
use crate::domain::access::audit::AuditOutcome;
use crate::domain::conversation::{ConversationStatus, Message};
use crate::domain::event::NewEvent;
use crate::domain::ids::CallId;
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::{
    Amount, Change, Fence, FinishReason, Handle, NewRequestRecord, ReleaseCause, RunStatus, RunWrite, StepKind, StepStatus,
};
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::store::runs::{budget, created_rows};
use crate::store::{StoreError, StoreResult, rows};
use crate::support::json;
use crate::support::text::{storable, storable_json};

const ALREADY_STARTED: &str = "a tool call changes that has already started or ended";
const NOT_UNDER_WAY: &str = "a tool call that is not under way gets a handle";
const SECOND_OUTCOME: &str = "a tool call gets a second outcome";

/// All writes under one fence.
pub(super) struct FenceWrites<'a> {
    pub(super) fence: &'a Fence,
    pub(super) events: i64,
    /// Number of messages that must have joined the conversation's runs for the run to end.
    pub(super) joined: Option<i64>,
    /// The smallest sequence number that the log must have reached.
    pub(super) after: i64,
    /// Whether the lease is released: the run ends or waits.
    pub(super) releases_lease: bool,
    /// The conversation's status after the end of the run.
    pub(super) ends_as: Option<ConversationStatus>,
    /// Whether a write violated a rule. Later writes of the fence would leave a gap in the log.
    is_broken: bool,
}

/// The position of a write among those of its fence.
#[derive(Clone, Copy)]
pub(super) struct WriteOffset {
    /// The index of its fence in [`MergedBatch::fences`].
    pub(super) fence: usize,
    /// Number of events of earlier writes under the same fence.
    pub(super) offset: i64,
}

/// A `conversation.updated` of a write whose run ends.
pub(super) struct Update<'a> {
    /// The index of its fence in [`MergedBatch::fences`].
    pub(super) fence: usize,
    /// Its position among the fence's events, counted from 1.
    pub(super) place: i64,
    pub(super) event: &'a NewEvent,
    /// Whether it contains the status after the end.
    pub(super) is_final: bool,
}

/// Row changes per table. `ord` refers to the fence.
#[derive(Default)]
pub(super) struct Tables {
    runs: BTreeMap<usize, RunPatch>,
    charges: Vec<ChargeRow>,
    tool_sets: Vec<Value>,
    steps_begun: Vec<StepRow>,
    steps_ended: Vec<StepRow>,
    messages: Vec<MessageRow>,
    calls: BTreeMap<String, CallRow>,
    audit: Vec<Value>,
    inputs: Vec<Value>,
    inputs_closed: Vec<InputClosed>,
    summaries: BTreeMap<usize, Value>,
    conversations: BTreeMap<usize, Value>,
    refused: Option<&'static str>,
}

pub(super) struct MergedBatch<'a> {
    /// Ordered by conversation id, which is the order of locks.
    pub(super) fences: Vec<FenceWrites<'a>>,
    /// For each write: its position. `None` if it follows the release of its fence, violates a rule, or follows a write that does.
    pub(super) places: Vec<Option<WriteOffset>>,
    /// The rule that a change violates in combination with another change of the batch.
    pub(super) refused: Option<&'static str>,
    /// Every event with its fence and its position among the fence's events, counted from 1.
    pub(super) events: Vec<(i32, i64, &'a NewEvent)>,
    /// Events that are written after the next run of their conversation is activated.
    pub(super) updates: Vec<Update<'a>>,
    /// The other changed tables, with their rows as JSON lists.
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
    /// Questions that the same batch closes. Its statement still sees them as open.
    closed: Vec<String>,
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
    request: Option<String>,
}

#[derive(Serialize)]
struct MessageRow {
    ord: usize,
    place: i64,
    id: String,
    role: &'static str,
    body: String,
}

/// A call that the batch adds or changes. `None`: unchanged, for a call that exists in the database.
#[derive(Default, Serialize)]
struct CallRow {
    ord: usize,
    id: String,
    /// Whether the batch adds it.
    #[serde(skip)]
    is_new: bool,
    message_id: Option<String>,
    step: Option<u32>,
    position: Option<u32>,
    provider_call_id: Option<String>,
    name: Option<String>,
    server: Option<String>,
    arguments: Option<String>,
    arguments_hash: Option<String>,
    replay: Option<String>,
    repair: Option<String>,
    state: Option<&'static str>,
    outcome: Option<String>,
    /// Empty if the handle is cleared.
    handle: Option<String>,
    key: Option<String>,
    undoes: Option<String>,
    grant_id: Option<String>,
    started: bool,
    ended: bool,
}

/// The usage of a run's reserved calls, by the day of the reservation.
#[derive(Serialize)]
struct ChargeRow {
    ord: usize,
    day: i64,
    tokens: i64,
    cost: i64,
    most: u64,
}

#[derive(Serialize)]
struct InputClosed {
    ord: usize,
    id: String,
    state: &'static str,
}

pub(super) fn merge(writes: &[RunWrite]) -> StoreResult<MergedBatch<'_>> {
    let mut fences: Vec<FenceWrites<'_>> = Vec::new();
    let mut known: HashMap<&Fence, usize> = HashMap::new();
    let mut sorted: Vec<&Fence> = writes.iter().map(|write| &write.fence).collect();
    sorted.sort_by_key(|fence| (&fence.conversation_id, &fence.run_id, fence.epoch));
    for fence in sorted {
        known.entry(fence).or_insert_with(|| {
            fences.push(FenceWrites {
                fence,
                events: 0,
                joined: None,
                after: 0,
                releases_lease: false,
                ends_as: None,
                is_broken: false,
            });
            fences.len() - 1
        });
    }
    let mut tables = Tables::default();
    let mut places = Vec::with_capacity(writes.len());
    let (mut events, mut updates) = (Vec::new(), Vec::new());
    for write in writes {
        let Some(index) = known.get(&write.fence).copied() else { continue };
        let Some(fenced) = fences.get_mut(index).filter(|fenced| !fenced.releases_lease && !fenced.is_broken) else {
            places.push(None);
            continue;
        };
        if let Some(reason) = created_rows::broken_rule(write) {
            created_rows::report_broken_rule(write, reason);
            fenced.is_broken = true;
            places.push(None);
            continue;
        }
        fenced.after = fenced.after.max(write.after);
        let ord = i32::try_from(index).unwrap_or(i32::MAX);
        places.push(Some(WriteOffset { fence: index, offset: fenced.events }));
        let mut messages = 0;
        for change in &write.changes {
            let mut at = ChangeContext { ord: index, fenced, messages: &mut messages, write };
            match tables.add(&mut at, change) {
                Err(StoreError::Corrupt { .. }) => tables.refused = Some(rows::UNREADABLE),
                added => added?,
            }
        }
        let last = created_rows::final_update(write);
        for (at, event) in write.events.iter().enumerate() {
            fenced.events += 1;
            if event.kind == created_rows::UPDATED {
                updates.push(Update { fence: index, place: fenced.events, event, is_final: last == Some(at) });
            } else {
                events.push((ord, fenced.events, event));
            }
        }
    }
    let (updates, early): (Vec<_>, Vec<_>) = updates.into_iter().partition(|update| fences[update.fence].ends_as.is_some());
    events.extend(early.iter().map(|update| (i32::try_from(update.fence).unwrap_or(i32::MAX), update.place, update.event)));
    let refused = tables.refused;
    Ok(MergedBatch { fences, places, refused, events, updates, lists: tables.into_lists()? })
}

/// The position of a change in the batch.
struct ChangeContext<'a, 'b> {
    ord: usize,
    fenced: &'a mut FenceWrites<'b>,
    /// Messages of the same write before it.
    messages: &'a mut i64,
    write: &'a RunWrite,
}

impl Tables {
    fn add(&mut self, at: &mut ChangeContext<'_, '_>, change: &Change) -> StoreResult<()> {
        let ord = at.ord;
        let run = at.fenced.fence.run_id.as_str();
        match change {
            Change::SetStatus(status, reason) => {
                let patch = self.run(ord);
                patch.status = Some(status.as_str());
                patch.reason = reason.map(|reason| reason.as_str());
                self.conversation(ord, (*status).into());
            }
            Change::Start => self.run(ord).started = true,
            Change::FreezeTools(tools) => {
                let definitions = rows::encode("tool_sets", "definitions", run, tools)?;
                let hash = json::hash_bytes(definitions.as_bytes());
                self.run(ord).tools_hash = Some(hash.clone());
                self.tool_sets.push(json!({ "ord": ord, "hash": hash, "definitions": definitions }));
            }
            Change::StoreContexts(contexts) => {
                self.run(ord).contexts = Some(rows::encode_storable("runs", "contexts", run, contexts)?);
            }
            Change::SetCounters(counters) => {
                self.run(ord).counters = Some(rows::encode("runs", "counters", run, counters)?);
            }
            Change::SetSummary(summary) => {
                let body = rows::encode_storable("context_summaries", "body", run, summary)?;
                // The last change of a row wins: one statement can change a row only once.
                self.summaries.insert(ord, json!({ "ord": ord, "covers": summary.covers, "body": body }));
            }
            Change::SetUsage(usage) => self.run(ord).usage = Some(rows::encode("runs", "usage", run, usage)?),
            Change::ChargeBudget { day, amount } => self.charge_budget(ord, *day, *amount),
            Change::StartStep { step, kind, request } => self.begin_step(ord, *step, *kind, request.as_deref()),
            Change::EndStep { step, status, usage } => self.end_step(ord, run, *step, *status, usage.as_ref())?,
            Change::AddMessage(message) => self.add_message(at, message)?,
            Change::AddToolCalls(calls) => {
                for call in calls {
                    self.calls.insert(call.id.to_string(), call_row(ord, call)?);
                }
            }
            Change::RequestApproval(id) => self.begin_call(ord, id, ToolCallState::AwaitingApproval),
            Change::EditCall { id, arguments, hash } => {
                let arguments = rows::encode_storable("tool_calls", "arguments", id.as_str(), arguments)?;
                let call = self.call(ord, id);
                // Other arguments make it another call, with another key.
                (call.arguments, call.arguments_hash, call.key) = (Some(arguments), Some(hash.to_owned()), None);
            }
            Change::GrantCall { id, grant } => self.call(ord, id).grant_id = Some(grant.to_string()),
            Change::StartCall(id) => self.begin_call(ord, id, ToolCallState::Started),
            Change::SetHandle(id, handle) => self.note_handle(ord, id, handle.as_ref()),
            Change::FinishCall(id, outcome) => self.finish_call(ord, id, outcome)?,
            Change::RequestInput(request) => self.inputs.push(json!({
                "ord": ord,
                "id": request.id,
                "call_id": request.call_id,
                "kind": request.kind.as_str(),
                "question": rows::encode_storable("input_requests", "question", request.id.as_str(), &request.question)?,
                "state": request.state.as_str(),
                "expires_in_ms": request.expires_in_ms.map(millis),
            })),
            Change::CloseInput { id, state } => match self.inputs.iter_mut().find(|row| row["id"] == id.as_str()) {
                Some(row) => row["state"] = state.as_str().into(),
                None => self.inputs_closed.push(InputClosed { ord, id: id.to_string(), state: state.as_str() }),
            },
            Change::Finish { status, finish_reason, error, joined } => {
                at.fenced.joined = *joined;
                self.finish(at, *status, *finish_reason, error.as_ref())?;
            }
            Change::Release { after_ms, cause } => {
                at.fenced.releases_lease = true;
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
        self.runs.entry(ord).or_insert_with(|| RunPatch { ord, ..RunPatch::default() })
    }

    fn conversation(&mut self, ord: usize, status: ConversationStatus) {
        self.conversations.insert(ord, json!({ "ord": ord, "status": status.as_str() }));
    }

    /// Returns a call that the batch adds, or the change of a call that exists in the database.
    fn call(&mut self, ord: usize, id: &CallId) -> &mut CallRow {
        self.calls.entry(id.to_string()).or_insert_with(|| CallRow { ord, id: id.to_string(), ..CallRow::default() })
    }

    fn charge_budget(&mut self, ord: usize, day: i64, amount: Amount) {
        let (tokens, cost) = budget::parts(amount);
        match self.charges.iter_mut().find(|row| row.ord == ord && row.day == day) {
            Some(row) => (row.tokens, row.cost) = (row.tokens.saturating_add(tokens), row.cost.saturating_add(cost)),
            None => self.charges.push(ChargeRow { ord, day, tokens, cost, most: budget::MAX_CHARGED }),
        }
    }

    fn begin_step(&mut self, ord: usize, step: u32, kind: StepKind, request: Option<&NewRequestRecord>) {
        let request = request.map(|request| storable_json(request.text.clone()));
        if let Some(row) = self.steps_begun.iter_mut().find(|row| row.ord == ord && row.step == step) {
            row.begins += 1;
            row.status = StepStatus::Started.as_str();
            row.ended = false;
            row.usage = None;
            row.request = request;
            return;
        }
        // An earlier end in the batch belongs to the previous attempt. This beginning overwrites it.
        self.steps_ended.retain(|row| row.ord != ord || row.step != step);
        let (kind, status) = (Some(kind.as_str()), StepStatus::Started.as_str());
        self.steps_begun.push(StepRow { ord, step, kind, status, begins: 1, ended: false, usage: None, request });
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
                self.steps_ended.push(StepRow { ord, step, kind: None, status, begins: 0, ended: true, usage, request: None });
            }
        }
        Ok(())
    }

    /// A message's position is a sequence number of its write: each message has its own event.
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

    /// Starts a call: it is sent to its tool, or waits for an approval.
    fn begin_call(&mut self, ord: usize, id: &CallId, next: ToolCallState) {
        let (state, started) = (next.as_str(), next == ToolCallState::Started);
        let (planned, awaiting_approval) = (ToolCallState::Planned.as_str(), ToolCallState::AwaitingApproval.as_str());
        let may_follow = |now: &'static str| now == planned || started && now == awaiting_approval;
        let call = self.call(ord, id);
        // Without a state in the batch, the statement checks the stored state.
        if call.state.is_none_or(may_follow) {
            (call.state, call.started) = (Some(state), started);
        } else {
            self.refused = Some(ALREADY_STARTED);
        }
    }

    fn note_handle(&mut self, ord: usize, id: &CallId, handle: Option<&Handle>) {
        let call = self.call(ord, id);
        // Only calls of MCP servers get handles. Such a call starts after the commit of the batch that adds it.
        if call.is_new || call.outcome.is_some() {
            self.refused = Some(NOT_UNDER_WAY);
        } else {
            call.handle = Some(handle.map(|handle| storable(&handle.to_stored()).into_owned()).unwrap_or_default());
        }
    }

    fn finish_call(&mut self, ord: usize, id: &CallId, outcome: &ToolOutcome) -> StoreResult<()> {
        let stored = rows::encode_storable("tool_calls", "outcome", id.as_str(), outcome)?;
        let call = self.call(ord, id);
        // The row of a call that the batch does not add contains the other columns.
        let audit = AuditOutcome::of(outcome.state).map(|ended| {
            json!({
                "ord": ord,
                "id": id,
                "name": call.name,
                "server": call.server,
                "arguments_hash": call.arguments_hash,
                "outcome": ended.as_str(),
                "grant_id": call.grant_id,
                "duration_ms": millis(outcome.duration_ms),
            })
        });
        if call.outcome.is_some() {
            self.refused = Some(SECOND_OUTCOME);
        } else {
            (call.state, call.outcome, call.ended) = (Some(outcome.state.as_str()), Some(stored), true);
        }
        self.audit.extend(audit);
        Ok(())
    }

    fn finish(
        &mut self,
        at: &mut ChangeContext<'_, '_>,
        status: RunStatus,
        finish_reason: Option<FinishReason>,
        error: Option<&ProblemBody>,
    ) -> StoreResult<()> {
        let last = created_rows::terminal_event(at.write).map(|index| at.fenced.events + 1 + i64::try_from(index).unwrap_or(0));
        let error =
            error.map(|error| rows::encode_storable("runs", "error", at.fenced.fence.run_id.as_str(), error)).transpose()?;
        at.fenced.releases_lease = true;
        at.fenced.ends_as = Some(status.into());
        // A later statement sets the conversation's status, because it sees runs that were queued meanwhile.
        self.conversations.remove(&at.ord);
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
        fn list<T: Serialize>(
            table: &'static str,
            part: Part,
            rows: impl IntoIterator<Item = T>,
        ) -> StoreResult<Option<(Part, String)>> {
            let rows: Vec<T> = rows.into_iter().collect();
            if rows.is_empty() {
                return Ok(None);
            }
            Ok(Some((part, rows::encode(table, "*", "", &rows).map(storable_json)?)))
        }
        let (calls, calls_changed): (Vec<_>, Vec<_>) = self.calls.into_values().partition(|call| call.is_new);
        let lists = [
            list("runs", statement::RUNS, self.runs.into_values())?,
            list("charges", statement::CHARGE_BUDGET, self.charges)?,
            list("tool_sets", statement::TOOL_SETS, self.tool_sets)?,
            list("run_steps", statement::STEPS_BEGUN, self.steps_begun)?,
            list("run_steps", statement::STEPS_ENDED, self.steps_ended)?,
            list("messages", statement::MESSAGES, self.messages)?,
            list("tool_calls", statement::CALLS, calls)?,
            list("tool_calls", statement::CALLS_CHANGED, calls_changed)?,
            list("tool_audit", statement::AUDIT, self.audit)?,
            list("input_requests", statement::INPUTS, self.inputs)?,
            list("input_requests", statement::INPUTS_CLOSED, self.inputs_closed)?,
            list("context_summaries", statement::SUMMARIES, self.summaries.into_values())?,
            list("conversations", statement::CONVERSATIONS, self.conversations.into_values())?,
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
        is_new: true,
        message_id: Some(call.message_id.to_string()),
        step: Some(call.step),
        position: Some(call.position),
        provider_call_id: Some(call.provider_call_id.clone()),
        name: Some(call.name.clone()),
        server: call.server.clone(),
        arguments: Some(rows::encode_storable("tool_calls", "arguments", id, &call.arguments)?),
        arguments_hash: Some(call.arguments_hash.clone()),
        replay: Some(rows::encode("tool_calls", "replay", id, &call.replay)?),
        repair: call.repair.as_ref().map(|repair| rows::encode_storable("tool_calls", "repair", id, repair)).transpose()?,
        state: Some(call.state.as_str()),
        outcome: outcome.as_ref().map(|outcome| rows::encode_storable("tool_calls", "outcome", id, outcome)).transpose()?,
        key: call.key.as_ref().map(CallId::to_string),
        undoes: call.undoes.as_ref().map(CallId::to_string),
        started: call.state == ToolCallState::Started,
        ended: outcome.is_some(),
        ..CallRow::default()
    })
}

/// Returns the conversations whose runs have ended, for the fences that are still valid.
pub(super) fn ended<'a>(fences: &[FenceWrites<'a>], holds: impl Fn(usize) -> bool) -> Vec<EndedActiveRun<'a>> {
    fences
        .iter()
        .enumerate()
        .filter(|(index, _)| holds(*index))
        .filter_map(|(_, FenceWrites { fence, ends_as, .. })| {
            ends_as.map(|status| EndedActiveRun { conversation: &fence.conversation_id, run: &fence.run_id, status })
        })
        .collect()
}
