//! Answers duplicate calls, which have the same name and arguments as an earlier call, with the earlier result.
//!
//! A user message that joins the run may repeat a request, so the loop does not reuse results from before that message. A plan's
//! call with an unknown outcome is an exception: the user does not know of it, and so has not asked to repeat it. The user can
//! repeat it in another run.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::CallId;
use crate::domain::run::{RunRecord, Strategy};
use crate::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition};
use crate::engine::strategy::plan::progress;

/// The identity of a call: the name of the tool and the hash of the arguments.
type Key<'c> = (&'c str, &'c str);

fn key(call: &ToolCall) -> Key<'_> {
    (&call.name, &call.arguments_hash)
}

/// The run's tools, in which `contain` finds the tools that are declared as read-only, also by servers that are not trusted. A
/// false declaration can only cause a repeated call.
#[derive(Clone, Copy)]
struct ReadOnlyTools<'c>(&'c [Arc<ToolDefinition>]);

impl ReadOnlyTools<'_> {
    fn contain(self, call: &ToolCall) -> bool {
        self.0.iter().any(|tool| tool.safety.says_it_reads && tool.name == call.name)
    }

    /// Returns whether repeating an answered call has no further effect.
    fn repeats_nothing(self, call: &ToolCall) -> bool {
        repeats_nothing(call) || self.contain(call)
    }

    /// Returns whether `other` may have changed the result of `answered`. Two tools that are only declared as read-only do not
    /// change each other's results. Otherwise the model could repeat their calls alternately without end.
    fn may_have_changed(self, answered: &ToolCall, other: &ToolCall) -> bool {
        other.replay != ReplayClass::Read && (answered.replay == ReplayClass::Read || !self.contain(other))
    }
}

/// The calls of a run that reached their tools, in order, without duplicates.
struct EarlierCalls<'c> {
    readers: ReadOnlyTools<'c>,
    /// The last call of each identity.
    last: HashMap<Key<'c>, &'c ToolCall>,
    /// Calls that may have changed something.
    changes: Vec<&'c ToolCall>,
}

impl<'c> EarlierCalls<'c> {
    fn add(&mut self, call: &'c ToolCall) {
        if self.answers(call).is_some() {
            return;
        }
        self.last.insert(key(call), call);
        // A denied call changed nothing.
        if call.replay != ReplayClass::Read && call.state != ToolCallState::Denied {
            self.changes.push(call);
        }
    }

    /// Returns the earlier call that answers this one. A call that is safe to repeat is made again if another call may have changed
    /// its result. Calls of one answer may run in any order, so a change in the same step counts too.
    fn answers(&self, call: &ToolCall) -> Option<&'c ToolCall> {
        let earlier = *self.last.get(&key(call)).filter(|earlier| earlier.state == ToolCallState::Done)?;
        let mut since = self.changes.iter().rev().take_while(|change| change.step >= earlier.step);
        let is_stale = self.readers.repeats_nothing(earlier)
            && since.any(|change| !is_same(change, call) && self.readers.may_have_changed(earlier, change));
        (!is_stale).then_some(earlier)
    }
}

/// Returns the earlier call of the run that answers this one. `planned` contains the calls of the same answer that are not in the
/// record yet.
pub fn answered_before<'c>(
    (profile, tools, record): (&AgentProfile, &'c [Arc<ToolDefinition>], &'c RunRecord),
    planned: impl Iterator<Item = &'c ToolCall>,
    call: &ToolCall,
) -> Option<&'c ToolCall> {
    let readers = ReadOnlyTools(tools);
    let quotes_all = profile.duplicate_calls > 0;
    let before = |other: &&ToolCall| (other.step, other.position) < (call.step, call.position);
    let calls = record.calls.iter().map(Arc::as_ref).filter(before);
    let is_of_now = |earlier: &&ToolCall| earlier.step > record.counters.step_at_restart;
    let mut same = calls.clone().filter(|earlier| earlier.step < call.step && is_same(earlier, call));
    match profile.strategy {
        Strategy::Loop if quotes_all => {
            let mut earlier_calls = EarlierCalls { readers, last: HashMap::new(), changes: Vec::new() };
            calls
                .filter(is_of_now)
                .filter(|call| has_reached_tool_or_denial(call))
                .chain(planned)
                .for_each(|call| earlier_calls.add(call));
            earlier_calls.answers(call)
        }
        Strategy::Loop => None,
        // A plan may repeat a call on purpose, to see the changes since an earlier step.
        Strategy::PlanExecute if progress::has_made(record, &call.id) => {
            same.find(|earlier| has_outcome(earlier) && !has_changed_since(record, readers, earlier, call))
        }
        // The loop that takes over from a plan must not repeat its effects, but may read again.
        Strategy::PlanExecute => same.find(|earlier| {
            let is_stale = readers.repeats_nothing(earlier) && has_changed_since(record, readers, earlier, call);
            let is_answer = is_of_now(earlier) || earlier.state == ToolCallState::Unknown;
            match progress::has_made(record, &earlier.id) {
                true => is_answer && has_outcome(earlier) && !is_stale,
                false => quotes_all && is_of_now(earlier) && earlier.state == ToolCallState::Done,
            }
        }),
    }
}

/// Returns the idempotency key of the run's last identical call, if that call failed or its outcome is unknown. The call may have
/// taken effect, and a repetition with the same key has no further effect. After an answered call, a repetition gets a new key.
pub fn key_to_keep(record: &RunRecord, name: &str, arguments_hash: &str, replay: &ReplayClass) -> Option<CallId> {
    let has_key = matches!(replay, ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. });
    let was_made = |call: &&ToolCall| has_reached_tool_or_denial(call) && call.state != ToolCallState::Denied;
    let mut calls = record.calls.iter().rev().map(Arc::as_ref).filter(was_made);
    let last = calls.find(|call| key(call) == (name, arguments_hash)).filter(|_| has_key)?;
    matches!(last.state, ToolCallState::Failed | ToolCallState::Unknown).then(|| last.key().clone())
}

pub fn is_same(one: &ToolCall, other: &ToolCall) -> bool {
    key(one) == key(other)
}

/// Returns whether repeating a call has no further effect.
fn repeats_nothing(call: &ToolCall) -> bool {
    // A repeated call of the class `keyed` would get another key.
    matches!(call.replay, ReplayClass::Read | ReplayClass::Idempotent)
}

/// Returns whether a call must not be repeated: it was answered, or may have taken effect.
fn has_outcome(call: &ToolCall) -> bool {
    call.state == ToolCallState::Done || (call.state == ToolCallState::Unknown && !repeats_nothing(call))
}

/// Returns whether a different call between these two may have changed the result.
fn has_changed_since(record: &RunRecord, readers: ReadOnlyTools<'_>, earlier: &ToolCall, call: &ToolCall) -> bool {
    let between = |other: &&ToolCall| earlier.step < other.step && other.step < call.step;
    let mut others = record
        .calls
        .iter()
        .map(Arc::as_ref)
        .filter(between)
        .filter(|other| has_reached_tool_or_denial(other) && !is_same(other, call));
    others.any(|other| readers.may_have_changed(earlier, other))
}

/// Returns whether a call reached its tool, or was denied by a human.
pub fn has_reached_tool_or_denial(call: &ToolCall) -> bool {
    match call.state {
        ToolCallState::Started | ToolCallState::Done | ToolCallState::Unknown | ToolCallState::Denied => true,
        // Calls with unreadable arguments were refused.
        ToolCallState::Failed => call.is_readable(),
        ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Cancelled => false,
    }
}
