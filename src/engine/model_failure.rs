//! What follows a failed model call: the same model after a wait, another model, the request without what was refused of it,
//! the profile's last words, or the end.

use super::compaction::LeftOut;
use super::draft::Draft;
use super::history::{holds_signed, left_out_by_halving};
use super::model_step::{begin, keep_partial};
use super::{PartialAnswer, plan};
use crate::domain::change::ReleaseCause;
use crate::domain::context::ContextStrategy;
use crate::domain::event::EventBody;
use crate::domain::ids::RunId;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::{RunStatus, WaitReason};

/// Tools that are left out of a run's requests to one model because its provider refuses them. Each costs a request.
const QUARANTINED: usize = 16;

/// The most by which a wait is drawn out, in milliseconds.
const MAX_SPREAD_MS: u64 = 5_000;

enum Next {
    /// The same model, after so many milliseconds without a lease.
    Wait(u64),
    /// The same, and it is no try that has failed: nobody was asked.
    LeftAlone(u64),
    /// The next model, at once.
    Switch(String),
    /// Nobody; in words why.
    GiveUp(String),
}

/// The model call failed. The words of a `partial` answer are kept if the run ends here.
pub(super) fn failed(draft: &mut Draft<'_>, error: ModelError, partial: Option<PartialAnswer>) {
    let Some(step) = draft.open_model_step() else { return };
    if let Some(tool) = refused_tool(draft, &error) {
        return quarantine(draft, step, tool, error.message);
    }
    let is_planned = plan::phase(&draft.base.record).is_some();
    if let Some(left_out) = compaction(draft, &error).filter(|_| !is_planned) {
        return compact(draft, step, left_out);
    }
    let code = ProblemCode::from(error.kind);
    if !is_planned && error.refused_signed && !draft.work.record.counters.unsigned && holds_signed(draft.base) {
        return unsign(draft, step, code.body(error.message));
    }
    match next(draft, &error) {
        Next::Wait(after_ms) => {
            let counters = draft.counters();
            counters.model_failures = counters.model_failures.saturating_add(1);
            counters.left_alone_ms = 0;
            wait(draft, step, after_ms, code.body(error.message));
        }
        Next::LeftAlone(after_ms) => {
            let counters = draft.counters();
            counters.left_alone_ms = counters.left_alone_ms.saturating_add(after_ms);
            wait(draft, step, after_ms, code.body(error.message));
        }
        // A filter's refusal is an answer: the loop asks nobody else either.
        Next::Switch(_) | Next::GiveUp(_) if is_planned && error.kind.another_model_may_help() => plan::model_failed(draft, step),
        Next::Switch(model) => switch(draft, step, model, code.body(error.message)),
        Next::GiveUp(detail) if error.over_total_limit => {
            if let Some(partial) = partial {
                keep_partial(draft, step, partial, None);
            }
            draft.fail_for_good(code, detail);
        }
        // Who was reached and has said no is not out of reach: that text would hide it.
        Next::GiveUp(detail) => match draft.profile().final_text.clone().filter(|_| error.kind.is_outage()) {
            // Whoever has written meanwhile is heard before the last word.
            Some(_) if draft.work.has_unseen_messages() => again(draft, step),
            Some(text) => draft.complete_without_model(&text, code.body(detail)),
            None => draft.fail(code, detail),
        },
    }
}

fn next(draft: &Draft<'_>, error: &ModelError) -> Next {
    let record = &draft.work.record;
    let retry = &draft.profile().llm_retry;
    let other = record.next_model().filter(|_| error.kind.another_model_may_help()).map(str::to_owned);
    if error.not_asked {
        return other.map_or_else(|| next_look(draft, error), Next::Switch);
    }
    let tries = record.counters.model_failures as usize;
    let takes_over = retry.fallback_first && other.is_some();
    let delay = retry.delays_ms.get(tries).copied().filter(|_| retry.covers(error.kind) && !takes_over && !error.over_total_limit);
    let Some(delay) = delay else {
        return other.map_or_else(|| Next::GiveUp(error.message.clone()), Next::Switch);
    };
    let after_ms = error.retry_after_ms.unwrap_or(delay);
    // Whoever has another model does not wait longer for this one than for any other failure.
    if after_ms > delay
        && let Some(other) = other
    {
        return Next::Switch(other);
    }
    if error.retry_after_ms.is_some() && after_ms > retry.max_retry_after_ms {
        return Next::GiveUp(format!("{} (it asks for a wait of {after_ms} ms, more than this agent waits)", error.message));
    }
    if draft.is_out_of_time_after(after_ms) {
        return Next::GiveUp(format!("{} (the run's time limit leaves no time for another try)", error.message));
    }
    Next::Wait(after_ms)
}

