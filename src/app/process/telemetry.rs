//! Starts the metrics and describes each one. Other modules record them.

use std::time::Duration;

use anyhow::Context as _;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const TOKENS: &[f64] =
    &[256.0, 512.0, 1_024.0, 2_048.0, 4_096.0, 8_192.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0, 262_144.0, 524_288.0, 1_048_576.0];

/// Starts the metrics. The handle renders them, and needs [`PrometheusHandle::run_upkeep`] every [`UPKEEP`].
pub fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_writes".to_owned()), COUNTS))
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_request_messages".to_owned()), COUNTS))
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_request_tokens".to_owned()), TOKENS))
        .context("the buckets of the metrics are invalid")?
        .install_recorder()
        .context("the metrics cannot be started")?;
    describe();
    for name in ZERO_INITIALIZED {
        metrics::counter!(name).absolute(0);
    }
    Ok(handle)
}

/// Counters that are exported as 0 from the start. Otherwise a rate would miss their first increment.
const ZERO_INITIALIZED: [&str; 8] = [
    "capstan_context_compactions_total",
    "capstan_embedding_tokens_total",
    "capstan_lease_takeovers_total",
    "capstan_log_lines_dropped_total",
    "capstan_mcp_orphans_ended_total",
    "capstan_stalls_total",
    "capstan_tools_awaiting_review_total",
    "capstan_invalid_model_requests_total",
];

pub const UPKEEP: Duration = Duration::from_secs(1);

/// Describes all metrics; `docs/reference/metrics.md` has the same list.
fn describe() {
    describe_gauge!("capstan_runs", "Unfinished runs, by status");
    describe_gauge!("capstan_runs_active", "Runs that this process works on");
    describe_counter!("capstan_runs_finished_total", "Runs that ended, by status");
    describe_histogram!(
        "capstan_queue_wait_seconds",
        Unit::Seconds,
        "Time from the moment when a run can be claimed until a worker claims it"
    );
    describe_histogram!("capstan_first_token_seconds", Unit::Seconds, "Time from a model request to its first token, by provider");
    describe_histogram!("capstan_step_seconds", Unit::Seconds, "Time of one step, by kind");
    describe_counter!("capstan_tokens_total", "Tokens used, by provider and direction");
    describe_counter!("capstan_titles_total", "Model calls for titles, by outcome");
    describe_counter!("capstan_model_failures_total", "Failed model calls, by provider and code");
    describe_histogram!("capstan_request_messages", Unit::Count, "Messages in one request to a model");
    describe_histogram!("capstan_request_tokens", Unit::Count, "Estimated tokens of one request to a model");
    describe_counter!(
        "capstan_context_compactions_total",
        "Evictions of older messages, also after a provider refused a request as too long"
    );
    describe_counter!("capstan_contexts_total", "Calls of context providers, by provider and outcome");
    describe_counter!("capstan_tools_awaiting_review_total", "Tools not offered to a run because of a changed definition");
    describe_counter!("capstan_tool_rankings_total", "Rankings of a run's tools, by method");
    describe_counter!("capstan_embedding_failures_total", "Rankings without embeddings because of a failure, by code");
    describe_counter!("capstan_embedding_tokens_total", "Tokens of embedded texts");
    describe_counter!("capstan_invalid_model_requests_total", "Invalid model requests that were not sent");
    describe_gauge!("capstan_provider_open", "1 while the circuit breaker of a provider is open or half-open, by provider");
    describe_histogram!("capstan_mcp_queue_seconds", Unit::Seconds, "Time that a call waited for its MCP server");
    describe_gauge!("capstan_mcp_processes", "Processes of MCP servers, including starting and ending ones");
    describe_counter!(
        "capstan_mcp_orphans_ended_total",
        "Orphaned processes that Capstan ended: they had left the process group of their MCP server"
    );
    describe_counter!("capstan_mcp_login_refreshes_total", "Refreshes of logins at MCP servers, by result");
    describe_counter!("capstan_tool_calls_total", "Tool calls with an outcome, by server, tool and outcome");
    describe_counter!("capstan_lease_takeovers_total", "Runs taken over because a lease expired");
    describe_counter!("capstan_log_lines_dropped_total", "Dropped log lines: the queue was full, or standard error failed");
    describe_gauge!(
        "capstan_database_oldest_snapshot_seconds",
        Unit::Seconds,
        "Age of the oldest Postgres transaction with a snapshot or transaction id"
    );
    describe_gauge!("capstan_open_streams", "Open event streams, by transport");
    describe_counter!("capstan_feedback_total", "Ratings of answers, including changed ones, by rating");
    describe_counter!("capstan_http_requests_total", "Answered requests, by method, route and status");
    describe_histogram!("capstan_http_request_seconds", Unit::Seconds, "Time until the response began, by route");
    describe_gauge!("capstan_file_bytes", Unit::Bytes, "Bytes of stored files");
    describe_counter!("capstan_stalls_total", "Tasks that did not yield their thread for 5 s");
    describe_histogram!("capstan_commit_batch_writes", Unit::Count, "Writes in one group commit");
    describe_histogram!("capstan_commit_seconds", Unit::Seconds, "Duration of a group commit");
}
