//! Requests of users: messages, cancellations, resumption.

use std::collections::BTreeMap;

use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::{Message, Part, Role};
use capstan::domain::conversation::{AgentChoice, ConversationStatus};
use capstan::domain::event::{EventBody, NewEvent, StoredEvent};
use capstan::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use capstan::domain::model::Usage;
use capstan::domain::run::change::{RunCounters, StepKind, StepRow, StepStatus};
use capstan::domain::run::record::{ClaimCause, FirstClaim};
use capstan::domain::run::{FinishReason, OnBusy, Run, RunStatus, WaitReason};
use capstan::domain::tool::{ToolCall, ToolCallState};
use capstan::domain::trace::TraceId;
use capstan::store::{AcceptOutcome, AcceptRun, CallBatch, CancelOutcome, ResumeKind, ResumeOutcome, ResumeRun};
use capstan::support::clock::UnixMillis;
use tokio::time::Instant;

use super::state::{ConversationRow, RunRow, State, kept, updated};

/// A run to store.
struct NewRun<'a> {
    id: &'a RunId,
    conversation: &'a ConversationId,
    owner: &'a UserId,
    profile: &'a AgentProfile,
    choice: AgentChoice,
    message: Option<Message>,
    supersedes: Vec<MessageId>,
    /// The calls that the run takes over from another one.
    batch: Option<&'a CallBatch>,
    trace: &'a TraceId,
    now: UnixMillis,
}

/// Returns a title of one short line.
fn title_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.text.as_str()) } else { None });
    let words: Vec<&str> = texts.flat_map(str::split_whitespace).collect();
    words.join(" ").chars().take(80).collect::<String>().trim_end().to_owned()
}

fn user_message(accept: &AcceptRun, run: &RunId) -> Message {
    assert!(accept.transcript.is_none(), "no user of the simulation sends a transcript");
    kept(&Message {
        created_at: accept.now.to_rfc3339(),
        ..Message::new(accept.message_id.clone(), (run.clone(), accept.conversation_id.clone()), Role::User, accept.parts.clone())
    })
}

impl State {
    /// Returns whether the owner has reached the limit of conversations.
    pub fn has_all_conversations(&self, owner: &UserId, most: u32) -> bool {
        most > 0 && self.conversations.values().filter(|row| row.owner == *owner).count() >= most as usize
    }

