//! The tool calls that a driver has under way.
//!
//! Calls outlive the log that they began with: where a run has to be loaded again although its worker lives, they go on, and write to the
//! log that follows. A call ends with its outcome, is stopped, or is left: its server goes on with it by itself, and whoever takes the run up asks for
//! what has become of it. What any of that means for the run is for the engine to say.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::asker::Asker;
use super::content_keeper::ContentKeeper;
use super::context::Surround;
use super::log_writer::RunLog;
use super::progress;
use super::registry::Held;
use super::sampler::{Sampler, Spending};
use crate::domain::handle::{Handle, Pause};
use crate::domain::ids::CallId;
use crate::domain::model::Usage;
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};
use crate::engine::RunState;
use crate::support::failpoint;
use crate::tools::CallPermit;

/// How long a cancelled tool gets to say what became of its call.
const STOP_LIMIT: Duration = Duration::from_secs(2);

type ToolFuture = Pin<Box<dyn Future<Output = (CallId, ToolSays)> + Send>>;

/// What comes of a call under way.
pub enum ToolSays {
    /// It is over.
    Ended(ToolOutcome),
    /// It was asked about.
    Reconciled(Reconciled),
    /// Its server lets go of it until it knows more.
    Pauses(Pause),
    /// Its server goes on with it by itself.
    Left,
}

/// What became of calls that were told to stop.
#[derive(Default)]
pub struct Stopped {
    /// Of those that are over.
    pub outcomes: Vec<(CallId, ToolOutcome)>,
    /// Those that their servers let go of just then: nothing of them is under way, and they can be gone on with.
    pub paused: Vec<(CallId, Pause)>,
}

/// The calls under way.
#[derive(Default)]
pub struct ToolCalls {
    under_way: FuturesUnordered<ToolFuture>,
    /// Those that nobody has heard the end of.
    ids: Vec<CallId>,
    /// What was said while no attempt listened.
    said: VecDeque<(CallId, ToolSays)>,
    /// The log that they write to; a new one where the run was loaded again.
    log: Option<watch::Sender<RunLog>>,
    stop: CancellationToken,
    leave: CancellationToken,
    has_left: bool,
    spending: Spending,
}

impl ToolCalls {
    /// What they write goes to this log from now on.
    pub fn write_to(&mut self, log: &RunLog) {
        match &self.log {
            Some(line) => drop(line.send_replace(log.clone())),
            None => self.log = Some(watch::Sender::new(log.clone())),
        }
    }

    /// Hands a call to its tool, or asks for what has become of one that its server works on.
    pub fn run(&mut self, surround: &Surround, state: &RunState, held: &Held, log: &RunLog, call: Arc<ToolCall>) {
        if self.ids.contains(&call.id) {
            // What is under way is not begun beside itself.
            return;
        }
        let log = self.log.get_or_insert_with(|| watch::Sender::new(log.clone())).subscribe();
        let definition = definition_of(state, &call);
        let tools = surround.deps.tools.clone();
        let owner = state.record.owner.clone();
        let timeout = Duration::from_millis(state.record.profile.tool_timeout_ms);
        let (stop, leave) = (self.stop.clone(), self.leave.clone());
        let (held, self_stop) = (held.clone(), surround.options.self_stop);
        let asker = Asker {
            store: surround.deps.store.clone(),
            hub: surround.deps.hub.clone(),
            ids: surround.deps.ids.clone(),
            log: log.clone(),
            fence: held.fence.clone(),
            owner: owner.clone(),
            tool: call.name.clone(),
            expires_ms: state.record.profile.ask_expires_ms,
        };
        self.spending.know_charged(state.record.usage);
        let sampler = Sampler {
            deps: surround.deps.clone(),
            held: held.clone(),
            self_stop: surround.options.self_stop,
            profile: Arc::clone(&state.record.profile),
            owner: owner.clone(),
            model: state.record.model().to_owned(),
            window: state.said_window(),
            tool: call.name.clone(),
            spending: self.spending.clone(),
        };
        let keeper = ContentKeeper::new(&surround.deps);
        let stopped = self.stop.clone();
        self.ids.push(call.id.clone());
        self.under_way.push(Box::pin(async move {
            let id = call.id.clone();
            let Some(definition) = definition else {
                return (id, ToolSays::Ended(ToolOutcome::failed("the tool is not among those of this run", 0)));
            };
            failpoint::reached("C10");
            // The process may have been stopped between the commit and here. It must not act when it wakes.
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
            // Whatever it waits for on its way, the same is asked in the moment before it is sent.
            let permit = CallPermit::new(stop, move || {
                let is_held = held.is_fresh(self_stop);
                if !is_held {
                    held.lost.cancel();
                }
                is_held
            });
            let execution = tools.execute(&owner, &definition, &call, timeout, progress, permit);
            // The reports end when the execution drops its sender; its outcome must not wait for them.
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
            // Before the outcome is decided on: what is committed refers to files that are stored.
            keeper.keep(&owner, &mut outcome, &stopped).await;
            failpoint::reached("C13");
            (id, pause.map_or(ToolSays::Ended(outcome), ToolSays::Pauses))
        }));
    }

    /// Asks what became of a call. Nothing is written before: whoever takes the run up asks again.
    pub fn reconcile(&mut self, surround: &Surround, state: &RunState, call: Arc<ToolCall>) {
        if self.ids.contains(&call.id) {
            return;
        }
        let definition = definition_of(state, &call);
        let tools = surround.deps.tools.clone();
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

    /// What models have used for the servers of calls, and nobody has charged yet.
    pub fn take_spent(&self) -> Usage {
        self.spending.take()
    }

    /// What was taken could not be charged.
    pub fn give_back(&self, usage: Usage) {
        self.spending.give_back(usage);
    }

    /// Whether no call is under way here.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.said.is_empty()
    }

    /// The calls that nobody has heard the end of.
    pub fn ids(&self) -> Vec<CallId> {
        self.ids.clone()
    }

    /// What comes of the next call that is over.
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

    /// Lets the calls go on until `over` is, and keeps what they say for later.
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

    /// From now on each call is left as soon as its server goes on with it by itself.
    pub fn leave(&self) {
        self.leave.cancel();
    }

    /// Whether all that is still going on was left.
    pub fn are_left(&self) -> bool {
        self.has_left && self.is_empty()
    }

    /// Tells the tools under way to stop, and collects what became of their calls. Of one that says nothing in time, and of one that
    /// was left, nothing is known.
    pub async fn stop(&mut self) -> Stopped {
        self.stop.cancel();
        // Whoever waits for a log that can be written to does not wait any longer.
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
