//! The rows of the model store.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan::domain::agent::AgentProfile;
use capstan::domain::agent::prompt::ProvidedContext;
use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::conversation::{AgentChoice, Conversation, ConversationStatus, LastRun};
use capstan::domain::event::{EventBody, NewEvent, StoredEvent};
use capstan::domain::ids::{ConversationId, NodeId, RunId, UserId};
use capstan::domain::model::Usage;
use capstan::domain::run::Run;
use capstan::domain::run::change::{RunCounters, StepRow};
use capstan::domain::run::context::ContextSummary;
use capstan::domain::run::question::InputRecord;
use capstan::domain::run::record::{ClaimCause, Fence, RunWrite};
use capstan::domain::tool::approval::ToolGrant;
use capstan::domain::tool::{ToolCall, ToolDefinition};
use capstan::domain::trace::TraceId;
use capstan::store::{IdempotencyKey, IdempotentOutcome, RunView};
use capstan::support::clock::UnixMillis;
use capstan::support::text::storable_json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::budget::SpendingRow;

/// A conversation with its log and the fence of its writer.
#[derive(Clone)]
pub struct ConversationRow {
    pub owner: UserId,
    pub title: String,
    pub status: ConversationStatus,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    pub log: Vec<StoredEvent>,
    /// The run that may write.
    pub writer: Option<RunId>,
    pub epoch: i64,
    /// The number of messages that joined runs.
    pub joined: i64,
    /// The summary of older messages.
    pub summary: Option<ContextSummary>,
    /// The agent and the model for messages that name none.
    pub choice: AgentChoice,
}

/// A run with its dependent rows.
#[derive(Clone)]
pub struct RunRow {
    pub run: Run,
    pub owner: UserId,
    pub profile: AgentProfile,
    pub trace: TraceId,
    pub active: bool,
    pub claimable_at: Option<i64>,
    pub cause: ClaimCause,
    pub crashes: u32,
    pub cancel_by: Option<String>,
    pub first_seq: i64,
    pub last_seq: Option<i64>,
    pub started_at: Option<i64>,
    pub tools: Option<Vec<Arc<ToolDefinition>>>,
    pub contexts: Option<Vec<ProvidedContext>>,
    pub counters: RunCounters,
    pub usage: Usage,
    /// With the times of their ends, or of their starts if they have not ended.
    pub steps: Vec<(StepRow, i64)>,
    /// The records of the requests of model steps.
    pub requests: BTreeMap<u32, String>,
    pub calls: Vec<ToolCall>,
    /// The questions of the run.
    pub inputs: Vec<InputRecord>,
    /// An answer arrived while a worker had the run.
    pub answered: bool,
    /// With their sequence numbers in the conversation.
    pub messages: Vec<(i64, Message)>,
    /// The superseded messages.
    pub gone: Vec<(i64, Message)>,
    /// A rewind has superseded some of them.
    pub is_rewound: bool,
    /// A rewind has superseded the message that it answers.
    pub is_turn_out: bool,
}

#[derive(Clone)]
pub struct LeaseRow {
    pub owner: UserId,
    pub node: NodeId,
    pub epoch: i64,
    pub since: i64,
    pub until: i64,
}

/// All rows.
#[derive(Clone, Default)]
pub struct State {
    /// The database's clock, in milliseconds.
    pub now: i64,
    /// The limit of concurrent runs for each owner, or 0 for none.
    pub owner_cap: u32,
    pub conversations: BTreeMap<ConversationId, ConversationRow>,
    pub runs: BTreeMap<RunId, RunRow>,
    pub leases: BTreeMap<RunId, LeaseRow>,
    /// The responses to idempotency keys: fingerprint, answer and time.
    pub answers: BTreeMap<(UserId, String), (String, Value, i64)>,
    /// Grants from approvals, oldest first.
    pub grants: Vec<(UserId, ToolGrant)>,
    /// The spending of runs, by owner and day.
    pub spending: BTreeMap<(UserId, i64, RunId), SpendingRow>,
    /// Writes that were confirmed and not executed yet: only a planted bug leaves any.
    pub postponed: Vec<RunWrite>,
}

impl ConversationRow {
    /// Stores the names in a message. A conversation without an agent gets that of the run.
    pub fn keep(&mut self, choice: &AgentChoice, agent_of_run: Option<&str>) {
        let agent = choice.agent.clone().or(self.choice.agent.take()).or(agent_of_run.map(str::to_owned));
        let model = choice.model.clone().or(self.choice.model.take());
        self.choice = AgentChoice { agent, model };
    }
}

impl RunRow {
    pub fn view(&self) -> RunView {
        let mut run = self.run.clone();
        run.usage = (self.usage != Usage::default()).then_some(self.usage);
        RunView { run, first_seq: self.first_seq, last_seq: self.last_seq }
    }

    /// Returns all messages, superseded ones included, by sequence number.
    pub fn said(&self) -> Vec<&(i64, Message)> {
        let mut all: Vec<_> = self.messages.iter().chain(&self.gone).collect();
        all.sort_by_key(|(at, _)| *at);
        all
    }

    /// Returns whether the run has a message of a user.
    pub fn is_asked(&self) -> bool {
        self.said().iter().any(|(_, message)| message.role == Role::User && !message.internal)
    }

    /// Returns whether a message of a user is still current.
    pub fn asks(&self) -> bool {
        self.messages.iter().any(|(_, message)| message.role == Role::User && !message.internal)
    }

    pub fn is_over(&self) -> bool {
        self.run.status.is_terminal()
    }
}

impl State {
    pub fn now_text(&self) -> String {
        UnixMillis(self.now).to_rfc3339()
    }

