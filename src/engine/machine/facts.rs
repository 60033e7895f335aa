//! What a worker knows of a run beside its rows. A decision changes none of it.

use crate::domain::approval::ToolGrant;
use crate::domain::budget::{Reserve, Reserved};
use crate::domain::context::Capacity;
use crate::domain::ids::CallId;
use crate::domain::prompt::ServerNote;

/// What is known of a run beside its rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::engine) struct RunFacts {
    /// Nothing new shall begin.
    pub(in crate::engine) draining: bool,
    /// Answers to approvals that hold for later calls.
    pub(in crate::engine) grants: Vec<ToolGrant>,
    /// Tools that are held back from the run.
    pub(in crate::engine) held: Vec<String>,
    /// What the models of the run read at most.
    pub(in crate::engine) capacities: Vec<(String, Capacity)>,
    /// The servers that its tools come from, and those that it has to do without.
    pub(in crate::engine) servers: Vec<ServerNote>,
    /// What was asked for the next model call, and the answer.
    pub(in crate::engine) reserved: Option<(Reserve, Reserved)>,
    /// Calls that are being carried out by this worker, although the run was loaded meanwhile.
    pub(in crate::engine) under_way: Vec<CallId>,
}

impl RunFacts {
    /// Returns what a model reads at most.
    pub(in crate::engine) fn capacity_of(&self, model: &str) -> Capacity {
        self.capacities.iter().find(|(known, _)| known == model).map(|(_, capacity)| *capacity).unwrap_or_default()
    }
}
