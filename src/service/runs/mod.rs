//! Runs: acceptance of messages, waiting, cancellation, explanation.
//!
//! Owns the checks before a run is stored. Must not know how a worker executes a run.

pub(super) mod agent_and_model;
pub(super) mod client_tools;
pub(super) mod explain;
pub(super) mod message_content;
pub(super) mod resume;
pub(super) mod step_requests;
pub(super) mod transcript;
pub(super) mod undo;
pub(super) mod user_counts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::agent::{AgentProfile, FallbackTrigger, InvalidProfile};
use crate::domain::conversation::AgentChoice;
use crate::domain::conversation::message::{Message, Part};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::model::InvalidOption;
use crate::domain::run::{OnBusy, Run, RunStatus, WaitReason};
use crate::live::{Hub, Subscription, Tail};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::runs::agent_and_model::ChosenAgent;
use crate::service::runs::message_content::StartRun;
use crate::service::streams::stream::{Reader, Scope};
use crate::service::{Error, Result, RunExplanation, Service};
use crate::store::{
    AcceptOutcome, AcceptRun, AcceptingWorker, CancelOutcome, CancelRun, EditOutcome, Page, PageRequest, RunCursor, RunFilter,
    RunView, Transcript,
};
use crate::support::failpoint;

/// An accepted message with the run that answers it.
pub struct StartedRun {
    /// The run: a new one, or the active one that the message joined.
    pub run: Run,
    pub message: Message,
    pub replay: Replay,
    /// The profile that the run has frozen; `None` if another request started the run.
    profile: Option<AgentProfile>,
    first_seq: i64,
    tail: Subscription,
}

impl StartedRun {
    /// Returns the path of the event page that contains the message.
    pub fn message_path(&self) -> String {
        let Self { run, first_seq, .. } = self;
        format!("/api/v1/conversations/{}/events?after={}&limit=1", run.conversation_id, first_seq - 1)
    }
}

/// The checked parts of a request that starts a run.
struct PreparedRun {
    profile: AgentProfile,
    parts: Vec<Part>,
    run_id: RunId,
    transcript: Option<Transcript>,
}

pub const MAX_WAIT_SECONDS: u64 = 60;

#[derive(Debug, Clone, PartialEq)]
pub enum WaitOutcome {
    /// The run has ended, or waits for a human or its client.
    EndedOrWaiting(Run),
    /// The run continues after the time limit.
    TimedOut(Run),
}

/// Sends events to the subscribers in this process.
pub(in crate::service) fn publish(hub: &Hub, conversation: &ConversationId, events: Vec<StoredEvent>) {
    let events: Vec<_> = events.into_iter().map(Arc::new).collect();
    hub.publish(conversation, &events);
}

/// Returns the accepted message that replaces an edited one, or the error of the edit.
fn accepted_edit(edited: EditOutcome) -> Result<AcceptOutcome> {
    match edited {
        EditOutcome::Accepted(accepted) => Ok(*accepted),
        EditOutcome::NotTheUsers => {
            Err(Error::conflict("only a message of the user can be edited; to get another answer, retry its run"))
        }
        // Occurs only if a result precedes a user's message, which no writer produces.
        EditOutcome::PartsCalls => Err(Error::conflict("this would separate tool calls from their results")),
        EditOutcome::NoMessage => Err(Error::NotFound("message in this conversation")),
    }
}

/// Returns whether a run has ended, or only a human or its client can continue it. A request that waits for the run then ends.
fn has_ended_or_waits(run: &Run) -> bool {
    run.status.is_terminal() || run.status == RunStatus::Waiting && run.reason.is_none_or(WaitReason::needs_answer)
}

impl Service {
    /// Accepts a message. When this returns, message and run are durable.
    pub async fn start_run(&self, principal: &Principal, request: StartRun, key: Option<RequestKey>) -> Result<StartedRun> {
        let profile = self.profile(principal, &request).await?;
        self.admit_to_active(principal, &request).await?;
        let most = profile.admission.and(self.limits.admission()).max_message_chars;
        let mut parts = self.parts(&principal.user_id, &request.content, request.content_field, most).await?;
        if let (Some(first), Some(id)) = (parts.first_mut(), request.setup.first_part.clone()) {
            first.set_id(id);
        }
        let run_id = request.setup.run_id.clone().unwrap_or_else(|| RunId::generate(self.ids.as_ref()));
        self.accept(principal, request, PreparedRun { profile, parts, run_id, transcript: None }, key).await
    }

