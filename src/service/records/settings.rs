//! The settings of the process, for administrators.

use crate::domain::access::principal::Principal;
use crate::domain::setting::Setting;
use crate::service::access::users::require_administrator;
use crate::service::{Result, Service};

impl Service {
    pub fn settings(&self, principal: &Principal) -> Result<&[Setting]> {
        require_administrator(principal, "only an administrator can see the settings")?;
        Ok(&self.settings)
    }
}