    /// Returns the result of a message, and whether rows were stored.
    pub fn accept(&mut self, accept: &AcceptRun) -> (AcceptOutcome, bool) {
        let id = &accept.conversation_id;
        match (self.conversations.get(id), &accept.create_with_title) {
            (Some(row), _) if row.owner != accept.owner => return (AcceptOutcome::NoConversation, false),
            (None, Some(_)) if self.has_all_conversations(&accept.owner, accept.max_conversations) => {
                return (AcceptOutcome::TooManyConversations, false);
            }
            (Some(_), _) | (None, Some(_)) => {}
            (None, None) => return (AcceptOutcome::NoConversation, false),
        }
        let active = self.active_in(id).map(|row| (row.run.id.clone(), row.cancel_by.is_some()));
        match (&active, accept.on_busy) {
            (Some((run_id, _)), OnBusy::Reject) => return (AcceptOutcome::Busy { run_id: run_id.clone() }, false),
            // A run that is being cancelled answers no further message.
            (Some((run_id, false)), OnBusy::Steer) => return (self.steer(accept, &run_id.clone()), true),
            (None, _) | (Some(_), OnBusy::Queue | OnBusy::Interrupt | OnBusy::Steer) => {}
        }
        let before: Vec<RunId> = self.runs_in(id).iter().filter(|row| !row.is_over()).map(|row| row.run.id.clone()).collect();
        let interrupts = accept.on_busy == OnBusy::Interrupt;
        let unfinished = self.unfinished_of(&accept.owner);
        // Runs that the interrupting message ends at once do not count.
        let ended = if interrupts { before.iter().filter(|run| self.ends_at_once(run)).count() } else { 0 };
        if accept.max_active_runs > 0 && unfinished - ended >= accept.max_active_runs as usize {
            return (AcceptOutcome::TooManyRuns, false);
        }
        self.conversations.entry(id.clone()).or_insert_with(|| ConversationRow {
            owner: accept.owner.clone(),
            title: accept.create_with_title.clone().unwrap_or_default(),
            status: ConversationStatus::Idle,
            created_at: accept.now,
            updated_at: accept.now,
            log: Vec::new(),
            writer: None,
            epoch: 0,
            joined: 0,
            summary: None,
            choice: AgentChoice::default(),
        });
        let (mut events, mut interrupted) = (Vec::new(), Vec::new());
        if interrupts {
            // Queued runs end before the active one, so that none of them becomes active in between.
            for run in before.iter().skip(1).chain(before.first()) {
                match self.ask_to_end(run, "interrupt", accept.now) {
                    Some(more) => events.extend(more),
                    None => interrupted.push(run.clone()),
                }
            }
        }
        let message = user_message(accept, &accept.run_id);
        let new = NewRun {
            id: &accept.run_id,
            conversation: id,
            owner: &accept.owner,
            profile: &accept.profile,
            choice: accept.choice.clone(),
            message: Some(message.clone()),
            supersedes: Vec::new(),
            batch: None,
            trace: &accept.trace,
            now: accept.now,
        };
        events.extend(self.store_run(new));
        let row = &self.runs[&accept.run_id];
        let (first_seq, run, is_free) = (row.first_seq, row.view().run, row.active && !self.is_full(&accept.owner));
        let claim = accept.taker.as_ref().filter(|_| is_free).map(|taker| {
            let claim = self.claim(&accept.run_id, &taker.node, taker.lease_ms);
            let record = self.load(&claim.fence).map(Box::new);
            FirstClaim { fence: claim.fence, claimed_at: Instant::now().into_std(), record }
        });
        (AcceptOutcome::Run { run, message, first_seq, events, interrupted, claim }, true)
    }

    fn steer(&mut self, accept: &AcceptRun, active: &RunId) -> AcceptOutcome {
        let message = user_message(accept, active);
        let run = self.runs[active].view().run;
        let body = EventBody::MessageCreated { message: message.clone() };
        let event = NewEvent::new(&body, Some(active.clone()), run.attempt, accept.now);
        let events = self.append(&accept.conversation_id, vec![event]);
        let first_seq = events[0].seq;
        self.run_mut(active).messages.push((first_seq, message.clone()));
        let row = self.conversations.get_mut(&accept.conversation_id).unwrap();
        row.joined += 1;
        row.keep(&accept.choice, None);
        AcceptOutcome::Steered { run, message, first_seq, events }
    }