    async fn accept(
        &self,
        principal: &Principal,
        request: StartRun,
        prepared: PreparedRun,
        key: Option<RequestKey>,
    ) -> Result<StartedRun> {
        let field = request.content_field;
        let PreparedRun { profile, parts, run_id, transcript } = prepared;
        let (own_profile, own_id) = (profile.clone(), run_id.clone());
        let admission = profile.admission.and(self.limits.admission());
        let is_hidden = transcript.as_ref().is_some_and(|transcript| transcript.hidden);
        let places: Vec<Option<String>> = parts.iter().map(|part| part.file_id().map(str::to_owned)).collect();
        let conversation_id = request.conversation_id.unwrap_or_else(|| ConversationId::generate(self.ids.as_ref()));
        // The subscription precedes the commit, so that a stream of this run need not read the events that are published after it.
        let tail = self.hub.subscribe(&conversation_id);
        let slot = self.hub.hand_off().reserve();
        let trace = request.trace.clone();
        let accept = AcceptRun {
            owner: principal.user_id.clone(),
            conversation_id,
            // An empty title makes the store create one from the message.
            create_with_title: request.create.then(String::new),
            run_id,
            message_id: MessageId::generate(self.ids.as_ref()),
            parts,
            profile,
            choice: AgentChoice { agent: request.agent, model: request.model },
            on_busy: request.on_busy,
            max_active_runs: admission.max_active_runs,
            max_conversations: if is_hidden { 0 } else { admission.max_conversations },
            max_files: self.files.limits.max_per_conversation,
            trace: request.trace,
            taker: slot.as_ref().map(|slot| AcceptingWorker { node: slot.node().clone(), lease_ms: slot.lease_ms() }),
            transcript,
            now: self.clock.now(),
        };
        let claim = self.claim(&principal.user_id, key);
        let (edits, most) = (request.edits, admission.max_active_runs);
        let (most_files, most_conversations) = (accept.max_files, accept.max_conversations);
        let accepted = self.run_to_end(|store, hub| async move {
            failpoint::hit("C01");
            let written = match edits {
                None => store.accept_run(accept, claim).await.map(outcome_or_conflict),
                Some(message) => store.edit_message(accept, &message, claim).await.map(|edited| {
                    let (edited, replay) = outcome_or_conflict(edited)?;
                    Ok((accepted_edit(edited)?, replay))
                }),
            };
            let (accepted, replay) = written??;
            failpoint::hit("C02");
            let mut handed = None;
            let (run, message, first_seq, events) = match accepted {
                AcceptOutcome::Run { run, message, first_seq, events, interrupted, claim } => {
                    if !interrupted.is_empty() {
                        hub.notify_control();
                    }
                    handed = slot.zip(claim);
                    (run, message, first_seq, events)
                }
                AcceptOutcome::Steered { run, message, first_seq, events } => {
                    hub.notify_control();
                    (run, message, first_seq, events)
                }
                AcceptOutcome::Busy { run_id } => return Err(Error::RunActive(run_id)),
                AcceptOutcome::NoConversation => return Err(Error::NotFound("conversation")),
                AcceptOutcome::TooManyRuns => return Err(Error::TooManyRuns(most)),
                AcceptOutcome::TooManyConversations => return Err(Error::TooManyConversations(most_conversations)),
                AcceptOutcome::NoFile { file_id } => return Err(Self::no_file(&places, &file_id, field)),
                AcceptOutcome::TooManyFiles { files } => return Err(Self::too_many_files(files, most_files, field)),
            };
            if replay == Replay::Fresh {
                tracing::info!(run.id = %run.id, conversation.id = %run.conversation_id, model = %run.model, "run accepted");
            }
            publish(&hub, &run.conversation_id, events);
            failpoint::hit("C03");
            match handed {
                Some((slot, claim)) => slot.hand_over(claim, trace),
                None => hub.notify_queue(),
            }
            Ok((run, message, first_seq, replay))
        });
        let (run, message, first_seq, replay) = accepted.await?;
        // Yields to the worker that has claimed the run, because the model's answer takes longer than this response.
        tokio::task::yield_now().await;
        let (tail, first_seq) = match replay {
            Replay::Fresh => (tail, first_seq),
            Replay::Replayed => {
                // The earlier request may have been for another conversation than the new id of this one. Its run may have been
                // deleted: the client would wait forever.
                let tail = self.hub.subscribe(&run.conversation_id);
                let view = self.run_view(principal, &run.id).await?;
                // A message that joined a run begins inside the run; any other begins with its run.
                (tail, first_seq.max(view.first_seq))
            }
        };
        let profile = Some(own_profile).filter(|_| run.id == own_id);
        Ok(StartedRun { run, message, replay, profile, first_seq, tail })
    }

