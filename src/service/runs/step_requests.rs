//! The requests of model steps, for the owner of the run.

use crate::domain::access::principal::Principal;
use crate::domain::ids::RunId;
use crate::domain::run::step_request::StepRequest;
use crate::service::{Error, Result, Service};

impl Service {
    pub async fn step_request(&self, principal: &Principal, run: &RunId, step: u32) -> Result<StepRequest> {
        let found = self.store.step_request(&principal.user_id, run, step).await?;
        found.map_err(|missing| Error::NotFound(missing.as_str()))
    }
}
