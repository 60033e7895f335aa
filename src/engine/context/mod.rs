//! The budget of a request: what it costs, what is left out when it would cost too much, and what stands for that.
//!
//! A request is a view. What is stored stays whole; what the view leaves out is a beginning of the history, for which a summary
//! stands in the run's rows, so that whoever takes the run up makes the same request of them. A call and its result are left out
//! together or not at all. Must not know how a window becomes known.

mod estimate;
mod fit;

pub(super) use estimate::Measure;

use fit::Bound;

use super::RunState;
use super::draft::Draft;
use super::source::{Shown, Source};
use super::texts;
use super::{history, plan};
use crate::domain::change::Change;
use crate::domain::context::{ContextPolicy, ContextStrategy, ContextUnit, json_tokens};
use crate::domain::event::EventBody;
use crate::domain::message::{Message, Role};
use crate::domain::model::ModelRequest;
use crate::domain::problem::ProblemCode;
use crate::domain::summary::{self, Spans};

/// A request against its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// The whole budget.
    pub(super) window: u64,
    /// What the request costs.
    pub(super) used: u64,
    /// What is left beside what is kept free; less than nothing, if it does not fit.
    pub(super) remaining: i64,
    /// How that was found.
    pub(super) measure: Measure,
}

impl Room {
    /// That of a request that costs so much, by whatever it is measured.
    fn of(source: &Source<'_>, cost: impl Fn(Measure) -> u64) -> Self {
        let policy = &source.record.profile.context;
        let window = policy.budget(source.capacity.window).unwrap_or(u64::MAX);
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

    fn lacks(&self, wanted: u64) -> Option<u64> {
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        u64::try_from(wanted.saturating_sub(self.remaining)).ok().filter(|lack| *lack > 0)
    }
}

/// Cuts the messages of a request whose frame, instructions and tools, is known. A last call needs no room for another one.
pub(super) fn fit(source: &Source<'_>, frame: &ModelRequest, messages: &mut Vec<Message>) {
    let policy = &source.record.profile.context;
    let Some(window) = policy.budget(source.capacity.window) else { return };
    if policy.strategy == ContextStrategy::None {
        return;
    }
    if policy.compress_results {
        fit::compress_results(messages);
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
    let window = source.capacity.window.filter(|_| policy.unit == ContextUnit::Chars)?;
    // One that is too small to be a budget is none here either.
    ContextPolicy { limit: None, ..policy.clone() }.budget(Some(window))?;
    Some(window.saturating_sub(ContextPolicy::default().reserved()))
}

/// Whether a request leaves free what is to be kept free. One of an agent that wants nothing left out is sent as it is.
pub(super) fn fits(source: &Source<'_>, request: &ModelRequest) -> bool {
    let policy = &source.record.profile.context;
    if policy.strategy == ContextStrategy::None || policy.budget(source.capacity.window).is_none() {
        return true;
    }
    let room = Room::of(source, |measure| estimate::request(measure, request, &request.messages));
    room.lacks(gate(source)).is_none()
}

/// What must remain for a call to be worth beginning.
fn gate(source: &Source<'_>) -> u64 {
    if source.record.counters.force_final { 0 } else { source.record.profile.context.start_gate }
}

/// Whether the next model call can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// With so much room, if there is a budget.
    Now(Option<Room>),
    /// The run has failed.
    Never,
}

/// Makes room for the next model call. Without enough of it, the call is the last one and gets no tools; if not even that fits,
/// the run fails.
pub(super) fn make_room(draft: &mut Draft<'_>) -> Begin {
    let policy = &draft.profile().context;
    if policy.budget(Source::in_draft(draft).capacity.window).is_none() {
        return Begin::Now(None);
    }
    let uncut = leave_out(draft, policy);
    tell(draft);
    let source = Source::in_draft(draft);
    let lacks = |room: &Room| room.lacks(gate(&source)).is_some();
    if !lacks(&uncut) {
        return Begin::Now(Some(uncut));
    }
    let cut = measured(&source);
    if !lacks(&cut) {
        return Begin::Now(Some(cut));
    }
    if !draft.work.record.counters.force_final {
        draft.counters().no_room = true;
        draft.force_final(texts::FORCED_CONTEXT);
    }
    let room = measured(&Source::in_draft(draft));
    if room.remaining < 0 && policy.strategy != ContextStrategy::None {
        let detail = format!(
            "the agent's instructions and the newest message do not fit into its context: {} of {} would be used, and {} are kept free",
            room.used,
            room.window,
            policy.reserved()
        );
        draft.fail(ProblemCode::ContextOverflow, detail);
        return Begin::Never;
    }
    Begin::Now(Some(room))
}

/// Says what is left out from now on, and has it stored.
fn tell(draft: &mut Draft<'_>) {
    let before = draft.base.record.summary.as_ref();
    let Some(summary) = draft.work.record.summary.clone().filter(|summary| Some(summary) != before) else { return };
    let messages = summary.messages.saturating_sub(before.map_or(0, |before| before.messages));
    draft.event(EventBody::ContextCompacted {
        messages,
        texts: 0,
        through: Some(summary.covers.clone()),
        summary: summary::section(&summary),
    });
    draft.change(Change::Summarize(summary));
}

/// The request of the next model step, or of the one under way, against its budget; `None` if it has none.
pub(super) fn room(source: &Source<'_>) -> Option<Room> {
    source.record.profile.context.budget(source.capacity.window).map(|_| measured(source))
}

/// The request as it would be sent.
fn measured(source: &Source<'_>) -> Room {
    let (frame, messages) = sent(source);
    Room::of(source, |measure| estimate::request(measure, &frame, &messages))
}

/// What the request of the next model step costs in tokens, whatever its budget counts.
pub(super) fn tokens(source: &Source<'_>) -> u64 {
    let measure = match Measure::of(source) {
        Measure::Chars => Measure::Estimate,
        measure @ (Measure::Estimate | Measure::Count(_)) => measure,
    };
    let (frame, messages) = sent(source);
    estimate::request(measure, &frame, &messages)
}

/// The request of the next model step, and its messages beside it.
fn sent(source: &Source<'_>) -> (ModelRequest, Vec<Message>) {
    if let Some(mut request) = plan::request(source) {
        let messages = std::mem::take(&mut request.messages);
        return (request, messages);
    }
    let (frame, messages) = history::parts(source);
    let framed = history::framed(source, &frame).into_owned();
    (framed, messages)
}

/// The same before anything is cut. What cuts nothing does not shorten results either.
fn uncut(source: &Source<'_>) -> Room {
    let (frame, mut messages) = history::uncut_parts(source);
    let policy = &source.record.profile.context;
    if policy.compress_results && policy.strategy != ContextStrategy::None {
        fit::compress_results(&mut messages);
    }
    let framed = history::framed(source, &frame);
    Room::of(source, |measure| estimate::request(measure, &framed, &messages))
}

/// Whether tokens are counted for the run's budget, which for the first time takes a while.
#[must_use]
pub fn counts_tokens(state: &RunState) -> bool {
    let source = Source::of(state);
    Measure::of(&source).tokenizer().is_some() && source.record.profile.context.budget(source.capacity.window).is_some()
}

/// Counts the tokens of all that the model may be asked to read, so that they are known when it is decided how much of it that will
/// be.
pub fn count_ahead(state: &RunState) {
    uncut(&Source::of(state));
}

/// Leaves older messages out, if too little room remains: all but the newest few, or as many of the oldest as it takes. What room
/// there is then.
fn leave_out(draft: &mut Draft<'_>, policy: &ContextPolicy) -> Room {
    let mut room = uncut(&Source::in_draft(draft));
    if room.lacks(policy.evict_below).is_none() {
        return room;
    }
    let wanted = match policy.strategy {
        ContextStrategy::Summarize => {
            let keep = policy.keep_last as usize;
            let own = draft.work.record.fence.run_id.clone();
            if leave_out_first(draft, policy, |shown, _| summary::newest(&shown.rest, keep, Some(&own))) {
                room = uncut(&Source::in_draft(draft));
            }
            policy.start_gate
        }
        ContextStrategy::DropOldest => policy.evict_below.max(policy.start_gate),
        ContextStrategy::None => return room,
    };
    // Each time at least one message less is shown, so this ends.
    while let Some(lack) = room.lacks(wanted) {
        let enough = |shown: &Shown<'_>, spans: &Spans| {
            let mut freed = 0;
            let costs = shown.rest.iter().map(|message| estimate::message(room.measure, message));
            let count = 1 + costs
                .take_while(|cost| {
                    freed += cost;
                    freed < lack
                })
                .count();
            spans.after(count)
        };
        if !leave_out_first(draft, policy, enough) {
            return room;
        }
        room = uncut(&Source::in_draft(draft));
    }
    room
}

