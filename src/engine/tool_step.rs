//! Tool steps: which calls of an answer are carried out, in what order, and what their outcomes mean for the run.

use std::sync::Arc;

use super::draft::Draft;
use super::names::{self, Meant};
use super::{approval, arguments, asking, lenient, model_step, plan, repeats, results, texts, unknown};
use crate::domain::agent::{OnUnknown, ToolErrorPolicy};
use crate::domain::change::{Change, ReleaseCause, StepKind};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::input::InputState;
use crate::domain::message::{Message, ToolContent};
use crate::domain::model::{ModelErrorKind, ModelTurn, TurnPart};
use crate::domain::problem::ProblemCode;
use crate::domain::run::{FinishReason, RunStatus, WaitReason};
use crate::domain::tool::{Repair, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::support::json;

/// How much of an earlier answer the result of a repeated call quotes, in characters.
const QUOTED_CHARS: usize = 500;

/// Whether the answer that holds the calls is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completeness {
    /// It is.
    Whole,
    /// It ran into the output limit. Which call was cut cannot be told, and one that parses may still lack its end.
    Cut,
}

/// A call with the outcome that it has without being carried out, if any.
pub(super) struct Planned {
    call: ToolCall,
    outcome: Option<ToolOutcome>,
}

/// The calls of an answer as rows of the step that follows it.
pub(super) fn planned(
    draft: &Draft<'_>,
    message: &Message,
    turn: &ModelTurn,
    step: u32,
    completeness: Completeness,
) -> Vec<Planned> {
    let mut raw = turn.parts.iter().filter_map(|part| match part {
        TurnPart::ToolCall { arguments, .. } => Some(arguments.as_str()),
        TurnPart::Text(_) | TurnPart::Reasoning(..) => None,
    });
    // What is not on offer was narrowed down, not taken away: a model that knows of it may call it.
    let callable = draft.base.callable_tools();
    let calls = message.tool_calls().zip(0_u32..);
    let mut planned: Vec<Planned> = Vec::new();
    for (part, position) in calls {
        // The turn has the model's own text; without it, the part's arguments are what there is.
        let (parsed, fixes) = match raw.next() {
            Some(text) => read_arguments(draft, text, completeness),
            None => (arguments::Arguments { value: part.arguments.clone(), fault: None }, Vec::new()),
        };
        let known = names::named(&part.name, draft.base.record.tools.as_deref().unwrap_or_default());
        let meant = match known {
            // A tool that was taken away is not mistaken for another one.
            Some(known) => match callable.iter().find(|tool| tool.name == known.name) {
                Some(tool) => Meant::Tool(tool, (tool.name != part.name).then_some("spelling")),
                None => Meant::None(Vec::new()),
            },
            None => names::meant(&part.name, &callable, &draft.profile().repair),
        };
        let (definition, matched_by) = match &meant {
            Meant::Tool(tool, matched_by) => (Some(*tool), *matched_by),
            Meant::None(_) => (None, None),
        };
        let repair = Repair {
            name: matched_by.map(|_| part.name.clone()),
            matched_by: matched_by.map(str::to_owned),
            arguments: fixes.into_iter().map(str::to_owned).collect(),
        };
        let name = definition.or(known.map(|tool| &**tool)).map_or(&part.name, |tool| &tool.name).clone();
        let replay = definition.map_or(ReplayClass::Unsafe, |tool| tool.replay.clone());
        let arguments_hash = json::hash(&parsed.value);
        let call = ToolCall {
            id: part.call_id.clone(),
            run_id: message.run_id.clone(),
            message_id: message.id.clone(),
            step,
            position,
            provider_call_id: part.provider_call_id.clone().unwrap_or_default(),
            // Two calls of one answer are two.
            key: repeats::key_to_keep(&draft.base.record, &name, &arguments_hash, &replay)
                .filter(|key| planned.iter().all(|other| other.call.key() != key)),
            name,
            repair: (repair != Repair::default()).then_some(repair),
            server: definition.and_then(|tool| tool.server.clone()),
            undoes: None,
            handle: None,
            arguments_hash,
            arguments: parsed.value,
            replay,
            state: ToolCallState::Planned,
            outcome: None,
        };
        let outcome = refused(draft, &call, &planned, &callable, &meant, parsed.fault.as_deref(), completeness);
        planned.push(Planned { call, outcome });
    }
    planned
}

