//! Conversations and runs as their owners see them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::Message;
use capstan::domain::conversation::{AgentChoice, Conversation, ConversationStatus};
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use capstan::domain::run::change::StepKind;
use capstan::domain::run::output::RunOutput;
use capstan::domain::run::question::{InputKind, InputRecord, InputState};
use capstan::domain::run::{Run, RunStatus};
use capstan::domain::tool::ToolCallState;
use capstan::domain::tool::call_record::ToolCallRecord;
use capstan::store::*;
use capstan::support::clock::UnixMillis;

use super::state::{ConversationRow, RunRow, State, updated};
use super::{Bug, ModelStore};

impl State {
    /// Returns all messages of a conversation by their sequence numbers.
    fn messages_in(&self, id: &ConversationId) -> Vec<(i64, Message)> {
        let mut messages: Vec<_> = self.runs_in(id).into_iter().flat_map(|row| row.messages.clone()).collect();
        messages.sort_by_key(|(at, _)| *at);
        messages
    }
}

#[async_trait]
impl ConversationStore for ModelStore {
    async fn create_conversation(&self, new: NewConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CreateOutcome> {
        Ok(self.state().keyed(key, |state| {
            if state.has_all_conversations(&new.owner, new.max_conversations) {
                return (CreateOutcome::TooMany, false);
            }
            if state.conversations.contains_key(&new.id) {
                return (CreateOutcome::Exists, false);
            }
            let row = ConversationRow {
                owner: new.owner,
                title: new.title,
                status: ConversationStatus::Idle,
                created_at: new.now,
                updated_at: new.now,
                log: Vec::new(),
                writer: None,
                epoch: 0,
                joined: 0,
                summary: None,
                choice: new.choice,
            };
            state.conversations.insert(new.id.clone(), row);
            (state.shown(&new.id).map_or(CreateOutcome::Exists, |shown| CreateOutcome::Conversation(Box::new(shown))), true)
        }))
    }

    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        let state = self.state();
        Ok(state.conversation_of(owner, id).and_then(|_| state.shown(id)))
    }

    async fn run_progress(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        let state = self.state();
        let of = |run: &RunId| {
            let row = state.runs.get(run).filter(|row| row.owner == *owner)?;
            let has_tools = row.steps.iter().any(|(step, _)| step.kind == StepKind::Tools);
            let kind = if has_tools { StepKind::Tools } else { row.steps.first()?.0.kind };
            Some((run.clone(), kind))
        };
        Ok(runs.iter().filter_map(of).collect())
    }

