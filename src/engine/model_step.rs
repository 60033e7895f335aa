//! Model steps: begin, judge the answer, try again.

use super::context::{self, Begin, Room};
use super::decide::next_step;
use super::draft::Draft;
use super::{Command, PartialAnswer, analysis, budget, offer, plan, texts, tool_step};
use crate::domain::agent::{BreakerAction, OnLimit};
use crate::domain::change::{Change, ReleaseCause, RunCounters, StepKind};
use crate::domain::event::EventBody;
use crate::domain::message::{Message, MessageStatus, Part};
use crate::domain::model::{MalformedAnswer, ModelErrorKind, ModelFinish, ModelTurn, Usage};
use crate::domain::problem::ProblemCode;
use crate::domain::run::{FinishReason, RunStatus};

/// Answers in a row that were cut inside a tool call and may be tried again.
const CUT_ANSWERS: u32 = 2;

/// Begins the next model call, unless a limit says that the run ends, or that this call is the last one.
pub(super) fn begin(draft: &mut Draft<'_>) {
    if draft.base.is_draining() {
        return draft.release(Some(0), ReleaseCause::Drain);
    }
    if draft.is_out_of_time() {
        return fail_for_time(draft);
    }
    let was_forced = draft.work.record.counters.force_final;
    renew(draft);
    if plan::begin(draft) {
        return;
    }
    if !draft.work.record.counters.force_final {
        if budget::is_run_over(draft, draft.work.record.usage) {
            draft.force_final(texts::FORCED_BUDGET);
        } else if draft.work.record.counters.rounds >= draft.profile().max_rounds {
            match draft.profile().on_limit {
                OnLimit::Summarize => draft.force_final(texts::FORCED_ROUNDS),
                OnLimit::Fail => {
                    let detail = format!("the agent's limit of {} rounds is reached", draft.profile().max_rounds);
                    return draft.fail(ProblemCode::MaxRounds, detail);
                }
                OnLimit::Message => {
                    draft.say(texts::LIMIT_MESSAGE, FinishReason::MaxRounds);
                    return draft.complete(FinishReason::MaxRounds);
                }
            }
        } else if has_broken_tool(draft) {
            draft.force_final(texts::FORCED_BREAKER);
        }
    }
    if was_forced && !draft.work.record.counters.force_final {
        draft.hint(texts::NO_LONGER_FORCED);
    }
    draft.set_status(RunStatus::Processing, None);
    if offer::waits_for_ranking(draft) {
        return;
    }
    let room = match context::make_room(draft) {
        Begin::Now(room) => room,
        Begin::Never => return,
    };
    call(draft, room);
}

/// Calls the model, whose request has so much room, if nothing stands in the way of what that may cost.
pub(super) fn call(draft: &mut Draft<'_>, room: Option<Room>) {
    if !budget::allows_call(draft) {
        return;
    }
    let step = next_step(draft, StepKind::Model);
    draft.start_step(step, StepKind::Model);
    if let Some(Room { window, used, remaining, measure }) = room {
        let (unit, tokenizer) = (draft.profile().context.unit, measure.tokenizer());
        draft.event(EventBody::ContextBudget { unit, window, used, remaining, tokenizer });
    }
    draft.command(Command::CallModel);
}

/// A message that the model has not heard gives the run a new beginning, of which the message is the first word: whatever
/// counts rounds, empty replies and the like counts from here. Bounded by the number of messages that users send.
pub(super) fn renew(draft: &mut Draft<'_>) {
    if !draft.work.has_unseen_messages() {
        return;
    }
    plan::interrupted(draft);
    let heard = draft.work.record.joined;
    let heard_step = draft.work.record.steps.last().map_or(0, |row| row.step);
    let counters = draft.counters();
    *counters = RunCounters {
        heard,
        heard_step,
        // These belong to the model's provider and to tools, which a message does not mend.
        model_failures: counters.model_failures,
        fallback: counters.fallback,
        left_alone_ms: counters.left_alone_ms,
        halved: counters.halved,
        unsigned: counters.unsigned,
        quarantined_tools: std::mem::take(&mut counters.quarantined_tools),
        dropped_tools: std::mem::take(&mut counters.dropped_tools),
        plan: counters.plan.take(),
        failed_before: std::mem::take(&mut counters.failed_before),
        ..RunCounters::default()
    };
}

