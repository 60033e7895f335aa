//! Metrics and log lines of committed decisions.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::time::Instant;

use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, McpServerId};
use crate::domain::model::Usage;
use crate::domain::tool::ToolCallState;
use crate::engine::Decision;
use crate::support::locks::lock;

const OTHER: &str = "other";
/// The label of tools that belong to no MCP server.
const BUILT_IN: &str = "builtin";

static TOOLS: Labels = Labels::new(500);
static PROVIDERS: Labels = Labels::new(100);

/// The first `most` names, each with its own label. Later names share one label, because a label uses memory until the process
/// ends.
struct Labels {
    names: Mutex<BTreeSet<String>>,
    most: usize,
}

impl Labels {
    const fn new(most: usize) -> Self {
        Self { names: Mutex::new(BTreeSet::new()), most }
    }

    fn of<'n>(&self, name: &'n str) -> &'n str {
        let mut names = lock(&self.names);
        if names.len() < self.most && !names.contains(name) {
            names.insert(name.to_owned());
        }
        if names.contains(name) { name } else { OTHER }
    }
}

/// Returns the label of a model's provider. Users choose the names of their providers, so the number of labels is limited.
pub fn provider_label(model: &str) -> String {
    let provider = model.split_once('/').map_or(OTHER, |(provider, _)| provider);
    PROVIDERS.of(provider).to_owned()
}

/// The step under way.
pub struct StepMetrics {
    began: Instant,
    /// The label of the provider of the model that was asked last.
    pub provider: String,
}

impl Default for StepMetrics {
    fn default() -> Self {
        Self { began: Instant::now(), provider: OTHER.to_owned() }
    }
}

/// Updates the metrics for a decision, and logs ended runs and tool calls.
pub fn count(decision: &Decision, step: &mut StepMetrics) {
    for event in &decision.events {
        match event.kind() {
            "run.completed" | "run.failed" | "run.cancelled" => {
                let status = event.kind().trim_start_matches("run.");
                metrics::counter!("capstan_runs_finished_total", "status" => status).increment(1);
                tracing::info!(status, "run ended");
            }
            "context.compacted" => metrics::counter!("capstan_context_compactions_total").increment(1),
            _ => {}
        }
        if let EventBody::ToolCompleted { call_id, name, server, state, is_error, duration_ms, .. } = event {
            let outcome = if *is_error && *state == ToolCallState::Done { "failed" } else { state.as_str() };
            tool_call_ended((call_id, name, server.as_deref()), outcome, Some(*duration_ms));
        }
        if let EventBody::ToolOutcomeUnknown { call_id, name, server, .. } = event {
            tool_call_ended((call_id, name, server.as_deref()), ToolCallState::Unknown.as_str(), None);
        }
        if let EventBody::StepCompleted { usage, .. } = event {
            let kind = if usage.is_some() { "model" } else { "tools" };
            metrics::histogram!("capstan_step_seconds", "kind" => kind).record(step.began.elapsed().as_secs_f64());
            if let Some(usage) = usage {
                count_tokens(usage, &step.provider);
            }
        }
        if matches!(event, EventBody::StepStarted { .. }) {
            step.began = Instant::now();
        }
    }
}

fn tool_call_ended((id, tool, server): (&CallId, &str, Option<&str>), outcome: &'static str, duration_ms: Option<u64>) {
    let server = server.unwrap_or(BUILT_IN);
    count_tool_call(server, tool, outcome);
    tracing::info!(call.id = %id, tool, mcp.server = server, outcome, duration_ms, "tool call ended");
}

/// Counts a tool call. Users choose the names of their servers, and servers choose the names of their tools. So the label omits the
/// names of user servers and their tools, and the number of labels for other tools is limited.
fn count_tool_call(server: &str, tool: &str, outcome: &'static str) {
    let (server, tool) = match McpServerId::parse(server) {
        Ok(_) => ("user", OTHER),
        Err(_) => (server, TOOLS.of(tool)),
    };
    let labels = [("server", server.to_owned()), ("tool", tool.to_owned()), ("outcome", outcome.to_owned())];
    metrics::counter!("capstan_tool_calls_total", &labels).increment(1);
}

/// Counts tokens. `provider` is the [label](provider_label) of the model's provider.
pub fn count_tokens(usage: &Usage, provider: &str) {
    for (direction, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
        metrics::counter!("capstan_tokens_total", "provider" => provider.to_owned(), "direction" => direction).increment(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let labels = Labels::new(2);
        assert_eq!(["a", "b", "c", "a"].map(|name| labels.of(name)), ["a", "b", OTHER, "a"]);
    }

    #[test]
    fn model_without_provider_has_the_label_of_others() {
        assert_eq!([provider_label("acme/one/two"), provider_label("one")], ["acme", OTHER]);
    }
}
