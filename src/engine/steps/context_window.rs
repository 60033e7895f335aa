//! The context window of the next model call: which messages are left out when the request would be too large.
//!
//! They are a beginning of the history, which a summary in the run's rows replaces, so that the next claim makes the same request.
//! A call and its result are left out together. Must not know how a request is built.

use crate::domain::conversation::message::{Message, Role};
use crate::domain::conversation::summary::{self, Spans};
use crate::domain::event::EventBody;
use crate::domain::problem::ProblemCode;
use crate::domain::run::change::Change;
use crate::domain::run::context::{ContextPolicy, ContextStrategy};
use crate::engine::machine::{DecisionBuilder, ModelCall, Next};
use crate::engine::prompts;
use crate::engine::request::build::{self, Prepared};
use crate::engine::request::source::{Shown, Source};
use crate::engine::request::window::estimate;
use crate::engine::request::window::room::{Room, gate};

/// Makes room for the next model call. Without enough room, the call is a forced answer; if not even that fits, the run fails.
pub fn make_room(decision: &mut DecisionBuilder<'_>) -> Next {
    let policy = &decision.profile().context;
    let source = decision.source();
    if policy.budget(source.capacity().window).is_none() {
        return call(build::prepared(&source), None);
    }
    let (mut request, room) = leave_out(decision, policy);
    tell(decision);
    let source = decision.source();
    let lacks = |room: &Room| room.lacks(gate(&source)).is_some();
    if !lacks(&room) {
        return call(request, Some(room));
    }
    request.cut(&source);
    let room = measured(&request, &source);
    if !lacks(&room) {
        return call(request, Some(room));
    }
    if !decision.progress.counters.force_final {
        decision.counters().no_room = true;
        decision.force_final(prompts::FORCED_CONTEXT);
    }
    let source = decision.source();
    let request = build::prepared(&source);
    let room = measured(&request, &source);
    if room.remaining < 0 && policy.strategy != ContextStrategy::None {
        let detail = format!(
            "the agent's instructions and the newest message do not fit into its context: {} of {} would be used, and {} are kept free",
            room.used,
            room.window,
            policy.reserved()
        );
        return Next::fail(ProblemCode::ContextOverflow, detail);
    }
    call(request, Some(room))
}

fn call(prepared: Prepared, room: Option<Room>) -> Next {
    Next::CallModel(Box::new(ModelCall { prepared, room }))
}

fn measured(request: &Prepared, source: &Source<'_>) -> Room {
    Room::of(source, |measure| request.cost(measure))
}

/// Builds the request before anything is cut.
fn uncut(decision: &DecisionBuilder<'_>) -> (Prepared, Room) {
    let source = decision.source();
    let request = Prepared::uncut(&source);
    let room = measured(&request, &source);
    (request, room)
}

/// Stores the new summary, and tells what it covers.
fn tell(decision: &mut DecisionBuilder<'_>) {
    let before = decision.before.summary.as_ref();
    let Some(summary) = decision.progress.summary.clone().filter(|summary| Some(summary) != before) else { return };
    let messages = summary.messages.saturating_sub(before.map_or(0, |before| before.messages));
    decision.event(EventBody::ContextCompacted {
        messages,
        texts: 0,
        through: Some(summary.covers.clone()),
        summary: summary::section(&summary),
    });
    decision.change(Change::Summarize(summary));
}

/// Leaves older messages out, if too little room remains: all but the newest few, or as many of the oldest as necessary. Returns
/// the resulting room.
fn leave_out(decision: &mut DecisionBuilder<'_>, policy: &ContextPolicy) -> (Prepared, Room) {
    let (mut request, mut room) = uncut(decision);
    if room.lacks(policy.evict_below).is_none() {
        return (request, room);
    }
    let wanted = match policy.strategy {
        ContextStrategy::Summarize => {
            let keep = policy.keep_last as usize;
            let own = decision.progress.fence.run_id.clone();
            if leave_out_first(decision, policy, |shown, _| summary::newest(&shown.rest, keep, Some(&own))) {
                (request, room) = uncut(decision);
            }
            policy.start_gate
        }
        ContextStrategy::DropOldest => policy.evict_below.max(policy.start_gate),
        ContextStrategy::None => return (request, room),
    };
    // Each iteration leaves out at least one message, so this ends.
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
        if !leave_out_first(decision, policy, enough) {
            return (request, room);
        }
        (request, room) = uncut(decision);
    }
    (request, room)
}

/// Leaves out as many of the shown messages as `count` returns and as allowed. Returns false if that is none.
fn leave_out_first(
    decision: &mut DecisionBuilder<'_>,
    policy: &ContextPolicy,
    count: impl Fn(&Shown<'_>, &Spans) -> usize,
) -> bool {
    let source = decision.source();
    let shown = source.shown();
    let open = source.record.calls.iter().filter(|call| !call.state.is_outcome());
    let spans = Spans::of(&shown.rest, open.map(|call| &call.id));
    let at = spans.before(count(&shown, &spans).min(may_be_left_out(&shown.rest, &source)));
    let left_out = &shown.rest[..at];
    let asks = |message: &&&Message| message.role == Role::User && !message.internal && Some(&message.run_id) == shown.turn;
    let asked = shown.asked.iter().chain(left_out).filter(asks).map(|message| message.id.clone()).collect();
    let summary = summary::extended(policy, source.record.summary.as_ref(), left_out, asked);
    let is_some = summary.is_some();
    decision.progress.summary = summary.or(decision.progress.summary.take());
    is_some
}

/// Returns how many messages may be left out: all before the newest exchange of the run.
fn may_be_left_out(shown: &[&Message], source: &Source<'_>) -> usize {
    let is_own = |message: &&Message| message.run_id == source.record.fence.run_id;
    let answer = shown.iter().rposition(|message| message.role == Role::Assistant && is_own(message));
    answer.or_else(|| shown.iter().position(is_own)).unwrap_or(shown.len().saturating_sub(1))
}
