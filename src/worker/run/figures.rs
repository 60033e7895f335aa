//! Metrics and log lines of committed decisions.

use tokio::time::Instant;

use crate::domain::event::EventBody;
use crate::domain::model::Usage;
use crate::engine::Decision;

/// Counts a decision. `step_began` is the start of the current step.
pub fn count(decision: &Decision, step_began: &mut Instant) {
    for event in &decision.events {
        match event.kind() {
            "run.completed" | "run.failed" | "run.cancelled" => {
                let status = event.kind().trim_start_matches("run.");
                metrics::counter!("capstan_runs_finished_total", "status" => status).increment(1);
                tracing::info!(status, "run ended");
            }
            "tool.completed" => metrics::counter!("capstan_tool_calls_total").increment(1),
            "context.compacted" => metrics::counter!("capstan_context_compactions_total").increment(1),
            _ => {}
        }
        if let EventBody::StepCompleted { usage, .. } = event {
            let kind = if usage.is_some() { "model" } else { "tools" };
            metrics::histogram!("capstan_step_seconds", "kind" => kind).record(step_began.elapsed().as_secs_f64());
            if let Some(usage) = usage {
                count_tokens(usage);
            }
        }
        if matches!(event, EventBody::StepStarted { .. }) {
            *step_began = Instant::now();
        }
    }
}

pub fn count_tokens(usage: &Usage) {
    metrics::counter!("capstan_tokens_total", "direction" => "input").increment(usage.input_tokens);
    metrics::counter!("capstan_tokens_total", "direction" => "output").increment(usage.output_tokens);
}
