//! Compares a request with its budget. Must not know how a request is built, or where the window's size comes from.

use crate::domain::conversation::Message;
use crate::domain::model::ModelRequest;
use crate::domain::run::context::json_tokens;
use crate::domain::run::{ContextPolicy, ContextStrategy, ContextUnit};
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::window::estimate::{self, Measure};
use crate::engine::request::window::fit::{self, Bound};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBudget {
    pub window: u64,
    pub used: u64,
    /// The free part of the budget after the reserved part; negative if the request does not fit.
    pub remaining: i64,
    pub measure: Measure,
}

impl TokenBudget {
    /// Measures a request by `cost`.
    pub fn of(source: &RequestSource<'_>, cost: impl Fn(Measure) -> u64) -> Self {
        let policy = &source.record.profile.context;
        let window = policy.budget(source.capacity().window).unwrap_or(u64::MAX);
        let measure = Measure::of(source);
        let used = cost(measure);
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let available = match held_tokens(source) {
            None => i64::MAX,
            // Converts the remaining tokens to characters, at 2.8 characters per token.
            Some(held_tokens) => signed(held_tokens).saturating_sub(signed(cost(Measure::Estimate))).saturating_mul(14) / 5,
        };
        let available = signed(window).saturating_sub(signed(used)).min(available);
        Self { window, used, remaining: available.saturating_sub(signed(policy.reserved())), measure }
    }

    pub fn shortage(&self, needed: u64) -> Option<u64> {
        let needed = i64::try_from(needed).unwrap_or(i64::MAX);
        u64::try_from(needed.saturating_sub(self.remaining)).ok().filter(|lack| *lack > 0)
    }
}

/// Compresses older results if `compress_results` is set and the request leaves too little of the budget free.
pub fn compress(source: &RequestSource<'_>, frame: &ModelRequest, messages: &mut [Message]) {
    let policy = &source.record.profile.context;
    let may_cut = policy.strategy != ContextStrategy::None && policy.budget(source.capacity().window).is_some();
    if !policy.compress_results || !may_cut {
        return;
    }
    let room = TokenBudget::of(source, |measure| estimate::request(measure, frame, messages));
    if room.shortage(policy.evict_below.max(minimum_remaining(source))).is_some() {
        fit::compress_results(messages);
    }
}

/// Cuts the messages of a request to the budget that its instructions and tools leave. A forced answer reserves no budget for another call.
pub fn cut(source: &RequestSource<'_>, frame: &ModelRequest, messages: &mut Vec<Message>) {
    let policy = &source.record.profile.context;
    let Some(window) = policy.budget(source.capacity().window) else { return };
    if policy.strategy == ContextStrategy::None {
        return;
    }
    let kept_free = policy.reserved().saturating_add(minimum_remaining(source));
    let bound = |measure, all: u64, kept_free: u64| {
        let room = all.saturating_sub(kept_free).saturating_sub(estimate::frame(measure, frame));
        Bound { measure, room }
    };
    let mut bounds = vec![bound(Measure::of(source), window, kept_free)];
    if let Some(held_tokens) = held_tokens(source) {
        bounds.push(bound(Measure::Estimate, held_tokens, json_tokens(usize::try_from(kept_free).unwrap_or(usize::MAX))));
    }
    fit::cut_to(messages, &bounds);
}

/// Returns the tokens of the model's window if the budget counts characters. The characters per token depend on the script: in some scripts
/// the window, not the budget, limits the request.
fn held_tokens(source: &RequestSource<'_>) -> Option<u64> {
    let policy = &source.record.profile.context;
    let window = source.capacity().window.filter(|_| policy.unit == ContextUnit::Chars)?;
    // A window that is too small for a budget is ignored here, too.
    ContextPolicy { limit: None, ..policy.clone() }.budget(Some(window))?;
    Some(window.saturating_sub(ContextPolicy::default().reserved()))
}

/// Returns whether a request fits its budget. An agent without eviction sends every request unchanged.
pub fn fits(source: &RequestSource<'_>, request: &ModelRequest) -> bool {
    let policy = &source.record.profile.context;
    if policy.strategy == ContextStrategy::None || policy.budget(source.capacity().window).is_none() {
        return true;
    }
    let room = TokenBudget::of(source, |measure| estimate::request(measure, request, &request.messages));
    room.shortage(minimum_remaining(source)).is_none()
}

/// Returns the free budget below which no further call is worthwhile.
pub fn minimum_remaining(source: &RequestSource<'_>) -> u64 {
    if source.record.counters.force_final { 0 } else { source.record.profile.context.start_gate }
}
