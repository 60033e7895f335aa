//! The reaction to a failed model call: a retry, another model, a reduced request, the profile's `final_text`, or the end.

use crate::domain::agent::FinalTextFor;
use crate::domain::event::EventBody;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::{ContextStrategy, WaitReason};
use crate::engine::machine::{DecisionBuilder, Next, PartialAnswer, RunEnd};
use crate::engine::request::eviction::Eviction;
use crate::engine::request::transcript::{holds_signed, left_out_by_halving};
use crate::engine::steps::store_answer::keep_partial;
use crate::engine::steps::time_limits;
use crate::engine::strategy;
use crate::engine::strategy::plan::progress;

enum FailureAction {
    /// Retries the same model after this many milliseconds without a lease.
    Wait(u64),
    /// Retries the same model after this many milliseconds, when the circuit breaker may close. Does not count as a failed attempt.
    WaitForBreaker(u64),
    /// Switches to the next model at once.
    Switch(String),
    /// Gives up, for this reason.
    GiveUp(String),
}

/// Reacts to a failed model call. Stores the text of a `partial` answer if the total timeout ended the answer and the run ends
/// here.
pub fn failed(decision: &mut DecisionBuilder<'_>, error: ModelError, partial: Option<PartialAnswer>) -> Next {
    let Some(step) = decision.open_model_step() else { return Next::Wait };
    let is_planned = progress::phase(decision.before).is_some();
    if let Some(left_out) = eviction(decision, &error).filter(|_| !is_planned) {
        return compact(decision, step, left_out);
    }
    let code = ProblemCode::from(error.kind);
    if !is_planned && error.refused_signed && !decision.progress.counters.unsigned && holds_signed(&decision.source_before()) {
        return unsign(decision, step, code.body(error.message));
    }
    match failure_action(decision, &error) {
        FailureAction::Wait(after_ms) => {
            let counters = decision.counters();
            counters.model_failures = counters.model_failures.saturating_add(1);
            counters.breaker_wait_ms = 0;
            wait(decision, step, after_ms, code.body(error.message))
        }
        FailureAction::WaitForBreaker(after_ms) => {
            let counters = decision.counters();
            counters.breaker_wait_ms = counters.breaker_wait_ms.saturating_add(after_ms);
            wait(decision, step, after_ms, code.body(error.message))
        }
        // A refusal by a content filter is an answer: neither another model nor the loop's model is asked.
        FailureAction::Switch(_) | FailureAction::GiveUp(_) if is_planned && error.kind.another_model_may_help() => {
            strategy::hooks_of(decision.profile()).model_failed(decision, step)
        }
        FailureAction::Switch(model) => switch(decision, step, model, code.body(error.message)),
        FailureAction::GiveUp(detail) if error.over_total_limit => {
            if let Some(partial) = partial {
                keep_partial(decision, step, partial, None);
            }
            Next::fail_for_good(code, detail)
        }
        // `final_text` must not hide a refusal. It replaces only errors of unreachable providers, unless `final_text_for` is `all`.
        FailureAction::GiveUp(detail) => match final_text(decision, error.kind) {
            // A message that joined is answered before the run ends with `final_text`.
            Some(_) if decision.progress.has_unseen_messages() => repeat_step(decision, step),
            Some(text) => Next::End(RunEnd::FinalText(text, code.body(detail))),
            None => Next::fail(code, detail),
        },
    }
}

/// Returns the agent's answer to a failure of its models, if it has one.
fn final_text(decision: &DecisionBuilder<'_>, kind: ModelErrorKind) -> Option<String> {
    let profile = decision.profile();
    let is_answered = match profile.final_text_for {
        FinalTextFor::Outage => kind.is_outage(),
        FinalTextFor::All => true,
    };
    profile.final_text.clone().filter(|_| is_answered)
}

