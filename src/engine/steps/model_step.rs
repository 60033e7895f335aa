//! Model steps: how they begin, and the consequences of an answer. Must not know how a request is built, or how a failed call is handled.

use crate::domain::agent::OnLimit;
use crate::domain::conversation::{Message, Part};
use crate::domain::event::EventBody;
use crate::domain::model::{MalformedAnswer, ModelErrorKind, ModelFinish, ModelTurn, Usage};
use crate::domain::problem::ProblemCode;
use crate::domain::run::{FinishReason, ReleaseCause, RequestBudget, RunStatus};
use crate::engine::calls::call_as_text;
use crate::engine::calls::failing_tools::forces_final;
use crate::engine::calls::planned_calls::{self, Completeness};
use crate::engine::machine::{Command, DecisionBuilder, ModelCall, Next, RunEnd};
use crate::engine::offer::usable::Prerequisite;
use crate::engine::prompts;
use crate::engine::request::window::remaining::TokenBudget;
use crate::engine::steps::store_answer::{store_answer, store_text};
use crate::engine::steps::{json_answer, restart_counters, time_limits};
use crate::engine::strategy::hooks::Answer;
use crate::engine::strategy::{self, stop_analysis};

/// Begins the next model call, unless a limit ends the run or forces an answer.
pub fn begin(decision: &mut DecisionBuilder<'_>) -> Next {
    if decision.facts.is_draining {
        return Next::Release(Some(0), ReleaseCause::Drain);
    }
    if decision.is_out_of_time() {
        return time_limits::fail_for_time(decision);
    }
    let was_forced = decision.progress.counters.force_final;
    restart_counters::restart(decision);
    if let Some(next) = strategy::hooks_of(decision.profile()).begin_model_call(decision) {
        return next;
    }
    if !decision.progress.counters.force_final {
        if decision.profile().is_spent(decision.progress.usage) {
            decision.force_final(prompts::FORCED_BUDGET);
        } else if decision.progress.counters.rounds >= decision.profile().max_rounds {
            match decision.profile().on_limit {
                OnLimit::Summarize => decision.force_final(prompts::FORCED_ROUNDS),
                OnLimit::Fail => {
                    let detail = format!("the agent's limit of {} rounds is reached", decision.profile().max_rounds);
                    return Next::fail(ProblemCode::MaxRounds, detail);
                }
                OnLimit::Message => {
                    decision.add_assistant_text(prompts::LIMIT_MESSAGE, FinishReason::MaxRounds);
                    return Next::complete(FinishReason::MaxRounds);
                }
            }
        } else if forces_final(decision) {
            decision.force_final(prompts::FORCED_BREAKER);
        }
    }
    if was_forced && !decision.progress.counters.force_final {
        decision.hint(prompts::NO_LONGER_FORCED);
    }
    decision.set_status(RunStatus::Processing, None);
    if decision.source().missing_prerequisite() == Prerequisite::Ranking {
        decision.command(Command::RankTools);
        return Next::Wait;
    }
    Next::Window
}

/// Makes a model call with the request whose size was checked.
pub fn call_model(decision: &mut DecisionBuilder<'_>, call: ModelCall) -> Next {
    let announced = decision.source().reduced_offer();
    let unit = decision.profile().context.unit;
    let budget = call.room.map(|TokenBudget { window, used, remaining, .. }| RequestBudget { unit, window, used, remaining });
    let request = call.prepared.into_request();
    decision.start_model_step(&request, budget, announced);
    if let Some(TokenBudget { window, used, remaining, measure }) = call.room {
        let tokenizer = measure.tokenizer();
        decision.event(EventBody::ContextBudget { unit, window, used, remaining, tokenizer });
    }
    decision.command(Command::CallModel(Box::new(request)));
    Next::Wait
}

/// Ends the run with the stored answer, unless a message joined after the answer was requested.
pub fn end_turn(decision: &mut DecisionBuilder<'_>, reason: FinishReason) -> Next {
    if decision.progress.has_unseen_messages() {
        decision.hint(prompts::JOINED);
        return Next::ModelStep;
    }
    Next::complete(reason)
}

/// Accepts an answer. `None` if no model call is open, or the answer was accepted before.
pub fn accept_answer(
    decision: &mut DecisionBuilder<'_>,
    message: Message,
    turn: ModelTurn,
    closing: Vec<EventBody>,
) -> Option<Answer> {
    let step = decision.open_model_step()?;
    if decision.before.history.iter().any(|known| known.id == message.id) {
        return None;
    }
    decision.charge(turn.usage);
    let counters = decision.counters();
    (counters.model_failures, counters.breaker_wait_ms) = (0, 0);
    Some(Answer { step, message, turn, closing })
}

