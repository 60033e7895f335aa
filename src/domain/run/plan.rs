//! Plans: a planner writes the steps, a router calls one tool for each step, and the planner reports the results.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::defaults::is_default;
use crate::domain::ids::CallId;
use crate::domain::invalid::{InvalidProfile, MODEL_FORM, invalid, is_model};
use crate::domain::tool::ToolFilter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// One model in a loop with its tools.
    #[default]
    Loop,
    /// A plan, its steps, and a summary. If the plan fails, the loop continues.
    PlanExecute,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanPolicy {
    /// The model that plans and summarizes, as `provider/name`; the agent's model if absent.
    pub planner: Option<String>,
    /// The model that calls the tool of a step; the agent's model if absent.
    pub router: Option<String>,
    pub max_steps: u32,
    /// The maximum number of tools that a step is offered.
    pub k: usize,
    /// The fallback if tools cannot be ranked by vectors.
    #[serde(skip_serializing_if = "is_default")]
    pub without_vectors: RankingFallback,
    /// Examples for the planner, after its rules.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub examples: String,
}

/// How the tools of a step are selected without vectors: none are configured, or they did not arrive in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankingFallback {
    /// By matching words.
    #[default]
    Words,
    /// Not at all: the loop continues the run.
    Loop,
}

impl Default for PlanPolicy {
    fn default() -> Self {
        Self {
            planner: None,
            router: None,
            max_steps: Self::MAX_STEPS,
            k: 15,
            without_vectors: RankingFallback::default(),
            examples: String::new(),
        }
    }
}

impl PlanPolicy {
    /// Maximum number of steps. Each step is a model call.
    pub const MAX_STEPS: u32 = 10;
    pub const MAX_EXAMPLES: usize = 10_000;

    pub fn check(&self) -> Result<(), InvalidProfile> {
        for (field, model) in [("planner", &self.planner), ("router", &self.router)] {
            if !model.iter().all(|model| is_model(model)) {
                return Err(invalid(field, MODEL_FORM));
            }
        }
        if !(1..=Self::MAX_STEPS).contains(&self.max_steps) {
            return Err(invalid("max_steps", format!("must be 1 to {}", Self::MAX_STEPS)));
        }
        if !(1..=ToolFilter::MAX_K).contains(&self.k) {
            return Err(invalid("k", format!("must be 1 to {}", ToolFilter::MAX_K)));
        }
        if self.examples.chars().count() > Self::MAX_EXAMPLES {
            return Err(invalid("examples", format!("has at most {} characters", Self::MAX_EXAMPLES)));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanPhase {
    Planning,
    Executing,
    /// The planner reports the results of the steps.
    Telling,
    /// The plan is finished or was given up.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanStepState {
    /// Its call succeeded.
    Done,
    /// Its call failed, or no tool was called.
    Failed,
    /// The step was not begun, because the plan was given up.
    Skipped,
}

/// A step of a plan, and its result.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The server of the expected tool, if the planner named one.
    pub server: Option<String>,
    pub description: String,
    pub call: Option<CallId>,
    pub state: Option<PlanStepState>,
}

/// The plan of a run. Stored with the run's counters, so that the next claim continues it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub phase: PlanPhase,
    pub steps: Vec<PlanStep>,
    /// The index of the current step.
    pub at: usize,
    /// Number of answers to that step without a call.
    pub tries: u32,
    /// Whether the event of the step's beginning is stored.
    pub is_begun: bool,
    /// The tools that the step is offered, once they are selected.
    pub chosen: Option<Vec<String>>,
    /// The only step of a plan that seemed too short, while the planner is asked for a longer plan.
    pub short: Option<PlanStep>,
}

impl Plan {
    pub fn empty(phase: PlanPhase) -> Self {
        Self { phase, steps: Vec::new(), at: 0, tries: 0, is_begun: false, chosen: None, short: None }
    }
}

/// A step as in `plan.created`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedStep {
    pub step: u32,
    /// The server whose tool is meant, if the planner named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    pub description: String,
}
