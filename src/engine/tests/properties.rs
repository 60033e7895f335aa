//! Random runs with crashes, hand-backs, cancellations and joined messages at any moment, and the invariants that hold for all.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use crate::domain::agent::stop_analysis_settings::StopAnalysisSettings;
use crate::domain::agent::{
    AgentProfile, BreakerAction, LlmRetry, OnInterrupt, OnLimit, OnUnknown, OutputMode, ToolErrorPolicy, ToolsPolicy,
};
use crate::domain::conversation::message::{Message, Part, Role};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, MessageId, PartId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish, ModelOptions, ToolChoice, Usage};
use crate::domain::run::RunStatus;
use crate::domain::run::change::{ReleaseCause, StepStatus};
use crate::domain::run::context::ContextPolicy;
use crate::domain::run::plan::{self, PlanPolicy};
use crate::domain::run::question::InputState;
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::tool_filter::{ToolFilter, ToolFilterMode};
use crate::domain::tool::{Reconciled, ToolCallState, ToolDefinition, ToolOutcome};
use crate::engine::decide;
use crate::engine::tests::world::{Say, World, done, tools};
use crate::engine::{Command, Decision, DecisionEnvironment, Input, RunState};

#[derive(Debug, Clone)]
enum Act {
    /// The model calls tools: name, and a small number as the argument, so that calls repeat.
    Calls(Vec<(u8, u8)>, ModelFinish),
    Text(ModelFinish),
    /// The model streams a part of its answer: text, a call, or both.
    Begins(Vec<u8>),
    Nothing(ModelFinish),
    ModelFails(ModelErrorKind),
    /// One of the tool calls under way ends: success, failure, unknown, or a state that is no outcome.
    ToolEnds(usize, u8),
    /// A reconciled server answers that the call took effect, that it did not, or something unclear.
    ServerSays(u8),
    /// A user answers.
    HumanSays(u8),
    Joins,
    Cancel,
    Drain,
    WindDown,
    TimeIsUp,
    Dies,
    /// The next decision is committed, and the worker crashes before it executes the commands.
    DiesAfterCommit,
    /// The next decision is made, and the worker crashes before the commit.
    DiesBeforeCommit,
    /// An input about something else.
    Nonsense(u8),
}

fn any_finish() -> impl Strategy<Value = ModelFinish> {
    prop_oneof![
        6 => Just(ModelFinish::ToolCalls),
        3 => Just(ModelFinish::Stop),
        1 => Just(ModelFinish::Length),
    ]
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => (prop::collection::vec((0..4_u8, 0..3_u8), 1..5), any_finish()).prop_map(|(calls, finish)| Act::Calls(calls, finish)),
        1 => any_finish().prop_map(Act::Text),
        4 => prop::collection::vec(0..3_u8, 1..4).prop_map(Act::Begins),
        1 => Just(Act::Text(ModelFinish::Refused)),
        3 => any_finish().prop_map(Act::Nothing),
        2 => prop_oneof![Just(ModelErrorKind::Overloaded), Just(ModelErrorKind::IncompleteStream), Just(ModelErrorKind::Auth),
            Just(ModelErrorKind::ContextOverflow), Just(ModelErrorKind::InvalidRequest)]
            .prop_map(Act::ModelFails),
        14 => (0..4_usize, 0..4_u8).prop_map(|(at, how)| Act::ToolEnds(at, how)),
        4 => (0..3_u8).prop_map(Act::ServerSays),
        4 => (0..3_u8).prop_map(Act::HumanSays),
        2 => Just(Act::Joins),
        1 => Just(Act::Cancel),
        1 => Just(Act::Drain),
        1 => Just(Act::WindDown),
        1 => Just(Act::TimeIsUp),
        2 => Just(Act::Dies),
        3 => Just(Act::DiesAfterCommit),
        2 => Just(Act::DiesBeforeCommit),
        2 => (0..4_u8).prop_map(Act::Nonsense),
    ]
}

