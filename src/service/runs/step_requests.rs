//! The requests of model steps, for the owner of the run.

use crate::domain::access::principal::Principal;
use crate::domain::ids::RunId;
use crate::domain::run::step_request::StepRequest;
use crate::service::{Error, Result, Service};
use crate::store::StepRequestOutcome;

/// The reason why a step has no record, as the end of a sentence.
const NOT_RECORDED: &str = "recorded request of this step; steps of copied runs and of earlier versions have none";

impl Service {
    pub async fn step_request(&self, principal: &Principal, run: &RunId, step: u32) -> Result<StepRequest> {
        match self.store.step_request(&principal.user_id, run, step).await? {
            StepRequestOutcome::Request(request) => Ok(*request),
            StepRequestOutcome::NoRun => Err(Error::NotFound("run")),
            StepRequestOutcome::NoStep => Err(Error::NotFound("model step in this run")),
            StepRequestOutcome::NotRecorded => Err(Error::NotFound(NOT_RECORDED)),
        }
    }
}
