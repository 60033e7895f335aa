//! The parts of a worker that its drivers share.
//!
//! Owns nothing but the list of them. Must not know any driver.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::attachments::Attachments;
use super::log_writer::LogWriter;
use super::pins::Accepted;
use super::profiles::Profiles;
use super::ranking::Ranker;
use super::titles::Titles;
use super::{WorkerDeps, WorkerOptions};

/// The parts of a worker that all of its drivers use.
#[derive(Clone)]
pub struct Surround {
    /// The worker's dependencies.
    pub deps: WorkerDeps,
    /// The worker's limits and intervals.
    pub options: WorkerOptions,
    /// The writer of the log.
    pub writer: LogWriter,
    /// Puts files into requests.
    pub attachments: Arc<Attachments>,
    /// Puts tools in order.
    pub ranker: Arc<Ranker>,
    /// Asks for titles.
    pub titles: Titles,
    /// Definitions of tools that are known to be accepted.
    pub accepted: Accepted,
    /// Profiles of runs under way.
    pub profiles: Profiles,
    /// Cancelled when a drain begins: no new step starts.
    pub drain: CancellationToken,
    /// Cancelled when a drain gives up the steps under way.
    pub stop_now: CancellationToken,
}
