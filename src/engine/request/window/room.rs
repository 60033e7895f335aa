//! A request against its budget.
//!
//! Owns what has room and what is cut. Must not know how a request is built or how a window becomes known.

use crate::domain::context::{ContextPolicy, ContextStrategy, ContextUnit, json_tokens};
use crate::domain::message::Message;
use crate::domain::model::ModelRequest;
use crate::engine::request::source::Source;
use crate::engine::request::window::estimate::{self, Measure};
use crate::engine::request::window::fit::{self, Bound};

/// A request against its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The whole budget.
    pub window: u64,
    /// What the request costs.
    pub used: u64,
    /// What is left beside what is kept free; less than nothing, if it does not fit.
    pub remaining: i64,
    /// How that was found.
    pub measure: Measure,
}

impl Room {
    /// That of a request that costs so much, by whatever it is measured.
    pub fn of(source: &Source<'_>, cost: impl Fn(Measure) -> u64) -> Self {
        let policy = &source.record.profile.context;
        let window = policy.budget(source.capacity().window).unwrap_or(u64::MAX);
        let measure = Measure::of(source);
        let used = cost(measure);
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let left = match held_tokens(source) {
            None => i64::MAX,
            // What has room in so many tokens, at 2.8 characters each.
            Some(held) => signed(held).saturating_sub(signed(cost(Measure::Estimate))).saturating_mul(14) / 5,
        };
        let left = signed(window).saturating_sub(signed(used)).min(left);
        Self { window, used, remaining: left.saturating_sub(signed(policy.reserved())), measure }
    }

    pub fn lacks(&self, wanted: u64) -> Option<u64> {
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        u64::try_from(wanted.saturating_sub(self.remaining)).ok().filter(|lack| *lack > 0)
    }
}

/// Shortens older results, where the agent wants that and something may be cut.
pub fn compress(source: &Source<'_>, messages: &mut [Message]) {
    let policy = &source.record.profile.context;
    let may_cut = policy.strategy != ContextStrategy::None && policy.budget(source.capacity().window).is_some();
    if policy.compress_results && may_cut {
        fit::compress_results(messages);
    }
}

/// Cuts the messages of a request whose frame, instructions and tools, is known. A last call needs no room for another one.
pub fn cut(source: &Source<'_>, frame: &ModelRequest, messages: &mut Vec<Message>) {
    let policy = &source.record.profile.context;
    let Some(window) = policy.budget(source.capacity().window) else { return };
    if policy.strategy == ContextStrategy::None {
        return;
    }
    let kept_free = policy.reserved().saturating_add(gate(source));
    let bound = |measure, all: u64, kept_free: u64| {
        let room = all.saturating_sub(kept_free).saturating_sub(estimate::frame(measure, frame));
        Bound { measure, room }
    };
    let mut bounds = vec![bound(Measure::of(source), window, kept_free)];
    if let Some(held) = held_tokens(source) {
        bounds.push(bound(Measure::Estimate, held, json_tokens(usize::try_from(kept_free).unwrap_or(usize::MAX))));
    }
    fit::cut_to(messages, &bounds);
}

/// The tokens that the model's window has for requests, where the budget counts characters. How many of those are a token depends on
/// their script: a window that holds so many letters holds a third of them in another one, and then it is what bounds the request.
fn held_tokens(source: &Source<'_>) -> Option<u64> {
    let policy = &source.record.profile.context;
    let window = source.capacity().window.filter(|_| policy.unit == ContextUnit::Chars)?;
    // One that is too small to be a budget is none here either.
    ContextPolicy { limit: None, ..policy.clone() }.budget(Some(window))?;
    Some(window.saturating_sub(ContextPolicy::default().reserved()))
}

/// Whether a request leaves free what is to be kept free. One of an agent that wants nothing left out is sent as it is.
pub fn fits(source: &Source<'_>, request: &ModelRequest) -> bool {
    let policy = &source.record.profile.context;
    if policy.strategy == ContextStrategy::None || policy.budget(source.capacity().window).is_none() {
        return true;
    }
    let room = Room::of(source, |measure| estimate::request(measure, request, &request.messages));
    room.lacks(gate(source)).is_none()
}

/// What must remain for a call to be worth beginning.
pub fn gate(source: &Source<'_>) -> u64 {
    if source.record.counters.force_final { 0 } else { source.record.profile.context.start_gate }
}