    async fn conversations(
        &self,
        _owner: &UserId,
        _filter: &ConversationFilter,
        _page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        panic!("nobody lists conversations of the model")
    }

    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        let mut state = self.state();
        if state.conversation_of(owner, id).is_none() {
            return Ok(None);
        }
        let row = state.conversations.get_mut(id).unwrap();
        if let Some(title) = &change.title {
            title.clone_into(&mut row.title);
        }
        let changed = |kept: &Option<String>, to: &Option<String>| to.clone().or(kept.clone()).filter(|name| !name.is_empty());
        row.choice =
            AgentChoice { agent: changed(&row.choice.agent, &change.agent), model: changed(&row.choice.model, &change.model) };
        row.updated_at = now;
        let event = updated(&row.title, row.status, now);
        let events = state.append(id, vec![event]);
        Ok(state.shown(id).map(|conversation| (conversation, events)))
    }

    async fn compact(&self, compact: Compact, key: Option<IdempotencyKey>) -> IdempotentResult<CompactOutcome> {
        Ok(self.state().keyed(key, |state| state.compact(&compact)))
    }

    async fn rewind_conversation(&self, rewind: Rewind, key: Option<IdempotencyKey>) -> IdempotentResult<RewindOutcome> {
        Ok(self.state().keyed(key, |state| state.rewind(&rewind)))
    }

    async fn append_messages(&self, _append: AppendMessages, _key: Option<IdempotencyKey>) -> IdempotentResult<AppendOutcome> {
        panic!("nobody appends messages to conversations of the model")
    }

    async fn copy_conversation(&self, _copy: CopyConversation, _key: Option<IdempotencyKey>) -> IdempotentResult<CopyOutcome> {
        panic!("nobody copies conversations of the model")
    }

    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        let mut state = self.state();
        if state.conversation_of(owner, id).is_none() {
            return Ok(None);
        }
        let active_run = state.active_in(id).map(|row| row.run.id.clone());
        state.conversations.remove(id);
        state.runs.retain(|_, row| row.run.conversation_id != *id);
        let State { runs, leases, .. } = &mut *state;
        leases.retain(|run, _| runs.contains_key(run));
        Ok(Some(DeletedConversation { active_run }))
    }

    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>> {
        let state = self.state();
        if state.conversation_of(owner, id).is_none() {
            return Ok(None);
        }
        let after = page.after.map_or(0, |MessageCursor(at)| at);
        let rest: Vec<_> = state.messages_in(id).into_iter().filter(|(at, _)| *at > after).collect();
        let shown = &rest[..rest.len().min(page.limit as usize)];
        let next = shown.last().filter(|_| rest.len() > shown.len()).map(|(at, _)| MessageCursor(*at).to_string());
        Ok(Some(Page { items: shown.iter().map(|(_, message)| message.clone()).collect(), next }))
    }

    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>> {
        let state = self.state();
        if state.conversation_of(owner, id).is_none() {
            return Ok(None);
        }
        let before = page.before.map_or(i64::MAX, |BeforeCursor(at)| at);
        let all: Vec<_> = state.messages_in(id).into_iter().filter(|(at, _)| *at < before).collect();
        let skipped = all.len().saturating_sub(page.limit as usize);
        let items = all.into_iter().skip(skipped).map(|(at, message)| (BeforeCursor(at), message)).collect();
        Ok(Some(EarlierMessages { items, earlier: skipped > 0 }))
    }
}

