//! The parts of a worker that its run drivers share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::worker::effects::attachments::Attachments;
use crate::worker::effects::titles::Titles;
use crate::worker::effects::withhold_changed_tools::AcceptedDefinitionCache;
use crate::worker::log_writer::LogWriter;
use crate::worker::ranking::Ranker;
use crate::worker::run::profiles::Profiles;
use crate::worker::{WorkerDeps, WorkerOptions};

#[derive(Clone)]
pub struct WorkerContext {
    pub deps: WorkerDeps,
    pub options: WorkerOptions,
    pub writer: LogWriter,
    pub attachments: Arc<Attachments>,
    pub ranker: Arc<Ranker>,
    pub titles: Titles,
    /// Tool definitions that are known to be accepted.
    pub accepted: AcceptedDefinitionCache,
    /// Profiles of runs under way.
    pub profiles: Profiles,
    /// Cancelled when a drain begins: no new step starts.
    pub drain: CancellationToken,
    /// Cancelled when a drain aborts the steps under way.
    pub stop_now: CancellationToken,
}
