//! What a request is made of: a run as it stands, or as it will stand when the decision under way is stored.

use std::sync::Arc;

use crate::domain::context::Capacity;
use crate::domain::ids::RunId;
use crate::domain::message::{Message, Role};
use crate::domain::prompt::ProvidedContext;
use crate::domain::record::RunRecord;
use crate::domain::tool::ToolDefinition;
use crate::domain::tool_filter::{ToolFilterMode, ToolsOffered};
use crate::engine::machine::{RunFacts, RunState};
use crate::engine::offer::usable::{self, Missing};
use crate::engine::offer::{categories, query};
use crate::engine::strategy::plan::progress;

pub struct Source<'a> {
    /// The run, but for its history and its tools.
    pub record: &'a RunRecord,
    /// What is known beside the run's rows.
    pub(in crate::engine) facts: &'a RunFacts,
    /// All that the run may ever be offered.
    pub tools: &'a [Arc<ToolDefinition>],
    /// What context providers have said of its turn.
    pub contexts: &'a [ProvidedContext],
    pub stored: &'a [Message],
    pub added: &'a [Message],
    /// How much of what is stored was covered when it was loaded.
    pub loaded: usize,
}

/// The messages that a request is made of.
pub struct Shown<'a> {
    /// What the user asks, of what is left out else.
    pub asked: Vec<&'a Message>,
    /// All that no summary stands for, oldest first.
    pub rest: Vec<&'a Message>,
    /// The run that was asked.
    pub turn: Option<&'a RunId>,
}

impl<'a> Source<'a> {
    pub fn of(state: &'a RunState) -> Self {
        Self::of_rows(&state.record, &state.facts)
    }

    pub fn of_rows(record: &'a RunRecord, facts: &'a RunFacts) -> Self {
        Self {
            record,
            facts,
            tools: record.tools.as_deref().unwrap_or_default(),
            contexts: record.contexts.as_deref().unwrap_or_default(),
            stored: &record.history,
            added: &[],
            loaded: record.covered,
        }
    }

    /// Returns what the run's model reads at most.
    pub fn capacity(&self) -> Capacity {
        self.facts.capacity_of(self.record.model())
    }

    /// The window that the agent's budget says, as far as the model has it.
    pub fn said_window(&self) -> Option<u64> {
        self.record.profile.context.said_window(self.capacity().window)
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

    pub fn shown(&self) -> Shown<'a> {
        let covered = self.covered();
        let is_user = |message: &&Message| message.role == Role::User && !message.internal;
        let turn = query::turn(self.history());
        let asked = self.history().take(covered).filter(is_user).filter(|message| Some(&message.run_id) == turn).collect();
        Shown { asked, rest: self.history().skip(covered).collect(), turn }
    }

    /// What the user says in the turn, the newest first.
    pub fn said_by_user(&self) -> String {
        query::said_by_user(self.history())
    }

    /// The tools that the run may use in the next model call.
    pub fn usable(&self) -> Vec<&'a Arc<ToolDefinition>> {
        usable::usable(self.tools, self.record)
    }

    /// Those that the model is told of. What a summary stands for has no say in it: whoever takes the run up does not load that, and
    /// shall make the same request.
    pub fn offered(&self) -> Vec<&'a Arc<ToolDefinition>> {
        usable::offered(self.usable(), self.record, self.history().skip(self.covered()))
    }

    /// Returns the tools that the model step is told of, whichever model of a plan makes it.
    pub fn offered_in_step(&self) -> Vec<&'a Arc<ToolDefinition>> {
        match progress::phase(self.record) {
            Some(phase) => progress::offered(self.usable(), self.record, phase),
            None => self.offered(),
        }
    }

    /// What is missing before the call.
    pub fn missing(&self) -> Missing {
        usable::missing(&self.usable(), self.record)
    }

    /// Returns how many tools a model step is offered, where they are narrowed down.
    pub fn announced(&self) -> Option<ToolsOffered> {
        if self.record.profile.tool_filter.mode == ToolFilterMode::Off {
            return None;
        }
        let of = self.usable().len();
        if self.missing() == Missing::Categories {
            return Some(ToolsOffered { offered: 0, of, by: "choosing".to_owned() });
        }
        let by = usable::chosen(self.record)?.by.as_str().to_owned();
        Some(ToolsOffered { offered: self.offered().len(), of, by })
    }

    /// What is asked of a model that is to name categories.
    pub fn selector(&self) -> ToolDefinition {
        categories::selector(&self.record.profile.tool_filter, &self.usable())
    }
}
