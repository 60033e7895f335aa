//! Runs: accepting messages, waiting, cancelling, explaining.

pub(super) mod choices;
pub(super) mod explain;
pub(super) mod input;
pub(super) mod resume;
pub(super) mod undo;
pub(super) mod user_counts;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::agent::{AgentProfile, FallbacksFor, InvalidProfile};
use crate::domain::conversation::AgentChoice;
use crate::domain::conversation::message::Message;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::model::InvalidOption;
use crate::domain::run::{OnBusy, Run, RunStatus, WaitReason};
use crate::live::{Hub, Subscription, Tail};
use crate::service::idempotency::{Replay, RequestKey, keyed};
use crate::service::runs::choices::ChosenAgent;
use crate::service::runs::input::StartRun;
use crate::service::streams::stream::{Reader, Scope};
use crate::service::{Error, Result, RunExplanation, Service};
use crate::store::{AcceptRun, Accepted, CancelRun, Cancelled, Edited, Page, PageRequest, RunCursor, RunFilter, RunView, Taker};
use crate::support::failpoint;

/// A message that was accepted, with the run that answers it.
pub struct Started {
    /// The run: a new one, or the active one that the message joined.
    pub run: Run,
    pub message: Message,
    pub replay: Replay,
    first_seq: i64,
    tail: Subscription,
}

impl Started {
    /// Returns the path of the page of events that holds the message.
    pub fn message_path(&self) -> String {
        let Self { run, first_seq, .. } = self;
        format!("/api/v1/conversations/{}/events?after={}&limit=1", run.conversation_id, first_seq - 1)
    }
}

/// The longest that a request waits for a run.
pub const MAX_WAIT_SECONDS: u64 = 60;

#[derive(Debug, Clone, PartialEq)]
pub enum Waited {
    /// It is over, or waits for a human.
    Settled(Run),
    /// The time ran out first.
    StillGoing(Run),
}

/// Hands events to the subscribers in this process.
pub(in crate::service) fn publish(hub: &Hub, conversation: &ConversationId, events: Vec<StoredEvent>) {
    let events: Vec<_> = events.into_iter().map(Arc::new).collect();
    hub.publish(conversation, &events);
}

/// Returns the message that has replaced another one.
fn accepted_edit(edited: Edited) -> Result<Accepted> {
    match edited {
        Edited::Accepted(accepted) => Ok(*accepted),
        Edited::NotTheUsers => {
            Err(Error::conflict("only a message that the user has sent can be edited; to have an answer made again, retry its run"))
        }
        // Only if a result stands before a user's message, which no writer produces.
        Edited::PartsCalls => Err(Error::conflict("this would part calls of tools from their results")),
        Edited::NoMessage => Err(Error::NotFound("message in this conversation")),
    }
}

/// Returns whether a request that waits for a run is answered: the run is over, or only a human can move it.
fn is_settled(run: &Run) -> bool {
    run.status.is_terminal() || run.status == RunStatus::Waiting && run.reason.is_none_or(WaitReason::needs_human)
}

