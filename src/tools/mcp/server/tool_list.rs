//! The tools that a server lists, without unusable ones.

use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, CustomResult, JsonObject, ListToolsRequest, ListToolsResult, PaginatedRequestParams, ServerResult, Tool,
};
use rmcp::service::{Peer, ServiceError};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::tools::invisible_chars::spell_out_invisible;
use crate::tools::mcp::server::tool_definitions;

/// The most tools, resources or prompts that one server may offer.
pub const MAX_LISTED: usize = 1_000;
/// The number of unusable tools that the log names.
const NAMED: usize = 3;
/// The largest schema of a tool, in bytes of JSON.
const MAX_SCHEMA: usize = 64 * 1024;

/// The shortest lifetime of a list, even if the server sends a shorter one.
const FRESHEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub struct ToolListState {
    stale_at: Option<Instant>,
    /// Whether tools are omitted: beyond the limit, too large, or malformed.
    pub left_out: bool,
}

impl ToolListState {
    /// Returns the state of a new list. Servers of the stateless revision send a lifetime, because they do not announce changes.
    pub fn now(holds_for: Option<Duration>, left_out: bool) -> Self {
        let stale_at = holds_for.and_then(|holds| Instant::now().checked_add(holds.max(FRESHEST)));
        Self { stale_at, left_out }
    }

    pub fn is_stale(&self) -> bool {
        self.stale_at.is_some_and(|at| at <= Instant::now())
    }
}

pub struct Page {
    /// The usable tools.
    pub tools: Vec<Tool>,
    pub next: Option<String>,
    pub holds_for: Option<Duration>,
    /// Whether there are unusable tools.
    pub left_out: bool,
}

/// Requests one page. Keeps the valid tools of a list with malformed ones.
pub async fn page(server: &str, peer: &Peer<RoleClient>, params: PaginatedRequestParams) -> Result<Page, ServiceError> {
    let (listed, is_salvaged) = match peer.list_tools(Some(params.clone())).await {
        // The library rejects the complete list for one malformed tool.
        Err(ServiceError::UnexpectedResponse) => {
            let again = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
            match peer.send_request(again).await? {
                ServerResult::ListToolsResult(listed) => (listed, false),
                ServerResult::CustomResult(CustomResult(listed)) => {
                    (valid_tools(server, listed).ok_or(ServiceError::UnexpectedResponse)?, true)
                }
                _ => return Err(ServiceError::UnexpectedResponse),
            }
        }
        listed => (listed?, false),
    };
    let (holds_for, count) = (listed.ttl_ms.map(Duration::from_millis), listed.tools.len());
    let tools = without_hidden(server, within_size_limit(server, listed.tools));
    let left_out = is_salvaged || tools.len() < count;
    Ok(Page { tools, next: listed.next_cursor, holds_for, left_out })
}

/// Returns the valid tools of a list; `None` if it is no list.
fn valid_tools(server: &str, mut listed: Value) -> Option<ListToolsResult> {
    let items = std::mem::take(listed.get_mut("tools")?.as_array_mut()?);
    let (mut tools, mut left_out, mut named) = (Vec::new(), 0_usize, Vec::new());
    for item in items.into_iter().take(MAX_LISTED) {
        let name = item.get("name").and_then(Value::as_str).unwrap_or("(without a name)").chars().take(64).collect::<String>();
        match serde_json::from_value::<Tool>(item) {
            Ok(tool) => tools.push(tool),
            Err(error) => {
                left_out += 1;
                if named.len() < NAMED {
                    named.push(format!("{name}: {error}"));
                }
            }
        }
    }
    let named = named.join("; ");
    tracing::warn!(mcp.server = server, left_out, named, "MCP server offers malformed tools, which are omitted");
    let mut list: ListToolsResult = serde_json::from_value(listed).ok()?;
    list.tools = tools;
    Some(list)
}

fn within_size_limit(server: &str, mut tools: Vec<Tool>) -> Vec<Tool> {
    let is_bearable = |schema: &JsonObject| size_of(schema) <= MAX_SCHEMA;
    let count = tools.len();
    tools.retain(|tool| is_bearable(&tool.input_schema) && tool.output_schema.as_deref().is_none_or(is_bearable));
    let left_out = count - tools.len();
    if left_out > 0 {
        let limit = MAX_SCHEMA;
        tracing::warn!(mcp.server = server, left_out, limit, "MCP server offers tools with schemas that are too large");
    }
    tools
}

/// Omits tools with invisible characters that cannot be removed.
fn without_hidden(server: &str, mut tools: Vec<Tool>) -> Vec<Tool> {
    let (mut left_out, mut named) = (0_usize, Vec::new());
    tools.retain(|tool| {
        let Some(hidden) = tool_definitions::hidden_in(tool) else { return true };
        left_out += 1;
        if named.len() < NAMED {
            let name: String = spell_out_invisible(&tool.name).chars().take(64).collect();
            named.push(format!("{name}: U+{:04X} in a name or a value of its schema", u32::from(hidden)));
        }
        false
    });
    if left_out > 0 {
        let named = named.join("; ");
        tracing::warn!(
            mcp.server = server,
            left_out,
            named,
            "MCP server offers tools with invisible characters, which are omitted"
        );
    }
    tools
}

/// Returns the size of a value as JSON. Values here were parsed from JSON, so serialization cannot fail.
pub fn size_of(item: &impl Serialize) -> usize {
    serde_json::to_vec(item).map_or(0, |json| json.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// M-15.
    #[test]
    fn malformed_tool_leaves_the_other_tools() {
        let fine = json!({"name": "fine", "inputSchema": {"type": "object"}});
        let listed = json!({"tools": [
            fine, {"name": "no schema"}, {"name": "true", "inputSchema": true}, "text",
            {"name": "hint", "inputSchema": {}, "annotations": {"readOnlyHint": "yes"}}, {"inputSchema": {}}
        ], "nextCursor": "2", "ttlMs": 5});
        let list = valid_tools("s", listed).unwrap();
        let names: Vec<&str> = list.tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!((names, list.next_cursor.as_deref(), list.ttl_ms), (vec!["fine"], Some("2"), Some(5)));
        assert!(valid_tools("s", json!({"tools": 5})).is_none() && valid_tools("s", json!([])).is_none());
    }
}
