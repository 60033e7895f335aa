//! Tool pins: definitions of tools that have changed since they were reviewed.

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::PinId;
use crate::domain::tool::pin::{PinStatus, ToolPin};
use crate::service::{Error, Result, Service};
use crate::store::PinScope;
use crate::tools::visible::{shown, shown_value};

impl Service {
    /// Returns definitions of the principal's servers and of the server's, newest first, of all or of one status.
    pub async fn tool_pins(&self, principal: &Principal, status: Option<PinStatus>) -> Result<Vec<ToolPin>> {
        let found = self.store.tool_pins(&principal.user_id, status).await?;
        Ok(found.into_iter().map(for_people).collect())
    }

    /// Accepts a definition: its tool is offered to the runs that begin from now on.
    pub async fn accept_tool_pin(&self, principal: &Principal, id: &PinId) -> Result<ToolPin> {
        let scope = PinScope { owner: principal.user_id.clone(), everybody: principal.role == UserRole::Admin };
        let found = self.store.accept_tool_pin(&scope, id, &principal.user_id).await?;
        let pin = found.ok_or(Error::NotFound("tool pin"))?;
        tracing::info!(server = pin.server, tool = pin.tool, user = %principal.user_id, "a tool's definition was accepted");
        Ok(for_people(pin))
    }
}

fn for_people(mut pin: ToolPin) -> ToolPin {
    for seen in std::iter::once(&mut pin.definition).chain(&mut pin.before) {
        seen.description = shown(&seen.description);
        seen.parameters = shown_value(&seen.parameters);
        seen.hints = shown_value(&seen.hints);
    }
    pin
}
