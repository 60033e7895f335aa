//! The reactions to a failed model call: a retry, another model, a reduced request, the profile's last words, or the end.

use crate::domain::event::EventBody;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::WaitReason;
use crate::domain::run::context::ContextStrategy;
use crate::engine::machine::{DecisionBuilder, End, Next, PartialAnswer};
use crate::engine::request::compaction::LeftOut;
use crate::engine::request::transcript::{holds_signed, left_out_by_halving};
use crate::engine::steps::limits;
use crate::engine::steps::store_answer::keep_partial;
use crate::engine::strategy;
use crate::engine::strategy::plan::progress;

/// The most tools that are left out because a provider refuses them. Each costs a request.
const QUARANTINED: usize = 16;

enum Remedy {
    /// The same model, after so many milliseconds without a lease.
    Wait(u64),
    /// The same, without a failed attempt: the circuit breaker is open.
    LeftAlone(u64),
    /// The next model, at once.
    Switch(String),
    /// No model, and why.
    GiveUp(String),
}

/// Acts on a failed model call. The words of a `partial` answer are kept if the run ends here.
pub fn failed(decision: &mut DecisionBuilder<'_>, error: ModelError, partial: Option<PartialAnswer>) -> Next {
    let Some(step) = decision.open_model_step() else { return Next::Wait };
    if let Some(tool) = refused_tool(decision, &error) {
        return quarantine(decision, step, tool, error.message);
    }
    let is_planned = progress::phase(decision.before).is_some();
    if let Some(left_out) = compaction(decision, &error).filter(|_| !is_planned) {
        return compact(decision, step, left_out);
    }
    let code = ProblemCode::from(error.kind);
    if !is_planned && error.refused_signed && !decision.progress.counters.unsigned && holds_signed(&decision.source_before()) {
        return unsign(decision, step, code.body(error.message));
    }
    match remedy(decision, &error) {
        Remedy::Wait(after_ms) => {
            let counters = decision.counters();
            counters.model_failures = counters.model_failures.saturating_add(1);
            counters.left_alone_ms = 0;
            wait(decision, step, after_ms, code.body(error.message))
        }
        Remedy::LeftAlone(after_ms) => {
            let counters = decision.counters();
            counters.left_alone_ms = counters.left_alone_ms.saturating_add(after_ms);
            wait(decision, step, after_ms, code.body(error.message))
        }
        // A filter's refusal is an answer: no other model is asked, and neither is the loop's.
        Remedy::Switch(_) | Remedy::GiveUp(_) if is_planned && error.kind.another_model_may_help() => {
            strategy::of(decision.profile()).model_failed(decision, step)
        }
        Remedy::Switch(model) => switch(decision, step, model, code.body(error.message)),
        Remedy::GiveUp(detail) if error.over_total_limit => {
            if let Some(partial) = partial {
                keep_partial(decision, step, partial, None);
            }
            Next::fail_for_good(code, detail)
        }
        // A provider that answered is not out of reach: that text would hide its refusal.
        Remedy::GiveUp(detail) => match decision.profile().final_text.clone().filter(|_| error.kind.is_outage()) {
            // A message that joined is answered before the last words.
            Some(_) if decision.progress.has_unseen_messages() => again(decision, step),
            Some(text) => Next::End(End::LastWords(text, code.body(detail))),
            None => Next::fail(code, detail),
        },
    }
}

fn remedy(decision: &DecisionBuilder<'_>, error: &ModelError) -> Remedy {
    let record = &decision.progress;
    let retry = &decision.profile().llm_retry;
    let other = record.next_model().filter(|_| error.kind.another_model_may_help()).map(str::to_owned);
    if error.not_asked {
        return other.map_or_else(|| next_look(decision, error), Remedy::Switch);
    }
    let tries = record.counters.model_failures as usize;
    let takes_over = retry.fallback_first && other.is_some();
    let delay = retry.delays_ms.get(tries).copied().filter(|_| retry.covers(error.kind) && !takes_over && !error.over_total_limit);
    let Some(delay) = delay else {
        return other.map_or_else(|| Remedy::GiveUp(error.message.clone()), Remedy::Switch);
    };
    let after_ms = error.retry_after_ms.unwrap_or(delay);
    // With another model, the run does not wait longer for this one than after any other failure.
    if after_ms > delay
        && let Some(other) = other
    {
        return Remedy::Switch(other);
    }
    if error.retry_after_ms.is_some() && after_ms > retry.max_retry_after_ms {
        return Remedy::GiveUp(format!("{} (it asks for a wait of {after_ms} ms, more than this agent waits)", error.message));
    }
    if decision.is_out_of_time_after(after_ms) {
        return Remedy::GiveUp(format!("{} (the run's time limit leaves no time for another try)", error.message));
    }
    Remedy::Wait(after_ms)
}

