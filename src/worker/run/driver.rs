//! Drives one claimed run: loads it, asks the engine for decisions, commits them, and executes their commands.
//!
//! `select!` only detects events; the engine decides their consequences. Whenever the rows may differ from the state in memory, the driver
//! reloads them and continues from there, as after a crash.

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
use crate::domain::run::{Change, ClaimCause, ReleaseCause, ReservationOutcome, ReservationRequest, RunRecord, RunStatus};
use crate::domain::tool::{RankedTools, ToolCallState, ToolOutcome};
use crate::engine::{Command, Decision, DecisionEnvironment, Durability, Input, PartialAnswer, RunState, decide, tool_query};
use crate::store::{ControlSignal, SUSPECT_CRASHES, StoreResult};
use crate::support::failpoint;
use crate::worker::context::WorkerContext;
use crate::worker::effects::model_call::{ModelCall, sendable_request};
use crate::worker::effects::reservation::Reservation;
use crate::worker::effects::tool_calls::{StopResults, ToolCalls, ToolResult};
use crate::worker::leases::claimed::{LoadedRun, prepare_run};
use crate::worker::leases::registry::{ActiveLease, ActiveLeaseGuard};
use crate::worker::log_writer::{LogError, RunLog};
use crate::worker::run::attempt::{AttemptCarryOver, AttemptEnd, raise_fence};
use crate::worker::run::ending;
use crate::worker::run::run_metrics::{self, StepMetrics};

/// The number of attempts that may end because the run's rows cannot be read or written, for other reasons than an unavailable
/// database. The last of them fails the run, because each further attempt would ask the model again.
const MAX_ROW_FAILURES: u32 = 5;