/// The arguments of a call, mended if they have to be and the agent wants that, and what was mended. What may be cut is not.
fn read_arguments(draft: &Draft<'_>, text: &str, completeness: Completeness) -> (arguments::Arguments, Vec<&'static str>) {
    let parsed = arguments::parse(text);
    let may_be_mended = draft.profile().repair.arguments && completeness == Completeness::Whole;
    match lenient::mend(text).filter(|_| may_be_mended && parsed.fault.is_some()) {
        Some(mended) => (arguments::Arguments { value: mended.value, fault: None }, mended.fixes),
        None => (parsed, Vec::new()),
    }
}

/// The outcome of a call that is not let through. Rules of the loop give `Cancelled`, which counts against no tool; faults of
/// the call give `Failed`.
fn refused(
    draft: &Draft<'_>,
    call: &ToolCall,
    before: &[Planned],
    callable: &[&Arc<ToolDefinition>],
    meant: &Meant<'_>,
    fault: Option<&str>,
    completeness: Completeness,
) -> Option<ToolOutcome> {
    let profile = draft.profile();
    let by_rule = |text: String| Some(ToolOutcome { state: ToolCallState::Cancelled, ..ToolOutcome::failed(text, 0) });
    match completeness {
        Completeness::Cut => return by_rule(texts::CUT_CALL.to_owned()),
        Completeness::Whole => {}
    }
    if callable.is_empty() {
        return by_rule(texts::NO_TOOLS.to_owned());
    }
    if let Meant::None(near) = meant {
        if draft.base.record.counters.dropped_tools.contains(&call.name) {
            return by_rule(texts::dropped_tool(&call.name));
        }
        let offered = draft.base.offered_tools();
        let listed = if offered.is_empty() { callable } else { &offered };
        let names: Vec<&str> = listed.iter().map(|tool| tool.name.as_str()).collect();
        return Some(ToolOutcome::failed(texts::unknown_tool(&call.name, near, &names), 0));
    }
    // A step of a plan is one call.
    let most = if plan::phase(&draft.base.record).is_some() { 1 } else { profile.max_parallel_calls.max(1) };
    if call.position >= most {
        return by_rule(texts::too_many_calls(most));
    }
    if let Some(reason) = fault {
        return Some(ToolOutcome::failed(texts::bad_arguments(reason), 0));
    }
    let beside = || before.iter().filter(|planned| planned.outcome.is_none()).map(|planned| &planned.call);
    if profile.duplicate_calls > 0 && beside().any(|other| repeats::is_same(other, call)) {
        return by_rule(texts::TWIN_CALL.to_owned());
    }
    let earlier = repeats::answered_before((profile, draft.tools(), &draft.work.record), beside(), call)?;
    if earlier.state == ToolCallState::Unknown {
        return by_rule(texts::UNKNOWN_BEFORE.to_owned());
    }
    let content = earlier.outcome.as_ref().map_or(&[][..], |outcome| &outcome.content);
    // Where older results are shortened the first answer may not be there any more, and this is the only way back to it.
    let most = if profile.context.compress_results { profile.tool_result_chars } else { QUOTED_CHARS };
    let text = texts::duplicate_call(&results::gist(content, most));
    Some(ToolOutcome { state: ToolCallState::Done, content: vec![ToolContent::text(text)], is_error: false, duration_ms: 0 })
}

/// Begins the step: all calls are stored with their message, those that are not let through get their outcome at once, and as
/// many of the others as may run at a time are started.
pub(super) fn begin(draft: &mut Draft<'_>, planned: Vec<Planned>) {
    let Some(step) = planned.first().map(|planned| planned.call.step) else { return };
    draft.set_status(RunStatus::ToolLoop, None);
    draft.change(Change::AddToolCalls(planned.iter().map(|planned| planned.call.clone()).collect()));
    draft.start_step(step, StepKind::Tools);
    for Planned { call, outcome } in planned {
        if let Some(outcome) = outcome {
            draft.finish_call(&call.id, outcome);
        }
    }
    advance(draft);
}