/// Decides what follows from an answer of the loop's own model. `before` is the usage without this answer.
pub fn apply_answer(decision: &mut DecisionBuilder<'_>, answer: Answer, before: Usage) -> Next {
    let Answer { step, message, turn, closing } = json_answer::enforce_schema(decision, answer);
    let usage = turn.usage;
    let is_last = decision.progress.counters.force_final;
    let limit = decision.profile().options.max_output_tokens;
    if is_used_up(&message, &turn, limit) && !decision.progress.has_unseen_messages() {
        store_text(decision, step, message.clone(), closing, usage);
        let detail = prompts::output_used_up(limit, has_reasoned(&message, &turn));
        return Next::fail_for_good(ProblemCode::from(ModelErrorKind::EmptyResponse), detail);
    }
    // A malformed answer does not count as a round, because corrections have their own limit.
    if let Some(malformed) = &turn.malformed {
        return correct(decision, step, &message, malformed, usage);
    }
    let counters = decision.counters();
    counters.malformed_answers = 0;
    if !is_last {
        counters.rounds = counters.rounds.saturating_add(1);
    }
    let repeats_request = decision.profile().empty_replies > 0;
    let verdict = match classify_answer(&message, turn.finish, is_last, repeats_request) {
        AnswerClassification::Final if repeats_request && call_as_text::is_call(decision, &message) => AnswerClassification::Worded,
        verdict => verdict,
    };
    let counters = decision.counters();
    match verdict {
        AnswerClassification::Final | AnswerClassification::Calls => (counters.empty_replies, counters.cut_answers) = (0, 0),
        AnswerClassification::CutCalls | AnswerClassification::Refused => counters.empty_replies = 0,
        AnswerClassification::Empty
        | AnswerClassification::Hollow
        | AnswerClassification::Worded
        | AnswerClassification::Uncallable => {}
    }
    match verdict {
        AnswerClassification::Refused => {
            store_text(decision, step, message, closing, usage);
            Next::EndTurn(FinishReason::Refused)
        }
        AnswerClassification::Final => {
            if let Some(reason) = stop_analysis::nudge_reason(decision, &message, turn.finish, is_last) {
                decision.set_aside(step, message);
                decision.complete_step(step, Some(usage));
                let hint = stop_analysis::count_nudge(decision, reason);
                decision.hint(hint);
                return Next::ModelStep;
            }
            let reason = last_reason(decision, before, is_last).unwrap_or(turn.finish.as_finish_reason());
            store_text(decision, step, message, closing, usage);
            Next::EndTurn(reason)
        }
        AnswerClassification::Calls | AnswerClassification::CutCalls => {
            let completeness = if matches!(verdict, AnswerClassification::Calls) { Completeness::Whole } else { Completeness::Cut };
            decision.counters().cut_answers += u32::from(completeness == Completeness::Cut);
            let calls = planned_calls::plan_calls(decision, &message, &turn, step.saturating_add(1), completeness);
            store_answer(decision, step, message, closing, usage);
            Next::ToolStep(calls)
        }
        AnswerClassification::Empty => {
            store_text(decision, step, message, closing, usage);
            nudge(decision, prompts::EMPTY_REPLY, is_last)
        }
        AnswerClassification::Hollow => {
            store_answer(decision, step, message, closing, usage);
            nudge(decision, prompts::HOLLOW_CALLS, is_last)
        }
        AnswerClassification::Worded => {
            decision.set_aside(step, message);
            decision.complete_step(step, Some(usage));
            nudge(decision, prompts::WORDED_CALL, is_last)
        }
        AnswerClassification::Uncallable => {
            store_text(decision, step, message, closing, usage);
            ask_for_words(decision)
        }
    }
}

/// Voids the shown parts of a malformed answer, and repeats the model call with a hint about the fault. Fails the run after too
/// many malformed answers.
fn correct(decision: &mut DecisionBuilder<'_>, step: u32, message: &Message, malformed: &MalformedAnswer, usage: Usage) -> Next {
    if !message.parts.is_empty() {
        decision.reset(step, "malformed");
    }
    decision.complete_step(step, Some(usage));
    let counters = decision.counters();
    counters.malformed_answers = counters.malformed_answers.saturating_add(1);
    let is_once_too_often = counters.malformed_answers > decision.profile().llm_retry.validation_retries;
    if is_once_too_often && !decision.progress.has_unseen_messages() {
        let detail = format!("the model's answer is not the one JSON object that was requested: {}", malformed.reason);
        return Next::fail(ProblemCode::InvalidOutput, detail);
    }
    decision.hint(&prompts::malformed_answer(&malformed.reason, &malformed.quoted));
    Next::ModelStep
}

