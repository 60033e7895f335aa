//! The tool calls that a driver has under way.
//!
//! Calls outlive the log that they began with: if the run is loaded again by the same worker, they continue, and write to the next
//! log. A call ends with its outcome, is stopped, or is left: its server continues it, and the next claim asks for the result. What
//! that means for the run is decided by the engine.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::domain::ids::CallId;
use crate::domain::model::Usage;
use crate::domain::run::handle::{Handle, Pause};
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};
use crate::engine::RunState;
use crate::support::failpoint;
use crate::tools::CallPermit;
use crate::worker::context::WorkerContext;
use crate::worker::effects::asker::Asker;
use crate::worker::effects::content_keeper::ContentKeeper;
use crate::worker::effects::progress;
use crate::worker::effects::sampler::{Sampler, Spending};
use crate::worker::leases::registry::Held;
use crate::worker::log_writer::RunLog;

/// How long a cancelled tool gets to report the outcome of its call.
const STOP_LIMIT: Duration = Duration::from_secs(2);

type ToolFuture = Pin<Box<dyn Future<Output = (CallId, ToolSays)> + Send>>;

/// The result of a call under way.
pub enum ToolSays {
    Ended(ToolOutcome),
    Reconciled(Reconciled),
    /// The server needs input before it continues.
    Pauses(Pause),
    /// The server continues the call by itself.
    Left,
}

/// The results of calls that were stopped.
#[derive(Default)]
pub struct Stopped {
    pub outcomes: Vec<(CallId, ToolOutcome)>,
    /// Calls whose servers let go of them just then: they can be continued.
    pub paused: Vec<(CallId, Pause)>,
}

#[derive(Default)]
pub struct ToolCalls {
    under_way: FuturesUnordered<ToolFuture>,
    /// Calls whose result was not taken yet.
    ids: Vec<CallId>,
    /// Results that came between attempts.
    said: VecDeque<(CallId, ToolSays)>,
    /// The current log.
    log: Option<watch::Sender<RunLog>>,
    stop: CancellationToken,
    leave: CancellationToken,
    has_left: bool,
    spending: Spending,
}

impl ToolCalls {
    /// Switches to this log.
    pub fn write_to(&mut self, log: &RunLog) {
        match &self.log {
            Some(line) => drop(line.send_replace(log.clone())),
            None => self.log = Some(watch::Sender::new(log.clone())),
        }
    }

    /// Hands a call to its tool, or asks its server for the result of a task.
    pub fn run(&mut self, context: &WorkerContext, state: &RunState, held: &Held, log: &RunLog, call: Arc<ToolCall>) {
        if self.ids.contains(&call.id) {
            return;
        }
        let log = self.log.get_or_insert_with(|| watch::Sender::new(log.clone())).subscribe();
        let definition = definition_of(state, &call);
        let tools = context.deps.tools.clone();
        let owner = state.record.owner.clone();
        let timeout = Duration::from_millis(state.record.profile.tool_timeout_ms);
        let (stop, leave) = (self.stop.clone(), self.leave.clone());
        let (held, self_stop) = (held.clone(), context.options.self_stop);
        let asker = Asker {
            deps: context.deps.clone(),
            log: log.clone(),
            fence: held.fence.clone(),
            owner: owner.clone(),
            tool: call.name.clone(),
            expires_ms: state.record.profile.ask_expires_ms,
        };
        self.spending.know_charged(state.record.usage);
        let sampler = Sampler {
            deps: context.deps.clone(),
            held: held.clone(),
            self_stop: context.options.self_stop,
            profile: Arc::clone(&state.record.profile),
            owner: owner.clone(),
            model: state.record.model().to_owned(),
            window: state.said_window(),
            tool: call.name.clone(),
            spending: self.spending.clone(),
        };
        let keeper = ContentKeeper::new(&context.deps);
        let stopped = self.stop.clone();
        self.ids.push(call.id.clone());
        self.under_way.push(Box::pin(async move {
            let id = call.id.clone();
            let Some(definition) = definition else {
                return (id, ToolSays::Ended(ToolOutcome::failed("the tool is not among those of this run", 0)));
            };
            failpoint::reached("C10");
            // The process may have been stopped since the commit. It must not act when it wakes.
            if !held.is_fresh(self_stop) {
                held.lost.cancel();
                std::future::pending::<()>().await;
            }
            // Cancelled when the call can be left to its server.
            let by_itself = CancellationToken::new();
            if call.handle.as_ref().and_then(Handle::task).is_some() {
                by_itself.cancel();
            }
            let (progress, reports) = mpsc::channel(16);
            let shown = progress::show(&log, &id, reports, Some((&asker, &sampler)), &by_itself);
            // The lease is checked again at the moment of sending.
            let permit = CallPermit::new(stop, move || {
                let is_held = held.is_fresh(self_stop);
                if !is_held {
                    held.lost.cancel();
                }
                is_held
            });
            let execution = tools.execute(&owner, &definition, &call, timeout, progress, permit);
            // The reports end when the execution drops its sender; the outcome must not wait for them.
            let carried_out = futures_util::future::join(execution, shown);
            let may_leave = async {
                by_itself.cancelled().await;
                leave.cancelled().await;
            };
            let (mut outcome, pause) = tokio::select! {
                biased;
                carried_out = carried_out => carried_out,
                () = may_leave => return (id, ToolSays::Left),
            };
            // Before the outcome is decided on, because committed references need stored files.
            keeper.keep(&owner, &mut outcome, &stopped).await;
            failpoint::reached("C13");
            (id, pause.map_or(ToolSays::Ended(outcome), ToolSays::Pauses))
        }));
    }

