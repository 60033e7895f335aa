//! A run as the loop sees it.

use crate::domain::change::Change;
use crate::domain::record::RunRecord;

/// The state of a run, rebuilt from its rows. Changed only by [`RunState::apply`].
#[derive(Debug, Clone, PartialEq)]
pub struct RunState {
    /// The record it was loaded from, kept up to date.
    pub record: RunRecord,
}

impl RunState {
    /// Takes over what was loaded.
    #[must_use]
    pub fn load(record: RunRecord) -> Self {
        Self { record }
    }

    /// Carries out in memory what the store carries out in rows. Call it after the commit.
    pub fn apply(&mut self, _changes: &[Change]) {}

    /// Takes in a user message that joined the run.
    pub fn join(&mut self, _message: crate::domain::message::Message) {}
}