prop_compose! {
    fn any_profile()(
        (max_rounds, on_limit) in (0..5_u32, prop_oneof![Just(OnLimit::Summarize), Just(OnLimit::Fail), Just(OnLimit::Message)]),
        tools_policy in prop_oneof![
            6 => Just(ToolsPolicy::EveryRound), 1 => Just(ToolsPolicy::FirstRoundOnly),
            1 => Just(ToolsPolicy::OneRoundThenText), 1 => Just(ToolsPolicy::None)
        ],
        (tool_parallelism, max_parallel_calls, tool_result_chars) in (0..4_u32, 0..4_u32, prop_oneof![Just(5_usize), Just(90), Just(6_000)]),
        tool_error in prop_oneof![4 => Just(ToolErrorPolicy::FeedBack), 1 => Just(ToolErrorPolicy::FailRun)],
        (breaker_failures, force_final) in (0..3_u32, any::<bool>()),
        (duplicate_calls, empty_replies, error_rounds) in (0..3_u32, 0..3_u32, 0..3_u32),
        max_run_tokens in prop_oneof![3 => Just(0_u64), 1 => 1..60_u64],
        nudges in 0..3_u32,
        strategy in prop_oneof![2 => Just(plan::Strategy::Loop), 1 => Just(plan::Strategy::PlanExecute)],
        (retries, crashes) in (0..3_usize, prop_oneof![Just(2_u32), Just(100)]),
        (fallbacks, has_last_words) in (0..3_usize, any::<bool>()),
        output in prop_oneof![2 => Just(OutputMode::Tools), 1 => Just(OutputMode::Structured)],
        tool_choice in prop_oneof![5 => Just(None), 1 => Just(Some(ToolChoice::None)), 1 => Just(Some(ToolChoice::Required))],
        (filter, k) in (prop_oneof![2 => Just(ToolFilterMode::Off), 1 => Just(ToolFilterMode::Semantic), 1 => Just(ToolFilterMode::Categories)], 1..3_usize),
        context in prop_oneof![2 => Just(ContextPolicy::default()), 1 => crate::engine::tests::context::any_context()],
        on_interrupt in prop_oneof![5 => Just(OnInterrupt::Resume), 1 => Just(OnInterrupt::Fail)],
        on_unknown in prop_oneof![4 => Just(OnUnknown::TellModel), 1 => Just(OnUnknown::Fail), 1 => Just(OnUnknown::Rerun),
            3 => Just(OnUnknown::Ask)],
    ) -> AgentProfile {
        AgentProfile {
            max_rounds, on_limit, tools_policy, tool_parallelism, max_parallel_calls, tool_result_chars, tool_error, breaker_failures,
            breaker_action: if force_final { BreakerAction::ForceFinal } else { BreakerAction::DropTool },
            llm_retry: LlmRetry { delays_ms: vec![5; retries], ..LlmRetry::default() },
            duplicate_calls, empty_replies, error_rounds, max_run_tokens, max_run_ms: 1_000, on_interrupt, on_unknown,
            context, output, options: ModelOptions { tool_choice, ..ModelOptions::default() },
            max_crashes: crashes, fallbacks: vec!["other/model".to_owned(); fallbacks],
            final_text: has_last_words.then(|| "We are closed.".to_owned()),
            tool_filter: ToolFilter { mode: filter, k, above: k, ..ToolFilter::default() },
            strategy, plan: PlanPolicy { k, ..PlanPolicy::default() },
            response_analysis: StopAnalysisSettings { incomplete: nudges, deflection: nudges, claims: nudges > 0, ..StopAnalysisSettings::default() },
            ..AgentProfile::default()
        }
    }
}

/// Returns tools of two servers, so that there is a choice.
fn of_two_servers() -> Vec<Arc<ToolDefinition>> {
    let mut tools = tools();
    Arc::make_mut(&mut tools[0]).server = Some("bank".to_owned());
    tools
}

/// The moment at which the worker crashes in the next step.
#[derive(Clone, Copy, PartialEq)]
enum Death {
    None,
    AfterCommit,
    BeforeCommit,
}

struct Play {
    world: World,
    death: Death,
    fresh: u32,
    /// Calls that were reported as not done, by their server or a user, once for each report.
    denied: Vec<CallId>,
    /// Messages that joined from outside.
    joined: Vec<Message>,
}

