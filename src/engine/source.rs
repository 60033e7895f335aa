//! What a request is made of: a run as it stands, or as it will stand when the decision under way is stored.

use std::sync::Arc;

use super::draft::Draft;
use super::{RunState, offer};
use crate::domain::context::Capacity;
use crate::domain::ids::RunId;
use crate::domain::message::{Message, Role};
use crate::domain::prompt::ProvidedContext;
use crate::domain::record::RunRecord;
use crate::domain::tool::ToolDefinition;

pub(super) struct Source<'a> {
    /// The run, but for its history and its tools.
    pub(super) record: &'a RunRecord,
    /// What its model reads at most.
    pub(super) capacity: Capacity,
    /// All that the run may ever be offered.
    pub(super) tools: &'a [Arc<ToolDefinition>],
    /// What context providers have said of its turn.
    pub(super) contexts: &'a [ProvidedContext],
    /// What is known beside the run's rows.
    pub(super) known: &'a RunState,
    stored: &'a [Message],
    added: &'a [Message],
    /// How much of what is stored was covered when it was loaded.
    loaded: usize,
}

/// The messages that a request is made of.
pub(super) struct Shown<'a> {
    /// What the user asks, of what is left out else.
    pub(super) asked: Vec<&'a Message>,
    /// All that no summary stands for, oldest first.
    pub(super) rest: Vec<&'a Message>,
    /// The run that was asked.
    pub(super) turn: Option<&'a RunId>,
}

impl<'a> Source<'a> {
    pub(super) fn of(state: &'a RunState) -> Self {
        let record = &state.record;
        let tools = record.tools.as_deref().unwrap_or_default();
        Self {
            record,
            capacity: state.capacity_of(record.model()),
            tools,
            contexts: record.contexts.as_deref().unwrap_or_default(),
            known: state,
            stored: &record.history,
            added: &[],
            loaded: record.covered,
        }
    }

    pub(super) fn in_draft(draft: &'a Draft<'_>) -> Self {
        let record = &draft.work.record;
        Self {
            record,
            capacity: draft.base.capacity_of(record.model()),
            tools: draft.tools(),
            contexts: draft.contexts(),
            known: draft.base,
            stored: &draft.base.record.history,
            added: &record.history,
            loaded: draft.base.record.covered,
        }
    }

    /// The window that the agent's budget says, as far as the model has it.
    pub(super) fn said_window(&self) -> Option<u64> {
        self.record.profile.context.said_window(self.capacity.window)
    }

    fn history(&self) -> impl DoubleEndedIterator<Item = &'a Message> + Clone + use<'a> {
        self.stored.iter().chain(self.added)
    }

    /// How many messages at the beginning of the history a summary stands for.
    fn covered(&self) -> usize {
        let Some(summary) = &self.record.summary else { return 0 };
        let after = self.history().rev().position(|message| message.id == summary.covers);
        after.map_or(self.loaded, |after| self.stored.len() + self.added.len() - after)
    }

    pub(super) fn shown(&self) -> Shown<'a> {
        let covered = self.covered();
        let is_user = |message: &&Message| message.role == Role::User && !message.internal;
        let turn = offer::turn(self.history());
        let asked = self.history().take(covered).filter(is_user).filter(|message| Some(&message.run_id) == turn).collect();
        Shown { asked, rest: self.history().skip(covered).collect(), turn }
    }

    /// What the user says in the turn, the newest first.
    pub(super) fn said_by_user(&self) -> String {
        offer::said_by_user(self.history())
    }

    /// The tools that the run may use in the next model call.
    pub(super) fn usable(&self) -> Vec<&'a Arc<ToolDefinition>> {
        offer::usable(self.tools, self.record)
    }

    /// Those that the model is told of. What a summary stands for has no say in it: whoever takes the run up does not load that, and
    /// shall make the same request.
    pub(super) fn offered(&self) -> Vec<&'a Arc<ToolDefinition>> {
        offer::offered(self.usable(), self.record, self.history().skip(self.covered()))
    }

    /// What is missing before the call.
    pub(super) fn missing(&self) -> offer::Missing {
        offer::missing(&self.usable(), self.record)
    }

    /// What is asked of a model that is to name categories.
    pub(super) fn selector(&self) -> ToolDefinition {
        offer::selector(&self.record.profile.tool_filter, &self.usable())
    }
}