/// Drives the run until it has ended, was released, or is no longer held. `record` is the loaded run, if it is known.
pub async fn drive(
    context: &WorkerContext,
    guard: &mut ActiveLeaseGuard,
    mut mailbox: mpsc::Receiver<Box<ControlSignal>>,
    crashes: u32,
    mut record: Option<Box<RunRecord>>,
) {
    let mut reload_pause = Duration::from_millis(50);
    let mut strikes = 0;
    let mut cause = None;
    let suspected_since = (crashes >= SUSPECT_CRASHES).then(Instant::now);
    let mut carry_over = AttemptCarryOver { crashes, suspected_since, ..AttemptCarryOver::default() };
    let lost = guard.active_lease.lost.clone();
    loop {
        // No step begins in the last attempt: it hands the run back.
        let is_last = context.stop_now.is_cancelled();
        // Each attempt has its own log and fence: late writes of the previous one are fenced.
        let fenced = CancellationToken::new();
        // Unwritten events of an ended attempt are dropped, because their consequences would be missing.
        let _void = fenced.clone().drop_guard();
        let one = async {
            if cause.is_some()
                && let Err(end) = Box::pin(raise_fence(context, guard, carry_over.attempt)).await
            {
                return end;
            }
            attempt(context, &guard.active_lease, &mut mailbox, record.take(), cause, &fenced, &mut carry_over).await
        };
        let end = tokio::select! {
            biased;
            () = lost.cancelled() => return,
            () = fenced.cancelled() => return,
            end = one => end,
        };
        match end {
            AttemptEnd::Over | AttemptEnd::Fenced => return,
            AttemptEnd::Broken if strikes + 1 >= MAX_ROW_FAILURES => {
                carry_over.finished.extend(carry_over.tools.stop().await.outcomes);
                return Box::pin(ending::give_up(context, guard, carry_over.attempt, carry_over.finished)).await;
            }
            AttemptEnd::Reload | AttemptEnd::Broken if is_last => {
                drop(carry_over.tools.stop().await);
                // Giving up the lease is faster than handing the run back, and counts no crash either.
                return guard.active_lease.mark_lost_to_outage();
            }
            AttemptEnd::Reload | AttemptEnd::Broken => {
                strikes += u32::from(matches!(end, AttemptEnd::Broken));
                // The rows show the progress of the run. As long as the lease can be renewed, the run is still held.
                cause = Some(ClaimCause::Reload);
                tokio::select! {
                    biased;
                    () = lost.cancelled() => return,
                    () = context.stop_now.cancelled() => {}
                    () = carry_over.tools.continue_until(tokio::time::sleep(reload_pause)) => {}
                }
                reload_pause = (reload_pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

/// A suspected run is cleared when it completes a step after this many lease durations: a minute by default.
const CLEARED_AFTER_LEASES: u32 = 6;

const UNSENDABLE: &str = "the run failed: the server built a request that no provider accepts, and did not send it";

async fn attempt(
    context: &WorkerContext,
    active_lease: &ActiveLease,
    mailbox: &mut mpsc::Receiver<Box<ControlSignal>>,
    loaded_record: Option<Box<RunRecord>>,
    cause: Option<ClaimCause>,
    fenced: &CancellationToken,
    carry_over: &mut AttemptCarryOver,
) -> AttemptEnd {
    // Boxed, because loading needs much stack, which a run that streams would keep.
    let ready = Box::pin(prepare_run(context, active_lease, mailbox, loaded_record, cause, fenced, carry_over)).await;
    let LoadedRun { state, log, mut input } = match ready {
        Ok(ready) => ready,
        Err(end) => return end,
    };
    let mut drive = RunDriver {
        context,
        active_lease,
        loaded_at: Instant::now(),
        step: StepMetrics::default(),
        state,
        log,
        model: None,
        answered: None,
        spent: Usage::default(),
        is_unsendable: false,
        ranking: None,
        reserving: None,
        tools: std::mem::take(&mut carry_over.tools),
        is_draining: false,
        has_failed_writes: cause.is_some(),
        finished: &mut carry_over.finished,
        suspected_since: &mut carry_over.suspected_since,
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
    carry_over.tools = drive.tools;
    end
}

type Ranking = std::pin::Pin<Box<dyn Future<Output = RankedTools> + Send>>;

struct RunDriver<'a> {
    context: &'a WorkerContext,
    active_lease: &'a ActiveLease,
    loaded_at: Instant,
    step: StepMetrics,
    state: Box<RunState>,
    log: RunLog,
    model: Option<ModelCall>,
    /// The result of the model call, if the call ended before the commit of the decision that started it.
    answered: Option<Result<(), ModelError>>,
    /// Usage of failed model calls that no write has charged yet.
    spent: Usage,
    /// Whether the request violates the rules that all providers share, and was not sent.
    is_unsendable: bool,
    ranking: Option<Ranking>,
    reserving: Option<Reservation>,
    tools: ToolCalls,
    is_draining: bool,
    /// Whether writes have failed and none has succeeded since: no command begins before one does. Otherwise a store that can be read but
    /// not written would make each attempt ask the model again.
    has_failed_writes: bool,
    /// Outcomes that could not be stored. The next attempt uses them, so that they do not become unknown.
    finished: &'a mut Vec<(CallId, ToolOutcome)>,
    suspected_since: &'a mut Option<Instant>,
}

impl RunDriver<'_> {
    /// Decides, commits, and starts the commands.
    async fn follow(&mut self, input: Input) -> ControlFlow<AttemptEnd> {
        let has_finished_tool = matches!(input, Input::ToolFinished(..));
        let of_tools = self.tools.spending.take();
        self.spent.add(of_tools);
        let (decision, calls_model) = loop {
            let mut decision = self.decide(input.clone());
            let request = take_request(&mut decision.commands);
            let calls_model = request.is_some();
            match self.write(&decision, request).await {
                Ok(()) => break (decision, calls_model),
                // A message has joined: the same input is decided again with it.
                Err(LogError::MessageJoined) => {
                    if let Err(end) = Box::pin(self.load_joined_messages()).await {
                        self.keep_for_next_attempt(input, of_tools);
                        return ControlFlow::Break(end);
                    }
                }
                Err(error) => {
                    self.keep_for_next_attempt(input, of_tools);
                    return ControlFlow::Break(match error {
                        // An earlier write has failed, which shows whether another attempt may help.
                        LogError::Stopped if self.log.is_broken_permanently() => AttemptEnd::Broken,
                        error => error.into(),
                    });
                }
            }
        };
        self.finished.clear();
        self.spent = Usage::default();
        self.hit_failpoints(&decision, has_finished_tool, calls_model);
        if self.suspected_since.is_some_and(|since| since.elapsed() >= self.context.options.lease * CLEARED_AFTER_LEASES)
            && decision.events.iter().any(|event| matches!(event, EventBody::StepCompleted { .. }))
        {
            Box::pin(self.clear()).await;
        }
        // A run that ended with `final_text` has an error, and no answer to make a title from.
        let answers = |change: &Change| matches!(change, Change::Finish { status: RunStatus::Completed, error: None, .. });
        if decision.changes.iter().any(answers) {
            self.context.titles.begin(&self.context.deps, &self.context.options, &self.state);
        }
        for command in decision.commands {
            match command {
                Command::Stop => return ControlFlow::Break(AttemptEnd::Over),
                // `take_request` has removed this command from the decision, and the model call is under way.
                Command::CallModel(_) => {}
                Command::RankTools => self.rank_tools(),
                Command::Reserve(reserve) => self.reserve(reserve),
                Command::RunTool(call) => self.tools.run(self.context, &self.state, self.active_lease, &self.log, call),
                Command::Reconcile(call) => self.tools.reconcile(self.context, &self.state, call),
            }
        }
        ControlFlow::Continue(())
    }

    /// Keeps the facts of this attempt for the next one.
    fn keep_for_next_attempt(&mut self, input: Input, of_tools: Usage) {
        self.finished.extend(input.into_outcomes());
        self.tools.spending.add_uncharged(of_tools);
    }

    /// Returns whether a call that was cancelled before it was sent would have an unknown outcome in the next attempt. Returns
    /// false for a repeatable call, because the next attempt sends it again. Returns false for a call with a handle, because its
    /// server has received it before.
    fn is_lost_unsent(&self, id: &CallId) -> bool {
        // With `rerun`, an earlier attempt may have sent the call.
        let is_rerun = self.state.record.profile.on_unknown == OnUnknown::Rerun;
        !is_rerun && self.state.record.call(id).is_some_and(|call| !call.replay.may_repeat() && call.handle.is_none())
    }

    /// Commits a decision. A model call begins meanwhile, since it changes nothing outside the process. Its answer is written after
    /// the decision. A decision that cannot be written ends the attempt and the call. A decision of durability `Behind` is written
    /// with the next one.
    async fn write(&mut self, decision: &Decision, request: Option<Box<ModelRequest>>) -> Result<(), LogError> {
        let finishes = decision.changes.iter().any(|change| matches!(change, Change::Finish { .. }));
        if finishes {
            failpoint::hit("C22");
        }
        if decision.changes.iter().any(|change| matches!(change, Change::SetSummary(_))) {
            failpoint::hit("C26");
        }
        self.active_lease.set_releasing(finishes || decision.changes.iter().any(|change| matches!(change, Change::Release { .. })));
        if decision.events.is_empty() && decision.changes.is_empty() {
            return Ok(());
        }
        let (now, later) = if self.has_failed_writes { (None, request) } else { (request, None) };
        let is_behind = decision.durability == Durability::Behind && !self.has_failed_writes;
        let applies_now = now.is_some() || is_behind;
        if applies_now {
            self.state.apply(&decision.changes);
        }
        if let Some(request) = now {
            self.call_model(*request);
        }
        if is_behind {
            self.log.append(&decision.events, decision.changes.clone());
            run_metrics::count(decision, &mut self.step);
            return Ok(());
        }
        let Self { log, model, answered, .. } = self;
        let receive_answer = async {
            if model.is_some() && answered.is_none() {
                *answered = Some(run_model(model, answered, log).await);
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            result = log.commit(&decision.events, decision.changes.clone()) => result?,
            never = receive_answer => match never {},
        }
        self.has_failed_writes = false;
        if !applies_now {
            self.state.apply(&decision.changes);
        }
        if let Some(request) = later {
            self.call_model(*request);
        }
        run_metrics::count(decision, &mut self.step);
        Ok(())
    }

    /// Clears the run of its crashes, so that the next suspected run can be claimed.
    async fn clear(&mut self) {
        // Tried once: without a reply it is unknown whether it was stored.
        *self.suspected_since = None;
        if self.context.deps.store.clear_of_crashes(&self.active_lease.fence).await.is_ok() {
            self.context.deps.hub.queue_signal().notify_one();
        }
    }

    /// Reads the messages that have joined the run. If there are none, the rows differ from the state, and deciding again would not help.
    async fn load_joined_messages(&mut self) -> Result<(), AttemptEnd> {
        let loaded_record = self.state.record.joined;
        let run = std::slice::from_ref(&self.active_lease.fence.run_id);
        let signals = self.context.deps.store.control_signals(run).await.map_err(|_| AttemptEnd::Reload)?;
        for message in signals.into_iter().flat_map(|signal| signal.joined) {
            self.state.learn(&Input::Joined(message));
        }
        if self.state.record.joined == loaded_record { Err(AttemptEnd::Reload) } else { Ok(()) }
    }

    /// Starts no step and no call: calls under way may end, then the run is handed back.
    fn drain(&mut self) {
        self.is_draining = true;
        self.tools.detach();
        self.state.learn(&Input::Draining);
    }

    fn decide(&mut self, input: Input) -> Decision {
        let environment = DecisionEnvironment {
            now: self.context.deps.clock.now(),
            ids: self.context.deps.ids.as_ref(),
            elapsed_ms: self.elapsed_ms(),
            spent: self.spent,
        };
        decide(&mut self.state, input, &environment)
    }

    fn elapsed_ms(&self) -> u64 {
        self.state.record.elapsed_ms.saturating_add(crate::worker::leases::heartbeat::millis(self.loaded_at.elapsed()))
    }

    /// Hits the failpoint of the boundary that was just passed.
    fn hit_failpoints(&self, decision: &Decision, has_finished_tool: bool, calls_model: bool) {
        if decision.changes.iter().any(|change| matches!(change, Change::Finish { .. })) {
            failpoint::hit("C23");
        }
        let waits = |change: &Change| matches!(change, Change::Release { cause: ReleaseCause::Waiting, .. });
        if decision.changes.iter().any(waits) {
            failpoint::hit("C19");
        }
        if calls_model {
            failpoint::hit(if has_finished_tool { "C15" } else { "C05" });
        }
        for _ in decision.commands.iter().filter(|command| matches!(command, Command::RunTool(_))) {
            failpoint::hit("C09");
        }
        if has_finished_tool && !self.tools.is_empty() {
            failpoint::hit("C14");
        }
    }

    fn call_model(&mut self, request: ModelRequest) {
        // A process that was suspended may have lost the run meanwhile, and must not ask a model for it.
        if !self.active_lease.is_fresh(self.context.options.self_stop) {
            self.active_lease.lost.cancel();
            return;
        }
        self.answered = None;
        let Some(request) = sendable_request(&self.active_lease.fence.run_id, request) else {
            self.is_unsendable = true;
            return;
        };
        self.step.provider = run_metrics::provider_label(&request.model);
        self.model = Some(ModelCall::new(self.context, &self.state, request));
    }

    fn rank_tools(&mut self) {
        let tools = self.state.usable_tools().into_iter().cloned().collect();
        let (query, owner) = (tool_query(&self.state), self.state.record.owner.clone());
        let ranker = Arc::clone(&self.context.ranker);
        self.ranking = Some(Box::pin(async move { ranker.rank(&owner, &query, tools).await }));
    }

    fn reserve(&mut self, reserve: ReservationRequest) {
        let (fence, owner) = (self.active_lease.fence.clone(), self.state.record.owner.clone());
        self.reserving = Some(Reservation::ask(&self.context.deps, fence, owner, reserve));
    }

    /// Waits for the reply to the pending reservation, whose budget will not be used.
    async fn abandon_reservation(&mut self) {
        if let Some(reservation) = self.reserving.take() {
            reservation.end(&mut self.state).await;
        }
    }

    async fn next_input(&mut self, mailbox: &mut mpsc::Receiver<Box<ControlSignal>>) -> ControlFlow<AttemptEnd, Input> {
        loop {
            let is_idle = self.tools.is_empty() && self.ranking.is_none() && self.reserving.is_none();
            if self.model.is_none() && (self.tools.all_detached() || self.is_draining && is_idle) {
                return ControlFlow::Continue(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
            }
            let happened = self.wait(mailbox).await;
            match happened {
                DriverEvent::Ranked(ranked) => {
                    self.ranking = None;
                    return ControlFlow::Continue(Input::ToolsRanked(ranked));
                }
                DriverEvent::Reserved(answer) => {
                    let Some(reservation) = self.reserving.take() else { continue };
                    return match reservation.into_input(answer) {
                        Ok(input) => ControlFlow::Continue(input),
                        Err(end) => ControlFlow::Break(end),
                    };
                }
                DriverEvent::Model(result) => return self.model_done(result),
                DriverEvent::Tool(call, ToolResult::Ended(outcome)) => {
                    return ControlFlow::Continue(Input::ToolFinished(call, outcome));
                }
                DriverEvent::Tool(call, ToolResult::Reconciled(reconciled)) => {
                    return ControlFlow::Continue(Input::Reconciled(call, reconciled));
                }
                DriverEvent::Tool(call, ToolResult::Pauses(pause)) => return ControlFlow::Continue(Input::ToolPauses(call, pause)),
                DriverEvent::Tool(_, ToolResult::Detached) => {}
                // Reloading the run reports the damage, and ends the run.
                DriverEvent::Signal(signal) if signal.is_damaged && signal.cancel_by.is_none() => {
                    return ControlFlow::Break(AttemptEnd::Broken);
                }
                DriverEvent::Signal(signal) => {
                    if let Some(input) = Box::pin(self.on_signal(signal)).await {
                        return ControlFlow::Continue(input);
                    }
                }
                DriverEvent::Unsendable => {
                    self.is_unsendable = false;
                    return ControlFlow::Continue(Input::GivenUp { why: UNSENDABLE.to_owned(), stopped: Vec::new() });
                }
                DriverEvent::TimedOut => {
                    let partial = self.abort_model_call();
                    Box::pin(self.abandon_reservation()).await;
                    let stopped = Box::pin(self.end_tools()).await;
                    return ControlFlow::Continue(Input::TimedOut { partial, stopped });
                }
                DriverEvent::Draining => {
                    self.drain();
                    // Between steps no call is under way, and the run is handed back at once.
                    if self.model.is_none() && self.tools.is_empty() {
                        Box::pin(self.abandon_reservation()).await;
                        return ControlFlow::Continue(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
                    }
                }
                DriverEvent::StopNow => {
                    self.drain();
                    self.abort_model_call();
                    Box::pin(self.abandon_reservation()).await;
                    // Calls without an outcome stay `started`: the next claim decides about them by their replay class.
                    let StopResults { outcomes: mut stopped, paused } = Box::pin(self.tools.stop()).await;
                    stopped.retain(|(id, outcome)| match outcome.state {
                        ToolCallState::Cancelled => self.is_lost_unsent(id),
                        state => matches!(state, ToolCallState::Done | ToolCallState::Failed),
                    });
                    return ControlFlow::Continue(Input::Drain { stopped, paused });
                }
                DriverEvent::Broken if self.log.is_broken_permanently() => return ControlFlow::Break(AttemptEnd::Broken),
                DriverEvent::Broken => return ControlFlow::Break(AttemptEnd::Reload),
            }
        }
    }

    async fn wait(&mut self, mailbox: &mut mpsc::Receiver<Box<ControlSignal>>) -> DriverEvent {
        let limit = self.state.record.profile.max_run_ms;
        let left = Duration::from_millis(limit.saturating_sub(self.elapsed_ms()));
        let log = &self.log;
        tokio::select! {
            biased;
            () = log.broken().cancelled() => DriverEvent::Broken,
            () = std::future::ready(()), if self.is_unsendable => DriverEvent::Unsendable,
            Some(signal) = mailbox.recv() => DriverEvent::Signal(signal),
            () = self.context.stop_now.cancelled() => DriverEvent::StopNow,
            () = self.context.drain.cancelled(), if !self.is_draining => DriverEvent::Draining,
            () = tokio::time::sleep(left), if limit > 0 => DriverEvent::TimedOut,
            ranked = in_order(&mut self.ranking), if self.ranking.is_some() => DriverEvent::Ranked(ranked),
            answer = Reservation::answer(&mut self.reserving), if self.reserving.is_some() => DriverEvent::Reserved(answer),
            result = run_model(&mut self.model, &mut self.answered, log), if self.model.is_some() => DriverEvent::Model(result),
            Some((call, says)) = self.tools.next(), if !self.tools.is_empty() => DriverEvent::Tool(call, says),
        }
    }

    fn model_done(&mut self, result: Result<(), ModelError>) -> ControlFlow<AttemptEnd, Input> {
        let Some(call) = self.model.take() else { return ControlFlow::Break(AttemptEnd::Reload) };
        let deps = &self.context.deps;
        let spent = call.assembler.spent();
        let now = deps.clock.now();
        let mut partial = None;
        let finished = match result {
            Ok(()) => call.assembler.finish(deps.ids.as_ref(), now),
            Err(error) => {
                if error.over_total_limit {
                    partial = call.assembler.partial(now);
                }
                Err(error)
            }
        };
        ControlFlow::Continue(match finished {
            Ok((message, turn, closing)) => Input::ModelFinished { message, turn, closing },
            Err(error) => {
                tracing::warn!(run.id = %self.active_lease.fence.run_id, code = error.kind.code(), error = %error.message, "model call failed");
                let provider = self.step.provider.clone();
                metrics::counter!("capstan_model_failures_total", "provider" => provider, "code" => error.kind.code()).increment(1);
                self.spent.add(spent);
                if error.over_total_limit { Input::ModelCut { error, partial } } else { Input::ModelFailed(error) }
            }
        })
    }

    async fn on_signal(&mut self, signal: Box<ControlSignal>) -> Option<Input> {
        if let Some(by) = signal.cancel_by {
            failpoint::hit("C20");
            let partial = self.abort_model_call();
            self.abandon_reservation().await;
            let stopped = self.end_tools().await;
            return Some(Input::CancelRequested { by, partial, stopped });
        }
        let loaded_record = &self.state.record.history;
        let joined = signal.joined.into_iter().find(|message| loaded_record.iter().all(|other| other.id != message.id))?;
        // One at a time: further ones arrive with the next control signal.
        self.context.deps.hub.notify_control();
        Some(Input::Joined(joined))
    }

    /// Drops the model call, which closes the provider's connection, and returns its shown part. The next write charges its usage.
    fn abort_model_call(&mut self) -> Option<PartialAnswer> {
        let call = self.model.take()?;
        self.spent.add(call.assembler.given_up());
        call.assembler.partial(self.context.deps.clock.now())
    }

    /// Stops the tools under way, because the run ends, and collects the outcomes of their calls. A call that waits for a server's question
    /// may have taken effect before: its outcome is unknown.
    async fn end_tools(&mut self) -> Vec<(CallId, ToolOutcome)> {
        let StopResults { outcomes: mut stopped, paused: _ } = self.tools.stop().await;
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

enum DriverEvent {
    Ranked(RankedTools),
    Reserved(StoreResult<Option<ReservationOutcome>>),
    Model(Result<(), ModelError>),
    Tool(CallId, ToolResult),
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

/// Continues the model call, or returns its result if it has ended.
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