/// Repeats the model call after an empty answer, then once without tools, then gives up. An empty answer is never a success: the user reads
/// the agent's `final_text`, if it has one, and the run keeps the error.
fn nudge(decision: &mut DecisionBuilder<'_>, hint: &str, is_last: bool) -> Next {
    if decision.progress.has_unseen_messages() {
        decision.hint(hint);
        return Next::ModelStep;
    }
    let limit = decision.profile().empty_replies;
    let counters = decision.counters();
    counters.empty_replies = counters.empty_replies.saturating_add(1);
    if is_last || limit == 0 {
        return give_up(decision, "the model sent only empty answers");
    }
    if counters.empty_replies >= limit {
        decision.force_final(prompts::FORCED_EMPTY);
    } else {
        decision.hint(hint);
    }
    Next::ModelStep
}

/// Repeats the model call after a forced answer with nothing but calls, which are not allowed any more. Gives up after too many
/// repetitions.
fn ask_for_words(decision: &mut DecisionBuilder<'_>) -> Next {
    let limit = decision.profile().empty_replies;
    let counters = decision.counters();
    counters.empty_replies = counters.empty_replies.saturating_add(1);
    if counters.empty_replies > limit && !decision.progress.has_unseen_messages() {
        return give_up(decision, "the model called tools after the last of them was withdrawn, and gave no answer");
    }
    decision.hint(prompts::NO_TOOLS);
    Next::ModelStep
}

/// Ends a run without an answer: by the agent's `final_text`, if there is one.
fn give_up(decision: &DecisionBuilder<'_>, detail: &str) -> Next {
    let error = ProblemCode::from(ModelErrorKind::EmptyResponse).body(detail);
    Next::End(match decision.profile().final_text.clone() {
        Some(text) => RunEnd::FinalText(text, error),
        None => RunEnd::Failed(error),
    })
}

/// The kind of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerClassification {
    Refused,
    /// Calls to execute or to refuse.
    Calls,
    /// Calls that the output limit cut.
    CutCalls,
    /// An answer to the user, which ends the run unless stop analysis adds a nudge.
    Final,
    /// No text and no calls.
    Empty,
    /// The finish reason announces calls, but the answer has none.
    Hollow,
    /// A call is written as text.
    Worded,
    /// Nothing but calls, although no call is allowed any more.
    Uncallable,
}

/// Returns whether the output limit was reached before the model wrote or called anything: the same request would fail again. Some servers
/// report such an answer as complete.
fn is_used_up(message: &Message, turn: &ModelTurn, limit: Option<u32>) -> bool {
    let ModelTurn { finish, usage, .. } = turn;
    let is_at_limit = !usage.estimated && limit.is_some_and(|limit| usage.output_tokens >= u64::from(limit));
    let is_cut = *finish == ModelFinish::Length || (is_at_limit && *finish != ModelFinish::Refused);
    let has_words = message.shows_something() || turn.malformed.as_ref().is_some_and(|wrong| !wrong.quoted.trim().is_empty());
    is_cut && !has_words && message.tool_calls().next().is_none()
}

fn has_reasoned(message: &Message, turn: &ModelTurn) -> bool {
    turn.usage.reasoning_tokens > 0 || message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)))
}

/// Classifies an answer by its calls, because providers report `stop` with calls, and `tool_calls` without calls. Text without
/// calls ends the run, unless the finish reason announces calls and `repeats_request` is set.
fn classify_answer(message: &Message, finish: ModelFinish, is_last: bool, repeats_request: bool) -> AnswerClassification {
    // A picture is an answer, too.
    let has_text = message.shows_something();
    let has_called = message.tool_calls().next().is_some();
    let has_calls = !is_last && has_called;
    match finish {
        ModelFinish::Refused => AnswerClassification::Refused,
        ModelFinish::Length if has_calls => AnswerClassification::CutCalls,
        ModelFinish::Stop | ModelFinish::ToolCalls if has_calls => AnswerClassification::Calls,
        ModelFinish::Stop | ModelFinish::ToolCalls if has_called && !has_text && repeats_request => {
            AnswerClassification::Uncallable
        }
        ModelFinish::ToolCalls if !is_last && has_text && repeats_request => AnswerClassification::Hollow,
        ModelFinish::Stop | ModelFinish::ToolCalls | ModelFinish::Length if has_text => AnswerClassification::Final,
        ModelFinish::Stop | ModelFinish::ToolCalls | ModelFinish::Length => AnswerClassification::Empty,
    }
}

/// Returns the finish reason for the limit that forced an answer.
fn last_reason(decision: &DecisionBuilder<'_>, before: Usage, is_last: bool) -> Option<FinishReason> {
    if !is_last {
        return None;
    }
    if decision.profile().is_spent(before) || decision.progress.counters.forced_by_window {
        return Some(FinishReason::Budget);
    }
    (decision.progress.counters.rounds >= decision.profile().max_rounds).then_some(FinishReason::MaxRounds)
}
