//! Strategies: how a run gets from a question to an answer.

pub(in crate::engine) mod hooks;
pub(in crate::engine) mod json_answers;
pub(in crate::engine) mod plan;
pub(in crate::engine) mod stop_analysis;

use crate::domain::agent::AgentProfile;
use crate::domain::plan::Strategy;

/// Returns the hooks of a profile's strategy.
pub(in crate::engine) fn of(profile: &AgentProfile) -> &'static dyn hooks::Hooks {
    match profile.strategy {
        Strategy::Loop => &hooks::Loop,
        Strategy::PlanExecute => &plan::hooks::PlanExecute,
    }
}