pub(super) fn has_broken_tool(draft: &Draft<'_>) -> bool {
    match draft.profile().breaker_action {
        BreakerAction::DropTool => false,
        BreakerAction::ForceFinal => draft.base.record.tools.iter().flatten().any(|tool| draft.is_broken(&tool.name)),
    }
}

/// Ends a run whose time is up.
pub(super) fn fail_for_time(draft: &mut Draft<'_>) {
    let detail = format!("the run's limit of {} ms is reached", draft.profile().max_run_ms);
    draft.fail(ProblemCode::RunTimeout, detail);
}

/// What an answer is.
enum Verdict {
    /// The model or its provider refused.
    Refused,
    /// Calls to carry out or to answer with errors.
    Calls,
    /// Calls that the output limit cut.
    CutCalls,
    /// The end of the turn.
    Final,
    /// Nothing that could be shown or done.
    Empty,
    /// Calls were announced and are not there.
    Hollow,
}

/// Whether the output limit was used up before the model said or did anything: the same request would come to the same. Some servers
/// report such an answer as a whole one.
fn is_used_up(message: &Message, turn: &ModelTurn, limit: Option<u32>) -> bool {
    let ModelTurn { finish, usage, .. } = turn;
    let is_at_limit = !usage.estimated && limit.is_some_and(|limit| usage.output_tokens >= u64::from(limit));
    let is_cut = *finish == ModelFinish::Length || (is_at_limit && *finish != ModelFinish::Refused);
    let has_words = !message.text().trim().is_empty() || turn.malformed.as_ref().is_some_and(|wrong| !wrong.said.trim().is_empty());
    is_cut && !has_words && message.tool_calls().next().is_none()
}

fn has_reasoned(message: &Message, turn: &ModelTurn) -> bool {
    turn.usage.reasoning_tokens > 0 || message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)))
}

/// The presence of calls decides, not the finish reason that comes with them: providers report `stop` with calls, and calls
/// without any. Where nobody `asks_again`, words are the answer, whatever they announce.
fn judge(message: &Message, finish: ModelFinish, is_last: bool, asks_again: bool) -> Verdict {
    let has_text = !message.text().trim().is_empty();
    let has_calls = !is_last && message.tool_calls().next().is_some();
    match finish {
        ModelFinish::Refused => Verdict::Refused,
        ModelFinish::Length if has_calls => Verdict::CutCalls,
        ModelFinish::Stop | ModelFinish::ToolCalls if has_calls => Verdict::Calls,
        ModelFinish::ToolCalls if !is_last && has_text && asks_again => Verdict::Hollow,
        ModelFinish::Stop | ModelFinish::ToolCalls | ModelFinish::Length => {
            if has_text {
                Verdict::Final
            } else {
                Verdict::Empty
            }
        }
    }
}

