//! Drives one claimed run: loads it, asks the engine what follows, writes that down, does it. What changes nothing outside may
//! begin while it is being written.
//!
//! `select!` only finds out what happened; what it means is decided in one place, by the engine. Whenever the rows may not be
//! what the driver thinks, it loads them again and goes on from there, as after a crash.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::{End, Left, raise_fence};
use super::claimed::{Ready, get_ready};
use super::context::Surround;
use super::log_writer::{LogError, RunLog};
use super::model_call::{ModelCall, sendable_request};
use super::registry::{Held, HeldGuard};
use super::reservation::Reservation;
use super::tool_calls::{Stopped, ToolCalls, ToolSays};
use super::{ending, figures};
use crate::domain::agent::OnUnknown;
use crate::domain::budget::{Reserve, Reserved};
use crate::domain::change::{Change, ReleaseCause};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelError, ModelRequest, Usage};
use crate::domain::record::{ClaimCause, RunRecord};
use crate::domain::run::RunStatus;
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::domain::tool_filter::RankedTools;
use crate::engine::{Command, Decision, Durability, Input, PartialAnswer, RunState, Surroundings, decide, tool_query};
use crate::store::{ControlSignal, SUSPECT_CRASHES, StoreResult};
use crate::support::failpoint;

/// How often a run's rows may turn out to be unreadable or unwritable, for other reasons than a database that is away, before
/// the run is given up: each further try would ask the model again.
const MAX_STRIKES: u32 = 5;