impl Service {
    /// Accepts a message. When this returns, message and run are stored and cannot be lost.
    pub async fn start_run(&self, principal: &Principal, request: StartRun, key: Option<RequestKey>) -> Result<Started> {
        let (owner, field) = (&principal.user_id, request.content_field);
        let profile = self.profile(principal, &request).await?;
        self.admit_to_active(principal, &request).await?;
        let admission = profile.admission.and(self.limits.admission());
        let parts = self.parts(owner, &request.content, field, admission.max_message_chars).await?;
        let places: Vec<Option<String>> = parts.iter().map(|part| part.file_id().map(str::to_owned)).collect();
        let conversation_id = request.conversation_id.unwrap_or_else(|| ConversationId::generate(self.ids.as_ref()));
        // Subscribed before the commit, so that a stream of this run need not read back what is published after it.
        let tail = self.hub.subscribe(&conversation_id);
        let slot = self.hub.hand_off().reserve();
        let trace = request.trace.clone();
        let accept = AcceptRun {
            owner: principal.user_id.clone(),
            conversation_id,
            // An empty title: the store makes one from the message.
            create_with_title: request.create.then(String::new),
            run_id: RunId::generate(self.ids.as_ref()),
            message_id: MessageId::generate(self.ids.as_ref()),
            parts,
            profile,
            choice: AgentChoice { agent: request.agent, model: request.model },
            on_busy: request.on_busy,
            max_active_runs: admission.max_active_runs,
            max_conversations: admission.max_conversations,
            max_files: self.files.limits.max_per_conversation,
            trace: request.trace,
            taker: slot.as_ref().map(|slot| Taker { node: slot.node().clone(), lease_ms: slot.lease_ms() }),
            now: self.clock.now(),
        };
        let claim = self.claim(&principal.user_id, key);
        let (edits, most) = (request.edits, admission.max_active_runs);
        let (most_files, most_conversations) = (accept.max_files, accept.max_conversations);
        let accepted = self.whole(|store, hub| async move {
            failpoint::reached("C01");
            let written = match edits {
                None => store.accept_run(accept, claim).await.map(keyed),
                Some(message) => store.edit_message(accept, &message, claim).await.map(|edited| {
                    let (edited, replay) = keyed(edited)?;
                    Ok((accepted_edit(edited)?, replay))
                }),
            };
            let (accepted, replay) = written??;
            failpoint::reached("C02");
            let mut handed = None;
            let (run, message, first_seq, events) = match accepted {
                Accepted::Run { run, message, first_seq, events, interrupted, claim } => {
                    for run in &interrupted {
                        hub.notify_control(run);
                    }
                    handed = slot.zip(claim);
                    (run, message, first_seq, events)
                }
                Accepted::Steered { run, message, first_seq, events } => {
                    hub.notify_control(&run.id);
                    (run, message, first_seq, events)
                }
                Accepted::Busy { run_id } => return Err(Error::RunActive(run_id)),
                Accepted::NoConversation => return Err(Error::NotFound("conversation")),
                Accepted::TooManyRuns => return Err(Error::TooManyRuns(most)),
                Accepted::TooManyConversations => return Err(Error::TooManyConversations(most_conversations)),
                Accepted::NoFile { file_id } => return Err(Self::no_file(&places, &file_id, field)),
                Accepted::TooManyFiles { files } => return Err(Self::too_many_files(files, most_files, field)),
            };
            if replay == Replay::Fresh {
                tracing::info!(run.id = %run.id, conversation.id = %run.conversation_id, model = %run.model, "run accepted");
            }
            publish(&hub, &run.conversation_id, events);
            failpoint::reached("C03");
            match handed {
                Some((slot, claim)) => slot.hand_over(claim, trace),
                None => hub.notify_queue(),
            }
            Ok((run, message, first_seq, replay))
        });
        let (run, message, first_seq, replay) = accepted.await?;
        // A worker that has claimed the run begins first: the model's answer takes longer than ours.
        tokio::task::yield_now().await;
        let (tail, first_seq) = match replay {
            Replay::Fresh => (tail, first_seq),
            Replay::Replayed => {
                // It may have been for another conversation than the one minted for this request. Its run may have been deleted: the client
                // would wait for nothing.
                let tail = self.hub.subscribe(&run.conversation_id);
                let view = self.run_view(principal, &run.id).await?;
                // A message that joined a run begins within it; any other begins with its run.
                (tail, first_seq.max(view.first_seq))
            }
        };
        Ok(Started { run, message, replay, first_seq, tail })
    }

    /// Checks that a member may use the agent of the active run that their message joins, whichever agent it names.
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
    pub fn stream_started(&self, principal: &Principal, started: Started) -> Reader {
        let Started { run, replay, first_seq, tail, .. } = started;
        let scope = Scope::Run { conversation_id: run.conversation_id, run_id: run.id, last_seq: None };
        self.stream_accepted(principal, tail, scope, first_seq, replay)
    }

