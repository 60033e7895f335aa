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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::run::{PlanStepState, PlannedStep};

    #[test]
    fn plan_follows_its_events() {
        let steps = vec![PlannedStep { step: 1, server: None, description: "look".to_owned() }];
        let mut plan = PlanView::default();
        for (event, state) in [
            (EventBody::PlanCreated { steps }, Some("pending")),
            (EventBody::PlanStepStarted { step: 1 }, Some("active")),
            (EventBody::PlanStepCompleted { step: 1, state: PlanStepState::Failed, call_id: None }, Some("failed")),
            (EventBody::PlanRejected { reason: "no plan".to_owned() }, None),
        ] {
            assert!(plan.observe(&event), "{event:?}");
            let shown: Vec<Value> =
                state.into_iter().map(|state| json!({"step": 1, "description": "look", "state": state})).collect();
            assert_eq!(json!(plan), json!(shown), "{event:?}");
        }
        for event in [EventBody::PlanStepStarted { step: 1 }, EventBody::PlanStepStarted { step: 0 }] {
            assert!(!plan.observe(&event), "a step that the plan does not have: {event:?}");
        }
    }
}
