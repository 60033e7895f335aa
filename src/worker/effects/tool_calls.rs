//! The tool calls that a run driver has under way.
//!
//! Calls outlive the log that they began with: if the same worker reloads the run, they continue, and write to the next log. A call ends
//! with its outcome, is stopped, or is detached: its server continues it, and the next claim asks for the result. Must not know the
//! consequences for the run, which the engine decides.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::domain::ids::CallId;
use crate::domain::run::{Handle, InputRequired};
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};
use crate::engine::RunState;
use crate::support::failpoint;
use crate::tools::{CallControl, CallPermit};
use crate::worker::context::WorkerContext;
use crate::worker::effects::elicitation::QuestionSender;
use crate::worker::effects::progress;
use crate::worker::effects::sampling::{Sampler, SamplingUsage};
use crate::worker::effects::tool_result_files::ContentStore;
use crate::worker::leases::registry::ActiveLease;
use crate::worker::log_writer::RunLog;

/// How long a cancelled tool may take to report the outcome of its call.
const STOP_LIMIT: Duration = Duration::from_secs(2);

type ToolFuture = Pin<Box<dyn Future<Output = (CallId, ToolResult)> + Send>>;

/// The result of a call under way.
pub enum ToolResult {
    Ended(ToolOutcome),
    Reconciled(Reconciled),
    /// The server needs input before it continues.
    Pauses(InputRequired),
    /// The server continues the call as a task.
    Detached,
}

/// The results of stopped calls.
#[derive(Default)]
pub struct StopResults {
    pub outcomes: Vec<(CallId, ToolOutcome)>,
    /// Calls whose servers paused them at that moment: they can be continued.
    pub paused: Vec<(CallId, InputRequired)>,
}

#[derive(Default)]
pub struct ToolCalls {
    under_way: FuturesUnordered<ToolFuture>,
    /// Calls whose result was not taken yet.
    ids: Vec<CallId>,
    /// Results that arrived between attempts.
    ready: VecDeque<(CallId, ToolResult)>,
    /// The current log.
    log: Option<watch::Sender<RunLog>>,
    stop: CancellationToken,
    detach_all: CancellationToken,
    has_detached: bool,
    pub spending: SamplingUsage,
}

impl ToolCalls {
    /// Makes the calls under way write to this log.
    pub fn write_to(&mut self, log: &RunLog) {
        match &self.log {
            Some(line) => drop(line.send_replace(log.clone())),
            None => self.log = Some(watch::Sender::new(log.clone())),
        }
    }

    /// Sends a call to its tool, or asks its server for the result of a task.
    pub fn run(
        &mut self,
        context: &WorkerContext,
        state: &RunState,
        active_lease: &ActiveLease,
        log: &RunLog,
        call: Arc<ToolCall>,
    ) {
        if self.ids.contains(&call.id) {
            return;
        }
        let log = self.log.get_or_insert_with(|| watch::Sender::new(log.clone())).subscribe();
        let definition = definition_of(state, &call);
        let tools = context.deps.tools.clone();
        let owner = state.record.owner.clone();
        let timeout = Duration::from_millis(state.record.profile.tool_timeout_ms);
        let (stop, detach_all) = (self.stop.clone(), self.detach_all.clone());
        let (active_lease, self_stop) = (active_lease.clone(), context.options.self_stop);
        let question_sender = QuestionSender {
            deps: context.deps.clone(),
            log: log.clone(),
            fence: active_lease.fence.clone(),
            owner: owner.clone(),
            tool: call.name.clone(),
            expires_ms: state.record.profile.ask_expires_ms,
        };
        self.spending.know_charged(state.record.usage);
        let sampler = Sampler {
            deps: context.deps.clone(),
            active_lease: active_lease.clone(),
            self_stop: context.options.self_stop,
            profile: Arc::clone(&state.record.profile),
            owner: owner.clone(),
            model: state.record.model().to_owned(),
            window: state.agent_window(),
            tool: call.name.clone(),
            spending: self.spending.clone(),
        };
        let content_store = ContentStore::new(&context.deps);
        let stopped = self.stop.clone();
        let conversation = state.record.fence.conversation_id.clone();
        self.ids.push(call.id.clone());
        self.under_way.push(Box::pin(async move {
            let id = call.id.clone();
            let Some(definition) = definition else {
                return (id, ToolResult::Ended(ToolOutcome::failed("this run has no such tool", 0)));
            };
            failpoint::hit("C10");
            // The process may have been suspended since the commit. It must not act when it continues.
            if !active_lease.is_fresh(self_stop) {
                active_lease.lost.cancel();
                std::future::pending::<()>().await;
            }
            // Cancelled when the call can be detached.
            let detachable = CancellationToken::new();
            if call.handle.as_ref().and_then(Handle::task).is_some() {
                detachable.cancel();
            }
            let (progress, reports) = mpsc::channel(16);
            let reporting = progress::show(&log, &id, reports, Some((&question_sender, &sampler)), &detachable);
            // The lease is checked again at the moment of sending.
            let permit = CallPermit::new(stop, move || {
                let is_held = active_lease.is_fresh(self_stop);
                if !is_held {
                    active_lease.lost.cancel();
                }
                is_held
            })
            .for_conversation(conversation);
            let execution = tools.execute(&owner, &definition, &call, CallControl { timeout, progress, permit });
            // The reports end when the execution drops their sender, so the outcome waits only for open answers to the server.
            let executed = futures_util::future::join(execution, reporting);
            let detached = async {
                detachable.cancelled().await;
                detach_all.cancelled().await;
            };
            let (mut outcome, pause) = tokio::select! {
                biased;
                executed = executed => executed,
                () = detached => return (id, ToolResult::Detached),
            };
            // Files are stored before the engine decides about the outcome, because committed references need stored files.
            content_store.store_content(&owner, &mut outcome, &stopped).await;
            failpoint::hit("C13");
            (id, pause.map_or(ToolResult::Ended(outcome), ToolResult::Pauses))
        }));
    }

