//! One seed, from its start to its final state.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use capstan::support::ids::SequentialIds;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::checks;
use super::cluster::{Cluster, Ground};
use super::dice::Dice;
use super::followers::{Follower, Subject};
use super::gate::Gate;
use super::hands::Ledger;
use super::line::{Sky, Weather};
use super::mind::MindOptions;
use super::people::{Promises, User};
use super::witness::Witness;
use support::model_store::Bug;
use support::model_store::{ModelStore, State};

/// The time limit for reaching the final state once the disturbances end. It covers waiting runs, timeouts of tools and models,
/// and leases that have not expired yet.
const REST: Duration = Duration::from_secs(600);

/// The result of a seed.
pub struct Verdict {
    pub seed: u64,
    /// The number and the hash of all notes: equal if and only if the events were the same.
    pub notes: (u64, u64),
    /// The hash of all event logs: unchanged if a change of the code preserves what is shown and stored.
    pub event_logs: u64,
    /// All violations.
    pub wrong: Vec<String>,
    /// The duration in virtual time.
    pub lasted: Duration,
    pub runs: usize,
    /// The number of events by kind, and of run errors by code.
    pub happened: BTreeMap<String, u64>,
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Counts the panics of this thread, because those of a worker's tasks would otherwise go unnoticed.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
    PANICS.set(0);
}

