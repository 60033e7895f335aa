//! The plan of a run, as clients of other protocols show it.

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::event::EventBody;

/// The steps of the plan with their states. Serializes as a list.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(in crate::http) struct PlanView {
    steps: Vec<Value>,
}

impl PlanView {
    /// Applies an event of the run. Returns whether it has changed the plan.
    pub fn observe(&mut self, body: &EventBody) -> bool {
        match body {
            EventBody::PlanCreated { steps } => {
                self.steps = steps.iter().map(|step| json!(step)).collect();
                self.steps.iter_mut().for_each(|step| step["state"] = json!("pending"));
                true
            }
            EventBody::PlanRejected { .. } => {
                self.steps.clear();
                true
            }
            EventBody::PlanStepStarted { step } => self.set_state(*step, json!("active")),
            EventBody::PlanStepCompleted { step, state, .. } => self.set_state(*step, json!(state)),
            _ => false,
        }
    }

    fn set_state(&mut self, step: u32, state: Value) -> bool {
        let place = (step as usize).checked_sub(1).and_then(|place| self.steps.get_mut(place));
        let Some(place) = place else { return false };
        place["state"] = state;
        true
    }
}
