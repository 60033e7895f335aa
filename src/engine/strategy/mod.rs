//! Strategies: the order of model calls and tool calls between a user's message and the answer. Must not know how a call is made.
//!
//! [`json_answers`] uses structured output instead of tool calls. [`stop_analysis`] checks final answers.

pub mod hooks;
pub mod json_answers;
pub mod plan;
pub mod stop_analysis;

use crate::domain::agent::AgentProfile;
use crate::domain::run::Strategy;

/// Returns the hooks of a profile's strategy.
pub fn hooks_of(profile: &AgentProfile) -> &'static dyn hooks::Hooks {
    match profile.strategy {
        Strategy::Loop => &hooks::Loop,
        Strategy::PlanExecute => &plan::execute_plan::PlanExecute,
    }
}