/// Plays one seed. With `aloud` it prints its events.
pub fn play(seed: u64, bug: Option<Bug>, aloud: bool) -> Verdict {
    count_panics();
    capstan::support::failpoint::plant((bug == Some(Bug::LagSkipped)).then_some("lag-skipped"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mut verdict = runtime.block_on(live(seed, bug, aloud));
    drop(runtime);
    if PANICS.get() > 0 {
        verdict.wrong.push(format!("{} tasks have panicked", PANICS.get()));
    }
    verdict
}

async fn live(seed: u64, bug: Option<Bug>, aloud: bool) -> Verdict {
    let began = Instant::now();
    let dice = Arc::new(Dice::new(seed, aloud));
    let bad = |share: &[u64]| dice.pick(share);
    let weather = Weather {
        fails: bad(&[0, 5, 40]),
        wrong: bad(&[0, 0, 5, 200]),
        unheard: bad(&[0, 5, 40]),
        late: bad(&[0, 20, 80]),
        slow: bad(&[0, 0, 3, 12]),
    };
    let mind = MindOptions { trouble: bad(&[0, 100, 350]), bug, numbers: 0.into() };
    let (model, witness, ledger) = (
        ModelStore::new(bug, u32::try_from(dice.pick(&[0, 0, 1, 2])).unwrap()),
        Arc::<Witness>::default(),
        Arc::<Ledger>::default(),
    );
    dice.note(format_args!("the weather is {weather:?}, the trouble {}", mind.trouble));
    let tasks = TaskTracker::new();
    let cluster = Cluster::new(Ground {
        dice: Arc::clone(&dice),
        model: Arc::clone(&model),
        witness: Arc::clone(&witness),
        ledger: Arc::clone(&ledger),
        mind: Arc::new(mind),
        sky: Arc::new(Sky {
            weather,
            is_calm: false.into(),
            gate: Gate::new(),
            is_away: false.into(),
            under_way: TaskTracker::new(),
        }),
        ids: Arc::new(SequentialIds::default()),
        tasks: tasks.clone(),
    });
    for place in 0..3 {
        cluster.start(place).await;
    }
    let promises = Arc::<Mutex<Promises>>::default();
    let (chaos, followers) = (TaskTracker::new(), TaskTracker::new());
    let (mut cursors, mut lives, mut humans) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..1 + dice.below(3) {
        let user = User::new(&cluster, &promises);
        for follower in user.followers() {
            let Subject::Conversation(id) = follower.subject.clone() else { continue };
            cursors.push((id, Arc::clone(&follower.cursor)));
            followers.spawn(Follower::follow(follower));
        }
        humans.push(user.clone().answer());
        lives.push(user.live(number));
    }
    let disasters = dice.below(10);
    chaos.spawn(disturb(Arc::clone(&cluster), chaos.clone(), disasters));
    let story = async {
        futures_util::future::join_all(lives).await;
        chaos.close();
        chaos.wait().await;
        dice.note(format_args!("it is calm"));
        cluster.ground.sky.is_calm.store(true, Ordering::SeqCst);
        for place in 0..3 {
            cluster.start(place).await;
        }
        let everyone_knows = || {
            let state = model.state();
            let heads = |id| state.conversations.get(id).map_or(0, |row| row.head());
            checks::is_at_rest(&state) && cursors.iter().all(|(id, cursor)| heads(id) <= cursor.load(Ordering::SeqCst))
        };
        let calm_since = Instant::now();
        while !everyone_knows() && calm_since.elapsed() < REST {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::select! {
        biased;
        // The users who answer questions never end by themselves.
        _ = futures_util::future::join_all(humans) => {}
        () = story => {}
    }
    // Late writes arrive now, and must not change anything.
    cluster.ground.sky.under_way.close();
    cluster.ground.sky.under_way.wait().await;
    let state = model.state();
    let mut wrong = checks::problems(&state, &witness.seen(), &ledger, &promises.lock().unwrap());
    for (id, cursor) in &cursors {
        let (head, seen) = (state.conversations.get(id).map_or(0, |row| row.head()), cursor.load(Ordering::SeqCst));
        if seen < head {
            wrong.push(format!("a reader of {id} has {seen} of {head} events"));
        }
    }
    let runs = state.runs.len();
    let mut happened = BTreeMap::new();
    let codes = state.runs.values().filter_map(|row| row.run.error.as_ref()).map(|error| error.code.clone());
    let kinds = state.conversations.values().flat_map(|row| &row.log).map(|event| event.kind.to_string());
    let acts = promises.lock().unwrap().done.clone();
    for what in kinds.chain(codes).chain(acts.into_iter().map(str::to_owned)) {
        *happened.entry(what).or_insert(0) += 1;
    }
    let event_logs = hash_of_event_logs(&state);
    drop(state);
    dice.note(format_args!("{runs} runs, wrong: {wrong:?}"));
    Verdict { seed, notes: dice.sum(), event_logs, wrong, lasted: began.elapsed(), runs, happened }
}

/// Returns one hash of the event logs of all conversations.
fn hash_of_event_logs(state: &State) -> u64 {
    let mut hash = DefaultHasher::new();
    for (id, row) in &state.conversations {
        id.as_str().hash(&mut hash);
        for event in &row.log {
            format!("{event:?}").hash(&mut hash);
        }
    }
    hash.finish()
}

/// Takes the store away from all nodes: it refuses, or it does not answer.
async fn outage(cluster: Arc<Cluster>) {
    let Ground { dice, sky, .. } = &cluster.ground;
    let refuses = dice.chance(500);
    dice.note(format_args!("the store {}", if refuses { "refuses" } else { "hangs" }));
    if refuses {
        sky.is_away.store(true, Ordering::SeqCst);
    } else {
        sky.gate.hold();
    }
    dice.sleep(1_000, 20_000).await;
    dice.note(format_args!("the store is back"));
    sky.is_away.store(false, Ordering::SeqCst);
    sky.gate.open();
}

/// Kills, stops and drains nodes, and takes their store away.
async fn disturb(cluster: Arc<Cluster>, tasks: TaskTracker, disasters: u64) {
    let dice = Arc::clone(&cluster.ground.dice);
    for _ in 0..disasters {
        dice.sleep(0, 9_000).await;
        let place = usize::try_from(dice.below(3)).unwrap();
        let cluster = Arc::clone(&cluster);
        match dice.below(7) {
            0 | 1 => {
                cluster.kill(place);
                tasks.spawn(async move {
                    cluster.ground.dice.sleep(0, 12_000).await;
                    cluster.start(place).await;
                });
            }
            2 | 3 => {
                tasks.spawn(async move { cluster.pause(place).await });
            }
            4 => {
                tasks.spawn(outage(cluster));
            }
            _ => {
                tasks.spawn(async move {
                    cluster.drain(place).await;
                    cluster.start(place).await;
                });
            }
        }
    }
}