    /// Asks a server for the outcome of a call. Stores no request: the next claim asks again.
    pub fn reconcile(&mut self, context: &WorkerContext, state: &RunState, call: Arc<ToolCall>) {
        if self.ids.contains(&call.id) {
            return;
        }
        let definition = definition_of(state, &call);
        let tools = context.deps.tools.clone();
        let owner = state.record.owner.clone();
        let timeout = Duration::from_millis(state.record.profile.tool_timeout_ms);
        let stop = self.stop.clone();
        self.ids.push(call.id.clone());
        self.under_way.push(Box::pin(async move {
            let reconciled = match definition {
                Some(definition) => tools.reconcile(&owner, &definition, &call, timeout, stop).await,
                None => Reconciled::Unclear("this run has no such tool".to_owned()),
            };
            failpoint::hit("reconciled");
            (call.id.clone(), ToolResult::Reconciled(reconciled))
        }));
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.ready.is_empty()
    }

    /// Returns the calls whose result was not taken yet.
    pub fn ids(&self) -> Vec<CallId> {
        self.ids.clone()
    }

    /// Waits for the next result.
    pub async fn next(&mut self) -> Option<(CallId, ToolResult)> {
        let next = match self.ready.pop_front() {
            Some(result) => Some(result),
            None => self.under_way.next().await,
        };
        self.has_detached |= matches!(next, Some((_, ToolResult::Detached)));
        if let Some((id, _)) = &next {
            self.ids.retain(|known| known != id);
        }
        next
    }

    /// Lets the calls continue until `over` completes, and keeps their results.
    pub async fn continue_until(&mut self, over: impl Future<Output = ()>) {
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return,
                Some(result) = self.under_way.next() => self.ready.push_back(result),
            }
        }
    }

    /// Detaches each call from now on as soon as its server continues it as a task.
    pub fn detach(&self) {
        self.detach_all.cancel();
    }

    /// Returns whether all remaining calls are detached.
    pub fn all_detached(&self) -> bool {
        self.has_detached && self.is_empty()
    }

    /// Stops the tools, and collects the outcomes of their calls. The outcome of a call that does not reply in time, or that was detached,
    /// is unknown.
    pub async fn stop(&mut self) -> StopResults {
        self.stop.cancel();
        // Calls that wait for a writable log stop waiting.
        self.log = None;
        let mut stopped = StopResults::default();
        let deadline = tokio::time::sleep(STOP_LIMIT);
        tokio::pin!(deadline);
        while !self.is_empty() {
            tokio::select! {
                biased;
                Some((call, result)) = self.next() => match result {
                    ToolResult::Ended(outcome) | ToolResult::Reconciled(Reconciled::Happened(outcome)) => {
                        stopped.outcomes.push((call, outcome));
                    }
                    ToolResult::Pauses(pause) => stopped.paused.push((call, pause)),
                    ToolResult::Reconciled(Reconciled::DidNotHappen | Reconciled::Unclear(_)) | ToolResult::Detached => {}
                },
                () = &mut deadline => break,
            }
        }
        self.under_way.clear();
        self.ids.clear();
        self.stop = CancellationToken::new();
        stopped
    }
}

fn definition_of(state: &RunState, call: &ToolCall) -> Option<Arc<ToolDefinition>> {
    state.record.tools.iter().flatten().find(|tool| tool.name == call.name).cloned()
}
