//! Three nodes: real workers and services, each behind its gate.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use capstan::documents::FileDeps;
use capstan::domain::agent::{AgentProfile, LlmRetry, OnInterrupt, OnUnknown};
use capstan::domain::ids::NodeId;
use capstan::domain::run::budget::{Allowance, Budget, OnDaySpent};
use capstan::domain::run::context::ContextPolicy;
use capstan::domain::run::plan::Strategy;
use capstan::domain::tool::tool_filter::{ToolFilter, ToolFilterMode};
use capstan::live::{Hub, HubLimits, RemoteWakeup};
use capstan::service::{Service, ServiceDeps, ServiceLimits, follow_logs};
use capstan::support::clock::{Clock, UnixMillis};
use capstan::support::ids::SharedIds;
use capstan::worker::{Worker, WorkerDeps, WorkerOptions};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::dice::Dice;
use super::gate::Gate;
use super::hands::{Hands, Ledger};
use super::intercept::InterceptedStore;
use super::line::{Line, Sky};
use super::mind::{Mind, MindOptions};
use super::witness::Witness;
use support::model_store::ModelStore;

const NAMES: [&str; 3] = ["A", "B", "C"];

/// The parts that all nodes share.
pub struct Ground {
    pub dice: Arc<Dice>,
    pub model: Arc<ModelStore>,
    pub witness: Arc<Witness>,
    pub ledger: Arc<Ledger>,
    pub mind: Arc<MindOptions>,
    pub sky: Arc<Sky>,
    pub ids: SharedIds,
    /// Owns all tasks except those of the workers.
    pub tasks: TaskTracker,
}

/// A running node.
pub struct Node {
    pub name: &'static str,
    pub gate: Arc<Gate>,
    pub hub: Arc<Hub>,
    pub service: Arc<Service>,
    worker: Arc<Worker>,
    /// Cancelled when no client can reach the node any more.
    pub gone: CancellationToken,
    stop: CancellationToken,
}

/// The nodes. An empty slot is a node that is down.
pub struct Cluster {
    pub ground: Ground,
    places: Mutex<[Option<Arc<Node>>; 3]>,
}

/// A node's clock, which runs like the store's. No decision depends on it.
struct WallClock(Arc<ModelStore>);

impl Clock for WallClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.0.state().now)
    }
}

fn profile(dice: &Dice) -> AgentProfile {
    AgentProfile {
        max_rounds: 6,
        // Hardly any tool fails more often within six rounds.
        breaker_failures: 1 + u32::try_from(dice.below(2)).unwrap(),
        fallbacks: if dice.chance(300) { vec!["sim/second".to_owned()] } else { Vec::new() },
        max_crashes: 1 + u32::try_from(dice.below(3)).unwrap(),
        tool_timeout_ms: 15_000,
        tool_parallelism: 1 + u32::try_from(dice.below(3)).unwrap(),
        llm_retry: LlmRetry { delays_ms: vec![500, 2_000], ..LlmRetry::default() },
        on_unknown: dice.pick(&[OnUnknown::TellModel, OnUnknown::Ask, OnUnknown::Ask, OnUnknown::Fail]),
        ask_expires_ms: dice.pick(&[0, 3_000, 60_000]),
        // A model may call a tool that it was not offered.
        tool_filter: ToolFilter {
            mode: dice.pick(&[ToolFilterMode::Off, ToolFilterMode::Semantic]),
            k: 1,
            ..ToolFilter::default()
        },
        // The context window is so small that older messages are evicted.
        context: match dice.below(3) {
            0 => ContextPolicy {
                limit: Some(1_000),
                keep_last: 2,
                evict_below: 900,
                start_gate: 50,
                reserve_output: 0,
                safety: 0,
                ..ContextPolicy::default()
            },
            _ => ContextPolicy { keep_last: dice.pick(&[2, 10]), ..ContextPolicy::default() },
        },
        strategy: dice.pick(&[Strategy::Loop, Strategy::Loop, Strategy::PlanExecute]),
        on_interrupt: dice.pick(&[OnInterrupt::Resume, OnInterrupt::Resume, OnInterrupt::Resume, OnInterrupt::Fail]),
        // Enough for about one call at a time, or for all.
        budget: Budget {
            day: Allowance { tokens: dice.pick(&[None, Some(7_000), Some(10_000_000)]), usd: None },
            on_day_spent: OnDaySpent::Fail,
            ..Budget::default()
        },
        ..AgentProfile::default()
    }
}

impl Cluster {
    pub fn new(ground: Ground) -> Arc<Self> {
        Arc::new(Self { ground, places: Mutex::default() })
    }

