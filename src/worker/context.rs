//! The parts of a worker that its drivers share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::attachments::Attachments;
use super::log_writer::LogWriter;
use super::pins::Accepted;
use super::profiles::Profiles;
use super::ranking::Ranker;
use super::titles::Titles;
use super::{WorkerDeps, WorkerOptions};

#[derive(Clone)]
pub struct WorkerContext {
    pub deps: WorkerDeps,
    pub options: WorkerOptions,
    pub writer: LogWriter,
    pub attachments: Arc<Attachments>,
    pub ranker: Arc<Ranker>,
    pub titles: Titles,
    /// Tool definitions that are known to be accepted.
    pub accepted: Accepted,
    /// Profiles of runs under way.
    pub profiles: Profiles,
    /// Cancelled when a drain begins: no new step starts.
    pub drain: CancellationToken,
    /// Cancelled when a drain gives up the steps under way.
    pub stop_now: CancellationToken,
}
