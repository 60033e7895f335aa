//! The log: writes of workers, each checked by its fence.

use async_trait::async_trait;
use capstan::domain::conversation::ConversationStatus;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, UserId};
use capstan::domain::run::WaitReason;
use capstan::domain::run::budget::Amount;
use capstan::domain::run::change::{Change, ReleaseCause, StepRow, StepStatus};
use capstan::domain::run::context::ContextSummary;
use capstan::domain::run::question::{InputRecord, InputRequest, InputState};
use capstan::domain::run::record::{ClaimCause, Fence, RunWrite};
use capstan::domain::tool::ToolCallState;
use capstan::store::{CommitReceipt, LogBounds, LogStore, PAGE_BYTES, StoreResult, WriteRejection};
use capstan::support::clock::UnixMillis;
use capstan::support::text::storable_json;

use super::input::left_of;
use super::state::{RunRow, State, kept};
use super::{Bug, ModelStore};

const UPDATED: &str = "conversation.updated";

#[async_trait]
impl LogStore for ModelStore {
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
        let mut state = self.state();
        if self.has(Bug::ShownBeforeStored) {
            let before = std::mem::replace(&mut state.postponed, writes.to_vec());
            self.commit_to(&mut state, &before);
            return Ok(self.commit_to(&mut state.clone(), writes));
        }
        Ok(self.commit_to(&mut state, writes))
    }

    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        let state = self.state();
        let row = state.conversations.get(conversation).filter(|row| row.owner == *owner);
        let log = row.map(|row| row.log.as_slice()).unwrap_or_default();
        Ok(page(log, after, limit))
    }

    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        let state = self.state();
        let row = state.conversations.get(conversation).filter(|row| row.owner == *owner);
        Ok(row.map(|row| LogBounds { oldest: 1, head: row.head() }))
    }

    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        let state = self.state();
        let heads = conversations.iter().filter_map(|id| Some((id.clone(), state.conversations.get(id)?.head())));
        Ok(heads.filter(|(_, head)| *head > 0).collect())
    }

    async fn events_after(
        &self,
        after: &[(ConversationId, i64)],
        limit: u32,
    ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        let state = self.state();
        let pages = after.iter().filter_map(|(id, seq)| Some((id.clone(), page(&state.conversations.get(id)?.log, *seq, limit))));
        Ok(pages.filter(|(_, page)| !page.is_empty()).collect())
    }
}

fn page(log: &[StoredEvent], after: i64, limit: u32) -> Vec<StoredEvent> {
    let mut bytes = 0;
    let page = log.iter().filter(|event| event.seq > after).take(limit.clamp(1, 1_000) as usize).take_while(|event| {
        let fits = bytes < PAGE_BYTES;
        bytes += event.data.len();
        fits
    });
    page.cloned().collect()
}

impl ModelStore {
    /// Executes the writes, each checked by its fence.
    fn commit_to(&self, state: &mut State, writes: &[RunWrite]) -> Vec<Result<CommitReceipt, WriteRejection>> {
        let mut broken: Vec<&Fence> = Vec::new();
        let answers = writes.iter().map(|write| {
            let orphan = || write.changes.iter().any(|change| matches!(change, Change::FinishCall(..)));
            let is_let_in = self.has(Bug::FenceIgnored) || (self.has(Bug::OrphanKept) && orphan());
            let is_newest = state.is_newest(&write.fence) || (is_let_in && state.runs.contains_key(&write.fence.run_id));
            let is_lost = state.conversations.get(&write.fence.conversation_id).is_some_and(|row| row.head() < write.after);
            if !is_newest || is_lost || broken.contains(&&write.fence) {
                return Err(WriteRejection::Fenced);
            }
            if !self.has(Bug::UnheardEnd) && state.ends_unheard(write) {
                return Err(WriteRejection::MessageJoined);
            }
            state.write(write).map_err(|rule| {
                tracing::error!(run.id = %write.fence.run_id, rule, "a write breaks a rule");
                // Later writes of the same run would leave a gap in the log.
                broken.push(&write.fence);
                WriteRejection::Fenced
            })
        });
        answers.collect()
    }
}

/// The effects of a write beyond its run.
#[derive(Default)]
struct Effects {
    status: Option<ConversationStatus>,
    messages: i64,
    summary: Option<ContextSummary>,
    settled: Vec<(i64, Amount)>,
    ends: Ends,
}

#[derive(Default, PartialEq)]
enum Ends {
    #[default]
    No,
    Finished,
    Released,
}

impl State {
    fn ends_unheard(&self, write: &RunWrite) -> bool {
        let joined = self.conversations[&write.fence.conversation_id].joined;
        write.changes.iter().any(|change| matches!(change, Change::Finish { joined: Some(heard), .. } if *heard != joined))
    }

