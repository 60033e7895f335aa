//! Drives one claimed run: loads it, asks the engine for decisions, commits them, and executes their commands.
//!
//! `select!` only finds out what happened; the engine decides what it means. Whenever the rows may differ from the state in memory,
//! the driver loads them again and continues from there, as after a crash.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::agent::OnUnknown;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelError, ModelRequest, Usage};
use crate::domain::run::RunStatus;
use crate::domain::run::budget::{Reserve, Reserved};
use crate::domain::run::change::{Change, ReleaseCause};
use crate::domain::run::record::{ClaimCause, RunRecord};
use crate::domain::tool::tool_filter::RankedTools;
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::engine::{Command, Decision, Durability, Input, PartialAnswer, RunState, Surroundings, decide, tool_query};
use crate::store::{ControlSignal, SUSPECT_CRASHES, StoreResult};
use crate::support::failpoint;
use crate::worker::context::WorkerContext;
use crate::worker::effects::model_call::{ModelCall, sendable_request};
use crate::worker::effects::reservation::Reservation;
use crate::worker::effects::tool_calls::{Stopped, ToolCalls, ToolSays};
use crate::worker::leases::claimed::{Ready, get_ready};
use crate::worker::leases::registry::{Held, HeldGuard};
use crate::worker::log_writer::{LogError, RunLog};
use crate::worker::run::attempt::{Carried, End, raise_fence};
use crate::worker::run::ending;
use crate::worker::run::figures;

/// How often a run's rows may be unreadable or unwritable, for other reasons than an unavailable database, before the run is given
/// up: each further attempt would ask the model again.
const MAX_STRIKES: u32 = 5;