/// The model has answered.
pub(super) fn finished(draft: &mut Draft<'_>, message: Message, turn: &ModelTurn, closing: Vec<EventBody>) {
    let Some(step) = draft.open_model_step() else { return };
    if draft.base.record.history.iter().any(|known| known.id == message.id) {
        return;
    }
    let before = draft.work.record.usage;
    let usage = turn.usage;
    draft.charge(usage);
    let is_last = draft.work.record.counters.force_final;
    let counters = draft.counters();
    counters.model_failures = 0;
    counters.left_alone_ms = 0;
    if plan::phase(&draft.base.record).is_some() {
        return plan::finished(draft, step, message, turn, closing);
    }
    if offer::missing_in(draft.base) == offer::Missing::Categories {
        return offer::categories_named(draft, step, &message, turn);
    }
    let limit = draft.profile().options.max_output_tokens;
    if is_used_up(&message, turn, limit) && !draft.work.has_unseen_messages() {
        store_words(draft, step, message.clone(), closing, usage);
        let detail = texts::output_used_up(limit, has_reasoned(&message, turn));
        return draft.fail_for_good(ProblemCode::from(ModelErrorKind::EmptyResponse), detail);
    }
    // What is asked for again is no round: those are for work, and corrections have a limit of their own.
    if let Some(malformed) = &turn.malformed {
        return correct(draft, step, &message, malformed, usage);
    }
    let counters = draft.counters();
    counters.malformed_answers = 0;
    if !is_last {
        counters.rounds = counters.rounds.saturating_add(1);
    }
    let asks_again = draft.profile().empty_replies > 0;
    let verdict = judge(&message, turn.finish, is_last, asks_again);
    match verdict {
        Verdict::Final | Verdict::Calls | Verdict::CutCalls | Verdict::Refused => draft.counters().empty_replies = 0,
        Verdict::Empty | Verdict::Hollow => {}
    }
    match verdict {
        Verdict::Final | Verdict::Calls => draft.counters().cut_answers = 0,
        Verdict::CutCalls | Verdict::Refused | Verdict::Empty | Verdict::Hollow => {}
    }
    match verdict {
        Verdict::Refused => {
            store_words(draft, step, message, closing, usage);
            end_turn(draft, FinishReason::Refused);
        }
        Verdict::Final => {
            if let Some(shortfall) = analysis::must_go_on(draft, &message, turn.finish, is_last) {
                draft.set_aside(step, message);
                draft.complete_step(step, Some(usage));
                let hint = analysis::nudge(draft, shortfall);
                draft.hint(hint);
                return begin(draft);
            }
            let reason = last_reason(draft, before, is_last).unwrap_or(turn.finish.as_finish_reason());
            store_words(draft, step, message, closing, usage);
            end_turn(draft, reason);
        }
        Verdict::Calls => {
            let calls = tool_step::planned(draft, &message, turn, step.saturating_add(1), tool_step::Completeness::Whole);
            store_answer(draft, step, message, closing, usage);
            tool_step::begin(draft, calls);
        }
        Verdict::CutCalls => {
            draft.counters().cut_answers += 1;
            let calls = tool_step::planned(draft, &message, turn, step.saturating_add(1), tool_step::Completeness::Cut);
            store_answer(draft, step, message, closing, usage);
            tool_step::begin(draft, calls);
        }
        Verdict::Empty => {
            store_words(draft, step, message, closing, usage);
            nudge(draft, texts::EMPTY_REPLY, is_last);
        }
        Verdict::Hollow => {
            store_answer(draft, step, message, closing, usage);
            nudge(draft, texts::HOLLOW_CALLS, is_last);
        }
    }
}

/// The run ends with the answer that was just stored, unless a message has joined that the answer does not know of.
pub(super) fn end_turn(draft: &mut Draft<'_>, reason: FinishReason) {
    if draft.work.has_unseen_messages() {
        draft.hint(texts::JOINED);
        return begin(draft);
    }
    draft.complete(reason);
}

/// Whether the model has run into the output limit inside tool calls too often.
pub(super) fn is_cut_too_often(draft: &Draft<'_>) -> bool {
    draft.work.record.counters.cut_answers > CUT_ANSWERS
}

/// Asks again after an answer that is not of the wanted form, and says what is wrong with it. What was shown of it is void.
fn correct(draft: &mut Draft<'_>, step: u32, message: &Message, malformed: &MalformedAnswer, usage: Usage) {
    if !message.parts.is_empty() {
        draft.reset(step, "malformed");
    }
    draft.complete_step(step, Some(usage));
    let counters = draft.counters();
    counters.malformed_answers = counters.malformed_answers.saturating_add(1);
    let is_once_too_often = counters.malformed_answers > draft.profile().llm_retry.validation_retries;
    if is_once_too_often && !draft.work.has_unseen_messages() {
        let detail = format!("the model was asked for one JSON object and wrote something else: {}", malformed.reason);
        return draft.fail(ProblemCode::InvalidOutput, detail);
    }
    draft.hint(&texts::malformed_answer(&malformed.reason, &malformed.said));
    begin(draft);
}

