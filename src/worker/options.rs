//! Dependencies, limits and intervals of a worker.

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
use crate::tools::context_providers::ContextProviders;

#[derive(Clone)]
pub struct WorkerDeps {
    pub store: Arc<dyn WorkerStore>,
    pub hub: Arc<Hub>,
    pub models: Arc<dyn ModelClient>,
    pub tools: Arc<dyn Toolbox>,
    /// For timestamps.
    pub clock: SharedClock,
    pub ids: SharedIds,
    /// Without it, tools are ranked lexically.
    pub embeddings: Option<EmbeddingSource>,
    pub context_providers: Option<Arc<ContextProviders>>,
    pub files: FileDeps,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    pub node: NodeId,
    pub slots: u32,
    /// The duration of a lease without renewal, by the database's clock.
    pub lease: Duration,
    pub renew: Duration,
    /// The interval of the sweep.
    pub sweep_interval: Duration,
    /// A run whose lease could not be renewed for this long, by the monotonic clock, is dropped without another write.
    pub self_stop: Duration,
    /// The interval of reads of the queue without a wake-up.
    pub poll: Duration,
    /// The interval of reads of control requests without a wake-up.
    pub control_poll: Duration,
    /// The longest time that deltas accumulate before a commit. Only used under load.
    pub gather: Duration,
    /// The largest text of one `part.delta`, in bytes.
    pub max_delta_bytes: usize,
    /// Whether changed tools of untrusted servers are held back.
    pub hold_changed_tools: bool,
    /// The time limit for a conversation's title.
    pub title_timeout: Duration,
}

impl WorkerOptions {
    /// Returns the age from which a lease that this node does not know is an orphaned claim: a third of a lease. If it were shorter, a late
    /// reply would cost its run an attempt. If it were longer, the lease could expire after a failed renewal, and count as a crash.
    pub fn orphan_age(&self) -> Duration {
        self.lease / 3
    }

    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            slots: 1024,
            lease: Duration::from_secs(10),
            renew: Duration::from_secs(3),
            sweep_interval: Duration::from_secs(2),
            self_stop: Duration::from_secs(7),
            poll: Duration::from_secs(1),
            control_poll: Duration::from_millis(200),
            gather: Duration::from_millis(25),
            max_delta_bytes: 16 * 1024,
            hold_changed_tools: true,
            title_timeout: Duration::from_secs(10),
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
        // In the worst case, a claim is slightly too young at one renewal, the next renewal fails, and the third one releases the
        // claim.
        assert!(options.orphan_age() + 2 * options.renew < options.lease);
    }
}
