//! A connected server: its connection and its list of tools.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::Tool;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::tool::ToolDefinition;
use crate::support::locks::lock;
use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::calls::content;
use crate::tools::mcp::process::slots::ProcessPermit;
use crate::tools::mcp::server::tool_definitions;
use crate::tools::mcp::server::tool_definitions::Labels;
use crate::tools::mcp::server::tool_list::ToolListState;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::mcp::transport::endpoint::ServerError;
use crate::tools::schema::{ArgumentError, Validators};

/// How long a new list of tools may take.
const REFRESH_LIMIT: Duration = Duration::from_secs(10);
/// How long a run or a call waits for a new list.
pub const REFRESH_PATIENCE: Duration = Duration::from_secs(2);

/// Whether the known list of tools is current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolListFreshness {
    Current,
    /// The tools have changed, and the new list has not arrived.
    Outdated,
}

pub struct ConnectedServer {
    pub connection: Connection,
    pub outputs: Outputs,
    tools: RwLock<Vec<Arc<ToolDefinition>>>,
    listed: Mutex<ToolListState>,
    /// Locked while the tools are listed again.
    listing: Arc<tokio::sync::Mutex<()>>,
    /// Whether the tools have changed, or could not be listed, and no new list has arrived since.
    is_outdated: AtomicBool,
    _permit: Option<ProcessPermit>,
}

impl ConnectedServer {
    pub async fn open(
        connection: Connection,
        labels: Labels<'_>,
        config: &ServerConfig,
        permit: Option<ProcessPermit>,
    ) -> Result<Self, ServerError> {
        let (tools, listed) = connection.list_tools().await?;
        let outputs = Outputs::default();
        outputs.replace(&tools);
        let tools = RwLock::new(tool_definitions::definitions(labels, config, &tools));
        let (listed, listing, is_outdated) = (Mutex::new(listed), Arc::default(), AtomicBool::new(false));
        Ok(Self { connection, outputs, tools, listed, listing, is_outdated, _permit: permit })
    }

    pub async fn tools(&self) -> Vec<Arc<ToolDefinition>> {
        self.tools.read().await.clone()
    }

    /// Returns the tools, unless they are being replaced.
    pub fn tools_now(&self) -> Option<Vec<Arc<ToolDefinition>>> {
        self.tools.try_read().ok().map(|tools| tools.clone())
    }

    pub async fn tool(&self, name: &str) -> Option<Arc<ToolDefinition>> {
        self.tools.read().await.iter().find(|definition| definition.tool == name).cloned()
    }

    /// Returns whether the list omits tools of the server.
    pub fn omits_tools(&self) -> bool {
        lock(&self.listed).left_out
    }

    /// Lists the tools again, by the future `list_again`, if they have changed or their list has expired.
    ///
    /// Concurrent callers wait for the same list, but not for long: a server that does not answer must not block runs.
    pub async fn refresh(
        self: &Arc<Self>,
        list_again: impl Future<Output = ()> + Send + 'static,
        tasks: &TaskTracker,
    ) -> ToolListFreshness {
        let until = Instant::now() + REFRESH_PATIENCE;
        let lock_listing = || tokio::time::timeout_at(until, Arc::clone(&self.listing).lock_owned());
        let Ok(listing) = lock_listing().await else { return self.tool_list_freshness() };
        // The flag is cleared before listing, so that a later change causes another listing.
        let has_changed = self.connection.subscriptions.take_tools_changed();
        if !(has_changed || lock(&self.listed).is_stale()) {
            return ToolListFreshness::Current;
        }
        if has_changed {
            self.is_outdated.store(true, Ordering::SeqCst);
        }
        tasks.spawn(async move {
            list_again.await;
            drop(listing);
        });
        // The new list is used even if the server has announced another change: some servers announce one after each listing.
        let _listed_or_too_late = lock_listing().await;
        self.tool_list_freshness()
    }

    /// An expired list stays current until there is a new one, or until listing fails.
    fn tool_list_freshness(&self) -> ToolListFreshness {
        if self.is_outdated.load(Ordering::SeqCst) { ToolListFreshness::Outdated } else { ToolListFreshness::Current }
    }

