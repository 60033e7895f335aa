//! The context window of the next model call: which messages are evicted if the request would be too large.
//!
//! Evicted messages are always the oldest. A summary in the run's rows replaces them, so that the next claim builds the same
//! request. A call and its result are evicted together. Must not know how a request is built.

use crate::domain::conversation::eviction_summary;
use crate::domain::conversation::{Message, Role, Spans};
use crate::domain::event::EventBody;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{Change, ContextPolicy, ContextStrategy};
use crate::engine::machine::{DecisionBuilder, ModelCall, Next};
use crate::engine::prompts;
use crate::engine::request::build::{self, PreparedRequest};
use crate::engine::request::request_source::{RequestMessages, RequestSource};
use crate::engine::request::window::estimate;
use crate::engine::request::window::remaining::{TokenBudget, minimum_remaining};

/// Fits the next model call into its context window. If too few tokens remain, the call becomes a forced answer. If the forced
/// answer does not fit either, the run fails.
pub fn make_room(decision: &mut DecisionBuilder<'_>) -> Next {
    let policy = &decision.profile().context;
    let source = decision.source();
    if policy.budget(source.capacity().window).is_none() {
        return call(build::prepare_request(&source), None);
    }
    let (mut request, room) = evict(decision, policy);
    store_summary(decision);
    let source = decision.source();
    let lacks = |room: &TokenBudget| room.shortage(minimum_remaining(&source)).is_some();
    if !lacks(&room) {
        return call(request, Some(room));
    }
    request.cut(&source);
    let room = measured(&request, &source);
    if !lacks(&room) {
        return call(request, Some(room));
    }
    if !decision.progress.counters.force_final {
        decision.counters().forced_by_window = true;
        decision.force_final(prompts::FORCED_CONTEXT);
    }
    let source = decision.source();
    let request = build::prepare_request(&source);
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

fn call(prepared: PreparedRequest, room: Option<TokenBudget>) -> Next {
    Next::CallModel(Box::new(ModelCall { prepared, room }))
}

fn measured(request: &PreparedRequest, source: &RequestSource<'_>) -> TokenBudget {
    TokenBudget::of(source, |measure| request.cost(measure))
}

/// Builds the request before any cut.
fn uncut(decision: &DecisionBuilder<'_>) -> (PreparedRequest, TokenBudget) {
    let source = decision.source();
    let request = PreparedRequest::uncut(&source);
    let room = measured(&request, &source);
    (request, room)
}

/// Stores the new summary, and adds an event with the messages that it covers.
fn store_summary(decision: &mut DecisionBuilder<'_>) {
    let before = decision.before.summary.as_ref();
    let Some(summary) = decision.progress.summary.clone().filter(|summary| Some(summary) != before) else { return };
    let messages = summary.messages.saturating_sub(before.map_or(0, |before| before.messages));
    decision.event(EventBody::ContextCompacted {
        messages,
        texts: 0,
        through: Some(summary.covers.clone()),
        summary: eviction_summary::section(&summary),
    });
    decision.change(Change::SetSummary(summary));
}

/// Evicts older messages if too few tokens remain: all but the newest few, or as few of the oldest as necessary. Returns the
/// request and its token budget.
fn evict(decision: &mut DecisionBuilder<'_>, policy: &ContextPolicy) -> (PreparedRequest, TokenBudget) {
    let (mut request, mut room) = uncut(decision);
    if room.shortage(policy.evict_below).is_none() {
        return (request, room);
    }
    let needed = match policy.strategy {
        ContextStrategy::Summarize => {
            let keep = policy.keep_last as usize;
            let own = decision.progress.fence.run_id.clone();
            if evict_first(decision, policy, |messages, _| eviction_summary::newest(&messages.uncovered, keep, Some(&own))) {
                (request, room) = uncut(decision);
            }
            policy.start_gate
        }
        ContextStrategy::DropOldest => policy.evict_below.max(policy.start_gate),
        ContextStrategy::None => return (request, room),
    };
    // Each iteration evicts at least one message, so the loop ends.
    while let Some(lack) = room.shortage(needed) {
        let enough = |messages: &RequestMessages<'_>, spans: &Spans| {
            let mut freed = 0;
            let costs = messages.uncovered.iter().map(|message| estimate::message(room.measure, message));
            let count = 1 + costs
                .take_while(|cost| {
                    freed += cost;
                    freed < lack
                })
                .count();
            spans.after(count)
        };
        if !evict_first(decision, policy, enough) {
            return (request, room);
        }
        (request, room) = uncut(decision);
    }
    (request, room)
}

/// Evicts the oldest uncovered messages, as many as `count` returns and the limit allows. Returns false if it evicts none.
fn evict_first(
    decision: &mut DecisionBuilder<'_>,
    policy: &ContextPolicy,
    count: impl Fn(&RequestMessages<'_>, &Spans) -> usize,
) -> bool {
    let source = decision.source();
    let messages = source.request_messages();
    let open = source.record.calls.iter().filter(|call| !call.state.is_outcome());
    let spans = Spans::of(&messages.uncovered, open.map(|call| &call.id));
    let at = spans.before(count(&messages, &spans).min(may_be_left_out(&messages.uncovered, &source)));
    let left_out = &messages.uncovered[..at];
    let is_unanswered = |message: &&&Message| message.is_from_user() && Some(&message.run_id) == messages.answered_run;
    let unanswered = messages.covered_user_messages.iter().chain(left_out).filter(is_unanswered);
    let unanswered = unanswered.map(|message| message.id.clone()).collect();
    let summary = eviction_summary::extend_summary(policy, source.record.summary.as_ref(), left_out, unanswered);
    let is_some = summary.is_some();
    decision.progress.summary = summary.or(decision.progress.summary.take());
    is_some
}

/// Returns how many messages may be evicted: all before the run's newest answer, or before its first message if it has no answer.
fn may_be_left_out(uncovered: &[&Message], source: &RequestSource<'_>) -> usize {
    let is_own = |message: &&Message| message.run_id == source.record.fence.run_id;
    let answer = uncovered.iter().rposition(|message| message.role == Role::Assistant && is_own(message));
    answer.or_else(|| uncovered.iter().position(is_own)).unwrap_or(uncovered.len().saturating_sub(1))
}