    /// Executes one write completely, or returns the rule that it breaks.
    fn write(&mut self, write: &RunWrite) -> Result<CommitReceipt, &'static str> {
        let Fence { run_id, conversation_id, .. } = &write.fence;
        let base = self.conversations[conversation_id].head();
        let mut row = self.runs[run_id].clone();
        let mut effects = Effects::default();
        for change in &write.changes {
            if effects.ends != Ends::No {
                return Err("a change follows the end of the run");
            }
            self.change(&mut row, change, base, &mut effects)?;
        }
        let is_update = |change: &Change| matches!(change, Change::SetStatus(..) | Change::Finish { .. });
        if write.events.iter().any(|event| event.kind == UPDATED) && !write.changes.iter().any(is_update) {
            return Err("an event contains a conversation's status that the write does not change");
        }
        if effects.messages > i64::try_from(write.events.len()).unwrap() {
            return Err("more messages than events");
        }
        if effects.ends == Ends::Finished {
            row.crashes = row.crashes.saturating_sub(1);
            let terminal = |kind: &str| matches!(kind, "run.completed" | "run.failed" | "run.cancelled");
            row.last_seq = write.events.iter().zip(base + 1..).find(|(event, _)| terminal(event.kind)).map(|(_, seq)| seq);
        }
        for (day, amount) in effects.settled {
            if let Some(spending) = self.spending.get_mut(&(row.owner.clone(), day, run_id.clone())) {
                (spending.spent, spending.held) = (spending.spent.plus(amount), None);
            }
        }
        self.runs.insert(run_id.clone(), row);
        let mut has_next_run = false;
        if effects.ends != Ends::No {
            self.leases.remove(run_id);
            self.conversations.get_mut(conversation_id).unwrap().writer = None;
        }
        if effects.ends == Ends::Finished {
            has_next_run = self.promote_next(conversation_id);
            effects.status = if has_next_run { Some(ConversationStatus::Queued) } else { effects.status };
        }
        let conversation = self.conversations.get_mut(conversation_id).unwrap();
        if let Some(status) = effects.status.filter(|status| *status != conversation.status) {
            conversation.status = status;
            conversation.updated_at = UnixMillis(self.now);
        }
        conversation.summary = effects.summary.or(conversation.summary.take());
        let last = write.events.iter().rposition(|event| event.kind == UPDATED).filter(|_| effects.ends == Ends::Finished);
        let title = serde_json::to_string(&conversation.title).unwrap();
        let mut events = write.events.clone();
        let mut completed = Vec::new();
        for (place, event) in events.iter_mut().enumerate().filter(|(_, event)| event.kind == UPDATED) {
            let stored = format!("{{\"status\":\"{}\"}}", conversation.status.as_str());
            let data = if last == Some(place) { stored.as_str() } else { event.data.as_str() };
            event.data = format!("{{\"title\":{title},{}", data.strip_prefix('{').unwrap_or_default());
            completed.push((place, event.data.clone()));
        }
        conversation.append(conversation_id, events);
        Ok(CommitReceipt { first_seq: base + 1, has_next_run, completed })
    }

    fn change(&self, row: &mut RunRow, change: &Change, base: i64, effects: &mut Effects) -> Result<(), &'static str> {
        match change {
            Change::SetStatus(status, _) if status.is_terminal() => return Err("a terminal status without an end"),
            Change::SetStatus(status, reason) => {
                (row.run.status, row.run.reason) = (*status, *reason);
                effects.status = Some((*status).into());
            }
            Change::Start => {
                row.cause = ClaimCause::HandedBack;
                row.started_at.get_or_insert(self.now);
                row.run.started_at.get_or_insert_with(|| self.now_text());
            }
            Change::FreezeTools(tools) => row.tools = Some(tools.clone()),
            Change::StoreContexts(contexts) => row.contexts = Some(kept(contexts)),
            Change::SetCounters(counters) => row.counters = counters.clone(),
            Change::SetSummary(summary) => effects.summary = Some(kept(summary)),
            Change::SetUsage(usage) => row.usage = *usage,
            Change::ChargeBudget { day, amount } => effects.settled.push((*day, *amount)),
            Change::StartStep { step, kind, request } => {
                row.requests.extend(request.as_ref().map(|request| (*step, storable_json(request.text.clone()))));
                let new = StepRow { run_id: row.run.id.clone(), step: *step, kind: *kind, status: StepStatus::Started };
                match row.steps.iter_mut().find(|(known, _)| known.step == *step) {
                    Some(known) => *known = (new, self.now),
                    None => row.steps.push((new, self.now)),
                }
            }
            Change::EndStep { step, status, .. } => {
                let known = row.steps.iter_mut().find(|(known, _)| known.step == *step);
                let (known, at) = known.ok_or("a step ends that never began")?;
                (known.status, *at) = (*status, self.now);
            }
            Change::AddMessage(message) => {
                let is_known = |row: &RunRow| row.messages.iter().any(|(_, known)| known.id == message.id);
                if is_known(row) || self.runs.values().any(is_known) {
                    return Err("a message exists already");
                }
                effects.messages += 1;
                row.messages.push((base + effects.messages, kept(message)));
            }
            Change::AddToolCalls(calls) => {
                if calls.iter().any(|call| row.calls.iter().any(|known| known.id == call.id)) {
                    return Err("a call exists already");
                }
                row.calls.extend(calls.iter().map(kept));
            }
            Change::RequestApproval(id) => {
                let planned = row.calls.iter_mut().find(|call| call.id == *id && call.state == ToolCallState::Planned);
                planned.ok_or("a tool call changes that has already started or ended")?.state = ToolCallState::AwaitingApproval;
            }
            Change::EditCall { id, arguments, hash } => {
                let planned = row.calls.iter_mut().find(|call| call.id == *id && call.has_not_begun());
                let call = planned.ok_or("a tool call changes that has already started or ended")?;
                (call.arguments, call.arguments_hash, call.key) = (arguments.clone(), hash.clone(), None);
            }
            Change::GrantCall { id, grant: _ } => {
                let planned = row.calls.iter().find(|call| call.id == *id && call.has_not_begun());
                planned.ok_or("a tool call changes that has already started or ended")?;
            }
            Change::StartCall(id) => {
                let planned = row.calls.iter_mut().find(|call| call.id == *id && call.has_not_begun());
                planned.ok_or("a tool call changes that has already started or ended")?.state = ToolCallState::Started;
            }
            Change::SetHandle(id, handle) => {
                let started = row.calls.iter_mut().find(|call| call.id == *id && call.state == ToolCallState::Started);
                started.ok_or("a call that is not under way gets a handle")?.handle.clone_from(handle);
            }
            Change::FinishCall(_, outcome) if !outcome.state.is_outcome() => return Err("the outcome of a call is none"),
            Change::FinishCall(id, outcome) => {
                let open = row.calls.iter_mut().find(|call| call.id == *id && !call.state.is_outcome());
                let call = open.ok_or("a call gets a second outcome")?;
                (call.state, call.outcome) = (outcome.state, Some(kept(outcome)));
            }
            Change::RequestInput(request) => row.inputs.push(InputRecord {
                request: InputRequest { expires_in_ms: None, ..kept(request) },
                resolved_by: None,
                created_at: self.now_text(),
                resolved_at: None,
                expires_at: request.expires_in_ms.map(|left| UnixMillis(self.now + i64::try_from(left).unwrap()).to_rfc3339()),
            }),
            Change::CloseInput { id, state } => {
                if let Some(asked) = row.inputs.iter_mut().find(|asked| asked.request.id == *id) {
                    asked.request.state = *state;
                    asked.resolved_at.get_or_insert_with(|| self.now_text());
                }
            }
            Change::Finish { status, .. } if !status.is_terminal() => return Err("a run ends with a status that is not terminal"),
            Change::Finish { .. } if row.is_over() => return Err("a run ends twice"),
            Change::Finish { status, finish_reason, error, .. } => {
                (row.run.status, row.run.reason) = (*status, None);
                (row.run.finish_reason, row.run.error) = (*finish_reason, error.as_ref().map(kept));
                row.run.finished_at = Some(self.now_text());
                for asked in row.inputs.iter_mut().filter(|asked| asked.request.state == InputState::Pending) {
                    asked.request.state = InputState::Cancelled;
                    asked.resolved_at = Some(self.now_text());
                }
                (row.active, row.claimable_at, row.contexts) = (false, None, None);
                effects.ends = Ends::Finished;
                effects.status = Some((*status).into());
            }
            Change::Release { after_ms, cause } => {
                let asked = row.cancel_by.is_some();
                let waits_for_answers = row.run.reason.is_some_and(WaitReason::needs_answer);
                let pending = row.inputs.iter().filter(|asked| waits_for_answers && asked.request.state == InputState::Pending);
                let after_ms = pending.filter_map(|asked| left_of(asked, self.now)).chain(*after_ms).min();
                let later = after_ms.map(|after| self.now.saturating_add(i64::try_from(after).unwrap_or(i64::MAX / 4)));
                let has_answer = waits_for_answers && std::mem::take(&mut row.answered);
                row.answered = false;
                row.claimable_at = if asked || has_answer { Some(self.now) } else { later };
                row.cause = match cause {
                    _ if asked => ClaimCause::Request,
                    ReleaseCause::Waiting => ClaimCause::Timer,
                    ReleaseCause::Drain => ClaimCause::HandedBack,
                };
                row.crashes = row.crashes.saturating_sub(1);
                effects.ends = Ends::Released;
            }
        }
        Ok(())
    }
}