    /// Lists the tools. After a failure the old list stays, and the next use lists again.
    pub async fn list_again(&self, labels: Labels<'_>, config: &ServerConfig, closing: &CancellationToken) {
        let listed = tokio::select! {
            () = closing.cancelled() => return,
            listed = tokio::time::timeout(REFRESH_LIMIT, self.connection.list_tools()) => listed,
        };
        let is_outdated = match listed {
            Ok(Ok((tools, listed))) => {
                *lock(&self.listed) = listed;
                self.outputs.replace(&tools);
                *self.tools.write().await = tool_definitions::definitions(labels, config, &tools);
                false
            }
            Ok(Err(_)) | Err(_) => {
                self.connection.subscriptions.mark_tools_stale();
                true
            }
        };
        self.is_outdated.store(is_outdated, Ordering::SeqCst);
    }
}

#[derive(Default)]
pub struct Outputs {
    /// The output schemas, by the tool's name at the server.
    schemas: Mutex<HashMap<String, Arc<Value>>>,
    validators: Validators,
}

impl Outputs {
    pub fn replace(&self, tools: &[Tool]) {
        let schemas = tools.iter().filter_map(|tool| {
            let schema = Value::Object(tool.output_schema.as_ref()?.as_ref().clone());
            Some((tool.name.to_string(), Arc::new(schema)))
        });
        *lock(&self.schemas) = schemas.collect();
    }

    /// Adds a note to a result whose structured content violates the schema. The model may still use the content.
    pub fn check(&self, tool: &str, result: &mut Value) {
        // An error need not be structured.
        let schema = lock(&self.schemas).get(tool).cloned();
        let Some(schema) = schema.filter(|_| !content::is_error(result)) else { return };
        let reason = match result.get("structuredContent").filter(|structured| !structured.is_null()) {
            None => "it is missing".to_owned(),
            Some(structured) => match self.validators.check(&schema, structured) {
                // A broken schema proves no fault of the result.
                Ok(()) | Err(ArgumentError::BrokenSchema(_)) => return,
                Err(ArgumentError::Violations(reason)) => reason,
            },
        };
        tracing::warn!(tool, reason, "a tool's structured content violates its output schema");
        let words = format!("[note: the structured content of this result violates the tool's output schema: {reason}]");
        let note = json!({"type": "text", "text": words});
        // The note follows the structured content that it describes.
        let text = content::structured_beside(result);
        match result.get_mut("content").and_then(Value::as_array_mut) {
            Some(blocks) => blocks.extend(text.into_iter().chain([note])),
            None => result["content"] = text.into_iter().chain([note]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::ToolContent;

    /// M-16.
    #[test]
    fn an_answer_that_breaks_its_promise_is_flagged_and_still_shown() {
        let tools: Vec<Tool> = serde_json::from_value(json!([
            {"name": "typed", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}},
                "required": ["n"]}},
            {"name": "broken", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "properties": {"n": {"type": "none"}}}},
            {"name": "free", "inputSchema": {"type": "object"}},
        ]))
        .unwrap();
        let outputs = Outputs::default();
        outputs.replace(&tools);
        let seen = |tool: &str, mut result: Value| -> Vec<String> {
            outputs.check(tool, &mut result);
            content::from_result(&result).iter().filter_map(ToolContent::as_text).map(str::to_owned).collect()
        };
        let [wrong, note] = &seen("typed", json!({"content": [], "structuredContent": {"n": "one"}}))[..] else {
            panic!("two texts")
        };
        assert_eq!(wrong, r#"{"n":"one"}"#);
        assert!(note.contains("violates") && note.contains(r#"/n: "one" is not of type "integer""#), "{note}");
        let missing = seen("typed", json!({"content": [{"type": "text", "text": "one"}]}));
        assert!(missing.len() == 2 && missing[1].contains("it is missing"), "{missing:?}");
        for (tool, result) in [
            ("typed", json!({"content": [], "structuredContent": {"n": 1}})),
            ("typed", json!({"content": [{"type": "text", "text": "no"}], "isError": true})),
            ("broken", json!({"content": [], "structuredContent": {"n": 1}})),
            ("free", json!({"content": [], "structuredContent": {"n": 1}})),
            ("unknown", json!({"content": [], "structuredContent": {"n": 1}})),
        ] {
            assert_eq!(seen(tool, result.clone()).len(), 1, "{tool} {result}");
        }
    }
}
