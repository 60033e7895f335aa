//! Duplicate calls: calls with the same name and arguments as an earlier one are answered with its result.
//!
//! A message that joins may ask for the same again, so results from before it answer nothing. Calls that may have taken effect are
//! different: a user who does not know of one has not asked for it twice. They can do so in another run.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::CallId;
use crate::domain::run::plan::Strategy;
use crate::domain::run::record::RunRecord;
use crate::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition};
use crate::engine::strategy::plan::progress;

/// The identity of a call: tool and arguments.
type Key<'c> = (&'c str, &'c str);

fn key(call: &ToolCall) -> Key<'_> {
    (&call.name, &call.arguments_hash)
}

/// The run's tools. Untrusted servers say of some that they only read. Believing that may only have a call repeated, such as a file
/// read again after a write.
#[derive(Clone, Copy)]
struct Readers<'c>(&'c [Arc<ToolDefinition>]);

impl Readers<'_> {
    fn hold(self, call: &ToolCall) -> bool {
        self.0.iter().any(|tool| tool.safety.says_it_reads && tool.name == call.name)
    }

    /// Returns whether repeating an answered call has no further effect.
    fn repeats_nothing(self, call: &ToolCall) -> bool {
        repeats_nothing(call) || self.hold(call)
    }

    /// Returns whether `other` may have changed the result of `answered`. An untrusted claim to read is believed only between two
    /// such calls: otherwise they would be repeated in turns for ever.
    fn may_have_changed(self, answered: &ToolCall, other: &ToolCall) -> bool {
        other.replay != ReplayClass::Read && (answered.replay == ReplayClass::Read || !self.hold(other))
    }
}

/// The calls of a run that reached their tools, in order, without duplicates.
struct Made<'c> {
    readers: Readers<'c>,
    /// The last call of each identity.
    last: HashMap<Key<'c>, &'c ToolCall>,
    /// Calls that may have changed something.
    changes: Vec<&'c ToolCall>,
}

impl<'c> Made<'c> {
    fn add(&mut self, call: &'c ToolCall) {
        if self.answers(call).is_some() {
            return;
        }
        self.last.insert(key(call), call);
        // A denied call was not made.
        if call.replay != ReplayClass::Read && call.state != ToolCallState::Denied {
            self.changes.push(call);
        }
    }

    /// Returns the earlier call that answers this one. A call that is harmless to repeat is made again if another one may have
    /// changed its result; the order of calls of one answer is unknown.
    fn answers(&self, call: &ToolCall) -> Option<&'c ToolCall> {
        let earlier = *self.last.get(&key(call)).filter(|earlier| earlier.state == ToolCallState::Done)?;
        let mut since = self.changes.iter().rev().take_while(|change| change.step >= earlier.step);
        let is_stale = self.readers.repeats_nothing(earlier)
            && since.any(|change| !is_same(change, call) && self.readers.may_have_changed(earlier, change));
        (!is_stale).then_some(earlier)
    }
}

/// Returns the earlier call of the run that answers this one. `beside` are calls of the same answer that the record does not have
/// yet; `tools` are the run's.
pub fn answered_before<'c>(
    (profile, tools, record): (&AgentProfile, &'c [Arc<ToolDefinition>], &'c RunRecord),
    beside: impl Iterator<Item = &'c ToolCall>,
    call: &ToolCall,
) -> Option<&'c ToolCall> {
    let readers = Readers(tools);
    let quotes_all = profile.duplicate_calls > 0;
    let before = |other: &&ToolCall| (other.step, other.position) < (call.step, call.position);
    let calls = record.calls.iter().map(Arc::as_ref).filter(before);
    let is_of_now = |earlier: &&ToolCall| earlier.step > record.counters.heard_step;
    let mut same = calls.clone().filter(|earlier| earlier.step < call.step && is_same(earlier, call));
    match profile.strategy {
        Strategy::Loop if quotes_all => {
            let mut made = Made { readers, last: HashMap::new(), changes: Vec::new() };
            calls.filter(is_of_now).filter(|call| was_let_through(call)).chain(beside).for_each(|call| made.add(call));
            made.answers(call)
        }
        Strategy::Loop => None,
        // Each step of a plan is intended: it shall see what changed since an earlier one.
        Strategy::PlanExecute if progress::has_made(record, &call.id) => {
            same.find(|earlier| has_told(earlier) && !has_changed_since(record, readers, earlier, call))
        }
        // The loop that takes over from a plan must not repeat its effects, but may read again.
        Strategy::PlanExecute => same.find(|earlier| {
            let is_stale = readers.repeats_nothing(earlier) && has_changed_since(record, readers, earlier, call);
            let is_answer = is_of_now(earlier) || earlier.state == ToolCallState::Unknown;
            match progress::has_made(record, &earlier.id) {
                true => is_answer && has_told(earlier) && !is_stale,
                false => quotes_all && is_of_now(earlier) && earlier.state == ToolCallState::Done,
            }
        }),
    }
}

/// Returns the key of the run's last identical call, if it failed or its outcome is unknown: it may have taken effect, and has no
/// further effect under the same key. A call that was answered is made anew.
pub fn key_to_keep(record: &RunRecord, name: &str, arguments_hash: &str, replay: &ReplayClass) -> Option<CallId> {
    let has_key = matches!(replay, ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. });
    let was_made = |call: &&ToolCall| was_let_through(call) && call.state != ToolCallState::Denied;
    let mut calls = record.calls.iter().rev().map(Arc::as_ref).filter(was_made);
    let last = calls.find(|call| key(call) == (name, arguments_hash)).filter(|_| has_key)?;
    matches!(last.state, ToolCallState::Failed | ToolCallState::Unknown).then(|| last.key().clone())
}

pub fn is_same(one: &ToolCall, other: &ToolCall) -> bool {
    key(one) == key(other)
}

/// Returns whether repeating a call has no further effect.
fn repeats_nothing(call: &ToolCall) -> bool {
    // A repeated call with a key would have another one.
    matches!(call.replay, ReplayClass::Read | ReplayClass::Idempotent)
}

/// Returns whether the outcome speaks against a repetition: there is an answer, or the call may have taken effect.
fn has_told(call: &ToolCall) -> bool {
    call.state == ToolCallState::Done || (call.state == ToolCallState::Unknown && !repeats_nothing(call))
}

/// Returns whether a different call between these two may have changed something.
fn has_changed_since(record: &RunRecord, readers: Readers<'_>, earlier: &ToolCall, call: &ToolCall) -> bool {
    let between = |other: &&ToolCall| earlier.step < other.step && other.step < call.step;
    let mut others =
        record.calls.iter().map(Arc::as_ref).filter(between).filter(|other| was_let_through(other) && !is_same(other, call));
    others.any(|other| readers.may_have_changed(earlier, other))
}

/// Returns whether a call reached its tool, or was denied by a human.
pub fn was_let_through(call: &ToolCall) -> bool {
    match call.state {
        ToolCallState::Started | ToolCallState::Done | ToolCallState::Unknown | ToolCallState::Denied => true,
        // Unreadable arguments were refused.
        ToolCallState::Failed => call.is_readable(),
        ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Cancelled => false,
    }
}
