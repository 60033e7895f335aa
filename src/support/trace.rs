//! The `traceparent` (W3C Trace Context) of the requests that a task sends.
//!
//! Owns the value of the current task, because no layer between a run and its HTTP requests has a use for it. Must not know what a run is.

/// The name of the header, and of the field in `_meta` of MCP.
pub const TRACEPARENT: &str = "traceparent";

tokio::task_local! {
    static CURRENT: Option<String>;
}

/// Runs a future whose requests carry this `traceparent`.
pub fn within<F: Future>(traceparent: Option<String>, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(traceparent, future)
}

/// Returns the `traceparent` of the current task; `None` outside of a trace.
pub fn traceparent() -> Option<String> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}
