//! The state that one attempt to drive a run passes to the next, and the ways in which an attempt ends.

use tokio::time::Instant;

use crate::domain::ids::CallId;
use crate::domain::tool::ToolOutcome;
use crate::store::StoreError;
use crate::worker::context::WorkerContext;
use crate::worker::effects::tool_calls::ToolCalls;
use crate::worker::leases::registry::ActiveLeaseGuard;
use crate::worker::log_writer::LogError;

/// The end of an attempt to drive a run.
pub(in crate::worker) enum AttemptEnd {
    /// The run has ended, or was released.
    Over,
    /// The fence is void: another claim has the run, or none.
    Fenced,
    Reload,
    /// The rows cannot be read or written, perhaps permanently.
    Broken,
}

impl From<&StoreError> for AttemptEnd {
    fn from(error: &StoreError) -> Self {
        if error.is_transient() { Self::Reload } else { Self::Broken }
    }
}

impl From<LogError> for AttemptEnd {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Fenced => Self::Fenced,
            LogError::Store(error) => Self::from(error.as_ref()),
            LogError::MessageJoined | LogError::Stopped => Self::Reload,
        }
    }
}

/// State that an attempt carries over to the next one.
#[derive(Default)]
pub(in crate::worker) struct AttemptCarryOver {
    /// Outcomes of calls that could not be stored.
    pub finished: Vec<(CallId, ToolOutcome)>,
    /// Number of the attempt; 0 if the run was never loaded.
    pub attempt: u32,
    /// The calls that are under way.
    pub tools: ToolCalls,
    /// The crash count of the run.
    pub crashes: u32,
    /// When the suspected run was claimed, until it is cleared.
    pub suspected_since: Option<Instant>,
}

/// Raises the fence of a run after a write whose outcome is unknown: afterwards the write is stored, or never will be.
pub(in crate::worker) async fn raise_fence(
    context: &WorkerContext,
    guard: &mut ActiveLeaseGuard,
    attempt: u32,
) -> Result<(), AttemptEnd> {
    // Until the reply arrives, a renewal under the old fence may find no lease. That does not mean that the run is lost: the fence
    // may have been raised already.
    guard.active_lease.set_releasing(true);
    match context.deps.store.raise_fence(&guard.active_lease.fence, attempt).await {
        Ok(Some(fence)) => {
            guard.continue_under(fence);
            guard.active_lease.set_releasing(false);
            Ok(())
        }
        Ok(None) => Err(AttemptEnd::Fenced),
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the fence of the run could not be raised; the worker retries"
            );
            Err(AttemptEnd::from(&error))
        }
    }
}
