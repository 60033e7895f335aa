//! The state that attempts to drive a run pass on, and the ways in which an attempt ends.
//!
//! Owns the passage from one attempt to the next. Must not know how an attempt is driven.

use tokio::time::Instant;

use super::context::Surround;
use super::log_writer::LogError;
use super::registry::HeldGuard;
use super::tool_calls::ToolCalls;
use crate::domain::ids::CallId;
use crate::domain::tool::ToolOutcome;
use crate::store::StoreError;

/// How an attempt to drive a run has ended.
pub(super) enum End {
    /// The run has ended, or was released.
    Over,
    /// The fence is void: another claim has the run, or none.
    Fenced,
    /// The database was away.
    Reload,
    /// The rows could not be read or written, and may never be.
    Broken,
}

impl From<&StoreError> for End {
    fn from(error: &StoreError) -> Self {
        if error.is_transient() { Self::Reload } else { Self::Broken }
    }
}

impl From<LogError> for End {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Fenced => Self::Fenced,
            LogError::Store(error) => Self::from(error.as_ref()),
            LogError::Unheard | LogError::Stopped => Self::Reload,
        }
    }
}

/// State that an attempt leaves to the next one.
#[derive(Default)]
pub(super) struct Left {
    /// Outcomes of calls that could not be stored.
    pub finished: Vec<(CallId, ToolOutcome)>,
    /// Number of the attempt; 0 if the run was never loaded.
    pub attempt: u32,
    /// The calls that are under way still.
    pub tools: ToolCalls,
    /// Crashes that are counted for the run.
    pub crashes: u32,
    /// Time of the claim of a suspected run that is not cleared yet.
    pub suspected_since: Option<Instant>,
}

/// Raises the fence of a run after a write whose outcome is unknown.
///
/// Afterwards the write is stored, or never will be, and the rows can be relied on.
pub(super) async fn raise_fence(surround: &Surround, guard: &mut HeldGuard, attempt: u32) -> Result<(), End> {
    // A renewal under the old fence finds no lease meanwhile, which does not mean that the run is lost. The same holds until a
    // reply comes: the fence may have been raised, and is asked for again before anything else.
    guard.held.lets_go(true);
    match surround.deps.store.raise_fence(&guard.held.fence, attempt).await {
        Ok(Some(fence)) => {
            guard.continue_under(fence);
            guard.held.lets_go(false);
            Ok(())
        }
        Ok(None) => Err(End::Fenced),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the run cannot be taken up again yet");
            Err(End::from(&error))
        }
    }
}
