//! The client tools of a request: their number, size and names.

use std::sync::Arc;

use serde_json::Value;

use crate::domain::access::principal::Principal;
use crate::domain::agent::AgentProfile;
use crate::domain::tool::client_tool::ClientTool;
use crate::domain::tool::tool_name_check::check_tool_name;
use crate::domain::tool::{MAX_NESTING, ToolDefinition};
use crate::service::{Error, Result, Service};
use crate::support::json::is_deeper_than;
use crate::support::text;

/// Names of tools that the engine itself offers to models.
const RESERVED: [&str; 1] = ["select_categories"];

impl Service {
    /// Returns the client tools that the run freezes.
    pub(in crate::service) async fn client_tools(
        &self,
        principal: &Principal,
        profile: &AgentProfile,
        requested: &[ClientTool],
    ) -> Result<Vec<ClientTool>> {
        let most = self.limits.max_client_tools;
        if requested.len() > most {
            let reason = format!("has {} tools; at most {most} are accepted (limits.max_client_tools)", requested.len());
            return Err(Error::field("/tools", reason));
        }
        let mut checked: Vec<ClientTool> = Vec::with_capacity(requested.len());
        for (at, tool) in requested.iter().enumerate() {
            let pointer = format!("/tools/{at}");
            check_tool_name(&tool.name).map_err(|reason| Error::field(&format!("{pointer}/name"), reason))?;
            if checked.iter().any(|known| known.name == tool.name) {
                return Err(Error::field(
                    &format!("{pointer}/name"),
                    "is the name of an earlier tool; give each tool its own name",
                ));
            }
            checked.push(self.checked_client_tool(tool, &pointer)?);
        }
        if checked.is_empty() {
            return Ok(checked);
        }
        let servers = self.tools.definitions(&principal.user_id).await;
        let is_taken = |name: &str| {
            let is_it = |tool: &&Arc<ToolDefinition>| tool.name == name && profile.may_use(tool);
            RESERVED.contains(&name) || servers.iter().any(|tool| is_it(&tool))
        };
        if let Some(at) = checked.iter().position(|tool| is_taken(&tool.name)) {
            let reason =
                format!("{:?} is a tool of this server; rename the client tool, or choose an agent without it", checked[at].name);
            return Err(Error::field(&format!("/tools/{at}/name"), reason));
        }
        Ok(checked)
    }

    fn checked_client_tool(&self, tool: &ClientTool, pointer: &str) -> Result<ClientTool> {
        let schema = format!("{pointer}/parameters");
        let is_object = |schema: &Value| schema.is_object() && schema.get("type").is_none_or(|kind| kind == "object");
        if let Some(parameters) = &tool.parameters {
            if !is_object(parameters) {
                return Err(Error::field(&schema, "must be a JSON Schema of an object, such as {\"type\": \"object\"}"));
            }
            if is_deeper_than(parameters, MAX_NESTING) {
                return Err(Error::field(&schema, format!("must not be nested more than {MAX_NESTING} levels deep")));
            }
        }
        let bytes = tool.description.len() + tool.parameters.as_ref().map_or(0, |parameters| parameters.to_string().len());
        let most = self.limits.client_tool_bytes;
        if bytes > most {
            let reason =
                format!("has {bytes} bytes of description and schema; at most {most} are accepted (limits.client_tool_bytes)");
            return Err(Error::field(pointer, reason));
        }
        Ok(ClientTool { description: text::storable(&tool.description).into_owned(), ..tool.clone() })
    }
}
