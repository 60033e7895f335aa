//! Definitions of tools that have changed since somebody looked at them.

use super::{Error, Result, Service};
use crate::domain::ids::PinId;
use crate::domain::pin::{PinStatus, SeenDefinition, ToolPin};
use crate::domain::principal::{Principal, UserRole};
use crate::store::PinScope;
use crate::tools::visible::{shown, shown_value};

impl Service {
    /// Definitions that were seen, newest first, of all or of one status: those of the principal's servers and of everybody's.
    pub async fn tool_pins(&self, principal: &Principal, status: Option<PinStatus>) -> Result<Vec<ToolPin>> {
        let found = self.store.tool_pins(&principal.user_id, status).await?;
        Ok(found.into_iter().map(for_people).collect())
    }

    /// Accepts a definition: its tool is offered to the runs that begin from now on.
    ///
    /// # Errors
    /// `NotFound` for one that there is not any more, or that is not the principal's to accept.
    pub async fn accept_tool_pin(&self, principal: &Principal, id: &PinId) -> Result<ToolPin> {
        let scope = PinScope { owner: principal.user_id.clone(), everybody: principal.role == UserRole::Admin };
        let found = self.store.accept_tool_pin(&scope, id, &principal.user_id).await?;
        let pin = found.ok_or(Error::NotFound("tool pin"))?;
        tracing::info!(server = pin.server, tool = pin.tool, user = %principal.user_id, "a tool's definition was accepted");
        Ok(for_people(pin))
    }
}

fn for_people(mut pin: ToolPin) -> ToolPin {
    pin.definition = spelled_out(pin.definition);
    pin.before = pin.before.map(spelled_out);
    pin
}

fn spelled_out(definition: SeenDefinition) -> SeenDefinition {
    let SeenDefinition { definition_hash, description, parameters, hints } = definition;
    let (description, parameters, hints) = (shown(&description), shown_value(&parameters), shown_value(&hints));
    SeenDefinition { definition_hash, description, parameters, hints }
}