/// Drives the run, over which `crashes` workers have died, until it has ended, was released, or is no longer ours. `record` is what would
/// be loaded, if it is known.
pub async fn drive(
    surround: &Surround,
    guard: &mut HeldGuard,
    mut mailbox: mpsc::Receiver<Box<ControlSignal>>,
    crashes: u32,
    mut record: Option<Box<RunRecord>>,
) {
    let mut reload_pause = Duration::from_millis(50);
    let mut strikes = 0;
    let mut cause = None;
    let suspected_since = (crashes >= SUSPECT_CRASHES).then(Instant::now);
    let mut left = Left { crashes, suspected_since, ..Left::default() };
    let lost = guard.held.lost.clone();
    loop {
        // Nothing new begins in an attempt that the worker has no patience for any more: it hands the run back.
        let is_last = surround.stop_now.is_cancelled();
        // Each attempt has a log of its own, under a fence of its own: what the one before has left behind is fenced rightly.
        let fenced = CancellationToken::new();
        // What it has left unwritten when it ends is not written any more: nobody would do what it announces.
        let _void = fenced.clone().drop_guard();
        let one = async {
            if cause.is_some()
                && let Err(end) = Box::pin(raise_fence(surround, guard, left.attempt)).await
            {
                return end;
            }
            attempt(surround, &guard.held, &mut mailbox, record.take(), cause, &fenced, &mut left).await
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
                left.finished.extend(left.tools.stop().await.outcomes);
                return Box::pin(ending::give_up(surround, guard, left.attempt, left.finished)).await;
            }
            End::Reload | End::Broken if is_last => {
                drop(left.tools.stop().await);
                // Giving up the lease takes less than handing the run back, and counts no crash either.
                return guard.held.excuse();
            }
            End::Reload | End::Broken => {
                strikes += u32::from(matches!(end, End::Broken));
                // The store failed: the rows tell how far the run has come. As long as the lease can be kept, it is still ours.
                cause = Some(ClaimCause::Reload);
                tokio::select! {
                    biased;
                    () = lost.cancelled() => return,
                    () = surround.stop_now.cancelled() => {}
                    () = left.tools.go_on_until(tokio::time::sleep(reload_pause)) => {}
                }
                reload_pause = (reload_pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

/// How many leases long a suspected run has to live, and then to complete a step, to be cleared: with the defaults a minute.
const CLEARED_AFTER_LEASES: u32 = 6;

/// Why a run is given up whose next request to its model breaks the rules that providers have in common.
const UNSENDABLE: &str = "the run was given up: the server made a request of it that no provider takes, and has not sent it";

async fn attempt(
    surround: &Surround,
    held: &Held,
    mailbox: &mut mpsc::Receiver<Box<ControlSignal>>,
    known: Option<Box<RunRecord>>,
    cause: Option<ClaimCause>,
    fenced: &CancellationToken,
    left: &mut Left,
) -> End {
    // Boxed, and its room given back: what is loaded passes through many hands on its way, and a run that streams would keep room
    // for each of them.
    let ready = Box::pin(get_ready(surround, held, mailbox, known, cause, fenced, left)).await;
    let Ready { state, log, mut input } = match ready {
        Ok(ready) => ready,
        Err(end) => return end,
    };
    let mut drive = Drive {
        surround,
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
        tools: std::mem::take(&mut left.tools),
        draining: false,
        is_unsure: cause.is_some(),
        finished: &mut left.finished,
        suspected_since: &mut left.suspected_since,
    };
    if surround.drain.is_cancelled() {
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
    // A database that was away for a moment is no reason to know nothing of the calls under way.
    left.tools = drive.tools;
    end
}

type Ranking = std::pin::Pin<Box<dyn Future<Output = RankedTools> + Send>>;

struct Drive<'a> {
    surround: &'a Surround,
    held: &'a Held,
    loaded_at: Instant,
    step_began: Instant,
    state: Box<RunState>,
    log: RunLog,
    model: Option<ModelCall>,
    /// What the model call came to, if it was over before the commit that it began with.
    answered: Option<Result<(), ModelError>>,
    /// What model calls have used that came to nothing and that no write has charged yet.
    spent: Usage,
    /// The request of the model step breaks the rules that providers have in common, and was not sent.
    is_unsendable: bool,
    /// Tools are being put in order for the next model step.
    ranking: Option<Ranking>,
    /// Leave is asked for the next model call.
    reserving: Option<Reservation>,
    tools: ToolCalls,
    draining: bool,
    /// Writes have failed and none has succeeded since: nothing begins before one does. Else a store that can be read but not
    /// written would make each attempt ask the model once more.
    is_unsure: bool,
    /// Outcomes of calls that could not be stored. The next attempt takes them up, so that it need not call unknown what is known.
    finished: &'a mut Vec<(CallId, ToolOutcome)>,
    /// See [`Left`].
    suspected_since: &'a mut Option<Instant>,
}

impl Drive<'_> {
    /// Decides, commits, and begins what was decided.
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
                // The run would have ended too early: what has joined it is heard, and the same input decided again.
                Err(LogError::Unheard) => {
                    if let Err(end) = Box::pin(self.hear()).await {
                        self.not_stored(input, of_tools);
                        return ControlFlow::Break(end);
                    }
                }
                Err(error) => {
                    self.not_stored(input, of_tools);
                    return ControlFlow::Break(match error {
                        // An earlier write has failed, and it is that one which tells whether trying again may help.
                        LogError::Stopped if self.log.is_broken_for_good() => End::Broken,
                        error => error.into(),
                    });
                }
            }
        };
        self.finished.clear();
        self.spent = Usage::default();
        self.reached_after(&decision, tool_finished, calls_model);
        if self.suspected_since.is_some_and(|since| since.elapsed() >= self.surround.options.lease * CLEARED_AFTER_LEASES)
            && decision.events.iter().any(|event| matches!(event, EventBody::StepCompleted { .. }))
        {
            Box::pin(self.clear()).await;
        }
        // Last words are no answer.
        let answers = |change: &Change| matches!(change, Change::Finish { status: RunStatus::Completed, error: None, .. });
        if decision.changes.iter().any(answers) {
            self.surround.titles.begin(&self.surround.deps, &self.surround.options, &self.state);
        }
        for command in decision.commands {
            match command {
                Command::Stop => return ControlFlow::Break(End::Over),
                // It was taken out, and is under way.
                Command::CallModel(_) => {}
                Command::RankTools => self.rank_tools(),
                Command::Reserve(reserve) => self.reserve(reserve),
                Command::RunTool(call) => self.tools.run(self.surround, &self.state, self.held, &self.log, call),
                Command::Reconcile(call) => self.tools.reconcile(self.surround, &self.state, call),
            }
        }
        ControlFlow::Continue(())
    }

    /// Keeps for the next attempt what this one knows alone.
    fn not_stored(&mut self, input: Input, of_tools: Usage) {
        self.finished.extend(input.into_outcomes());
        self.tools.give_back(of_tools);
    }

    /// Whether a call that was cancelled before anything was sent would have an unknown outcome for the next attempt, which does not know
    /// that. One that may be repeated is made there; and of one that its server has had a round of, not all is known.
    fn is_lost_unsent(&self, id: &CallId) -> bool {
        // What is rerun though it may have happened is not known to be unsent: an attempt before may have sent it.
        let is_rerun = self.state.record.profile.on_unknown == OnUnknown::Rerun;
        !is_rerun && self.state.record.calls.iter().any(|call| call.id == *id && !call.replay.may_repeat() && call.handle.is_none())
    }

    /// Commits a decision. A model call begins meanwhile, since it changes nothing outside; what it says is written after the
    /// decision, and a decision that cannot be written ends the attempt and the call with it. A decision that is committed behind
    /// its commands is written with whatever follows it.
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

    /// Says that the run goes on well, so that the next one of its kind can be taken up.
    async fn clear(&mut self) {
        // Once at most: whoever does not hear the answer does not know whether it is said.
        *self.suspected_since = None;
        if self.surround.deps.store.clear_of_crashes(&self.held.fence).await.is_ok() {
            self.surround.deps.hub.queue_signal().notify();
        }
    }

    /// Takes in the messages that have joined the run and were not heard of yet. If there are none, the rows are not what this worker
    /// believes, and deciding again would come to the same.
    async fn hear(&mut self) -> Result<(), End> {
        let known = self.state.record.joined;
        let run = std::slice::from_ref(&self.held.fence.run_id);
        let signals = self.surround.deps.store.control_signals(run).await.map_err(|_| End::Reload)?;
        for message in signals.into_iter().flat_map(|signal| signal.joined) {
            self.state.learn(&Input::Joined(message));
        }
        if self.state.record.joined == known { Err(End::Reload) } else { Ok(()) }
    }

    /// From now on nothing new begins: what is under way may end, then the run is handed back. What can be left is not waited for.
    fn drain(&mut self) {
        self.draining = true;
        self.tools.leave();
        self.state.learn(&Input::Draining);
    }

    fn decide(&mut self, input: Input) -> Decision {
        let surroundings = Surroundings {
            now: self.surround.deps.clock.now(),
            ids: self.surround.deps.ids.as_ref(),
            elapsed_ms: self.elapsed_ms(),
            spent: self.spent,
        };
        decide(&mut self.state, input, &surroundings)
    }

    fn elapsed_ms(&self) -> u64 {
        self.state.record.elapsed_ms.saturating_add(super::heartbeat::millis(self.loaded_at.elapsed()))
    }

    /// Names the boundary that the process has just passed, for tests that make it die there.
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
        if !self.held.is_fresh(self.surround.options.self_stop) {
            self.held.lost.cancel();
            return;
        }
        self.answered = None;
        let Some(request) = sendable_request(&self.held.fence.run_id, request) else {
            self.is_unsendable = true;
            return;
        };
        self.model = Some(ModelCall::new(self.surround, &self.state, request));
    }

    fn rank_tools(&mut self) {
        let tools = self.state.usable_tools().into_iter().cloned().collect();
        let (query, owner) = (tool_query(&self.state), self.state.record.owner.clone());
        let ranker = Arc::clone(&self.surround.ranker);
        self.ranking = Some(Box::pin(async move { ranker.rank(&owner, &query, tools).await }));
    }

    fn reserve(&mut self, reserve: Reserve) {
        let (fence, owner) = (self.held.fence.clone(), self.state.record.owner.clone());
        self.reserving = Some(Reservation::ask(&self.surround.deps, fence, owner, reserve));
    }

    /// Nothing will come of the leave that was asked for.
    async fn take_leave(&mut self) {
        if let Some(asked) = self.reserving.take() {
            asked.end(&mut self.state).await;
        }
    }

    /// Waits for the next thing that the engine should know.
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
                // The run is loaded again, which says what cannot be read, and ends it.
                Happened::Told(signal) if signal.is_damaged && signal.cancel_by.is_none() => {
                    return ControlFlow::Break(End::Broken);
                }
                Happened::Told(signal) => {
                    if let Some(input) = Box::pin(self.told(signal)).await {
                        return ControlFlow::Continue(input);
                    }
                }
                Happened::Unsendable => {
                    self.is_unsendable = false;
                    return ControlFlow::Continue(Input::GivenUp { why: UNSENDABLE.to_owned(), stopped: Vec::new() });
                }
                Happened::TimedOut => {
                    let partial = self.hang_up();
                    Box::pin(self.take_leave()).await;
                    let stopped = Box::pin(self.end_tools()).await;
                    return ControlFlow::Continue(Input::TimedOut { partial, stopped });
                }
                Happened::Draining => {
                    self.drain();
                    // Between steps nothing is under way, and the run is handed back at once.
                    if self.model.is_none() && self.tools.is_empty() {
                        Box::pin(self.take_leave()).await;
                        return ControlFlow::Continue(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
                    }
                }
                Happened::StopNow => {
                    self.drain();
                    self.hang_up();
                    Box::pin(self.take_leave()).await;
                    // What has ended has its outcome. The other calls stay `started`: the next attempt judges them by their class.
                    let Stopped { outcomes: mut stopped, paused } = Box::pin(self.tools.stop()).await;
                    stopped.retain(|(id, outcome)| match outcome.state {
                        ToolCallState::Done | ToolCallState::Failed => true,
                        ToolCallState::Cancelled => self.is_lost_unsent(id),
                        ToolCallState::Denied
                        | ToolCallState::Unknown
                        | ToolCallState::Planned
                        | ToolCallState::AwaitingApproval
                        | ToolCallState::Started => false,
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
            Some(signal) = mailbox.recv() => Happened::Told(signal),
            () = self.surround.stop_now.cancelled() => Happened::StopNow,
            () = self.surround.drain.cancelled(), if !self.draining => Happened::Draining,
            () = tokio::time::sleep(left), if limit > 0 => Happened::TimedOut,
            ranked = in_order(&mut self.ranking), if self.ranking.is_some() => Happened::Ranked(ranked),
            answer = Reservation::answer(&mut self.reserving), if self.reserving.is_some() => Happened::Reserved(answer),
            result = run_model(&mut self.model, &mut self.answered, log), if self.model.is_some() => Happened::Model(result),
            Some((call, says)) = self.tools.next(), if !self.tools.is_empty() => Happened::Tool(call, says),
        }
    }

    fn model_done(&mut self, result: Result<(), ModelError>) -> ControlFlow<End, Input> {
        let Some(call) = self.model.take() else { return ControlFlow::Break(End::Reload) };
        let deps = &self.surround.deps;
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

    async fn told(&mut self, signal: Box<ControlSignal>) -> Option<Input> {
        if let Some(by) = signal.cancel_by {
            failpoint::reached("C20");
            let partial = self.hang_up();
            self.take_leave().await;
            let stopped = self.end_tools().await;
            return Some(Input::CancelRequested { by, partial, stopped });
        }
        let known = &self.state.record.history;
        let joined = signal.joined.into_iter().find(|message| known.iter().all(|other| other.id != message.id))?;
        // One at a time: should there be more, the next look at the control requests brings them.
        self.surround.deps.hub.notify_control(&self.held.fence.run_id);
        Some(Input::Joined(joined))
    }

    /// Gives up the model call, which closes the provider's connection before anything else is done, and says what was shown of
    /// it. What it has used is charged with the next write.
    fn hang_up(&mut self) -> Option<PartialAnswer> {
        let call = self.model.take()?;
        self.spent.add(call.given_up());
        call.into_partial(self.surround.deps.clock.now())
    }

    /// Tells the tools under way to stop, because the run ends, and collects what became of their calls. Nobody answers any more what a
    /// server wants to know, and whatever it had done by then stays: nothing is known of such a call, either.
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
    Told(Box<ControlSignal>),
    TimedOut,
    Draining,
    StopNow,
    Unsendable,
    Broken,
}

/// Takes the request of the model call out of the commands, if there is one.
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

/// Goes on with the model call, unless it is over and only has to be told.
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