    /// Returns the conversation if it belongs to the owner.
    pub fn conversation_of(&self, owner: &UserId, id: &ConversationId) -> Option<&ConversationRow> {
        self.conversations.get(id).filter(|row| row.owner == *owner)
    }

    /// Returns the run if it belongs to the owner.
    pub fn run_of(&self, owner: &UserId, id: &RunId) -> Option<&RunRow> {
        self.runs.get(id).filter(|row| row.owner == *owner)
    }

    /// Returns a run that must exist.
    pub fn run_mut(&mut self, id: &RunId) -> &mut RunRow {
        self.runs.get_mut(id).unwrap_or_else(|| panic!("there is no {id}"))
    }

    /// Returns the runs of a conversation, oldest first.
    pub fn runs_in(&self, id: &ConversationId) -> Vec<&RunRow> {
        let mut runs: Vec<_> = self.runs.values().filter(|row| row.run.conversation_id == *id).collect();
        runs.sort_by_key(|row| row.first_seq);
        runs
    }

    /// Returns the run under way in a conversation.
    pub fn active_in(&self, id: &ConversationId) -> Option<&RunRow> {
        self.runs_in(id).into_iter().find(|row| row.active)
    }

    /// Returns whether the fence is the newest of its conversation.
    pub fn is_newest(&self, fence: &Fence) -> bool {
        let row = self.conversations.get(&fence.conversation_id);
        row.is_some_and(|row| row.writer.as_ref() == Some(&fence.run_id) && row.epoch == fence.epoch)
    }

    /// Returns the conversation as clients see it.
    pub fn shown(&self, id: &ConversationId) -> Option<Conversation> {
        let row = self.conversations.get(id)?;
        Some(Conversation {
            id: id.clone(),
            title: row.title.clone(),
            status: row.status,
            pinned: false,
            archived_at: None,
            tags: Vec::new(),
            system_prompt: None,
            instructions: None,
            forked_from: None,
            metadata: serde_json::Map::new(),
            last_run: self.runs_in(id).last().map(|last| LastRun {
                id: last.run.id.clone(),
                status: last.run.status,
                error: last.run.error.clone(),
            }),
            agent: row.choice.agent.clone(),
            model: row.choice.model.clone(),
            active_run_id: self.active_in(id).map(|active| active.run.id.clone()),
            reason: self.active_in(id).and_then(|active| active.run.reason),
            last_seq: row.head(),
            created_at: row.created_at.to_rfc3339(),
            updated_at: row.updated_at.to_rfc3339(),
        })
    }

    /// Appends events that need no fence.
    pub fn append(&mut self, id: &ConversationId, events: Vec<NewEvent>) -> Vec<StoredEvent> {
        self.conversations.get_mut(id).map(|row| row.append(id, events)).unwrap_or_default()
    }

    /// Sets the status. Returns an event if it changed.
    pub fn set_status(&mut self, id: &ConversationId, status: ConversationStatus, now: UnixMillis) -> Option<NewEvent> {
        let row = self.conversations.get_mut(id).filter(|row| row.status != status)?;
        row.status = status;
        row.updated_at = now;
        Some(updated(&row.title, status, now))
    }

    /// Makes the oldest queued run of the conversation active. Returns false if there is none.
    pub fn promote_next(&mut self, id: &ConversationId) -> bool {
        let next = self.runs_in(id).into_iter().find(|row| !row.is_over() && !row.active).map(|row| row.run.id.clone());
        let now = self.now;
        let Some(next) = next else { return false };
        let row = self.run_mut(&next);
        row.active = true;
        row.claimable_at = Some(now);
        true
    }

    /// Executes a request once for each key. `work` returns the answer, and whether to store it.
    pub fn keyed<T: Serialize + DeserializeOwned>(
        &mut self,
        claim: Option<IdempotencyKey>,
        work: impl FnOnce(&mut Self) -> (T, bool),
    ) -> IdempotentOutcome<T> {
        let Some(IdempotencyKey { owner, key, fingerprint }) = claim else { return IdempotentOutcome::Fresh(work(self).0) };
        if let Some((known, answer, _)) = self.answers.get(&(owner.clone(), key.clone())) {
            return match *known == fingerprint {
                true => IdempotentOutcome::Replayed(serde_json::from_value(answer.clone()).unwrap()),
                false => IdempotentOutcome::Mismatch,
            };
        }
        let (answer, keep) = work(self);
        if keep {
            self.answers.insert((owner, key), (fingerprint, serde_json::to_value(&answer).unwrap(), self.now));
        }
        IdempotentOutcome::Fresh(answer)
    }
}

impl ConversationRow {
    pub fn head(&self) -> i64 {
        i64::try_from(self.log.len()).unwrap()
    }

    pub fn append(&mut self, id: &ConversationId, events: Vec<NewEvent>) -> Vec<StoredEvent> {
        let stored: Vec<StoredEvent> = events
            .into_iter()
            .zip(self.head() + 1..)
            .map(|(event, seq)| StoredEvent {
                seq,
                kind: event.kind.into(),
                conversation_id: id.clone(),
                run_id: event.run_id,
                attempt: event.attempt,
                at: event.at,
                data: event.data,
            })
            .collect();
        self.log.extend(stored.iter().cloned());
        stored
    }
}

/// Returns a value as a database returns it, without U+0000.
pub fn kept<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&storable_json(serde_json::to_string(value).unwrap())).unwrap()
}

/// Returns the event for a changed title or status.
pub fn updated(title: &str, status: ConversationStatus, now: UnixMillis) -> NewEvent {
    NewEvent::new(&EventBody::ConversationUpdated { title: Some(title.to_owned()), status, supersedes: Vec::new() }, None, 0, now)
}
