//! What a worker needs, and its numbers.

use std::sync::Arc;
use std::time::Duration;

use super::EmbeddingSource;
use crate::documents::FileDeps;
use crate::domain::ids::NodeId;
use crate::live::Hub;
use crate::provider::ModelClient;
use crate::store::WorkerStore;
use crate::support::clock::SharedClock;
use crate::support::ids::SharedIds;
use crate::tools::Toolbox;
use crate::tools::contexts::Contexts;

/// What a worker works with.
#[derive(Clone)]
pub struct WorkerDeps {
    /// Where everything is kept.
    pub store: Arc<dyn WorkerStore>,
    /// Who hears of it.
    pub hub: Arc<Hub>,
    /// The models.
    pub models: Arc<dyn ModelClient>,
    /// The tools.
    pub tools: Arc<dyn Toolbox>,
    /// Wall-clock time, for people.
    pub clock: SharedClock,
    /// New ids.
    pub ids: SharedIds,
    /// Where vectors of tools come from; without it, tools are ranked by their words.
    pub embeddings: Option<EmbeddingSource>,
    /// Who is asked what else models should know; without it, nobody.
    pub contexts: Option<Arc<Contexts>>,
    /// The reader of files, and their bounds.
    pub files: FileDeps,
}

/// The numbers of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    /// This process.
    pub node: NodeId,
    /// Runs under way at a time.
    pub slots: u32,
    /// How long a lease lasts without renewal, by the database's clock.
    pub lease: Duration,
    /// How often leases are renewed.
    pub renew: Duration,
    /// How often expired leases are looked for.
    pub sweep: Duration,
    /// A run whose lease could not be renewed for this long, by the monotonic clock, is given up without another write.
    pub self_stop: Duration,
    /// How often the queue is looked at without being told to.
    pub poll: Duration,
    /// How often requests to cancel are looked for without being told to.
    pub control_poll: Duration,
    /// The longest that deltas are gathered before a commit. Only used under load.
    pub gather: Duration,
    /// The largest text of one `part.delta`, in bytes.
    pub max_delta_bytes: usize,
    /// Whether tools of servers that are not trusted are held back when their definitions have changed.
    pub hold_changed_tools: bool,
    /// How long a model may take for the title of a conversation.
    pub title_patience: Duration,
}

impl WorkerOptions {
    /// Returns the age from which a lease that this node does not know is an orphaned claim: a third of a lease.
    ///
    /// Shorter, a reply that is merely late would cost its run an attempt. Longer, one failed renewal could let the lease expire
    /// before it is released, and the takeover would count as a crash.
    #[must_use]
    pub fn orphan_age(&self) -> Duration {
        self.lease / 3
    }

    /// The defaults of DESIGN section 3.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            slots: 1024,
            lease: Duration::from_secs(10),
            renew: Duration::from_secs(3),
            sweep: Duration::from_secs(2),
            self_stop: Duration::from_secs(7),
            poll: Duration::from_secs(1),
            control_poll: Duration::from_millis(200),
            gather: Duration::from_millis(25),
            max_delta_bytes: 16 * 1024,
            hold_changed_tools: true,
            title_patience: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::ids::UuidIds;

    #[test]
    fn orphan_outlives_one_failed_renewal() {
        let options = WorkerOptions::new(NodeId::generate(&UuidIds));
        // Just too young at one renewal; the next one fails, and the one after that releases it.
        assert!(options.orphan_age() + 2 * options.renew < options.lease);
    }
}