    /// Asks a server for the outcome of a call. Nothing is stored before: the next claim asks again.
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
            let said = match definition {
                Some(definition) => tools.reconcile(&owner, &definition, &call, timeout, stop).await,
                None => Reconciled::Unclear("the tool is not among those of this run".to_owned()),
            };
            failpoint::reached("reconciled");
            (call.id.clone(), ToolSays::Reconciled(said))
        }));
    }

    /// Takes the usage of sampling that is not charged yet.
    pub fn take_spent(&self) -> Usage {
        self.spending.take()
    }

    /// Returns usage that could not be charged.
    pub fn give_back(&self, usage: Usage) {
        self.spending.give_back(usage);
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.said.is_empty()
    }

    /// Returns the calls whose result was not taken yet.
    pub fn ids(&self) -> Vec<CallId> {
        self.ids.clone()
    }

    /// Waits for the next result.
    pub async fn next(&mut self) -> Option<(CallId, ToolSays)> {
        let next = match self.said.pop_front() {
            Some(said) => Some(said),
            None => self.under_way.next().await,
        };
        self.has_left |= matches!(next, Some((_, ToolSays::Left)));
        if let Some((id, _)) = &next {
            self.ids.retain(|known| known != id);
        }
        next
    }

    /// Lets the calls continue until `over`, and keeps their results.
    pub async fn go_on_until(&mut self, over: impl Future<Output = ()>) {
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return,
                Some(said) = self.under_way.next() => self.said.push_back(said),
            }
        }
    }

    /// Leaves each call from now on as soon as its server continues it by itself.
    pub fn leave(&self) {
        self.leave.cancel();
    }

    /// Returns whether all calls that continue were left.
    pub fn are_left(&self) -> bool {
        self.has_left && self.is_empty()
    }

    /// Stops the tools, and collects the outcomes of their calls. The outcome of a call that does not reply in time, or that was
    /// left, is unknown.
    pub async fn stop(&mut self) -> Stopped {
        self.stop.cancel();
        // Calls that wait for a writable log stop waiting.
        self.log = None;
        let mut stopped = Stopped::default();
        let deadline = tokio::time::sleep(STOP_LIMIT);
        tokio::pin!(deadline);
        while !self.is_empty() {
            tokio::select! {
                biased;
                Some((call, says)) = self.next() => match says {
                    ToolSays::Ended(outcome) | ToolSays::Reconciled(Reconciled::Happened(outcome)) => {
                        stopped.outcomes.push((call, outcome));
                    }
                    ToolSays::Pauses(pause) => stopped.paused.push((call, pause)),
                    ToolSays::Reconciled(Reconciled::DidNotHappen | Reconciled::Unclear(_)) | ToolSays::Left => {}
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
