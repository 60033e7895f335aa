//! Prepares the first decision about a claimed run: loads it, and collects the facts that the engine needs.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::domain::agent::{OnUnknown, ToolNotes};
use crate::domain::conversation::Message;
use crate::domain::run::{Capacity, ClaimCause, RunRecord};
use crate::domain::tool::ApprovalMode;
use crate::engine::{Input, RunFacts, RunState, count_ahead, counts_tokens};
use crate::store::{ControlSignal, SUSPECT_CRASHES, StoreResult};
use crate::support::failpoint;
use crate::tools::context_providers::ContextRequest;
use crate::worker::context::WorkerContext;
use crate::worker::effects::withhold_changed_tools;
use crate::worker::leases::registry::ActiveLease;
use crate::worker::log_writer::RunLog;
use crate::worker::run::attempt::{AttemptCarryOver, AttemptEnd};

pub(in crate::worker) struct LoadedRun {
    pub state: Box<RunState>,
    pub log: RunLog,
    pub input: Input,
}

/// Loads a run and its facts. Does not load the rows if they are `known`.
pub(in crate::worker) async fn prepare_run(
    context: &WorkerContext,
    active_lease: &ActiveLease,
    mailbox: &mut mpsc::Receiver<Box<ControlSignal>>,
    known: Option<Box<RunRecord>>,
    cause: Option<ClaimCause>,
    fenced: &CancellationToken,
    carried: &mut AttemptCarryOver,
) -> Result<LoadedRun, AttemptEnd> {
    if carried.crashes >= SUSPECT_CRASHES
        && let Ok(Some(record)) = context.deps.store.load_bare(&active_lease.fence).await
        && (record.is_poison() || record.cancel_requested_by.is_some())
    {
        // The first decision ends the run. The messages of the conversation are not loaded, because they may be the cause of the
        // crashes.
        carried.attempt = record.attempt;
        carried.finished.extend(carried.tools.stop().await.outcomes);
        let log = context.writer.for_run(active_lease.fence.clone(), record.attempt, fenced.clone(), context.deps.clock.clone());
        let input = Input::Claimed { tools: Vec::new(), contexts: None, finished: carried.finished.clone() };
        return Ok(LoadedRun { state: Box::new(RunState::load(record)), log, input });
    }
    let loaded = match known {
        Some(record) => Ok(Some(*record)),
        None => context.deps.store.load_run(&active_lease.fence).await,
    };
    let mut record = match loaded {
        Ok(Some(record)) => record,
        Ok(None) => return Err(AttemptEnd::Fenced),
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "run could not be loaded");
            return Err(AttemptEnd::from(&error));
        }
    };
    failpoint::hit("C04-loaded");
    carried.attempt = record.attempt;
    carried.suspected_since = carried.suspected_since.filter(|_| record.is_one_crash_before_poison());
    if failpoint::is_planted("unsafe-rerun") {
        Arc::make_mut(&mut record.profile).on_unknown = OnUnknown::Rerun;
    }
    record.profile = context.profiles.shared(record.profile);
    // The passed cause replaces only `HandedBack`. Another cause stays until the run continues, because the crash of its last
    // worker needs a decision.
    if let Some(cause) = cause.filter(|_| record.cause == ClaimCause::HandedBack) {
        record.cause = cause;
    }
    let (limit, elapsed_ms) = (record.profile.max_run_ms, record.elapsed_ms);
    if record.cancel_requested_by.is_some() || record.is_poison() || limit > 0 && elapsed_ms >= limit {
        // The tools are stopped before the run ends, so that their outcomes are known.
        carried.finished.extend(carried.tools.stop().await.outcomes);
    }
    let log = context.writer.for_run(active_lease.fence.clone(), record.attempt, fenced.clone(), context.deps.clock.clone());
    let mut state = RunState::load(record);
    let mut facts = RunFacts::default();
    let mut input = first_input(context, &mut state, &mut facts, mailbox).await.map_err(|error| AttemptEnd::from(&error))?;
    if state.record.cancel_requested_by.is_some() {
        // The cancellation arrived while the facts were loaded.
        carried.finished.extend(carried.tools.stop().await.outcomes);
    }
    if let Input::Claimed { finished, .. } = &mut input {
        finished.clone_from(&carried.finished);
    }
    facts.under_way = carried.tools.ids();
    facts.capacities = capacities(context, &state.record).await;
    state.set_facts(facts);
    let state = Box::new(counted(state).await);
    Ok(LoadedRun { state, log, input })
}

/// Messages that joined meanwhile. Each signal repeats all of them, and hundreds may arrive while an MCP server starts.
#[derive(Default)]
struct JoinedMessages(Vec<Message>);

impl JoinedMessages {
    fn add(&mut self, messages: Vec<Message>) {
        for message in messages {
            if self.0.iter().all(|known| known.id != message.id) {
                self.0.push(message);
            }
        }
    }
}