/// Takes up a step whose worker is gone, or has loaded the run again. Calls that were `started` have reached nobody knows how far, but for
/// those that are under way here.
pub(super) fn resume(draft: &mut Draft<'_>) {
    let Some(step) = draft.open_tool_step() else { return };
    let unstarted = draft.work.batch(step).filter(|call| call.has_not_begun()).map(|call| call.id.clone());
    let unstarted: Vec<CallId> = unstarted.filter(|id| draft.base.is_under_way(id)).collect();
    for id in unstarted {
        was_made(draft, &id);
    }
    let started = draft.work.batch(step).filter(|call| call.state == ToolCallState::Started).map(|call| call.id.clone());
    let (under_way, lost): (Vec<CallId>, Vec<CallId>) = started.partition(|id| draft.base.is_under_way(id));
    if draft.base.is_draining() && under_way.is_empty() {
        // Whoever takes the run up next judges them.
        return draft.release(Some(0), ReleaseCause::Drain);
    }
    draft.set_status(RunStatus::ToolLoop, None);
    for id in under_way {
        // Whoever asked has heard that nobody answers, when what it wrote was not stored.
        unknown::close_questions_of_server(draft, &id);
    }
    if draft.base.is_draining() {
        // Nothing begins. When those have ended the run is handed back, and the others are judged then.
        return;
    }
    for id in lost {
        unknown::judge(draft, &id);
    }
    advance(draft);
}

/// A call that has not begun by the rows was made nevertheless: its start was not stored, or the database has lost what it had confirmed.
pub(super) fn was_made(draft: &mut Draft<'_>, id: &CallId) {
    if let Some(question) = draft.work.question_about(id).cloned() {
        draft.close_question(&question, InputState::Cancelled);
    }
    draft.start_call(id);
}

/// A call that was started has its outcome.
pub(super) fn finished(draft: &mut Draft<'_>, id: &CallId, outcome: ToolOutcome) {
    if unknown::is_asked_about(draft, &outcome) {
        return unknown::ended_unknown(draft, id);
    }
    if record_outcome(draft, id, outcome) == Recorded::Yes {
        advance(draft);
    }
}

/// Whether an outcome was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded {
    /// The call has it now.
    Yes,
    /// The call is unknown, has not begun, or has an outcome.
    No,
}

/// Stores the outcome of a call that was started. One that is no outcome state becomes one by its `is_error`.
pub(super) fn record_outcome(draft: &mut Draft<'_>, id: &CallId, mut outcome: ToolOutcome) -> Recorded {
    let is_started = draft.work.record.calls.iter().any(|call| call.id == *id && call.state == ToolCallState::Started);
    // What the user is asked has no outcome but the answer.
    if !is_started || asking::is_open(draft, id) {
        return Recorded::No;
    }
    if !outcome.state.is_outcome() || (outcome.state == ToolCallState::Done && outcome.is_error) {
        outcome.state = if outcome.is_error { ToolCallState::Failed } else { ToolCallState::Done };
    }
    draft.finish_call(id, outcome);
    Recorded::Yes
}

/// Starts what may start, waits for answers, or ends the step if every call has its outcome.
pub(super) fn advance(draft: &mut Draft<'_>) {
    let Some(step) = draft.open_tool_step() else { return };
    let in_state = |draft: &Draft<'_>, state: ToolCallState| -> Vec<CallId> {
        draft.work.batch(step).filter(|call| call.state == state).map(|call| call.id.clone()).collect()
    };
    let asked = |draft: &Draft<'_>| -> (Vec<CallId>, Vec<CallId>) {
        in_state(draft, ToolCallState::Started).into_iter().partition(|id| draft.work.question_about(id).is_some())
    };
    let mut under_way = asked(draft).1;
    let may_begin = !draft.base.is_draining();
    if may_begin {
        approval::take_denials(draft, step);
    }
    if may_begin && failure(draft, step).is_none() {
        begin_calls(draft, step, &mut under_way);
    }
    if !under_way.is_empty() {
        return;
    }
    if let Some((code, detail)) = failure(draft, step) {
        return draft.fail(code, detail);
    }
    // Else nothing is left but what waits behind a human's decision.
    if !may_begin && (!in_state(draft, ToolCallState::Planned).is_empty() || approval::has_answer(draft, step)) {
        return draft.release(Some(0), ReleaseCause::Drain);
    }
    if let Some(id) = asked(draft).0.first() {
        return wait_for_answers(draft, id, WaitReason::Input);
    }
    if let Some(id) = in_state(draft, ToolCallState::AwaitingApproval).first() {
        return wait_for_answers(draft, id, WaitReason::Approval);
    }
    end(draft, step);
}