    fn store_run(&mut self, new: NewRun<'_>) -> Vec<StoredEvent> {
        let position = self.runs_in(new.conversation).iter().filter(|row| !row.is_over()).count();
        let active = position == 0;
        let (run, at) = (Some(new.id.clone()), new.now);
        let mut events = Vec::new();
        if let Some(message) = &new.message {
            events.push(NewEvent::new(&EventBody::MessageCreated { message: message.clone() }, run.clone(), 0, at));
        }
        let position = u32::try_from(position).unwrap();
        let queued = EventBody::RunQueued { position, supersedes: new.supersedes };
        events.push(NewEvent::new(&queued, run.clone(), 0, at));
        let row = self.conversations.get_mut(new.conversation).unwrap();
        row.keep(&new.choice, Some(&new.profile.name));
        let before = (row.title.clone(), row.status);
        if row.title.is_empty() {
            row.title = title_of(new.message.as_ref().map_or(&[], |message| &message.parts));
        }
        if active {
            row.status = ConversationStatus::Queued;
        }
        row.updated_at = at;
        if before != (row.title.clone(), row.status) {
            events.push(updated(&row.title, row.status, at));
        }
        if let Some(message) = new.batch.map(|batch| kept(&batch.message)) {
            let started = EventBody::MessageStarted { message_id: message.id.clone(), role: message.role };
            events.push(NewEvent::new(&started, run.clone(), 0, at));
            events.push(NewEvent::new(&EventBody::MessageCompleted { message }, run, 0, at));
        }
        let events = row.append(new.conversation, events);
        let first_seq = events[0].seq;
        let run = Run {
            id: new.id.clone(),
            conversation_id: new.conversation.clone(),
            status: RunStatus::Queued,
            reason: None,
            agent: new.profile.name.clone(),
            agent_version: new.profile.version,
            model: new.profile.model.clone(),
            attempt: 0,
            finish_reason: None,
            usage: None,
            error: None,
            output: None,
            trace_id: Some(new.trace.clone()),
            created_at: at.to_rfc3339(),
            started_at: None,
            finished_at: None,
        };
        let row = RunRow {
            run,
            owner: new.owner.clone(),
            profile: new.profile.clone(),
            trace: new.trace.clone(),
            active,
            claimable_at: active.then_some(self.now),
            cause: ClaimCause::First,
            crashes: 0,
            cancel_by: None,
            first_seq,
            last_seq: None,
            started_at: None,
            tools: new.batch.map(|batch| batch.tools.clone()),
            contexts: None,
            counters: match new.batch {
                // The answer was the first round, and its request included the messages that had joined by then.
                Some(_) => RunCounters {
                    rounds: 1,
                    joined_at_restart: self.conversations[new.conversation].joined,
                    ..RunCounters::default()
                },
                None => RunCounters::default(),
            },
            usage: Usage::default(),
            steps: new
                .batch
                .map(|_| {
                    let run_id = new.id.clone();
                    (StepRow { run_id, step: 1, kind: StepKind::Tools, status: StepStatus::Started }, self.now)
                })
                .into_iter()
                .collect(),
            requests: BTreeMap::new(),
            calls: new.batch.map(|batch| batch.calls.iter().map(kept).collect()).unwrap_or_default(),
            inputs: Vec::new(),
            answered: false,
            messages: new
                .message
                .into_iter()
                .chain(new.batch.map(|batch| kept(&batch.message)))
                .map(|message| (first_seq, message))
                .collect(),
            gone: Vec::new(),
            is_rewound: false,
            is_turn_out: false,
        };
        self.runs.insert(new.id.clone(), row);
        events
    }

    /// Returns whether the run was never claimed.
    fn ends_at_once(&self, id: &RunId) -> bool {
        let row = &self.runs[id];
        let is_fresh = row.started_at.is_none() && row.calls.is_empty() && row.run.status == RunStatus::Queued;
        is_fresh && !self.leases.contains_key(id)
    }

    /// Cancels a run that has not ended. Returns its events if it ended at once, and otherwise a worker will end it.
    fn ask_to_end(&mut self, id: &RunId, by: &str, now: UnixMillis) -> Option<Vec<StoredEvent>> {
        if self.ends_at_once(id) {
            return Some(self.end_now(id, by, now));
        }
        let (leased, at) = (self.leases.contains_key(id), self.now);
        let row = self.run_mut(id);
        row.cancel_by.get_or_insert_with(|| by.to_owned());
        if !leased {
            if row.run.status == RunStatus::Waiting {
                row.cause = ClaimCause::Request;
            }
            row.claimable_at = Some(row.claimable_at.unwrap_or(at).min(at));
        }
        None
    }

    fn end_now(&mut self, id: &RunId, by: &str, now: UnixMillis) -> Vec<StoredEvent> {
        let row = self.run_mut(id);
        let (conversation, was_active) = (row.run.conversation_id.clone(), row.active);
        row.run.status = RunStatus::Cancelled;
        row.run.finish_reason = Some(FinishReason::Cancelled);
        row.run.finished_at = Some(now.to_rfc3339());
        row.cancel_by.get_or_insert_with(|| by.to_owned());
        (row.active, row.claimable_at) = (false, None);
        let body = EventBody::RunCancelled { by: by.to_owned() };
        let mut events = vec![NewEvent::new(&body, Some(id.clone()), row.run.attempt, now)];
        if was_active {
            let next = if self.promote_next(&conversation) { ConversationStatus::Queued } else { RunStatus::Cancelled.into() };
            events.extend(self.set_status(&conversation, next, now));
        }
        let events = self.append(&conversation, events);
        self.run_mut(id).last_seq = events.first().map(|event| event.seq);
        events
    }