fn failure_action(decision: &DecisionBuilder<'_>, error: &ModelError) -> FailureAction {
    let record = &decision.progress;
    let retry = &decision.profile().llm_retry;
    let other = record.next_model().filter(|_| error.kind.another_model_may_help()).map(str::to_owned);
    if error.request_not_sent {
        return other.map_or_else(|| breaker_retry(decision, error), FailureAction::Switch);
    }
    let tries = record.counters.model_failures as usize;
    let takes_over = retry.fallback_first && other.is_some();
    let covers = retry.covers(error.kind) || retry.covers_message(&error.message);
    let delay = retry.delays_ms.get(tries).copied().filter(|_| covers && !takes_over && !error.over_total_limit);
    let Some(delay) = delay else {
        return other.map_or_else(|| FailureAction::GiveUp(error.message.clone()), FailureAction::Switch);
    };
    let after_ms = error.retry_after_ms.unwrap_or(delay);
    // If a provider asks for a longer wait than the configured delay, another available model is used instead.
    if after_ms > delay
        && let Some(other) = other
    {
        return FailureAction::Switch(other);
    }
    if error.retry_after_ms.is_some() && after_ms > retry.max_retry_after_ms {
        return FailureAction::GiveUp(format!(
            "{} (the provider asks for a wait of {after_ms} ms, which exceeds the agent's limit)",
            error.message
        ));
    }
    if decision.is_out_of_time_after(after_ms) {
        return FailureAction::GiveUp(format!("{} (the run's time limit leaves no time for another attempt)", error.message));
    }
    FailureAction::Wait(after_ms)
}

/// Returns when to retry while the circuit breaker is open. The sum of such waits has the same limit as a provider's `Retry-After`. An
/// agent without retries does not wait.
fn breaker_retry(decision: &DecisionBuilder<'_>, error: &ModelError) -> FailureAction {
    let retry = &decision.profile().llm_retry;
    let Some(least) = retry.delays_ms.first() else { return FailureAction::GiveUp(error.message.clone()) };
    let after_ms = error.retry_after_ms.unwrap_or(0).max(*least);
    let waited = decision.progress.counters.breaker_wait_ms;
    if waited.saturating_add(after_ms) > retry.max_retry_after_ms {
        return FailureAction::GiveUp(format!("{} (the run has waited {waited} ms, which is the agent's limit)", error.message));
    }
    if decision.is_out_of_time_after(after_ms) {
        return FailureAction::GiveUp(format!("{} (the run's time limit leaves no time to wait)", error.message));
    }
    FailureAction::WaitForBreaker(after_ms)
}

fn wait(decision: &mut DecisionBuilder<'_>, step: u32, after_ms: u64, error: ProblemBody) -> Next {
    decision.reset(step, "retry");
    decision.event(EventBody::RunRetrying { after_ms, error, model: None });
    time_limits::wait(decision, after_ms, WaitReason::Backoff, None)
}

fn switch(decision: &mut DecisionBuilder<'_>, step: u32, model: String, error: ProblemBody) -> Next {
    let counters = decision.counters();
    counters.fallback = counters.fallback.saturating_add(1);
    counters.model_failures = 0;
    counters.breaker_wait_ms = 0;
    // These flags are about the model that failed, not about the next one.
    counters.halved = false;
    counters.unsigned = false;
    decision.event(EventBody::RunRetrying { after_ms: 0, error, model: Some(model) });
    repeat_step(decision, step)
}

/// Returns what halving would drop. Returns `None` if the failure has another cause, or the request is halved already.
fn eviction(decision: &DecisionBuilder<'_>, error: &ModelError) -> Option<Eviction> {
    let may_shorten = decision.profile().context.strategy != ContextStrategy::None;
    if error.kind != ModelErrorKind::ContextOverflow || decision.progress.counters.halved || !may_shorten {
        return None;
    }
    let left_out = left_out_by_halving(&decision.source_before());
    (left_out.messages > 0 || left_out.texts > 0).then_some(left_out)
}

fn compact(decision: &mut DecisionBuilder<'_>, step: u32, left_out: Eviction) -> Next {
    decision.counters().halved = true;
    decision.event(EventBody::ContextCompacted {
        messages: left_out.messages,
        texts: left_out.texts,
        through: None,
        summary: None,
    });
    repeat_step(decision, step)
}

/// Repeats the step without signed content: the account or server behind the model's name may have changed.
fn unsign(decision: &mut DecisionBuilder<'_>, step: u32, error: ProblemBody) -> Next {
    decision.counters().unsigned = true;
    decision.event(EventBody::RunRetrying { after_ms: 0, error, model: None });
    repeat_step(decision, step)
}

/// Repeats the step at once.
fn repeat_step(decision: &mut DecisionBuilder<'_>, step: u32) -> Next {
    decision.reset(step, "retry");
    decision.abandon_step(step);
    Next::ModelStep
}