    /// Returns the run that an earlier request with this key has started.
    pub async fn repeated_run(&self, principal: &Principal, key: Option<RequestKey>) -> Result<Option<Run>> {
        let Some(key) = self.claim(&principal.user_id, key) else { return Ok(None) };
        let recorded = self.store.recorded::<AcceptOutcome>(&key).await?.map(outcome_or_conflict).transpose()?;
        let Some((AcceptOutcome::Run { run, .. } | AcceptOutcome::Steered { run, .. }, _)) = recorded else { return Ok(None) };
        Ok(Some(run))
    }

    /// Checks that a member may use the agent of the active run that the message joins, even if the message names another agent.
    async fn admit_to_active(&self, principal: &Principal, request: &StartRun) -> Result<()> {
        match (&request.conversation_id, request.on_busy, principal.role) {
            (Some(conversation), OnBusy::Steer, UserRole::Member) => {
                match self.store.active_run(&principal.user_id, conversation).await? {
                    Some(run) => self.admit_again(principal, &run.id).await,
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Streams an accepted run, from the first event that its message caused.
    pub fn stream_started(&self, principal: &Principal, started: StartedRun) -> Reader {
        let StartedRun { run, replay, first_seq, tail, .. } = started;
        let scope = Scope::Run { conversation_id: run.conversation_id, run_id: run.id, last_seq: None };
        self.stream_accepted(principal, tail, scope, first_seq, replay)
    }

    pub async fn run_profile(&self, principal: &Principal, id: &RunId) -> Result<AgentProfile> {
        self.store.run_profile(&principal.user_id, id).await?.ok_or(Error::NotFound("run"))
    }

    /// Returns the profile of a started run. Reads it from the store only if another request started the run.
    pub async fn started_profile(&self, principal: &Principal, started: &mut StartedRun) -> Result<AgentProfile> {
        match started.profile.take() {
            Some(profile) => Ok(profile),
            None => self.run_profile(principal, &started.run.id).await,
        }
    }

    /// Returns the numbers of the run's responses that their client has deleted.
    pub async fn deleted_responses(&self, principal: &Principal, id: &RunId) -> Result<BTreeSet<u32>> {
        Ok(self.store.deleted_responses(&principal.user_id, id).await?)
    }

    /// Returns the stored fields of the requests that continued a run, by the numbers of their responses.
    pub async fn continued_requests(&self, principal: &Principal, id: &RunId) -> Result<BTreeMap<u32, Value>> {
        Ok(self.store.continued_requests(&principal.user_id, id).await?)
    }

    /// Stores fields of the request that continues a run with the response `number`, unless there are some.
    pub async fn store_continued_request(&self, principal: &Principal, id: &RunId, number: u32, fields: Value) -> Result<()> {
        let mut requests = self.store.continued_requests(&principal.user_id, id).await?;
        requests.entry(number).or_insert(fields);
        Ok(self.store.store_continued_requests(&principal.user_id, id, &requests).await?)
    }

    pub async fn copied_runs(&self, principal: &Principal, conversation: &ConversationId) -> Result<BTreeSet<RunId>> {
        Ok(self.store.copied_runs(&principal.user_id, conversation).await?)
    }

    /// Returns whether the conversation of a run has another run that is no copy, and of which no response was deleted.
    pub async fn has_other_whole_run(&self, principal: &Principal, run: &Run) -> Result<bool> {
        Ok(self.store.has_other_whole_run(&principal.user_id, (&run.conversation_id, &run.id)).await?)
    }

    /// Marks a response of a run as deleted. The run and its messages stay.
    pub async fn delete_response(&self, principal: &Principal, id: &RunId, number: u32) -> Result<()> {
        Ok(self.store.delete_response(&principal.user_id, id, number).await?)
    }

    pub async fn run(&self, principal: &Principal, id: &RunId) -> Result<Run> {
        let mut run = self.run_view(principal, id).await?.run;
        if run.status.is_terminal() {
            run.output = self.store.run_output(&principal.user_id, id).await?;
        }
        Ok(run)
    }

    /// Returns a page of the principal's runs, newest first: those of one conversation, or all.
    pub async fn runs(&self, principal: &Principal, filter: &RunFilter, page: &PageRequest<RunCursor>) -> Result<Page<Run>> {
        if let Some(conversation) = &filter.conversation {
            self.conversation(principal, conversation).await?;
        }
        Ok(self.store.runs(&principal.user_id, filter, page).await?)
    }

    pub(in crate::service) async fn run_view(&self, principal: &Principal, id: &RunId) -> Result<RunView> {
        self.store.run(&principal.user_id, id).await?.ok_or(Error::NotFound("run"))
    }

    /// Waits until a run has ended, or waits for a human or its client. Waits at most `seconds`, and at most the limit.
    pub async fn wait_for_run(&self, principal: &Principal, id: &RunId, seconds: u64) -> Result<WaitOutcome> {
        let first = self.run(principal, id).await?;
        let tail = self.hub.subscribe(&first.conversation_id);
        let limit = Duration::from_secs(seconds.min(MAX_WAIT_SECONDS));
        let waited = tokio::time::timeout(limit, async {
            while !has_ended_or_waits(&self.run(principal, id).await?) && self.wait_for_change(id, &tail).await {}
            Result::Ok(())
        });
        if let Ok(failed @ Err(_)) = waited.await {
            failed?;
        }
        let run = self.run(principal, id).await?;
        Ok(if has_ended_or_waits(&run) { WaitOutcome::EndedOrWaiting(run) } else { WaitOutcome::TimedOut(run) })
    }

    /// Waits until the run's row should be read again. Returns false if no more events will follow.
    async fn wait_for_change(&self, id: &RunId, tail: &Subscription) -> bool {
        loop {
            match tail.next().await {
                Tail::Events(events) => {
                    let mut ours = events.iter().filter(|event| event.run_id.as_ref() == Some(id));
                    if ours.any(|event| event.ends_run() || event.kind == "run.waiting") {
                        return true;
                    }
                }
                Tail::Reread => return true,
                Tail::Deleted | Tail::Closed => return false,
            }
        }
    }

    /// Requests the cancellation of a run. Does nothing if the run has ended.
    pub async fn cancel_run(&self, principal: &Principal, id: &RunId, key: Option<RequestKey>) -> Result<(Run, Replay)> {
        let (claim, now) = (self.claim(&principal.user_id, key), self.clock.now());
        let (owner, id) = (principal.user_id.clone(), id.clone());
        let cancelled = self.run_to_end(|store, hub| async move {
            let cancel = CancelRun { owner: &owner, id: &id, by: "user", now };
            let (cancelled, replay) = outcome_or_conflict(store.cancel_run(cancel, claim).await?)?;
            failpoint::hit("C20-asked");
            let run = match cancelled {
                CancelOutcome::Over { run, events } => {
                    publish(&hub, &run.conversation_id, events);
                    run
                }
                CancelOutcome::Requested { run } => {
                    hub.notify_control();
                    run
                }
                CancelOutcome::NoRun => return Err(Error::NotFound("run")),
            };
            // A waiting run can be claimed now, and so can the run behind one that was cancelled at once.
            hub.notify_queue();
            Ok((run, replay))
        });
        let (run, replay) = cancelled.await?;
        if replay == Replay::Replayed {
            // The idempotency record outlives the run.
            self.run_view(principal, &run.id).await?;
        }
        Ok((run, replay))
    }

    pub async fn explain_run(&self, principal: &Principal, id: &RunId) -> Result<RunExplanation> {
        let known = self.store.explain_run(&principal.user_id, id).await?.ok_or(Error::NotFound("run"))?;
        let ahead = match &known.behind_run {
            Some(ahead) => self.store.explain_run(&principal.user_id, ahead).await?,
            None => None,
        };
        Ok(RunExplanation::new(known, ahead.as_ref()))
    }

    /// Returns whether this owner's runs can use an additional model of the profile, such as a fallback. Logs a warning if not.
    async fn is_usable(&self, principal: &Principal, model: &str, setting: &str) -> Result<bool> {
        let is_served = self.serves(&principal.user_id, model).await?;
        if !is_served {
            tracing::warn!(model, "{setting} is ignored: no provider with its name is configured, or stored for this owner");
        }
        Ok(is_served)
    }

    /// Keeps those additional models of the profile that this owner's runs can use: an unserved fallback would hide why the model
    /// before it failed. A model that the request or its conversation names also makes plans and titles.
    async fn keep_usable_models(&self, principal: &Principal, profile: &mut AgentProfile, names_model: bool) -> Result<()> {
        let mut usable: Vec<String> = Vec::new();
        for model in profile.fallbacks.iter().filter(|model| **model != profile.model) {
            if !usable.contains(model) && self.is_usable(principal, model, "a fallback").await? {
                usable.push(model.clone());
            }
        }
        profile.fallbacks = usable;
        let plan = &mut profile.plan;
        for (model, setting) in [
            (&mut plan.planner, "a model for plans"),
            (&mut plan.router, "a model for plans"),
            (&mut profile.title_model, "the model for titles"),
        ] {
            let is_usable = match model.as_deref() {
                Some(name) => !names_model && self.is_usable(principal, name, setting).await?,
                None => false,
            };
            if !is_usable {
                *model = None;
            }
        }
        Ok(())
    }

    async fn profile(&self, principal: &Principal, request: &StartRun) -> Result<AgentProfile> {
        let ChosenAgent { mut profile, names_model, model } = self.chosen_agent(principal, request).await?;
        let preferred = if model.is_none() && !names_model { self.usable_default_model(principal).await? } else { None };
        match (model.as_ref().or(preferred.as_ref()), &self.find_model) {
            (Some(model), _) => profile.model.clone_from(model),
            (None, Some(find_model)) if !names_model => profile.model = find_model.find().await.map_err(Error::NoModel)?,
            (None, Some(_) | None) => {}
        }
        self.require_served(principal, &profile.model).await?;
        match (std::mem::take(&mut profile.fallbacks_for), &model) {
            (FallbackTrigger::Unnamed, Some(_)) => profile.fallbacks.clear(),
            (FallbackTrigger::Unnamed, None) | (FallbackTrigger::All, _) => {}
        }
        self.keep_usable_models(principal, &mut profile, model.is_some()).await?;
        if let Some(options) = &request.options {
            if let Err(InvalidOption { field, reason }) = options.check() {
                return Err(Error::field(&format!("/options/{field}"), reason));
            }
            if let (Some(most), Some(requested)) = (profile.options.max_output_tokens, options.max_output_tokens)
                && requested > most
            {
                let reason = format!("must be at most {most}, the agent's limit, which a request can only lower");
                return Err(Error::field("/options/max_output_tokens", reason));
            }
            profile.options = options.clone().over(std::mem::take(&mut profile.options));
        }
        if let Some(limits) = request.limits {
            limits
                .lower(&mut profile)
                .map_err(|InvalidProfile { field, reason }| Error::field(&format!("/limits/{field}"), reason))?;
        }
        request.setup.check(self.limits.max_message_chars)?;
        request.setup.apply(&mut profile);
        profile.budget.day = profile.budget.day.and(self.limits.day);
        profile.client_tools = self.client_tools(principal, &profile, &request.tools).await?;
        Ok(profile)
    }
}
