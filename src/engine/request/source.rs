//! The source of a request: a run as it is, or as it will be when the decision under way is stored.

use std::sync::Arc;

use crate::domain::agent::prompt::ProvidedContext;
use crate::domain::conversation::message::{Message, Role};
use crate::domain::ids::RunId;
use crate::domain::run::context::Capacity;
use crate::domain::run::record::RunRecord;
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::tool_filter::{ToolFilterMode, ToolsOffered};
use crate::engine::machine::{RunFacts, RunState};
use crate::engine::offer::usable::{self, Missing};
use crate::engine::offer::{categories, query};
use crate::engine::strategy::plan::progress;

pub struct Source<'a> {
    /// Without the history and the tools.
    pub record: &'a RunRecord,
    pub(in crate::engine) facts: &'a RunFacts,
    /// All tools that the run may ever be offered.
    pub tools: &'a [Arc<ToolDefinition>],
    pub contexts: &'a [ProvidedContext],
    pub stored: &'a [Message],
    pub added: &'a [Message],
    /// The number of stored messages that the summary covered at the load.
    pub loaded: usize,
}

pub struct Shown<'a> {
    /// The user's open questions among the covered messages.
    pub asked: Vec<&'a Message>,
    /// All messages that no summary covers, oldest first.
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

    pub fn capacity(&self) -> Capacity {
        self.facts.capacity_of(self.record.model())
    }

    /// Returns the window that the agent sets, as far as the model has it.
    pub fn said_window(&self) -> Option<u64> {
        self.record.profile.context.said_window(self.capacity().window)
    }

    fn history(&self) -> impl DoubleEndedIterator<Item = &'a Message> + Clone + use<'a> {
        self.stored.iter().chain(self.added)
    }

    /// Returns how many messages at the beginning of the history the summary covers.
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

    /// Returns the user's words in the turn, newest first.
    pub fn said_by_user(&self) -> String {
        query::said_by_user(self.history())
    }

    pub fn usable(&self) -> Vec<&'a Arc<ToolDefinition>> {
        usable::usable(self.tools, self.record)
    }

    /// Returns the tools that the model is told of. Covered messages have no influence: the next claim does not load them, and must
    /// make the same request.
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

    /// Returns the tool with which a model names categories.
    pub fn selector(&self) -> ToolDefinition {
        categories::selector(&self.record.profile.tool_filter, &self.usable())
    }
}
