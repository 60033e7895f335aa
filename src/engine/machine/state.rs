//! A run as the loop sees it: its rows, and what its worker knows beside them.

use std::sync::Arc;

use crate::domain::approval::ToolGrant;
use crate::domain::budget::{Reserve, Reserved};
use crate::domain::change::Change;
use crate::domain::context::Capacity;
use crate::domain::ids::CallId;
use crate::domain::message::Message;
use crate::domain::prompt::ServerNote;
use crate::domain::record::RunRecord;
use crate::domain::tool::ToolDefinition;
use crate::engine::machine::facts::RunFacts;
use crate::engine::machine::progress;
use crate::engine::offer::usable;

/// The state of a run, rebuilt from its rows. Changed only by [`RunState::apply`], and by what a driver learns
/// from outside of the rows, such as messages that joined and the server's shutdown.
#[derive(Debug, Clone, PartialEq)]
pub struct RunState {
    /// The record it was loaded from, kept up to date.
    pub record: RunRecord,
    /// What is known beside the record.
    pub(in crate::engine) facts: RunFacts,
    /// The lease was given up: the run belongs to whoever claims it next.
    released: bool,
}

impl RunState {
    /// Takes over what was loaded.
    #[must_use]
    pub fn load(record: RunRecord) -> Self {
        Self { record, facts: RunFacts::default(), released: false }
    }

    /// Carries out in memory what the store carries out in rows. If the store then fails, the state is void: load it again.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            progress::apply(&mut self.record, change);
            if matches!(change, Change::Settle { .. }) {
                self.facts.reserved = None;
            }
            self.released |= matches!(change, Change::Release { .. });
        }
    }

    /// Takes in a user message that joined the run. One that is known already changes nothing.
    pub fn join(&mut self, message: Message) {
        if self.record.history.iter().any(|known| known.id == message.id) {
            return;
        }
        self.record.history.push(message);
        self.record.joined += 1;
    }

    /// Takes in the answers to approvals that hold for the calls of this run.
    pub fn know_grants(&mut self, grants: Vec<ToolGrant>) {
        self.facts.grants = grants;
    }

    /// Takes in the names of tools that are not offered to the run, because their definitions have changed.
    pub fn know_held(&mut self, held: Vec<String>) {
        self.facts.held = held;
    }

    /// Takes in what models read at most, as `provider/name`.
    pub fn know_capacities(&mut self, capacities: Vec<(String, Capacity)>) {
        self.facts.capacities = capacities;
    }

    /// Whether a model of the run sees pictures, where that is known.
    #[must_use]
    pub fn sees(&self, model: &str) -> Option<bool> {
        self.facts.capacity_of(model).vision
    }

    /// The tokens that requests to the run's model have room in, where somebody has said it.
    #[must_use]
    pub fn said_window(&self) -> Option<u64> {
        self.record.profile.context.said_window(self.facts.capacity_of(self.record.model()).window)
    }

    /// Takes in what the model may be told of the servers of its tools.
    pub fn know_servers(&mut self, servers: Vec<ServerNote>) {
        self.facts.servers = servers;
    }

    /// Takes in what came of asking for leave to make the next model call.
    pub fn know_reserved(&mut self, reserve: Reserve, answer: Reserved) {
        self.facts.reserved = Some((reserve, answer));
    }

    /// Takes in which calls are under way still, so that their outcomes will come, and none is judged as one that nobody hears of.
    pub fn know_under_way(&mut self, calls: Vec<CallId>) {
        self.facts.under_way = calls;
    }

    /// From now on no step and no call begins: a decision that would begin one hands the run back instead. What is under way
    /// may end, and its result is kept.
    pub fn drain(&mut self) {
        self.facts.draining = true;
    }

    /// Whether nothing is left to decide: the run has ended or was given up.
    pub(in crate::engine) fn is_over(&self) -> bool {
        self.released || self.record.status.is_terminal()
    }

    /// The tools that the run may use in the next model call, or in the one under way.
    #[must_use]
    pub fn usable_tools(&self) -> Vec<&Arc<ToolDefinition>> {
        usable::usable(self.record.tools.as_deref().unwrap_or_default(), &self.record)
    }
}
