//! Calls that a run has made before with the same arguments: they are answered with what that came to.
//!
//! A message that joins may ask for just that once more, so what was done before it answers nothing. What may have taken effect is
//! different: a user who does not know of it has not asked for it twice. They can do so in a run of its own.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::CallId;
use crate::domain::plan::Strategy;
use crate::domain::record::RunRecord;
use crate::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition};
use crate::engine::strategy::plan::progress;

/// What two calls have in common that are the same: the tool and the arguments.
type Key<'c> = (&'c str, &'c str);

fn key(call: &ToolCall) -> Key<'_> {
    (&call.name, &call.arguments_hash)
}

/// The tools of a run, of some of which servers that nobody trusts say that they only read. Believing that may have their calls made
/// again, because a file is to be read again when something was written meanwhile, and does nothing else.
#[derive(Clone, Copy)]
struct Readers<'c>(&'c [Arc<ToolDefinition>]);

impl Readers<'_> {
    fn hold(self, call: &ToolCall) -> bool {
        self.0.iter().any(|tool| tool.safety.says_it_reads && tool.name == call.name)
    }

    /// Whether making a call again that has been answered does nothing that the first one has not done.
    fn repeats_nothing(self, call: &ToolCall) -> bool {
        repeats_nothing(call) || self.hold(call)
    }

    /// Whether another call may have changed what a call has answered. What only says that it reads is not believed where that would have a
    /// call quoted that is trusted to read; anything else would be made in turns with it for ever.
    fn may_have_changed(self, answered: &ToolCall, other: &ToolCall) -> bool {
        other.replay != ReplayClass::Read && (answered.replay == ReplayClass::Read || !self.hold(other))
    }
}

/// The calls of a run that got as far as their tools, in order, without those that were answered with an earlier one.
struct Made<'c> {
    readers: Readers<'c>,
    /// The last one of each kind.
    last: HashMap<Key<'c>, &'c ToolCall>,
    /// Those that may have changed something.
    changes: Vec<&'c ToolCall>,
}

impl<'c> Made<'c> {
    /// Adds the next one.
    fn add(&mut self, call: &'c ToolCall) {
        if self.answers(call).is_some() {
            return;
        }
        self.last.insert(key(call), call);
        // What a human has denied was not made.
        if call.replay != ReplayClass::Read && call.state != ToolCallState::Denied {
            self.changes.push(call);
        }
    }

    /// The call that answers this one, which comes after all of them. What repeats without harm is made again if another call may have
    /// changed what it answers; of calls of one answer nobody knows which was carried out first.
    fn answers(&self, call: &ToolCall) -> Option<&'c ToolCall> {
        let earlier = *self.last.get(&key(call)).filter(|earlier| earlier.state == ToolCallState::Done)?;
        let mut since = self.changes.iter().rev().take_while(|change| change.step >= earlier.step);
        let is_stale = self.readers.repeats_nothing(earlier)
            && since.any(|change| !is_same(change, call) && self.readers.may_have_changed(earlier, change));
        (!is_stale).then_some(earlier)
    }
}

/// The same call, if an earlier one of the run has answered it and it shall not be made again. `beside` are the calls before it in the
/// same answer that are about to be made, if the record does not have them yet; `tools` are those of the run.
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
        // The steps of a plan are meant, each of them: what has changed between two of them, the second one shall see.
        Strategy::PlanExecute if progress::has_made(record, &call.id) => {
            same.find(|earlier| has_told(earlier) && !has_changed_since(record, readers, earlier, call))
        }
        // Whoever takes over from a plan shall not do again what that has done, and may read again what it has changed.
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

/// The key of the last call of the run that was the same, if it has failed or nobody knows what became of it: it may have taken effect, and
/// made again under its key it does nothing more. A call that has its answer is made anew.
pub fn key_to_keep(record: &RunRecord, name: &str, arguments_hash: &str, replay: &ReplayClass) -> Option<CallId> {
    let has_key = match replay {
        ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } => true,
        ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Reconcile { .. } | ReplayClass::Unsafe => false,
    };
    let was_made = |call: &&ToolCall| was_let_through(call) && call.state != ToolCallState::Denied;
    let mut calls = record.calls.iter().rev().map(Arc::as_ref).filter(was_made);
    let last = calls.find(|call| key(call) == (name, arguments_hash)).filter(|_| has_key)?;
    match last.state {
        ToolCallState::Failed | ToolCallState::Unknown => Some(last.key().clone()),
        ToolCallState::Planned
        | ToolCallState::AwaitingApproval
        | ToolCallState::Started
        | ToolCallState::Done
        | ToolCallState::Denied
        | ToolCallState::Cancelled => None,
    }
}

/// Whether two calls are of the same tool with the same arguments.
pub fn is_same(one: &ToolCall, other: &ToolCall) -> bool {
    key(one) == key(other)
}

/// Whether making a call again does nothing that the first one has not done.
fn repeats_nothing(call: &ToolCall) -> bool {
    match call.replay {
        ReplayClass::Read | ReplayClass::Idempotent => true,
        // The call would have another key.
        ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } | ReplayClass::Reconcile { .. } | ReplayClass::Unsafe => false,
    }
}

/// Whether the outcome of a call speaks against making it again: it has its answer, or it may have taken effect.
fn has_told(call: &ToolCall) -> bool {
    call.state == ToolCallState::Done || (call.state == ToolCallState::Unknown && !repeats_nothing(call))
}

/// Whether a call of another kind, made between these two, may have changed something.
fn has_changed_since(record: &RunRecord, readers: Readers<'_>, earlier: &ToolCall, call: &ToolCall) -> bool {
    let between = |other: &&ToolCall| earlier.step < other.step && other.step < call.step;
    let mut others =
        record.calls.iter().map(Arc::as_ref).filter(between).filter(|other| was_let_through(other) && !is_same(other, call));
    others.any(|other| readers.may_have_changed(earlier, other))
}

/// Whether a call got as far as its tool, or a human who said no.
pub fn was_let_through(call: &ToolCall) -> bool {
    match call.state {
        ToolCallState::Started | ToolCallState::Done | ToolCallState::Unknown | ToolCallState::Denied => true,
        // What is no JSON object was refused.
        ToolCallState::Failed => call.is_readable(),
        ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Cancelled => false,
    }
}