impl Play {
    fn new(profile: AgentProfile) -> Self {
        Self { world: World::new(profile), death: Death::None, fresh: 0, denied: Vec::new(), joined: Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.world.ending.is_some()
    }

    fn is_planning(&self) -> bool {
        self.world.asked.as_ref().is_some_and(|request| request.system.contains("[done()]"))
    }

    fn wants_objects(&self) -> bool {
        self.world.rows.profile.output == OutputMode::Structured
    }

    /// Claims the run if no worker has it.
    fn ensure_held(&mut self) {
        if self.is_over() || self.world.state.is_some() {
            return;
        }
        let cause = match self.world.released {
            Some((_, ReleaseCause::Waiting)) => ClaimCause::Timer,
            Some((_, ReleaseCause::Drain)) => ClaimCause::HandedBack,
            None if self.world.decisions == 0 => ClaimCause::First,
            None => ClaimCause::Crash,
        };
        self.world.load(cause);
        let input = || Input::Claimed { tools: of_two_servers(), contexts: None, finished: Vec::new() };
        // The same rows lead to the same commands.
        assert_eq!(acts(self.world.decide(input())), acts(self.world.decide(input())));
        self.feed(input());
    }

    fn feed(&mut self, input: Input) {
        match std::mem::replace(&mut self.death, Death::None) {
            Death::None => {
                self.world.feed(input);
            }
            Death::AfterCommit => self.world.feed_and_die(input),
            Death::BeforeCommit => {
                self.world.decide(input);
                self.world.die();
            }
        }
    }

    fn answer(&mut self, say: &[Say], finish: ModelFinish) {
        if self.world.asked.is_some() {
            let input = self.world.answer(say, finish);
            self.feed(input);
        }
    }

    fn play(&mut self, act: Act) {
        self.ensure_held();
        if self.is_over() {
            return self.nothing_moves();
        }
        match act {
            Act::Text(finish) | Act::Calls(_, finish) if self.is_planning() => {
                let plans =
                    ["[step('read')] [step('write it')] [done()]", "[step('read')] [step('write step 1')]", "[answer('No.')]"];
                self.answer(&[Say::Text(plans[self.world.decisions as usize % 3])], finish);
            }
            Act::Calls(calls, finish) => {
                let mut say: Vec<_> = calls
                    .into_iter()
                    .map(|(name, n)| {
                        let name = ["read", "write", "pay", "nothing"][name as usize];
                        Say::Call(name, if n == 2 { "{\"n\":".to_owned() } else { json!({ "n": n }).to_string() })
                    })
                    .collect();
                // A single call has the requested form, and several do not.
                if let (true, [Say::Call(name, arguments)]) = (self.wants_objects(), say.as_slice()) {
                    say = vec![Say::Words(format!(r#"{{"tool":"{name}","arguments":{arguments}}}"#))];
                }
                self.answer(&say, finish);
            }
            Act::Text(finish) if self.wants_objects() && finish != ModelFinish::ToolCalls => {
                self.answer(&[Say::Text(r#"{"answer":"Some words."}"#)], finish);
            }
            Act::Text(finish) => {
                let words = ["Some words.", "Shall I go on?", "Four are remaining."][self.world.decisions as usize % 3];
                self.answer(&[Say::Text(words)], finish);
            }
            Act::Begins(pieces) => {
                if self.world.asked.is_some() {
                    let say: Vec<_> = pieces
                        .into_iter()
                        .map(|piece| match piece {
                            0 => Say::Reasoning("Well."),
                            1 => Say::Text("Some wor"),
                            _ => Say::Call("write", "{\"n\":".to_owned()),
                        })
                        .collect();
                    self.world.show(&say);
                }
            }
            Act::Nothing(finish) => self.answer(&[Say::Reasoning("Hm.")], finish),
            Act::ModelFails(kind) => {
                if self.world.asked.is_some() {
                    self.world.hang_up();
                    // The refused request may contain no signed content.
                    let refused_signed = true;
                    let request_not_sent = kind == ModelErrorKind::Overloaded && self.world.decisions.is_multiple_of(2);
                    let error = ModelError::new(kind, "");
                    self.feed(Input::ModelFailed(ModelError { refused_signed, request_not_sent, ..error }));
                }
            }
            Act::ToolEnds(at, how) => self.tool_ends(at, how),
            Act::ServerSays(how) => self.server_says(how),
            Act::HumanSays(how) => self.human_says(how),
            Act::Joins => {
                let message = self.world.join("Also this.");
                self.joined.push(message);
            }
            Act::Cancel => self.cancel(),
            Act::Drain => {
                if self.world.state.is_some() {
                    self.feed(Input::Drain { stopped: Vec::new(), paused: Vec::new() });
                }
            }
            Act::WindDown => {
                if let Some(state) = &mut self.world.state {
                    state.learn(&Input::Draining);
                }
            }
            Act::TimeIsUp => {
                if self.world.state.is_some() {
                    self.feed(Input::TimedOut { partial: None, stopped: Vec::new() });
                }
            }
            Act::Dies => self.world.die(),
            Act::DiesAfterCommit => self.death = Death::AfterCommit,
            Act::DiesBeforeCommit => self.death = Death::BeforeCommit,
            Act::Nonsense(which) => self.nonsense(which),
        }
    }

    fn tool_ends(&mut self, at: usize, how: u8) {
        if self.world.under_way.is_empty() {
            return;
        }
        let call = self.world.under_way.remove(at % self.world.under_way.len());
        let outcome = match how {
            0 => done(&"long ".repeat(40)),
            1 => ToolOutcome::failed("it broke", 1),
            2 => ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed("gone", 1) },
            _ => ToolOutcome { state: ToolCallState::Planned, ..done("") },
        };
        self.feed(Input::ToolFinished(call.id, outcome));
    }

    fn server_says(&mut self, how: u8) {
        if self.world.in_question.is_empty() {
            return;
        }
        let call = self.world.in_question.remove(0);
        let answer = match how {
            0 => Reconciled::Happened(done("it did")),
            1 => {
                self.denied.push(call.id.clone());
                Reconciled::DidNotHappen
            }
            _ => Reconciled::Unclear("who knows".to_owned()),
        };
        self.feed(Input::Reconciled(call.id, answer));
    }

    fn human_says(&mut self, how: u8) {
        let pending = self.world.rows.inputs.iter().find(|row| row.state == InputState::Pending);
        let call = pending.and_then(|row| row.call_id.clone());
        let choice = ["happened", "did_not_happen", "skip"][how as usize];
        if self.world.human_says(choice) && choice == "did_not_happen" {
            self.denied.extend(call);
        }
    }

    fn cancel(&mut self) {
        if self.world.state.is_none() {
            self.world.rows.cancel_requested_by = Some("user".to_owned());
            return;
        }
        let partial = self.world.hang_up();
        let stopped = self.world.under_way.drain(..).take(1).map(|call| (call.id, done("just in time"))).collect();
        self.feed(Input::CancelRequested { by: "user".to_owned(), partial, stopped });
    }

    /// Feeds an input about something that is not under way, which must change nothing.
    fn nonsense(&mut self, which: u8) {
        if self.world.state.is_none() {
            return;
        }
        let is_asking = self.world.asked.is_some();
        let input = match which {
            0 => Input::ToolFinished(CallId::generate(&self.world.ids), done("?")),
            1 if !is_asking => Input::ModelFailed(ModelError::new(ModelErrorKind::Network, "")),
            2 if !is_asking => {
                let shown = self.world.events.len();
                let input = self.world.answer(&[Say::Text("?")], ModelFinish::Stop);
                self.world.events.truncate(shown);
                input
            }
            _ => match self.world.rows.calls.iter().find(|call| call.state != ToolCallState::Started) {
                Some(call) => Input::ToolFinished(call.id.clone(), done("again")),
                None => return,
            },
        };
        assert_eq!(self.world.decide(input), Decision::default());
    }

    /// Plays a model that never stops calling tools: only the limits can end the run.
    fn call_for_ever(&mut self) {
        for _ in 0..120 {
            self.ensure_held();
            if self.is_over() {
                return;
            }
            self.human_says(2);
            self.fresh += 1;
            let arguments = json!({ "fresh": self.fresh }).to_string();
            self.answer(&[Say::Call("write", arguments)], ModelFinish::ToolCalls);
            while !self.world.under_way.is_empty() || !self.world.in_question.is_empty() {
                self.server_says(2);
                self.tool_ends(0, 0);
            }
        }
        panic!("the run does not end");
    }

    fn nothing_moves(&self) {
        let state = RunState::load(self.world.rows.clone());
        let around = DecisionEnvironment {
            now: crate::engine::tests::world::NOW,
            ids: &self.world.ids,
            elapsed_ms: 0,
            spent: Usage::default(),
        };
        let call = self.world.rows.calls.first().map_or_else(|| CallId::generate(&self.world.ids), |call| call.id.clone());
        for input in [
            Input::Claimed { tools: of_two_servers(), contexts: None, finished: Vec::new() },
            Input::ModelFailed(ModelError::new(ModelErrorKind::Network, "")),
            Input::ToolFinished(call, done("late")),
            Input::CancelRequested { by: "user".to_owned(), partial: None, stopped: Vec::new() },
            Input::Drain { stopped: Vec::new(), paused: Vec::new() },
            Input::TimedOut { partial: None, stopped: Vec::new() },
            Input::GivenUp { why: String::new(), stopped: Vec::new() },
        ] {
            assert_eq!(decide(&mut state.clone(), input, &around), Decision::default());
        }
    }

    fn judge(&self) {
        let world = &self.world;
        self.nothing_moves();
        world.check_next_turn();
        assert!(world.rows.steps.iter().all(|row| row.status != StepStatus::Started), "no step is left open");

        let mut ended = HashSet::new();
        for event in &world.events {
            if let EventBody::ToolCompleted { call_id, .. } | EventBody::ToolOutcomeUnknown { call_id, .. } = event {
                assert!(ended.insert(call_id.clone()), "one outcome event for each call");
            }
        }
        for call in &world.rows.calls {
            assert!(call.state.is_outcome() && call.outcome.is_some(), "{call:?}");
            assert!(ended.contains(&call.id));
            let runs = world.executions.get(&call.id).copied().unwrap_or(0);
            let may_repeat = call.replay.may_repeat() || world.rows.profile.on_unknown == OnUnknown::Rerun;
            let denials = self.denied.iter().filter(|id| **id == call.id).count();
            assert!(may_repeat || runs as usize <= 1 + denials, "an unsafe call ran {runs} times");
        }

        // Every step of a plan has its end.
        let planned = world.events.iter().map(|event| match event {
            EventBody::PlanCreated { steps } => steps.len(),
            _ => 0,
        });
        let closed = world.kinds().into_iter().filter(|kind| *kind == "plan.step_completed").count();
        assert_eq!(planned.sum::<usize>(), closed, "{:?}", world.kinds());

        // The log and the rows agree.
        let history = world.rows.history.iter();
        let stored: Vec<_> = history.filter(|message| message.role != Role::User || message.internal).cloned().collect();
        assert_eq!(world.followed(), stored);
        assert_eq!(world.rows.history.len(), stored.len() + 1 + self.joined.len());

        // If the agent allows no model call, its fixed text answers all messages.
        let profile = &world.rows.profile;
        let may_ask = profile.max_rounds > 0 || profile.on_limit != OnLimit::Message;
        if world.ended().status == RunStatus::Completed && may_ask {
            for message in &self.joined {
                let asked = message.parts.iter().all(|part| world.asked_about.contains(part.id()));
                assert!(asked, "no answer to {message:?}");
            }
        }
    }
}

/// Returns the commands of a decision without generated ids.
fn acts(decision: Decision) -> Vec<Command> {
    let mut commands = decision.commands;
    for command in &mut commands {
        if let Command::CallModel(request) = command {
            request.messages.iter_mut().for_each(blank_ids);
        }
    }
    commands
}

fn blank_ids(message: &mut Message) {
    message.id = MessageId::from_stored(String::new());
    for part in &mut message.parts {
        let id = match part {
            Part::Text(part) => &mut part.id,
            Part::Reasoning(part) => &mut part.id,
            Part::ToolCall(part) => &mut part.id,
            Part::ToolResult(part) => &mut part.id,
            Part::Image(part) | Part::File(part) => &mut part.id,
            Part::Source(part) => &mut part.id,
        };
        *id = PartId::from_stored(String::new());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 300, ..ProptestConfig::default() })]

    // L-35, L-36: every call has exactly one result, after any sequence of inputs.
    #[test]
    fn run_of_any_inputs_ends_and_keeps_the_guarantees(
        profile in any_profile(),
        acts in prop::collection::vec(any_act(), 0..40),
    ) {
        let mut play = Play::new(profile);
        for act in acts {
            play.play(act);
        }
        play.death = Death::None;
        play.call_for_ever();
        play.judge();
    }

    /// The worker crashes at each boundary of the same run, before or after the commit.
    #[test]
    fn a_death_at_any_boundary_is_survived(
        at in 0..12_usize,
        after_commit in any::<bool>(),
        names in prop::collection::vec(0..3_u8, 1..5),
        tool_parallelism in 1..4_u32,
    ) {
        let mut play = Play::new(AgentProfile { tool_parallelism, ..AgentProfile::default() });
        for step in 0..40 {
            play.ensure_held();
            if play.is_over() {
                break;
            }
            if step == at {
                play.death = if after_commit { Death::AfterCommit } else { Death::BeforeCommit };
            }
            if !play.world.in_question.is_empty() {
                play.play(Act::ServerSays(0));
            } else if !play.world.under_way.is_empty() {
                play.play(Act::ToolEnds(step, 0));
            } else if play.world.rows.counters.rounds < 2 {
                let calls = names.iter().enumerate().map(|(n, name)| (*name, (n % 2) as u8)).collect();
                play.play(Act::Calls(calls, ModelFinish::ToolCalls));
            } else {
                play.play(Act::Text(ModelFinish::Stop));
            }
        }
        prop_assert_eq!(play.world.ended().status, RunStatus::Completed);
        play.judge();
    }
}