/// Asks again after an answer that holds nothing; then once without tools; then gives up. An empty answer is never a success: the
/// user reads the agent's last words, if it has some, and the run bears the error.
fn nudge(draft: &mut Draft<'_>, hint: &str, is_last: bool) {
    if draft.work.has_unseen_messages() {
        draft.hint(hint);
        return begin(draft);
    }
    let limit = draft.profile().empty_replies;
    let counters = draft.counters();
    counters.empty_replies = counters.empty_replies.saturating_add(1);
    if is_last || limit == 0 {
        let (code, detail) = (ProblemCode::from(ModelErrorKind::EmptyResponse), "the model's answers were empty");
        return match draft.profile().final_text.clone() {
            Some(text) => draft.complete_without_model(&text, code.body(detail)),
            None => draft.fail(code, detail),
        };
    }
    if counters.empty_replies >= limit {
        draft.force_final(texts::FORCED_EMPTY);
    } else {
        draft.hint(hint);
    }
    begin(draft);
}

/// Why a forced last answer was forced, if by a limit: those are the reasons that a client sees.
fn last_reason(draft: &Draft<'_>, before: Usage, is_last: bool) -> Option<FinishReason> {
    if !is_last {
        return None;
    }
    if budget::is_run_over(draft, before) || draft.work.record.counters.no_room {
        return Some(FinishReason::Budget);
    }
    (draft.work.record.counters.rounds >= draft.profile().max_rounds).then_some(FinishReason::MaxRounds)
}

pub(super) fn store_answer(draft: &mut Draft<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    for event in closing {
        draft.event(event);
    }
    // Nothing was shown of an answer without parts, and nothing is kept of it.
    if !message.parts.is_empty() {
        draft.event(EventBody::MessageCompleted { message: message.clone() });
        draft.change(Change::AddMessage(message));
    }
    draft.complete_step(step, Some(usage));
}

/// Stores an answer whose calls are not carried out.
pub(super) fn store_words(draft: &mut Draft<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    let (message, closing) = without_calls(draft, step, message, closing, "calls_dropped");
    store_answer(draft, step, message, closing, usage);
}

/// Calls that are not carried out are not kept: a call without a result cannot be sent. Where some were shown, all that was
/// shown is void and the words are shown again, so that whoever reads the log has what is stored and nothing else.
fn without_calls(
    draft: &mut Draft<'_>,
    step: u32,
    mut message: Message,
    closing: Vec<EventBody>,
    reason: &str,
) -> (Message, Vec<EventBody>) {
    if message.tool_calls().next().is_none() {
        return (message, closing);
    }
    message.parts.retain(|part| !matches!(part, Part::ToolCall(_)));
    draft.reset(step, reason);
    if !message.parts.is_empty() {
        draft.show(&message);
    }
    (message, Vec::new())
}

/// Keeps the words that were shown of an answer that was stopped. If there are none, the step stays open, and its end says that what
/// was shown is void.
pub(super) fn keep_partial(
    draft: &mut Draft<'_>,
    step: u32,
    PartialAnswer { message: partial, closing }: PartialAnswer,
    finish_reason: Option<FinishReason>,
) {
    if draft.base.record.history.iter().any(|known| known.id == partial.id) {
        return;
    }
    if partial.parts.iter().all(|part| matches!(part, Part::ToolCall(_))) {
        return;
    }
    let partial = Message { status: MessageStatus::Partial, finish_reason, ..partial };
    let reason = if finish_reason == Some(FinishReason::Cancelled) { "cancelled" } else { "calls_dropped" };
    let (partial, closing) = without_calls(draft, step, partial, closing, reason);
    for event in closing {
        draft.event(event);
    }
    draft.event(EventBody::MessageCompleted { message: partial.clone() });
    draft.change(Change::AddMessage(partial));
    draft.abandon_step(step);
}