    pub async fn run(&self, principal: &Principal, id: &RunId) -> Result<Run> {
        Ok(self.run_view(principal, id).await?.run)
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

    /// Waits until a run is over or waits for a human, at most `seconds` (and never longer than the limit).
    pub async fn wait_for_run(&self, principal: &Principal, id: &RunId, seconds: u64) -> Result<Waited> {
        let first = self.run(principal, id).await?;
        let tail = self.hub.subscribe(&first.conversation_id);
        let limit = Duration::from_secs(seconds.min(MAX_WAIT_SECONDS));
        let settled = tokio::time::timeout(limit, async {
            while !is_settled(&self.run(principal, id).await?) && self.settles(id, &tail).await {}
            Result::Ok(())
        });
        if let Ok(failed @ Err(_)) = settled.await {
            failed?;
        }
        let run = self.run(principal, id).await?;
        Ok(if is_settled(&run) { Waited::Settled(run) } else { Waited::StillGoing(run) })
    }

    /// Waits until the run's row is worth reading again; false if no more events will come.
    async fn settles(&self, id: &RunId, tail: &Subscription) -> bool {
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

    /// Asks for a run to be cancelled. A run that is over stays as it is.
    pub async fn cancel_run(&self, principal: &Principal, id: &RunId, key: Option<RequestKey>) -> Result<(Run, Replay)> {
        let (claim, now) = (self.claim(&principal.user_id, key), self.clock.now());
        let (owner, id) = (principal.user_id.clone(), id.clone());
        let cancelled = self.whole(|store, hub| async move {
            let cancel = CancelRun { owner: &owner, id: &id, by: "user", now };
            let (cancelled, replay) = keyed(store.cancel_run(cancel, claim).await?)?;
            failpoint::reached("C20-asked");
            let run = match cancelled {
                Cancelled::Over { run, events } => {
                    publish(&hub, &run.conversation_id, events);
                    run
                }
                Cancelled::Requested { run } => {
                    hub.notify_control(&id);
                    run
                }
                Cancelled::NoRun => return Err(Error::NotFound("run")),
            };
            // A run that waited can be claimed now, and so can the one behind a run that was cancelled at once.
            hub.notify_queue();
            Ok((run, replay))
        });
        let (run, replay) = cancelled.await?;
        if replay == Replay::Replayed {
            // The record of the earlier request outlives the run.
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

    /// Returns whether this owner's runs can ask a model that the profile names for something else than answers; if not, logs that.
    async fn is_usable(&self, principal: &Principal, model: &str, what: &str) -> Result<bool> {
        let is_served = self.serves(&principal.user_id, model).await?;
        if !is_served {
            tracing::warn!(model, "{what} is left out: no provider of this name is configured, or kept for this owner");
        }
        Ok(is_served)
    }

    /// Keeps of the profile's other models those that this owner's runs can ask: an unserved fallback would only hide why the model before
    /// it failed. A request that names a model means it for plans and titles, too.
    async fn keep_usable_models(&self, principal: &Principal, profile: &mut AgentProfile, names_model: bool) -> Result<()> {
        let mut usable: Vec<String> = Vec::new();
        for model in profile.fallbacks.iter().filter(|model| **model != profile.model) {
            if !usable.contains(model) && self.is_usable(principal, model, "a fallback").await? {
                usable.push(model.clone());
            }
        }
        profile.fallbacks = usable;
        let plan = &mut profile.plan;
        for (model, what) in [
            (&mut plan.planner, "a model for plans"),
            (&mut plan.router, "a model for plans"),
            (&mut profile.title_model, "the model for titles"),
        ] {
            let is_usable = match model.as_deref() {
                Some(name) => !names_model && self.is_usable(principal, name, what).await?,
                None => false,
            };
            if !is_usable {
                *model = None;
            }
        }
        Ok(())
    }

    /// Returns the profile that is frozen into the run.
    async fn profile(&self, principal: &Principal, request: &StartRun) -> Result<AgentProfile> {
        let ChosenAgent { mut profile, names_model, model } = self.chosen_agent(principal, request).await?;
        match (&model, &self.find_model) {
            (Some(model), _) => profile.model.clone_from(model),
            (None, Some(find_model)) if !names_model => profile.model = find_model.find().await.map_err(Error::NoModel)?,
            (None, Some(_) | None) => {}
        }
        if !self.serves(&principal.user_id, &profile.model).await? {
            return Err(Error::UnknownModel(profile.model));
        }
        match (std::mem::take(&mut profile.fallbacks_for), &model) {
            (FallbacksFor::Unnamed, Some(_)) => profile.fallbacks.clear(),
            (FallbacksFor::Unnamed, None) | (FallbacksFor::All, _) => {}
        }
        self.keep_usable_models(principal, &mut profile, model.is_some()).await?;
        if let Some(options) = &request.options {
            if let Err(InvalidOption { field, reason }) = options.check() {
                return Err(Error::field(&format!("/options/{field}"), reason));
            }
            if let (Some(most), Some(wanted)) = (profile.options.max_output_tokens, options.max_output_tokens)
                && wanted > most
            {
                let reason = format!("the agent's answers have at most {most}, which a request can lower and not raise");
                return Err(Error::field("/options/max_output_tokens", reason));
            }
            profile.options = options.clone().over(std::mem::take(&mut profile.options));
        }
        if let Some(limits) = request.limits {
            limits
                .lower(&mut profile)
                .map_err(|InvalidProfile { field, reason }| Error::field(&format!("/limits/{field}"), reason))?;
        }
        profile.budget.day = profile.budget.day.and(self.limits.day);
        Ok(profile)
    }
}