    /// Returns the result of a cancel request. `overwrites` is the planted bug.
    pub fn cancel(&mut self, owner: &UserId, id: &RunId, by: &str, now: UnixMillis, overwrites: bool) -> (CancelOutcome, bool) {
        let Some(row) = self.run_of(owner, id) else { return (CancelOutcome::NoRun, false) };
        let events = match row.is_over() {
            true if overwrites => Some(self.end_now(id, by, now)),
            true => Some(Vec::new()),
            false => self.ask_to_end(id, by, now),
        };
        let run = self.runs[id].view().run;
        match events {
            Some(events) => (CancelOutcome::Over { run, events }, true),
            None => (CancelOutcome::Requested { run }, true),
        }
    }

    /// Returns the result of a resume request.
    pub fn resume(&mut self, resume: &ResumeRun) -> (ResumeOutcome, bool) {
        let Some(row) = self.run_of(&resume.owner, &resume.run_id) else { return (ResumeOutcome::NoRun, false) };
        let run = row.view().run;
        match run.status {
            RunStatus::Waiting if resume.how == ResumeKind::Resume && !run.reason.is_some_and(WaitReason::needs_answer) => {
                let now = self.now;
                if !self.leases.contains_key(&run.id) {
                    let row = self.run_mut(&run.id);
                    row.cause = ClaimCause::Request;
                    row.claimable_at = Some(row.claimable_at.unwrap_or(now).min(now));
                }
                (ResumeOutcome::Run { run, events: Vec::new() }, true)
            }
            RunStatus::Failed | RunStatus::Completed | RunStatus::Cancelled
                if (run.status == RunStatus::Failed || resume.how != ResumeKind::Resume) && self.may_go_on_after(resume, &run) =>
            {
                if self.has_taken_back(resume) {
                    return (ResumeOutcome::TakenBack, false);
                }
                if resume.max_active_runs > 0 && self.unfinished_of(&resume.owner) >= resume.max_active_runs as usize {
                    return (ResumeOutcome::TooManyRuns, false);
                }
                let profile = self.runs[&run.id].profile.clone();
                let supersedes = self.supersede(resume, &run);
                let new = NewRun {
                    id: &resume.new_run_id,
                    conversation: &run.conversation_id,
                    owner: &resume.owner,
                    profile: &profile,
                    choice: AgentChoice::default(),
                    message: None,
                    supersedes,
                    batch: resume.how.batch(),
                    trace: &resume.trace,
                    now: resume.now,
                };
                let events = self.store_run(new);
                (ResumeOutcome::Run { run: self.runs[&resume.new_run_id].view().run, events }, true)
            }
            RunStatus::Failed
            | RunStatus::Waiting
            | RunStatus::Queued
            | RunStatus::Processing
            | RunStatus::ToolLoop
            | RunStatus::Completed
            | RunStatus::Cancelled => (ResumeOutcome::NotResumable { run }, false),
        }
    }

    fn unfinished_of(&self, owner: &UserId) -> usize {
        self.runs.values().filter(|row| row.owner == *owner && !row.is_over()).count()
    }

    /// Returns whether a failed run can be resumed: its message is still there and has no other answer.
    pub fn is_resumable(&self, run: &Run) -> bool {
        let runs = self.runs_in(&run.conversation_id);
        let only_undid = |row: &RunRow| row.calls.iter().any(|call| call.undoes.is_some()) && !row.is_asked();
        let counts = |row: &RunRow| !only_undid(row) && !(row.messages.is_empty() && (row.is_turn_out || row.is_rewound));
        let row = &self.runs[&run.id];
        let is_out = row.messages.is_empty() && row.is_turn_out;
        let is_newest = !runs.iter().any(|later| later.first_seq > row.first_seq && counts(later));
        is_newest && !only_undid(row) && !is_out && runs.iter().all(|row| row.is_over())
    }