/// Begins the calls that may begin beside those `under_way`, in their order, and asks about those that somebody has to be asked about.
///
/// A call that is made [alone](is_alone) begins when all before it are over, and nothing that stands behind it begins earlier: what it
/// changes is changed in the order in which the model wrote it. But where a human has allowed one call before another, that is the order.
fn begin_calls(draft: &mut Draft<'_>, step: u32, under_way: &mut Vec<CallId>) {
    let limit = draft.profile().tool_parallelism.max(1) as usize;
    let mut one_is_alone = under_way.iter().any(|id| is_alone(draft, id));
    // Of the calls looked at so far: whether one waits for a human, one that is made alone does, and one is to begin before any other.
    let (mut one_waits, mut one_alone_waits, mut one_is_next) = (false, false, false);
    let calls: Vec<CallId> = draft.work.batch(step).map(|call| call.id.clone()).collect();
    for id in calls {
        let Some(call) = draft.work.record.call(&id) else { continue };
        let (is_alone, is_asked_about) = (is_alone(draft, &id), draft.work.question_about(&id).is_some());
        if !call.has_not_begun() {
            let waits = call.outcome.is_none() && is_asked_about;
            one_waits |= waits;
            one_alone_waits |= waits && is_alone;
            continue;
        }
        // Whoever has to be asked about a call can think meanwhile.
        let is_full = under_way.len() >= limit;
        if is_full && !approval::is_to_be_asked(draft, &id) {
            continue;
        }
        if refuse_dropped(draft, &id) {
            continue;
        }
        let is_question = asking::is_question(draft, &id);
        if !is_question && !approval::is_to_be_asked(draft, &id) {
            let stands_back = !under_way.is_empty() && (is_alone || one_is_alone);
            one_is_next |= stands_back;
            if one_is_next || !is_asked_about && (one_alone_waits || is_alone && one_waits) {
                one_alone_waits |= is_alone;
                continue;
            }
        }
        if !approval::is_given(draft, &id) {
            one_waits = true;
            one_alone_waits |= is_alone;
            continue;
        }
        if is_question {
            asking::begin(draft, &id);
            one_waits |= asking::is_open(draft, &id);
            continue;
        }
        one_is_alone |= is_alone;
        if unknown::is_of_earlier_run(draft, &id) {
            draft.take_over_call(&id);
        } else {
            draft.run_call(&id);
        }
        under_way.push(id);
    }
}

/// Whether the tool of a call is not called beside others.
fn is_alone(draft: &Draft<'_>, id: &CallId) -> bool {
    let Some(call) = draft.work.record.call(id) else { return false };
    draft.base.record.tools.iter().flatten().any(|tool| tool.name == call.name && tool.safety.alone)
}

/// Every call that is left waits for a human; this one is named.
fn wait_for_answers(draft: &mut Draft<'_>, id: &CallId, reason: WaitReason) {
    let id = draft.work.question_about(id).map(|question| question.id.to_string());
    draft.event(EventBody::RunWaiting { reason, id, detail: None });
    draft.set_status(RunStatus::Waiting, Some(reason));
    let first_to_expire = draft.work.record.inputs.iter().filter_map(|question| question.expires_in_ms).min();
    let wake_after = [draft.time_left(), first_to_expire].into_iter().flatten().min();
    draft.release(wake_after, ReleaseCause::Waiting);
}

/// A planned call whose tool was taken away since is not carried out.
fn refuse_dropped(draft: &mut Draft<'_>, id: &CallId) -> bool {
    let dropped = &draft.work.record.counters.dropped_tools;
    let Some(name) = draft.work.record.call(id).filter(|call| dropped.contains(&call.name)).map(|call| call.name.clone()) else {
        return false;
    };
    let outcome = ToolOutcome { state: ToolCallState::Cancelled, ..ToolOutcome::failed(texts::dropped_tool(&name), 0) };
    draft.finish_call(id, outcome);
    true
}