/// Determines the input of the first decision. This may start MCP servers and request context providers, so a cancellation
/// interrupts it. The state stores the cancellation, and the first decision ends the run. A run that has begun is not handed back
/// here, because a crash of its last worker needs a decision first.
async fn first_input(
    context: &WorkerContext,
    state: &mut RunState,
    facts: &mut RunFacts,
    mailbox: &mut mpsc::Receiver<Box<ControlSignal>>,
) -> StoreResult<Input> {
    let is_new = state.record.tools.is_none();
    let mut input = Input::Claimed { tools: Vec::new(), contexts: None, finished: Vec::new() };
    let (mut joined, mut cancel_by) = (JoinedMessages::default(), None);
    let instead = {
        let found = load_facts(context, &state.record, facts, &mut input);
        tokio::pin!(found);
        loop {
            let signal = tokio::select! {
                biased;
                Some(signal) = mailbox.recv() => signal,
                () = context.drain.cancelled(), if is_new => {
                    break Ok(Some(Input::Drain { stopped: Vec::new(), paused: Vec::new() }));
                }
                found = &mut found => break found.map(|()| None),
            };
            joined.add(signal.joined);
            if signal.cancel_by.is_some() {
                cancel_by = signal.cancel_by;
                break Ok(None);
            }
        }
    }?;
    for message in joined.0 {
        state.learn(&Input::Joined(message));
    }
    if cancel_by.is_some() {
        state.record.cancel_requested_by = cancel_by;
    }
    Ok(instead.unwrap_or(input))
}

async fn load_facts(context: &WorkerContext, record: &RunRecord, facts: &mut RunFacts, input: &mut Input) -> StoreResult<()> {
    if record.cancel_requested_by.is_some() {
        // The first decision ends the run.
        return Ok(());
    }
    if record.tools.is_none()
        && let Input::Claimed { tools, .. } = input
    {
        *tools = context.deps.tools.definitions(&record.owner).await;
        let wanted = record.profile.tools.as_ref();
        tools.retain(|tool| wanted.is_none_or(|wanted| wanted.contains(&tool.name)));
    }
    load_grants(context, record, facts, input).await.inspect_err(|error| {
        tracing::error!(error = error as &dyn std::error::Error, "the grants of the run could not be loaded");
    })?;
    withhold_changed_tools::withhold_changed_tools(&context.deps, &context.options, &context.accepted, facts, input).await?;
    load_prompt_facts(context, record, facts, input).await;
    Ok(())
}

/// Loads the facts of the system prompt. Context providers are requested once per run, and their texts are stored with the run.
async fn load_prompt_facts(context: &WorkerContext, record: &RunRecord, facts: &mut RunFacts, input: &mut Input) {
    let (profile, owner) = (&record.profile, &record.owner);
    let Input::Claimed { contexts, .. } = input else { return };
    // The run's first event names the MCP servers with incomplete tools, even if the model does not see them.
    let servers = match profile.prompt.tool_notes {
        ToolNotes::Off if record.tools.is_some() => Vec::new(),
        ToolNotes::Off | ToolNotes::Unavailable | ToolNotes::All => context.deps.tools.notes(owner).await,
    };
    if let Some(providers) = &context.deps.context_providers
        && record.contexts.is_none()
        && !profile.context_providers.is_empty()
    {
        let newest = record.history.iter().rev().find(|message| message.is_from_user());
        let request = ContextRequest {
            user_id: owner,
            conversation_id: &record.fence.conversation_id,
            run_id: &record.fence.run_id,
            input: &newest.map(Message::text).unwrap_or_default(),
        };
        *contexts = Some(providers.fetch_texts(&profile.context_providers, &request).await);
    }
    facts.servers = servers;
}

/// Loads the grants, if one of the run's tools can use them.
async fn load_grants(context: &WorkerContext, record: &RunRecord, facts: &mut RunFacts, input: &Input) -> StoreResult<()> {
    let offered = match input {
        Input::Claimed { tools, .. } => tools.as_slice(),
        _ => &[],
    };
    let policy = &record.profile.approval;
    let mut tools = record.tools.iter().flatten().chain(offered);
    if tools.any(|tool| policy.mode(&tool.name, tool.safety) == ApprovalMode::Ask) {
        facts.grants = context.deps.store.tool_grants(&record.owner, Some(&record.fence.conversation_id)).await?;
    }
    Ok(())
}

/// Returns the capacities of the run's models.
async fn capacities(context: &WorkerContext, record: &RunRecord) -> Vec<(String, Capacity)> {
    let RunRecord { owner, profile, .. } = record;
    let mut capacities = Vec::new();
    let of_plans = profile.plan.planner.iter().chain(&profile.plan.router);
    for model in std::iter::once(&profile.model).chain(&profile.fallbacks).chain(of_plans) {
        capacities.push((model.clone(), context.deps.models.capacity(owner, model).await));
    }
    capacities
}

/// Counts the tokens of the run's messages on a blocking thread, because the first count of a long conversation is slow.
async fn counted(state: RunState) -> RunState {
    if !counts_tokens(&state) {
        return state;
    }
    let state = Arc::new(state);
    let counted = Arc::clone(&state);
    if let Err(error) = tokio::task::spawn_blocking(move || count_ahead(&counted)).await {
        tracing::error!(%error, "the tokens of a conversation could not be counted ahead");
    }
    Arc::unwrap_or_clone(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn repeated_join_signal_is_kept_once() {
        let message = |id: u32| -> Message {
            let uuid = "0198c0de-0000-7000-8000-";
            serde_json::from_value(json!({
                "id": format!("msg_{uuid}{id:012}"), "conversation_id": format!("conv_{uuid}{:012}", 0),
                "run_id": format!("run_{uuid}{:012}", 0), "role": "user", "status": "complete", "parts": [],
                "created_at": "2026-01-01T00:00:00.000Z"
            }))
            .unwrap()
        };
        let mut joined = JoinedMessages::default();
        joined.add(vec![message(1)]);
        joined.add(vec![message(1), message(2)]);
        joined.add(vec![message(1), message(2)]);
        assert_eq!(joined.0, [message(1), message(2)]);
    }
}
