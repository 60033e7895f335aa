//! Plans: a large model says the steps, a small one calls one tool for each, and the large one tells what came of it.

use serde::{Deserialize, Serialize};

use super::ids::CallId;
use super::tool_filter::ToolFilter;

/// How a run goes about its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// One model in a loop with its tools.
    #[default]
    Loop,
    /// A plan, its steps, and a summary; the loop where that leads nowhere.
    PlanExecute,
}

impl Strategy {
    /// Whether it is what it is by itself.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How plans are made and carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanPolicy {
    /// Who plans and sums up, as `provider/name`; the agent's model if absent.
    pub planner: Option<String>,
    /// Who calls the tool of a step; the agent's model if absent.
    pub router: Option<String>,
    /// The most steps of a plan.
    pub max_steps: u32,
    /// How many tools a step is offered of more than that.
    pub k: usize,
    /// What happens where these cannot be told by what they mean.
    #[serde(skip_serializing_if = "WithoutVectors::is_default")]
    pub without_vectors: WithoutVectors,
    /// Worked examples for the planner, behind its rules; at most 10,000 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub examples: String,
}

/// How the tools of a step are found without vectors: none are configured, or none came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutVectors {
    /// By words.
    #[default]
    Words,
    /// Not at all: the loop takes over.
    Loop,
}

impl WithoutVectors {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for PlanPolicy {
    fn default() -> Self {
        Self {
            planner: None,
            router: None,
            max_steps: Self::MAX_STEPS,
            k: 15,
            without_vectors: WithoutVectors::default(),
            examples: String::new(),
        }
    }
}

impl PlanPolicy {
    /// The most steps that a plan may have. Each is a model call.
    pub const MAX_STEPS: u32 = 10;
    /// The longest examples, in characters.
    pub const MAX_EXAMPLES: usize = 10_000;

    /// Whether it is as it is by itself.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Looks for values that cannot be used.
    ///
    /// # Errors
    /// The field and the reason.
    pub fn check(&self) -> Result<(), (String, String)> {
        let models = [("planner", &self.planner), ("router", &self.router)];
        if let Some((field, _)) =
            models.into_iter().find(|(_, model)| model.as_deref().is_some_and(|model| !super::agent::is_model(model)))
        {
            return Err((field.to_owned(), "models are written provider/name, such as openai/gpt-5-mini".to_owned()));
        }
        if !(1..=Self::MAX_STEPS).contains(&self.max_steps) {
            return Err(("max_steps".to_owned(), format!("must be 1 to {}", Self::MAX_STEPS)));
        }
        if !(1..=ToolFilter::MAX_K).contains(&self.k) {
            return Err(("k".to_owned(), format!("must be 1 to {}", ToolFilter::MAX_K)));
        }
        if self.examples.chars().count() > Self::MAX_EXAMPLES {
            return Err(("examples".to_owned(), format!("has at most {} characters", Self::MAX_EXAMPLES)));
        }
        Ok(())
    }
}

/// Where a plan stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanPhase {
    /// The planner is asked.
    Planning,
    /// A step is carried out.
    Executing,
    /// The planner tells what came of the steps.
    Telling,
    /// The plan is over or given up.
    Over,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanStepState {
    /// Its call has succeeded.
    Done,
    /// Its call has failed, or no tool was called.
    Failed,
    /// It was not begun, because the plan was given up.
    Skipped,
}

/// A step of a plan, with what has come of it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The server whose tool is meant, if one was named.
    pub server: Option<String>,
    /// What is to be done, whole in itself.
    pub description: String,
    /// The call that was made for it.
    pub call: Option<CallId>,
    /// How it ended, if it has.
    pub state: Option<PlanStepState>,
}

/// The plan of a run. Stored with its counters, so that whoever takes the run up goes on with it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Where it stands.
    pub phase: PlanPhase,
    /// Its steps.
    pub steps: Vec<PlanStep>,
    /// The step that is carried out, from 0.
    pub at: usize,
    /// Answers for that step that held no call.
    pub tries: u32,
    /// Whether its beginning was told.
    pub is_begun: bool,
    /// The tools that it is offered, once they are chosen.
    pub chosen: Option<Vec<String>>,
    /// The one step of a plan that seemed too short, while the planner is asked for a longer one.
    pub short: Option<PlanStep>,
}

impl Plan {
    /// One that is yet to be made, or that never will be.
    #[must_use]
    pub fn empty(phase: PlanPhase) -> Self {
        Self { phase, steps: Vec::new(), at: 0, tries: 0, is_begun: false, chosen: None, short: None }
    }
}

/// A step as `plan.created` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// Counts from 1.
    pub step: u32,
    /// The server whose tool is meant, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// What is to be done.
    pub description: String,
}