#[async_trait]
impl RunStore for ModelStore {
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        Ok(self.state().keyed(key, |state| state.accept(&accept)))
    }

    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<EditOutcome> {
        Ok(self.state().edit(accept, message, key))
    }

    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        Ok(self.state().run_of(owner, id).map(|row| row.view()))
    }

    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>> {
        let state = self.state();
        let created = |row: &RunRow| UnixMillis::from_rfc3339(&row.run.created_at).unwrap();
        let is_wanted = |row: &&RunRow| {
            row.owner == *owner
                && filter.conversation.as_ref().is_none_or(|wanted| *wanted == row.run.conversation_id)
                && filter.status.is_none_or(|wanted| wanted == row.run.status)
                && filter.agent.as_ref().is_none_or(|wanted| *wanted == row.run.agent)
                && filter.created_from.is_none_or(|from| created(row) >= from)
                && filter.created_before.is_none_or(|before| created(row) < before)
        };
        let place = |row: &RunRow| if filter.conversation.is_some() { row.first_seq } else { created(row).0 };
        let mut found: Vec<_> = state.runs.values().filter(is_wanted).map(|row| (place(row), row.run.id.clone(), row)).collect();
        found.sort_by(|(one, one_id, _), (other, other_id, _)| (other, other_id).cmp(&(one, one_id)));
        let after = page.after.as_ref().map(|after| (after.at, after.id.clone()));
        found.retain(|(place, id, _)| after.as_ref().is_none_or(|(at, last)| (place, id) < (at, last)));
        let more = found.len() > page.limit as usize;
        found.truncate(page.limit as usize);
        let next = found.last().filter(|_| more).map(|(at, id, _)| RunCursor { at: *at, id: id.clone() }.to_string());
        Ok(Page { items: found.into_iter().map(|(.., row)| row.view().run).collect(), next })
    }

    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        Ok(self.state().run_of(owner, id).map(|row| row.profile.clone()))
    }

    async fn run_output(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunOutput>> {
        let state = self.state();
        let Some(row) = state.run_of(owner, id) else { return Ok(None) };
        let is_json = row.profile.options.output_schema.is_some();
        Ok(row.said().last().and_then(|(_, last)| RunOutput::of(last, is_json)))
    }

    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        let state = self.state();
        Ok(state.active_in(conversation).filter(|row| row.owner == *owner).map(|row| row.view().run))
    }

    async fn cancel_run(&self, cancel: CancelRun<'_>, key: Option<IdempotencyKey>) -> IdempotentResult<CancelOutcome> {
        let (CancelRun { owner, id, by, now }, overwrites) = (cancel, self.has(Bug::TerminalOverwritten));
        Ok(self.state().keyed(key, |state| state.cancel(owner, id, by, now, overwrites)))
    }

    async fn resume_run(&self, resume: ResumeRun, key: Option<IdempotencyKey>) -> IdempotentResult<ResumeOutcome> {
        Ok(self.state().keyed(key, |state| state.resume(&resume)))
    }

    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        let state = self.state();
        let Some(row) = state.run_of(owner, run) else { return Ok(None) };
        let Some(call) = row.calls.iter().find(|known| known.id == *call) else { return Ok(None) };
        let message = row.messages.iter().find(|(_, message)| message.id == call.message_id).map(|(_, message)| message.clone());
        let tools = row.tools.clone().unwrap_or_default();
        Ok(message.map(|message| CallBatch::from_parts(message, row.calls.clone(), tools, &call.id)))
    }

    async fn tool_call(&self, _owner: &UserId, _run: &RunId, _call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        panic!("the model does not know when calls were made")
    }

    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        let state = self.state();
        let Some(row) = state.run_of(owner, id) else { return Ok(None) };
        let lease = state.leases.get(id);
        let line = state.line();
        let place = line.iter().position(|(.., run)| *run == id);
        let within = |rank: usize| state.owner_cap == 0 || rank <= state.owner_cap as usize;
        let is_before = |place: usize| line[..place].iter().filter(|(rank, ..)| within(*rank)).count();
        let live = state.leases.values().filter(|lease| lease.owner == *owner && lease.until > state.now);
        let running = i64::try_from(live.count()).unwrap();
        let is_full = state.owner_cap > 0 && running >= i64::from(state.owner_cap);
        let step = row.steps.iter().max_by_key(|(step, _)| step.step);
        Ok(Some(Explanation {
            run: row.view().run,
            lease_node: lease.map(|lease| lease.node.clone()),
            lease_expires_in_ms: lease.map(|lease| lease.until - state.now),
            lease_age_ms: lease.map(|lease| state.now - lease.since),
            crashes: row.crashes.saturating_sub(u32::from(lease.is_some())),
            queue_position: place.map(|place| i64::try_from(is_before(place)).unwrap()),
            owner_cap: place.filter(|_| is_full).map(|_| (running, state.owner_cap)),
            claimable_in_ms: row.claimable_at.map(|at| at - state.now),
            behind_run: state
                .active_in(&row.run.conversation_id)
                .filter(|_| !row.active && !row.is_over())
                .map(|active| active.run.id.clone()),
            live_leases: i64::try_from(state.leases.values().filter(|lease| lease.until > state.now).count()).unwrap(),
            resumable: row.run.status == RunStatus::Failed && state.is_resumable(&row.run),
            cancel_requested_by: row.cancel_by.clone(),
            step: step
                .map(|(step, at)| (step.step, step.kind.as_str().to_owned(), step.status.as_str().to_owned(), state.now - at)),
            questions: row
                .inputs
                .iter()
                .filter(|asked| asked.request.state == InputState::Pending)
                .map(|asked| (asked.request.id.clone(), asked.request.kind, asked.request.question.text.clone()))
                .collect(),
            calls_asking: {
                let asks = |asked: &&InputRecord| {
                    asked.request.state == InputState::Pending && asked.request.kind == InputKind::Elicitation
                };
                let calls: BTreeSet<_> = row.inputs.iter().filter(asks).filter_map(|asked| asked.request.call_id.clone()).collect();
                i64::try_from(calls.len()).unwrap()
            },
            tools_under_way: row
                .calls
                .iter()
                .filter(|call| call.state == ToolCallState::Started)
                .map(|call| call.name.clone())
                .collect(),
        }))
    }

    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        let mut counts = std::collections::BTreeMap::new();
        for row in self.state().runs.values().filter(|row| !row.is_over()) {
            *counts.entry(row.run.status.as_str().to_owned()).or_insert(0) += 1;
        }
        Ok(counts.into_iter().collect())
    }
}