/// Why the outcomes so far end the run, if the agent says that they do.
fn failure(draft: &Draft<'_>, step: u32) -> Option<(ProblemCode, String)> {
    let profile = draft.profile();
    if profile.on_unknown == OnUnknown::Fail
        && let Some(call) = draft.work.batch(step).find(|call| call.state == ToolCallState::Unknown)
    {
        return Some((ProblemCode::ToolOutcomeUnknown, format!("it is not known whether a call of {} took effect", call.name)));
    }
    if profile.tool_error == ToolErrorPolicy::FailRun
        && let Some(call) = draft.work.batch(step).find(|call| call.state == ToolCallState::Failed)
    {
        let text = call.outcome.as_ref().map(|outcome| results::gist(&outcome.content, QUOTED_CHARS)).unwrap_or_default();
        return Some((ProblemCode::ToolFailed, format!("{} failed: {text}", call.name)));
    }
    None
}

/// Every call has its outcome: the results become a message, and the model is asked again.
fn end(draft: &mut Draft<'_>, step: u32) {
    draft.add_tool_message(step);
    draft.complete_step(step, None);
    let has_unheard = draft.work.has_unseen_messages();
    if !has_unheard && end_undoing(draft, step) {
        return;
    }
    plan::called(draft);
    model_step::renew(draft);
    if model_step::is_cut_too_often(draft) {
        let detail =
            "the answers were cut at the output limit inside tool calls; allow more output tokens or ask for less at a time";
        return draft.fail(ProblemCode::from(ModelErrorKind::IncompleteStream), detail);
    }
    // A message that joined meanwhile is for the model.
    if approval::ends_turn(draft, step) && !has_unheard {
        plan::end(draft);
        draft.say(texts::DENIED, FinishReason::Stop);
        return draft.complete(FinishReason::Stop);
    }
    // The rounds of a plan are its steps.
    if plan::phase(&draft.base.record).is_none() {
        count_rounds(draft, step);
    }
    model_step::begin(draft);
}

/// Ends a run that was there to take a call back: the model has nothing to say to that before its user speaks again.
fn end_undoing(draft: &mut Draft<'_>, step: u32) -> bool {
    let Some(undo) = draft.work.batch(step).find(|call| call.undoes.is_some()) else { return false };
    if undo.state == ToolCallState::Done {
        draft.complete(FinishReason::Stop);
        return true;
    }
    let said = undo.outcome.as_ref().map(|outcome| results::gist(&outcome.content, QUOTED_CHARS)).unwrap_or_default();
    let (code, detail) = match undo.state {
        ToolCallState::Unknown => {
            (ProblemCode::ToolOutcomeUnknown, format!("it is not known whether {} has taken the call back", undo.name))
        }
        _ => (ProblemCode::ToolFailed, format!("the call was not taken back: {} said: {said}", undo.name)),
    };
    draft.fail(code, detail);
    true
}

/// Counts rounds without progress, and speaks up when there are too many.
fn count_rounds(draft: &mut Draft<'_>, step: u32) {
    let profile = draft.profile();
    let has_only_errors = draft.work.batch(step).all(|call| call.outcome.as_ref().is_some_and(|outcome| outcome.is_error));
    let (tools, record) = (draft.tools(), &draft.work.record);
    let repeats = |call: &ToolCall| repeats::answered_before((profile, tools, record), std::iter::empty(), call).is_some();
    let has_only_duplicates = draft.work.batch(step).all(repeats);
    let has_progress = draft.work.batch(step).any(|call| call.state == ToolCallState::Done && !repeats(call));
    let counters = draft.counters();
    counters.continuations = if has_progress { 0 } else { counters.continuations };
    counters.error_rounds = if has_only_errors { counters.error_rounds.saturating_add(1) } else { 0 };
    counters.duplicate_rounds = if has_only_duplicates { counters.duplicate_rounds.saturating_add(1) } else { 0 };
    if profile.error_rounds > 0 && counters.error_rounds >= profile.error_rounds {
        counters.error_rounds = 0;
        draft.hint(texts::ERROR_ROUNDS);
    }
    if profile.duplicate_calls > 0 && draft.work.record.counters.duplicate_rounds >= profile.duplicate_calls {
        draft.force_final(texts::FORCED_DUPLICATES);
    }
}