/// When to look again whether a provider is still left alone. Bounded as the waits are that a provider asks for, all of them
/// together; an agent that never tries again does not wait for this either.
fn next_look(draft: &Draft<'_>, error: &ModelError) -> Next {
    let retry = &draft.profile().llm_retry;
    let Some(least) = retry.delays_ms.first() else { return Next::GiveUp(error.message.clone()) };
    let after_ms = error.retry_after_ms.unwrap_or(0).max(*least);
    let waited = draft.work.record.counters.left_alone_ms;
    if waited.saturating_add(after_ms) > retry.max_retry_after_ms {
        return Next::GiveUp(format!("{} (the run has waited {waited} ms, and this agent waits no longer)", error.message));
    }
    if draft.is_out_of_time_after(after_ms) {
        return Next::GiveUp(format!("{} (the run's time limit leaves no time to wait)", error.message));
    }
    Next::LeftAlone(after_ms)
}

fn wait(draft: &mut Draft<'_>, step: u32, after_ms: u64, error: ProblemBody) {
    draft.reset(step, "retry");
    draft.event(EventBody::RunRetrying { after_ms, error, model: None });
    draft.event(EventBody::RunWaiting { reason: WaitReason::Backoff, id: None, detail: None });
    draft.abandon_step(step);
    draft.set_status(RunStatus::Waiting, Some(WaitReason::Backoff));
    let spread = spread(&draft.base.record.fence.run_id, after_ms);
    draft.release(Some(after_ms.saturating_add(spread)), ReleaseCause::Waiting);
}

/// How much longer a run waits than it says: up to an eighth, by its id. Runs that have failed together, because their provider was
/// overloaded, do not come back to it together.
pub(super) fn spread(run: &RunId, wait_ms: u64) -> u64 {
    let most = (wait_ms / 8).min(MAX_SPREAD_MS);
    // FNV-1a, 64 bits: ids that are made one after the other differ in their last characters only.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    run.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix) % (most + 1)
}

fn switch(draft: &mut Draft<'_>, step: u32, model: String, error: ProblemBody) {
    let counters = draft.counters();
    counters.fallback = counters.fallback.saturating_add(1);
    counters.model_failures = 0;
    counters.left_alone_ms = 0;
    // What one model does not take another may.
    counters.halved = false;
    counters.unsigned = false;
    counters.quarantined_tools.clear();
    draft.event(EventBody::RunRetrying { after_ms: 0, error, model: Some(model) });
    again(draft, step);
}

/// The tool whose definition made the provider refuse the whole request, if it is one that can be left out.
fn refused_tool(draft: &Draft<'_>, error: &ModelError) -> Option<String> {
    let refused = error.refused_tool.as_ref()?;
    let is_offered = draft.base.offered_tools().iter().any(|tool| tool.name == *refused);
    let is_bearable = draft.work.record.counters.quarantined_tools.len() < QUARANTINED;
    (is_offered && is_bearable).then(|| refused.clone())
}

/// What can be left out of a request that was too large. Asked once: a request that is still too large would stay so.
fn compaction(draft: &Draft<'_>, error: &ModelError) -> Option<LeftOut> {
    let may_shorten = draft.profile().context.strategy != ContextStrategy::None;
    if error.kind != ModelErrorKind::ContextOverflow || draft.work.record.counters.halved || !may_shorten {
        return None;
    }
    let left_out = left_out_by_halving(draft.base);
    (left_out.messages > 0 || left_out.texts > 0).then_some(left_out)
}

fn compact(draft: &mut Draft<'_>, step: u32, left_out: LeftOut) {
    draft.counters().halved = true;
    draft.event(EventBody::ContextCompacted { messages: left_out.messages, texts: left_out.texts, through: None, summary: None });
    again(draft, step);
}

/// Asks again without a tool. Each time there is one tool less, so this ends.
fn quarantine(draft: &mut Draft<'_>, step: u32, name: String, reason: String) {
    draft.counters().quarantined_tools.push(name.clone());
    draft.event(EventBody::ToolQuarantined { name, reason });
    again(draft, step);
}

/// Asks again without what models have signed. The conversation goes on, though another account or server stands behind the
/// model's name than the one that has answered so far.
fn unsign(draft: &mut Draft<'_>, step: u32, error: ProblemBody) {
    draft.counters().unsigned = true;
    draft.event(EventBody::RunRetrying { after_ms: 0, error, model: None });
    again(draft, step);
}

/// Makes the step again, at once.
fn again(draft: &mut Draft<'_>, step: u32) {
    draft.reset(step, "retry");
    draft.abandon_step(step);
    begin(draft);
}
