//! Ends runs that cannot be continued, with as much of a regular end as can still be written.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::Usage;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{Change, RunStatus};
use crate::domain::tool::ToolOutcome;
use crate::engine::{DecisionEnvironment, Input, RunState, decide};
use crate::worker::context::WorkerContext;
use crate::worker::leases::registry::ActiveLeaseGuard;
use crate::worker::log_writer::LogError;
use crate::worker::run::attempt::{AttemptEnd, raise_fence};

const GIVEN_UP: &str = "the run failed, because its rows could not be read or written";

/// Ends a run that cannot be continued: regularly if that can be written, else by a write that needs only its fence. `finished` contains
/// outcomes that the given attempt could not store.
pub(in crate::worker) async fn give_up(
    context: &WorkerContext,
    guard: &mut ActiveLeaseGuard,
    attempt: u32,
    finished: Vec<(CallId, ToolOutcome)>,
) {
    tracing::error!("the run fails: its rows cannot be read or written");
    loop {
        match end_regularly(context, guard, attempt, &finished).await {
            AttemptEnd::Over | AttemptEnd::Fenced => return,
            AttemptEnd::Broken => break,
            AttemptEnd::Reload => tokio::select! {
                biased;
                () = guard.active_lease.lost.cancelled() => return,
                () = context.stop_now.cancelled() => return guard.active_lease.mark_lost_to_outage(),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            },
        }
    }
    let log =
        context.writer.for_run(guard.active_lease.fence.clone(), attempt, CancellationToken::new(), context.deps.clock.clone());
    let error = ProblemCode::Internal.body(GIVEN_UP);
    let end = Change::Finish { status: RunStatus::Failed, finish_reason: None, error: Some(error.clone()), joined: None };
    let updated = EventBody::ConversationUpdated { title: None, status: RunStatus::Failed.into(), supersedes: Vec::new() };
    if let Err(error) = log.commit(&[updated, EventBody::RunFailed { error }], vec![end]).await {
        tracing::error!(%error, "the run's end could not be written; another worker claims the run when its lease expires");
    }
}

/// Ends a run with an outcome for each of its calls, and closes all open items in its log.
async fn end_regularly(
    context: &WorkerContext,
    guard: &mut ActiveLeaseGuard,
    attempt: u32,
    finished: &[(CallId, ToolOutcome)],
) -> AttemptEnd {
    if let Err(end) = raise_fence(context, guard, attempt).await {
        return end;
    }
    let (deps, fence) = (&context.deps, &guard.active_lease.fence);
    let record = match deps.store.load_run(fence).await {
        Ok(Some(record)) => record,
        Ok(None) => return AttemptEnd::Fenced,
        Err(error) => return AttemptEnd::from(&error),
    };
    let (now, elapsed_ms) = (deps.clock.now(), record.elapsed_ms);
    let surroundings = DecisionEnvironment { now, ids: deps.ids.as_ref(), elapsed_ms, spent: Usage::default() };
    let given_up = Input::GivenUp { why: GIVEN_UP.to_owned(), stopped: finished.to_vec() };
    let decision = decide(&mut RunState::load(record), given_up, &surroundings);
    let log = context.writer.for_run(fence.clone(), attempt, CancellationToken::new(), deps.clock.clone());
    match log.commit(&decision.events, decision.changes).await {
        Ok(()) => AttemptEnd::Over,
        // The write may have violated a constraint of the rows. The simpler write that follows shows whether the fence is void.
        Err(LogError::Fenced) => AttemptEnd::Broken,
        Err(error) => error.into(),
    }
}