/// Returns when to ask again while the circuit breaker is open. All such waits together are bounded as a provider's `Retry-After`
/// is. An agent without retries does not wait.
fn next_look(decision: &DecisionBuilder<'_>, error: &ModelError) -> Remedy {
    let retry = &decision.profile().llm_retry;
    let Some(least) = retry.delays_ms.first() else { return Remedy::GiveUp(error.message.clone()) };
    let after_ms = error.retry_after_ms.unwrap_or(0).max(*least);
    let waited = decision.progress.counters.left_alone_ms;
    if waited.saturating_add(after_ms) > retry.max_retry_after_ms {
        return Remedy::GiveUp(format!("{} (the run has waited {waited} ms, and this agent waits no longer)", error.message));
    }
    if decision.is_out_of_time_after(after_ms) {
        return Remedy::GiveUp(format!("{} (the run's time limit leaves no time to wait)", error.message));
    }
    Remedy::LeftAlone(after_ms)
}

fn wait(decision: &mut DecisionBuilder<'_>, step: u32, after_ms: u64, error: ProblemBody) -> Next {
    decision.reset(step, "retry");
    decision.event(EventBody::RunRetrying { after_ms, error, model: None });
    limits::wait(decision, after_ms, WaitReason::Backoff, None)
}

fn switch(decision: &mut DecisionBuilder<'_>, step: u32, model: String, error: ProblemBody) -> Next {
    let counters = decision.counters();
    counters.fallback = counters.fallback.saturating_add(1);
    counters.model_failures = 0;
    counters.left_alone_ms = 0;
    // These are refusals of one model.
    counters.halved = false;
    counters.unsigned = false;
    counters.quarantined_tools.clear();
    decision.event(EventBody::RunRetrying { after_ms: 0, error, model: Some(model) });
    again(decision, step)
}

/// Returns the tool whose definition made the provider refuse the request, if it can be left out.
fn refused_tool(decision: &DecisionBuilder<'_>, error: &ModelError) -> Option<String> {
    let refused = error.refused_tool.as_ref()?;
    let is_offered = decision.source_before().offered_in_step().iter().any(|tool| tool.name == *refused);
    let is_bearable = decision.progress.counters.quarantined_tools.len() < QUARANTINED;
    (is_offered && is_bearable).then(|| refused.clone())
}

/// Returns what halving would leave out. Done once: a request that is still too large would stay so.
fn compaction(decision: &DecisionBuilder<'_>, error: &ModelError) -> Option<LeftOut> {
    let may_shorten = decision.profile().context.strategy != ContextStrategy::None;
    if error.kind != ModelErrorKind::ContextOverflow || decision.progress.counters.halved || !may_shorten {
        return None;
    }
    let left_out = left_out_by_halving(&decision.source_before());
    (left_out.messages > 0 || left_out.texts > 0).then_some(left_out)
}

fn compact(decision: &mut DecisionBuilder<'_>, step: u32, left_out: LeftOut) -> Next {
    decision.counters().halved = true;
    decision.event(EventBody::ContextCompacted {
        messages: left_out.messages,
        texts: left_out.texts,
        through: None,
        summary: None,
    });
    again(decision, step)
}

/// Asks again without a tool. Each time there is one tool less, so this ends.
fn quarantine(decision: &mut DecisionBuilder<'_>, step: u32, name: String, reason: String) -> Next {
    decision.counters().quarantined_tools.push(name.clone());
    decision.event(EventBody::ToolQuarantined { name, reason });
    again(decision, step)
}

/// Asks again without signed content, so that the conversation survives a change of the account or server behind the model's name.
fn unsign(decision: &mut DecisionBuilder<'_>, step: u32, error: ProblemBody) -> Next {
    decision.counters().unsigned = true;
    decision.event(EventBody::RunRetrying { after_ms: 0, error, model: None });
    again(decision, step)
}

/// Repeats the step at once.
fn again(decision: &mut DecisionBuilder<'_>, step: u32) -> Next {
    decision.reset(step, "retry");
    decision.abandon_step(step);
    Next::ModelStep
}