    /// Returns whether a message of the run's conversation was superseded.
    fn is_gone(&self, run: &Run, id: &str) -> bool {
        let runs = self.runs_in(&run.conversation_id);
        runs.iter().any(|row| row.gone.iter().any(|(_, message)| message.id.as_str() == id))
    }

    /// Returns whether a call of the answer may have been undone.
    fn has_taken_back(&self, resume: &ResumeRun) -> bool {
        let ResumeKind::Call(batch) = &resume.how else { return false };
        let calls = self.runs[&resume.run_id].calls.iter().filter(|call| call.message_id == batch.original);
        let keys: Vec<&CallId> = calls.map(ToolCall::key).collect();
        let all = self.runs.values().flat_map(|row| &row.calls);
        let undoing = all.filter(|call| call.undoes.as_ref().is_some_and(|undone| keys.contains(&undone)));
        undoing.map(|call| call.state).any(|state| match state {
            ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Denied => false,
            ToolCallState::Started
            | ToolCallState::Done
            | ToolCallState::Failed
            | ToolCallState::Cancelled
            | ToolCallState::Unknown => true,
        })
    }

    fn may_go_on_after(&self, resume: &ResumeRun, run: &Run) -> bool {
        let runs = self.runs_in(&run.conversation_id);
        let is_fit = match resume.how.undone_call() {
            Some(undone) => {
                let tries = runs.iter().flat_map(|row| &row.calls).filter(|call| call.undoes.as_ref() == Some(undone));
                tries.map(|call| call.state).all(|state| match state {
                    ToolCallState::Denied => true,
                    ToolCallState::Failed | ToolCallState::Cancelled | ToolCallState::Unknown => resume.how.is_confirmed(),
                    ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Started | ToolCallState::Done => {
                        false
                    }
                })
            }
            // The answer that the run starts from may have been superseded, too.
            None => self.is_resumable(run) && !resume.how.original().is_some_and(|original| self.is_gone(run, original)),
        };
        is_fit && runs.iter().all(|row| row.is_over())
    }

    /// Supersedes the messages that the new run replaces: all but the user's, from the start of the run or from the answer with
    /// the calls.
    fn supersede(&mut self, resume: &ResumeRun, run: &Run) -> Vec<MessageId> {
        let (since, runs): (i64, Vec<RunId>) = match &resume.how {
            ResumeKind::Resume | ResumeKind::Undo { .. } => return Vec::new(),
            ResumeKind::Turn => {
                let runs = self.runs_in(&run.conversation_id);
                let first = runs.iter().filter(|row| row.asks()).map(|row| row.first_seq).max().unwrap_or(i64::MAX);
                // An undo of an earlier run's call is no answer to this message.
                let is_earlier =
                    |id: &CallId| runs.iter().any(|row| row.first_seq < first && row.calls.iter().any(|call| call.id == *id));
                let stays = |row: &RunRow| row.calls.iter().filter_map(|call| call.undoes.as_ref()).any(is_earlier);
                let gone = runs.iter().filter(|row| row.first_seq >= first && !stays(row));
                (0, gone.map(|row| row.run.id.clone()).collect())
            }
            ResumeKind::Call(batch) => {
                let at = self.runs[&run.id].messages.iter().find(|(_, message)| message.id == batch.original);
                (at.map_or(i64::MAX, |(at, _)| *at), vec![run.id.clone()])
            }
        };
        let mut gone = Vec::new();
        for id in runs {
            let is_gone = |(at, message): &(i64, Message)| *at >= since && (message.role != Role::User || message.internal);
            gone.extend(self.runs[&id].messages.iter().filter(|it| is_gone(it)).map(|(at, message)| (*at, message.id.clone())));
        }
        gone.sort_by_key(|(at, _)| *at);
        let gone: Vec<MessageId> = gone.into_iter().map(|(_, id)| id).collect();
        self.take_out(&run.conversation_id, &gone);
        gone
    }
}
