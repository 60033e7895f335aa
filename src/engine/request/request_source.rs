//! The source of a request: a run as it is, or as it will be after the decision.

use std::sync::Arc;

use crate::domain::agent::ProvidedContext;
use crate::domain::conversation::Message;
use crate::domain::ids::RunId;
use crate::domain::run::{Capacity, RunRecord};
use crate::domain::tool::{OfferedTools, ToolDefinition, ToolFilterMode};
use crate::engine::machine::{RunFacts, RunState};
use crate::engine::offer::usable::{self, Prerequisite};
use crate::engine::offer::{categories, query};
use crate::engine::strategy::plan::progress;

/// The maximum number of tool names that an event lists.
const MAX_LEFT_OUT: usize = 200;

pub struct RequestSource<'a> {
    /// The run's rows. Use the fields below for messages and tools. A pending decision's record has only what the decision adds.
    pub record: &'a RunRecord,
    pub(in crate::engine) facts: &'a RunFacts,
    /// All tools that the run may ever offer.
    pub tools: &'a [Arc<ToolDefinition>],
    pub contexts: &'a [ProvidedContext],
    pub stored_messages: &'a [Message],
    pub new_messages: &'a [Message],
    /// The number of stored messages that the summary covered when the run was loaded.
    pub summarized_when_loaded: usize,
}

/// The messages from which a request is built.
pub struct RequestMessages<'a> {
    /// Unanswered user messages that the summary covers.
    pub covered_user_messages: Vec<&'a Message>,
    /// All messages that no summary covers, oldest first.
    pub uncovered: Vec<&'a Message>,
    /// The run whose user message is answered.
    pub answered_run: Option<&'a RunId>,
}

impl<'a> RequestSource<'a> {
    pub fn of(state: &'a RunState) -> Self {
        Self::of_rows(&state.record, &state.facts)
    }

    pub fn of_rows(record: &'a RunRecord, facts: &'a RunFacts) -> Self {
        Self {
            record,
            facts,
            tools: record.tools.as_deref().unwrap_or_default(),
            contexts: record.contexts.as_deref().unwrap_or_default(),
            stored_messages: &record.history,
            new_messages: &[],
            summarized_when_loaded: record.covered,
        }
    }

    pub fn capacity(&self) -> Capacity {
        self.facts.capacity_of(self.record.model())
    }

    /// Returns the context window that the agent configures, limited by the model's.
    pub fn agent_window(&self) -> Option<u64> {
        self.record.profile.context.token_limit(self.capacity().window)
    }

    pub fn history(&self) -> impl DoubleEndedIterator<Item = &'a Message> + Clone + use<'a> {
        self.stored_messages.iter().chain(self.new_messages)
    }

    /// Returns the number of leading messages that the summary covers.
    fn covered(&self) -> usize {
        let Some(summary) = &self.record.summary else { return 0 };
        let after = self.history().rev().position(|message| message.id == summary.covers);
        after.map_or(self.summarized_when_loaded, |after| self.stored_messages.len() + self.new_messages.len() - after)
    }

    pub fn request_messages(&self) -> RequestMessages<'a> {
        let covered = self.covered();
        let answered_run = query::newest_user_run(self.history());
        let is_unanswered = |message: &&Message| message.is_from_user() && Some(&message.run_id) == answered_run;
        let covered_user_messages = self.history().take(covered).filter(is_unanswered).collect();
        RequestMessages { covered_user_messages, uncovered: self.history().skip(covered).collect(), answered_run }
    }

    /// Returns the text of the user messages that the run answers, newest first.
    pub fn text_of_user_messages(&self) -> String {
        query::text_of_user_messages(self.history())
    }

    pub fn usable(&self) -> Vec<&'a Arc<ToolDefinition>> {
        usable::usable_tools(self.tools, self.record)
    }

    /// Returns the tools on offer. Ignores covered messages. A later claim does not load them, but its request must be the same.
    pub fn offered(&self) -> Vec<&'a Arc<ToolDefinition>> {
        usable::offered_tools(self.usable(), self.record, self.history().skip(self.covered()), self.capacity().max_tools)
    }

    /// Returns the tools on offer in the model step. In a plan, the phase decides.
    pub fn offered_in_step(&self) -> Vec<&'a Arc<ToolDefinition>> {
        match progress::phase(self.record) {
            Some(phase) => progress::offered(self.usable(), self.record, phase),
            None => self.offered(),
        }
    }

    /// Returns what the next model call needs first: a ranking of the tools, or the model's choice of categories.
    pub fn missing_prerequisite(&self) -> Prerequisite {
        usable::missing_prerequisite(&self.usable(), self.record, self.capacity().max_tools)
    }

    /// Returns the number of tools on offer in a model step, if a filter or the model's limit reduces them.
    pub fn reduced_offer(&self) -> Option<OfferedTools> {
        let usable = self.usable();
        let exceeds_limit = usable::exceed_limit(&usable, self.capacity().max_tools);
        if self.record.profile.tool_filter.mode == ToolFilterMode::Off && !exceeds_limit {
            return None;
        }
        let of = usable.len();
        if self.missing_prerequisite() == Prerequisite::Categories {
            return Some(OfferedTools { offered: 0, of, by: "choosing".to_owned(), left_out: Vec::new() });
        }
        let chosen = self.record.counters.chosen_tools.as_ref().filter(|_| exceeds_limit || usable::filters_tools(self.record))?;
        let offered = self.offered();
        let is_left_out = |tool: &&&Arc<ToolDefinition>| exceeds_limit && offered.iter().all(|offered| offered.name != tool.name);
        let left_out = usable.iter().filter(is_left_out).take(MAX_LEFT_OUT).map(|tool| tool.name.clone()).collect();
        Some(OfferedTools { offered: offered.len(), of, by: chosen.by.as_str().to_owned(), left_out })
    }

    /// Returns the tool with which a model names categories.
    pub fn category_selector(&self) -> ToolDefinition {
        categories::selector(&self.record.profile.tool_filter, &self.usable())
    }
}