/// Drives the run until it has ended, was released, or is no longer ours. `record` is the loaded run, if it is known.
pub async fn drive(
    context: &WorkerContext,
    guard: &mut HeldGuard,
    mut mailbox: mpsc::Receiver<Box<ControlSignal>>,
    crashes: u32,
    mut record: Option<Box<RunRecord>>,
) {
    let mut reload_pause = Duration::from_millis(50);
    let mut strikes = 0;
    let mut cause = None;
    let suspected_since = (crashes >= SUSPECT_CRASHES).then(Instant::now);
    let mut carried = Carried { crashes, suspected_since, ..Carried::default() };
    let lost = guard.held.lost.clone();
    loop {
        // Nothing new begins in the last attempt: it hands the run back.
        let is_last = context.stop_now.is_cancelled();
        // Each attempt has its own log and fence: late writes of the one before are fenced.
        let fenced = CancellationToken::new();
        // Unwritten events of an ended attempt are dropped: nothing would follow on them.
        let _void = fenced.clone().drop_guard();
        let one = async {
            if cause.is_some()
                && let Err(end) = Box::pin(raise_fence(context, guard, carried.attempt)).await
            {
                return end;
            }
            attempt(context, &guard.held, &mut mailbox, record.take(), cause, &fenced, &mut carried).await
        };
        let end = tokio::select! {
            biased;
            () = lost.cancelled() => return,
            () = fenced.cancelled() => return,
            end = one => end,
        };
        match end {
            End::Over | End::Fenced => return,
            End::Broken if strikes + 1 >= MAX_STRIKES => {
                carried.finished.extend(carried.tools.stop().await.outcomes);
                return Box::pin(ending::give_up(context, guard, carried.attempt, carried.finished)).await;
            }
            End::Reload | End::Broken if is_last => {
                drop(carried.tools.stop().await);
                // Giving up the lease takes less time than handing the run back, and counts no crash either.
                return guard.held.excuse();
            }
            End::Reload | End::Broken => {
                strikes += u32::from(matches!(end, End::Broken));
                // The rows tell how far the run has come. As long as the lease can be kept, the run is still ours.
                cause = Some(ClaimCause::Reload);
                tokio::select! {
                    biased;
                    () = lost.cancelled() => return,
                    () = context.stop_now.cancelled() => {}
                    () = carried.tools.go_on_until(tokio::time::sleep(reload_pause)) => {}
                }
                reload_pause = (reload_pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

/// A suspected run is cleared when it has lived for so many leases and then completes a step: with the defaults a minute.
const CLEARED_AFTER_LEASES: u32 = 6;

const UNSENDABLE: &str = "the run was given up: the server made a request of it that no provider takes, and has not sent it";

async fn attempt(
    context: &WorkerContext,
    held: &Held,
    mailbox: &mut mpsc::Receiver<Box<ControlSignal>>,
    known: Option<Box<RunRecord>>,
    cause: Option<ClaimCause>,
    fenced: &CancellationToken,
    carried: &mut Carried,
) -> End {
    // Boxed, because loading needs much stack, which a run that streams would keep.
    let ready = Box::pin(get_ready(context, held, mailbox, known, cause, fenced, carried)).await;
    let Ready { state, log, mut input } = match ready {
        Ok(ready) => ready,
        Err(end) => return end,
    };
    let mut drive = Drive {
        context,
        held,
        loaded_at: Instant::now(),
        step_began: Instant::now(),
        state,
        log,
        model: None,
        answered: None,
        spent: Usage::default(),
        is_unsendable: false,
        ranking: None,
        reserving: None,
        tools: std::mem::take(&mut carried.tools),
        draining: false,
        is_unsure: cause.is_some(),
        finished: &mut carried.finished,
        suspected_since: &mut carried.suspected_since,
    };
    if context.drain.is_cancelled() {
        drive.drain();
    }
    drive.tools.write_to(&drive.log);
    let end = loop {
        match drive.follow(input).await {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(end) => break end,
        }
        input = match drive.next_input(mailbox).await {
            ControlFlow::Continue(next) => next,
            ControlFlow::Break(end) => break end,
        };
    };
    drive.log.give_up();
    // Calls under way survive a short outage of the database.
    carried.tools = drive.tools;
    end
}

type Ranking = std::pin::Pin<Box<dyn Future<Output = RankedTools> + Send>>;

struct Drive<'a> {
    context: &'a WorkerContext,
    held: &'a Held,
    loaded_at: Instant,
    step_began: Instant,
    state: Box<RunState>,
    log: RunLog,
    model: Option<ModelCall>,
    /// The end of the model call, if it came before the commit that it began with.
    answered: Option<Result<(), ModelError>>,
    /// Usage of failed model calls that no write has charged yet.
    spent: Usage,
    /// The request breaks the rules that providers have in common, and was not sent.
    is_unsendable: bool,
    ranking: Option<Ranking>,
    reserving: Option<Reservation>,
    tools: ToolCalls,
    draining: bool,
    /// Writes have failed and none has succeeded since: nothing begins before one does. Otherwise a store that can be read but not
    /// written would make each attempt ask the model again.
    is_unsure: bool,
    /// Outcomes that could not be stored. The next attempt uses them, so that they do not become unknown.
    finished: &'a mut Vec<(CallId, ToolOutcome)>,
    suspected_since: &'a mut Option<Instant>,
}

impl Drive<'_> {
    /// Decides, commits, and starts the commands.
    async fn follow(&mut self, input: Input) -> ControlFlow<End> {
        let tool_finished = matches!(input, Input::ToolFinished(..));
        let of_tools = self.tools.take_spent();
        self.spent.add(of_tools);
        let (decision, calls_model) = loop {
            let mut decision = self.decide(input.clone());
            let request = take_request(&mut decision.commands);
            let calls_model = request.is_some();
            match self.write(&decision, request).await {
                Ok(()) => break (decision, calls_model),
                // A message has joined: the same input is decided again with it.
                Err(LogError::Unheard) => {
                    if let Err(end) = Box::pin(self.hear()).await {
                        self.not_stored(input, of_tools);
                        return ControlFlow::Break(end);
                    }
                }
                Err(error) => {
                    self.not_stored(input, of_tools);
                    return ControlFlow::Break(match error {
                        // An earlier write has failed, which tells whether another attempt may help.
                        LogError::Stopped if self.log.is_broken_for_good() => End::Broken,
                        error => error.into(),
                    });
                }
            }
        };
        self.finished.clear();
        self.spent = Usage::default();
        self.reached_after(&decision, tool_finished, calls_model);
        if self.suspected_since.is_some_and(|since| since.elapsed() >= self.context.options.lease * CLEARED_AFTER_LEASES)
            && decision.events.iter().any(|event| matches!(event, EventBody::StepCompleted { .. }))
        {
            Box::pin(self.clear()).await;
        }
        // The profile's last words are no answer.
        let answers = |change: &Change| matches!(change, Change::Finish { status: RunStatus::Completed, error: None, .. });
        if decision.changes.iter().any(answers) {
            self.context.titles.begin(&self.context.deps, &self.context.options, &self.state);
        }
        for command in decision.commands {
            match command {
                Command::Stop => return ControlFlow::Break(End::Over),
                // Taken out before, and under way.
                Command::CallModel(_) => {}
                Command::RankTools => self.rank_tools(),
                Command::Reserve(reserve) => self.reserve(reserve),
                Command::RunTool(call) => self.tools.run(self.context, &self.state, self.held, &self.log, call),
                Command::Reconcile(call) => self.tools.reconcile(self.context, &self.state, call),
            }
        }
        ControlFlow::Continue(())
    }

    /// Keeps for the next attempt what only this one knows.
    fn not_stored(&mut self, input: Input, of_tools: Usage) {
        self.finished.extend(input.into_outcomes());
        self.tools.give_back(of_tools);
    }

    /// Returns whether a call that was cancelled before anything was sent would have an unknown outcome for the next attempt. A
    /// repeatable call is made again there, and a call whose server has had a round of it may have taken effect.
    fn is_lost_unsent(&self, id: &CallId) -> bool {
        // With `rerun`, an earlier attempt may have sent the call.
        let is_rerun = self.state.record.profile.on_unknown == OnUnknown::Rerun;
        !is_rerun && self.state.record.call(id).is_some_and(|call| !call.replay.may_repeat() && call.handle.is_none())
    }

    /// Commits a decision. A model call begins meanwhile, since it changes nothing outside; its answer is written after the
    /// decision, and a decision that cannot be written ends the attempt and the call. A decision of durability `Behind` is written
    /// with the next one.
    async fn write(&mut self, decision: &Decision, request: Option<Box<ModelRequest>>) -> Result<(), LogError> {
        let finishes = decision.changes.iter().any(|change| matches!(change, Change::Finish { .. }));
        if finishes {
            failpoint::reached("C22");
        }
        if decision.changes.iter().any(|change| matches!(change, Change::Summarize(_))) {
            failpoint::reached("C26");
        }
        self.held.lets_go(finishes || decision.changes.iter().any(|change| matches!(change, Change::Release { .. })));
        if decision.events.is_empty() && decision.changes.is_empty() {
            return Ok(());
        }
        let (now, later) = if self.is_unsure { (None, request) } else { (request, None) };
        let is_behind = decision.durability == Durability::Behind && !self.is_unsure;
        let applies_now = now.is_some() || is_behind;
        if applies_now {
            self.state.apply(&decision.changes);
        }
        if let Some(request) = now {
            self.call_model(*request);
        }
        if is_behind {
            self.log.append(&decision.events, decision.changes.clone());
            figures::count(decision, &mut self.step_began);
            return Ok(());
        }
        let Self { log, model, answered, .. } = self;
        let talk = async {
            if model.is_some() && answered.is_none() {
                *answered = Some(run_model(model, answered, log).await);
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            result = log.commit(&decision.events, decision.changes.clone()) => result?,
            never = talk => match never {},
        }
        self.is_unsure = false;
        if !applies_now {
            self.state.apply(&decision.changes);
        }
        if let Some(request) = later {
            self.call_model(*request);
        }
        figures::count(decision, &mut self.step_began);
        Ok(())
    }

    /// Clears the run of its crashes, so that the next suspected run can be claimed.
    async fn clear(&mut self) {
        // Tried once: without a reply it is unknown whether it was stored.
        *self.suspected_since = None;
        if self.context.deps.store.clear_of_crashes(&self.held.fence).await.is_ok() {
            self.context.deps.hub.queue_signal().notify();
        }
    }

    /// Reads the messages that have joined the run. If there are none, the rows differ from the state, and deciding again would not
    /// help.
    async fn hear(&mut self) -> Result<(), End> {
        let known = self.state.record.joined;
        let run = std::slice::from_ref(&self.held.fence.run_id);
        let signals = self.context.deps.store.control_signals(run).await.map_err(|_| End::Reload)?;
        for message in signals.into_iter().flat_map(|signal| signal.joined) {
            self.state.learn(&Input::Joined(message));
        }
        if self.state.record.joined == known { Err(End::Reload) } else { Ok(()) }
    }

    /// Starts nothing new: calls under way may end, then the run is handed back.
    fn drain(&mut self) {
        self.draining = true;
        self.tools.leave();
        self.state.learn(&Input::Draining);
    }

    fn decide(&mut self, input: Input) -> Decision {
        let surroundings = Surroundings {
            now: self.context.deps.clock.now(),
            ids: self.context.deps.ids.as_ref(),
            elapsed_ms: self.elapsed_ms(),
            spent: self.spent,
        };
        decide(&mut self.state, input, &surroundings)
    }

    fn elapsed_ms(&self) -> u64 {
        self.state.record.elapsed_ms.saturating_add(crate::worker::leases::heartbeat::millis(self.loaded_at.elapsed()))
    }

    /// Names the boundary that was just passed, for tests that kill the process there.
    fn reached_after(&self, decision: &Decision, tool_finished: bool, calls_model: bool) {
        if decision.changes.iter().any(|change| matches!(change, Change::Finish { .. })) {
            failpoint::reached("C23");
        }
        let waits = |change: &Change| matches!(change, Change::Release { cause: ReleaseCause::Waiting, .. });
        if decision.changes.iter().any(waits) {
            failpoint::reached("C19");
        }
        if calls_model {
            failpoint::reached(if tool_finished { "C15" } else { "C05" });
        }
        for _ in decision.commands.iter().filter(|command| matches!(command, Command::RunTool(_))) {
            failpoint::reached("C09");
        }
        if tool_finished && !self.tools.is_empty() {
            failpoint::reached("C14");
        }
    }

    fn call_model(&mut self, request: ModelRequest) {
        // A process that was stopped may have lost the run while it slept: it must not ask on its behalf.
        if !self.held.is_fresh(self.context.options.self_stop) {
            self.held.lost.cancel();
            return;
        }
        self.answered = None;
        let Some(request) = sendable_request(&self.held.fence.run_id, request) else {
            self.is_unsendable = true;
            return;
        };
        self.model = Some(ModelCall::new(self.context, &self.state, request));
    }

    fn rank_tools(&mut self) {
        let tools = self.state.usable_tools().into_iter().cloned().collect();
        let (query, owner) = (tool_query(&self.state), self.state.record.owner.clone());
        let ranker = Arc::clone(&self.context.ranker);
        self.ranking = Some(Box::pin(async move { ranker.rank(&owner, &query, tools).await }));
    }

    fn reserve(&mut self, reserve: Reserve) {
        let (fence, owner) = (self.held.fence.clone(), self.state.record.owner.clone());
        self.reserving = Some(Reservation::ask(&self.context.deps, fence, owner, reserve));
    }

    /// Waits for the reservation that is under way, whose grant will not be used.
    async fn abandon_reservation(&mut self) {
        if let Some(asked) = self.reserving.take() {
            asked.end(&mut self.state).await;
        }
    }

    async fn next_input(&mut self, mailbox: &mut mpsc::Receiver<Box<ControlSignal>>) -> ControlFlow<End, Input> {
        loop {
            let is_idle = self.tools.is_empty() && self.ranking.is_none() && self.reserving.is_none();
            if self.model.is_none() && (self.tools.are_left() || self.draining && is_idle) {
                return ControlFlow::Continue(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
            }
            let happened = self.wait(mailbox).await;
            match happened {
                Happened::Ranked(ranked) => {
                    self.ranking = None;
                    return ControlFlow::Continue(Input::ToolsRanked(ranked));
                }
                Happened::Reserved(answer) => {
                    let Some(asked) = self.reserving.take() else { continue };
                    return match asked.heard(answer) {
                        Ok(input) => ControlFlow::Continue(input),
                        Err(end) => ControlFlow::Break(end),
                    };
                }
                Happened::Model(result) => return self.model_done(result),
                Happened::Tool(call, ToolSays::Ended(outcome)) => {
                    return ControlFlow::Continue(Input::ToolFinished(call, outcome));
                }
                Happened::Tool(call, ToolSays::Reconciled(said)) => return ControlFlow::Continue(Input::Reconciled(call, said)),
                Happened::Tool(call, ToolSays::Pauses(pause)) => return ControlFlow::Continue(Input::ToolPauses(call, pause)),
                Happened::Tool(_, ToolSays::Left) => {}
                // Loading the run again reports the damage, and ends the run.
                Happened::Signal(signal) if signal.is_damaged && signal.cancel_by.is_none() => {
                    return ControlFlow::Break(End::Broken);
                }
                Happened::Signal(signal) => {
                    if let Some(input) = Box::pin(self.on_signal(signal)).await {
                        return ControlFlow::Continue(input);
                    }
                }
                Happened::Unsendable => {
                    self.is_unsendable = false;
                    return ControlFlow::Continue(Input::GivenUp { why: UNSENDABLE.to_owned(), stopped: Vec::new() });
                }
                Happened::TimedOut => {
                    let partial = self.hang_up();
                    Box::pin(self.abandon_reservation()).await;
                    let stopped = Box::pin(self.end_tools()).await;
                    return ControlFlow::Continue(Input::TimedOut { partial, stopped });
                }
                Happened::Draining => {
                    self.drain();
                    // Between steps nothing is under way, and the run is handed back at once.
                    if self.model.is_none() && self.tools.is_empty() {
                        Box::pin(self.abandon_reservation()).await;
                        return ControlFlow::Continue(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
                    }
                }
                Happened::StopNow => {
                    self.drain();
                    self.hang_up();
                    Box::pin(self.abandon_reservation()).await;
                    // Calls without an outcome stay `started`: the next attempt judges them by their class.
                    let Stopped { outcomes: mut stopped, paused } = Box::pin(self.tools.stop()).await;
                    stopped.retain(|(id, outcome)| match outcome.state {
                        ToolCallState::Cancelled => self.is_lost_unsent(id),
                        state => matches!(state, ToolCallState::Done | ToolCallState::Failed),
                    });
                    return ControlFlow::Continue(Input::Drain { stopped, paused });
                }
                Happened::Broken if self.log.is_broken_for_good() => return ControlFlow::Break(End::Broken),
                Happened::Broken => return ControlFlow::Break(End::Reload),
            }
        }
    }

    async fn wait(&mut self, mailbox: &mut mpsc::Receiver<Box<ControlSignal>>) -> Happened {
        let limit = self.state.record.profile.max_run_ms;
        let left = Duration::from_millis(limit.saturating_sub(self.elapsed_ms()));
        let log = &self.log;
        tokio::select! {
            biased;
            () = log.broken().cancelled() => Happened::Broken,
            () = std::future::ready(()), if self.is_unsendable => Happened::Unsendable,
            Some(signal) = mailbox.recv() => Happened::Signal(signal),
            () = self.context.stop_now.cancelled() => Happened::StopNow,
            () = self.context.drain.cancelled(), if !self.draining => Happened::Draining,
            () = tokio::time::sleep(left), if limit > 0 => Happened::TimedOut,
            ranked = in_order(&mut self.ranking), if self.ranking.is_some() => Happened::Ranked(ranked),
            answer = Reservation::answer(&mut self.reserving), if self.reserving.is_some() => Happened::Reserved(answer),
            result = run_model(&mut self.model, &mut self.answered, log), if self.model.is_some() => Happened::Model(result),
            Some((call, says)) = self.tools.next(), if !self.tools.is_empty() => Happened::Tool(call, says),
        }
    }

    fn model_done(&mut self, result: Result<(), ModelError>) -> ControlFlow<End, Input> {
        let Some(call) = self.model.take() else { return ControlFlow::Break(End::Reload) };
        let deps = &self.context.deps;
        let spent = call.spent();
        let now = deps.clock.now();
        let mut partial = None;
        let finished = match result {
            Ok(()) => call.into_assembler().finish(deps.ids.as_ref(), now),
            Err(error) => {
                if error.over_total_limit {
                    partial = call.into_partial(now);
                }
                Err(error)
            }
        };
        ControlFlow::Continue(match finished {
            Ok((message, turn, closing)) => Input::ModelFinished { message, turn, closing },
            Err(error) => {
                tracing::warn!(run.id = %self.held.fence.run_id, code = error.kind.code(), error = %error.message, "model call failed");
                metrics::counter!("capstan_model_failures_total", "code" => error.kind.code()).increment(1);
                self.spent.add(spent);
                if error.over_total_limit { Input::ModelCut { error, partial } } else { Input::ModelFailed(error) }
            }
        })
    }

    async fn on_signal(&mut self, signal: Box<ControlSignal>) -> Option<Input> {
        if let Some(by) = signal.cancel_by {
            failpoint::reached("C20");
            let partial = self.hang_up();
            self.abandon_reservation().await;
            let stopped = self.end_tools().await;
            return Some(Input::CancelRequested { by, partial, stopped });
        }
        let known = &self.state.record.history;
        let joined = signal.joined.into_iter().find(|message| known.iter().all(|other| other.id != message.id))?;
        // One at a time: further ones come with the next control signal.
        self.context.deps.hub.notify_control(&self.held.fence.run_id);
        Some(Input::Joined(joined))
    }

    /// Drops the model call, which closes the provider's connection, and returns what was shown of it. The next write charges its
    /// usage.
    fn hang_up(&mut self) -> Option<PartialAnswer> {
        let call = self.model.take()?;
        self.spent.add(call.given_up());
        call.into_partial(self.context.deps.clock.now())
    }

    /// Stops the tools under way, because the run ends, and collects the outcomes of their calls. A call that waits for a server's
    /// question may have taken effect before: its outcome is unknown.
    async fn end_tools(&mut self) -> Vec<(CallId, ToolOutcome)> {
        let Stopped { outcomes: mut stopped, paused: _ } = self.tools.stop().await;
        for call in self.state.record.calls.iter().filter(|call| call.state == ToolCallState::Started) {
            if stopped.iter().all(|(id, _)| *id != call.id) {
                let mut outcome = ToolOutcome::failed("the call was stopped; it may or may not have taken effect", 0);
                outcome.state = ToolCallState::Unknown;
                stopped.push((call.id.clone(), outcome));
            }
        }
        stopped
    }
}

enum Happened {
    Ranked(RankedTools),
    Reserved(StoreResult<Option<Reserved>>),
    Model(Result<(), ModelError>),
    Tool(CallId, ToolSays),
    Signal(Box<ControlSignal>),
    TimedOut,
    Draining,
    StopNow,
    Unsendable,
    Broken,
}

fn take_request(commands: &mut Vec<Command>) -> Option<Box<ModelRequest>> {
    let at = commands.iter().position(|command| matches!(command, Command::CallModel(_)))?;
    match commands.remove(at) {
        Command::CallModel(request) => Some(request),
        Command::RankTools | Command::Reserve(_) | Command::RunTool(_) | Command::Reconcile(_) | Command::Stop => None,
    }
}

async fn in_order(ranking: &mut Option<Ranking>) -> RankedTools {
    match ranking {
        Some(ranking) => ranking.await,
        None => std::future::pending().await,
    }
}

/// Continues the model call, or returns its result if it is over.
async fn run_model(
    model: &mut Option<ModelCall>,
    answered: &mut Option<Result<(), ModelError>>,
    log: &RunLog,
) -> Result<(), ModelError> {
    if let Some(result) = answered.take() {
        return result;
    }
    match model {
        Some(call) => call.run(log).await,
        None => std::future::pending().await,
    }
}