/// Leaves out as many of the messages that are shown as `count` says, or as many as may be. False if that is none.
fn leave_out_first(draft: &mut Draft<'_>, policy: &ContextPolicy, count: impl Fn(&Shown<'_>, &Spans) -> usize) -> bool {
    let source = Source::in_draft(draft);
    let shown = source.shown();
    let open = source.record.calls.iter().filter(|call| !call.state.is_outcome());
    let spans = Spans::of(&shown.rest, open.map(|call| &call.id));
    let at = spans.before(count(&shown, &spans).min(may_be_left_out(&shown.rest, &source)));
    let left_out = &shown.rest[..at];
    let asks = |message: &&&Message| message.role == Role::User && !message.internal && Some(&message.run_id) == shown.turn;
    let asked = shown.asked.iter().chain(left_out).filter(asks).map(|message| message.id.clone()).collect();
    let summary = summary::extended(policy, source.record.summary.as_ref(), left_out, asked);
    let is_some = summary.is_some();
    draft.work.record.summary = summary.or(draft.work.record.summary.take());
    is_some
}

/// How many messages may be left out at most: not the newest exchange of the run.
fn may_be_left_out(shown: &[&Message], source: &Source<'_>) -> usize {
    let is_own = |message: &&Message| message.run_id == source.record.fence.run_id;
    let answer = shown.iter().rposition(|message| message.role == Role::Assistant && is_own(message));
    answer.or_else(|| shown.iter().position(is_own)).unwrap_or(shown.len().saturating_sub(1))
}