    fn places(&self) -> MutexGuard<'_, [Option<Arc<Node>>; 3]> {
        self.places.lock().unwrap()
    }

    /// Returns the running nodes.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.places().iter().flatten().cloned().collect()
    }

    /// Returns a running node, if there is one.
    pub fn any(&self) -> Option<Arc<Node>> {
        let nodes = self.nodes();
        let at = if nodes.is_empty() { return None } else { self.ground.dice.below(nodes.len() as u64) };
        nodes.get(usize::try_from(at).unwrap()).cloned()
    }

    /// Starts the node in a slot, unless it runs.
    pub async fn start(self: &Arc<Self>, place: usize) {
        if self.places()[place].is_some() {
            return;
        }
        let Ground { dice, model, witness, ledger, mind, sky, ids, tasks } = &self.ground;
        let name = NAMES[place];
        let (dice, model, witness, ids) = (Arc::clone(dice), Arc::clone(model), Arc::clone(witness), Arc::clone(ids));
        let gate = Arc::new(Gate::new());
        let node = NodeId::generate(ids.as_ref());
        // Small limits, so that readers lag.
        let hub = Hub::new(HubLimits { max_events: 6, max_bytes: 64 * 1024 });
        let line = Line {
            name,
            node: node.clone(),
            model: Arc::clone(&model),
            dice: Arc::clone(&dice),
            gate: Arc::clone(&gate),
            sky: Arc::clone(sky),
            witness: Arc::clone(&witness),
        };
        let store = Arc::new(InterceptedStore(line));
        let models = Mind {
            name,
            options: Arc::clone(mind),
            dice: Arc::clone(&dice),
            gate: Arc::clone(&gate),
            witness: Arc::clone(&witness),
        };
        let tools = Arc::new(Hands {
            name,
            dice: Arc::clone(&dice),
            gate: Arc::clone(&gate),
            ledger: Arc::clone(ledger),
            model: Arc::clone(&model),
            witness,
        });
        let clock = Arc::new(WallClock(model));
        let service = Service::new(ServiceDeps {
            store: Arc::clone(&store) as _,
            hub: Arc::clone(&hub),
            tools: Arc::clone(&tools) as _,
            clock: Arc::clone(&clock) as _,
            ids: Arc::clone(&ids),
            default_profile: profile(&dice),
            models: Arc::new(|_| true),
            limits: ServiceLimits::default(),
            configured_keys: std::collections::HashMap::new(),
            find_model: None,
            providers: None,
            mcp_servers: None,
            files: FileDeps::default(),
            settings: Vec::new(),
            commits: tasks.clone(),
        });
        let mut options = WorkerOptions::new(node);
        options.slots = 4;
        options.control_poll = Duration::from_millis(1_000);
        let (hubs, models) = (Arc::clone(&hub), Arc::new(models));
        let files = FileDeps::default();
        let deps = WorkerDeps {
            store: Arc::clone(&store) as _,
            hub: hubs,
            models,
            tools,
            clock,
            ids,
            embeddings: None,
            context_providers: None,
            files,
        };
        let worker = loop {
            match Worker::start(deps.clone(), options.clone()).await {
                Ok(worker) => break worker,
                Err(_) => dice.sleep(10, 500).await,
            }
        };
        let stop = CancellationToken::new();
        tasks.spawn(follow_logs(store, Arc::clone(&hub), stop.clone()));
        self.connect(&hub);
        dice.note(format_args!("{name} is up"));
        let gone = CancellationToken::new();
        let node = Node { name, gate, hub, service: Arc::new(service), worker, gone, stop };
        self.places()[place] = Some(Arc::new(node));
    }

    /// Sends a node's notifications to the others. Half of them are lost, so the nodes must poll.
    fn connect(self: &Arc<Self>, hub: &Arc<Hub>) {
        let others = |cluster: &Arc<Self>, hub: &Arc<Hub>| {
            let (cluster, here) = (Arc::downgrade(cluster), Arc::downgrade(hub));
            move || {
                let Some(cluster) = cluster.upgrade() else { return Vec::new() };
                let is_other = |node: &Arc<Node>| !std::ptr::eq(Arc::as_ptr(&node.hub), here.as_ptr());
                let others = cluster.nodes().into_iter().filter(is_other);
                others.filter(|_| cluster.ground.dice.chance(500)).map(|node| Arc::clone(&node.hub)).collect()
            }
        };
        let hear = others(self, hub);
        hub.announce_with(Arc::new(move |conversation| hear().iter().for_each(|other: &Arc<Hub>| other.has_grown(conversation))));
        let wake = others(self, hub);
        hub.wake_elsewhere_with(Arc::new(move |what| match what {
            RemoteWakeup::Queue => wake().iter().for_each(|other| other.queue_signal().notify_one()),
            RemoteWakeup::Control => wake().iter().for_each(|other| other.control_signal().notify_one()),
            // No client is connected.
            RemoteWakeup::List(_) => {}
        }));
    }

    fn take(&self, place: usize) -> Option<Arc<Node>> {
        self.places()[place].take()
    }

    /// Kills the node and everything in it.
    pub fn kill(&self, place: usize) {
        let Some(node) = self.take(place) else { return };
        self.ground.dice.note(format_args!("{} dies", node.name));
        node.gate.shut();
        node.gone.cancel();
        node.stop.cancel();
    }

    /// Stops the node for a while.
    pub async fn pause(&self, place: usize) {
        let Some(node) = self.places()[place].clone() else { return };
        self.ground.dice.note(format_args!("{} stands still", node.name));
        node.gate.hold();
        self.ground.dice.sleep(500, 25_000).await;
        self.ground.dice.note(format_args!("{} goes on", node.name));
        node.gate.open();
    }

    /// Drains the node.
    pub async fn drain(&self, place: usize) {
        let Some(node) = self.take(place) else { return };
        self.ground.dice.note(format_args!("{} drains", node.name));
        node.worker.drain(self.ground.dice.between(0, 10_000)).await;
        node.hub.close_all();
        node.gate.shut();
        node.gone.cancel();
        node.stop.cancel();
        self.ground.dice.note(format_args!("{} has ended", node.name));
    }
}
