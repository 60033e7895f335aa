//! Lost leases.

use std::str::FromStr as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan::domain::ids::NodeId;
use capstan::domain::run::RunStatus;
use capstan::worker::{Worker, WorkerDeps};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::faulty::{Fate, FaultyStore, away};
use super::harness::{Answer, Harness, options, until};
use support::database::Kind;
use support::wait::within;

#[tokio::test]
async fn a_lost_lease_stops_the_old_driver_and_another_one_finishes() {
    let (h, _worker, conversation, run) =
        Harness::in_answer([Answer::Hang("never to be finished "), Answer::Text("finished")]).await;
    // As if the lease had expired: the start of another node takes over every run of this one.
    let other = NodeId::generate(h.ids.as_ref());
    assert_eq!(h.store.expire_foreign_leases(&other).await.unwrap(), 1);
    h.hub.queue_signal().notify_one();
    let done = h.until(&run, RunStatus::Completed).await;
    assert_eq!(done.attempt, 2);
    // The old driver notices at its next renewal or write, and drops its model call.
    until("the old stream to be dropped", async || (h.model.open_streams() == 0).then_some(())).await;
    let epochs: Vec<u32> =
        h.events(&conversation).await.iter().filter(|event| event.run_id.is_some()).map(|event| event.attempt).collect();
    assert!(epochs.is_sorted(), "an old attempt wrote after a new one: {epochs:?}");
}

#[tokio::test]
async fn an_unsafe_call_of_a_dead_worker_is_unknown_and_not_repeated() {
    let h = Harness::with_answers([Answer::Calls(vec!["bomb"]), Answer::Text("careful now")]).await;
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    until("the tool", async || h.tools.executed.lock().unwrap().first().cloned()).await;
    let other = NodeId::generate(h.ids.as_ref());
    h.store.expire_foreign_leases(&other).await.unwrap();
    h.hub.queue_signal().notify_one();
    h.until(&run, RunStatus::Completed).await;
    assert_eq!(*h.tools.executed.lock().unwrap(), ["bomb"]);
    assert!(h.kinds(&conversation).await.contains(&"tool.outcome_unknown".to_owned()));
}

#[tokio::test]
async fn a_run_that_kills_its_worker_is_poison() {
    let h = Harness::new().await;
    let worker = h.worker().await;
    for _ in 0..4 {
        h.model.then(Answer::Hang("again "));
    }
    let (_, run) = h.say("go").await;
    for crash in 1..=3 {
        until("a model call", async || (h.model.request_count() == crash).then_some(())).await;
        let other = NodeId::generate(h.ids.as_ref());
        h.store.expire_foreign_leases(&other).await.unwrap();
        h.hub.queue_signal().notify_one();
    }
    let failed = h.until(&run, RunStatus::Failed).await;
    assert_eq!(failed.error.unwrap().code, "poison");
    assert_eq!(h.model.request_count(), 3);
    worker.drain(Duration::from_millis(10)).await;
}

#[tokio::test]
async fn the_sweeper_finds_a_dead_worker() {
    let h = Harness::new().await;
    let dead = NodeId::generate(h.ids.as_ref());
    let (_, run) = h.say("go").await;
    assert_eq!(h.store.claim_runs(&dead, 1, 200).await.unwrap().len(), 1);
    h.model.then(Answer::Text("rescued"));
    // The worker starts under the dead node's id, so its recovery at start does not take the run over.
    let mut numbers = options(&h.ids);
    numbers.node = dead;
    numbers.lease = Duration::from_millis(300);
    numbers.sweep_interval = Duration::from_millis(50);
    let _worker = Worker::start(h.deps(), numbers).await.unwrap();
    h.until(&run, RunStatus::Completed).await;
}

/// After an outage, even a few expired leases may belong to live workers, which must first report the runs that they released.
#[tokio::test]
async fn the_first_look_after_an_outage_of_postgres_takes_nothing() {
    let h = Harness::on(Kind::Postgres).await;
    h.model.then(Answer::Text("in time"));
    let (_, run) = h.say("go").await;
    let other = NodeId::generate(h.ids.as_ref());
    let fence = h.store.claim_runs(&other, 1, 1).await.unwrap().remove(0).fence;
    let store = FaultyStore::new(h.store.clone());
    let looks = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&looks);
    let mut outage = 3;
    let (wakes, woken) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (heard, gate) = (Arc::clone(&woken), Arc::clone(&wakes));
    store.trouble(move |name| {
        if name != "sweep_expired_leases" {
            return Fate::Goes;
        }
        if outage > 0 {
            outage -= 1;
            return Fate::Fails(away());
        }
        // Only the second sweep may take a run over. It waits for the worker that was alive all the time.
        if counter.fetch_add(1, Ordering::SeqCst) == 0 {
            return Fate::Goes;
        }
        heard.notify_one();
        Fate::Late(Arc::clone(&gate))
    });
    let mut options = options(&h.ids);
    (options.sweep_interval, options.renew) = (Duration::from_millis(20), Duration::from_millis(20));
    let _worker = Worker::start(WorkerDeps { store: store.clone(), ..h.deps() }, options).await.unwrap();
    within("a second look", Duration::from_secs(20), woken.notified()).await;
    let before = h.explain(&run).await;
    assert_eq!((before.run.attempt, before.lease_node), (1, Some(other)), "the first sweep left the run unchanged");
    h.store.give_up_leases(&[fence]).await.unwrap();
    wakes.notify_one();
    store.trouble(|_| Fate::Goes);
    h.hub.queue_signal().notify_one();
    let done = h.until(&run, RunStatus::Completed).await;
    let crashes = h.explain(&run).await.crashes;
    assert_eq!((done.attempt, crashes), (2, 0), "no crash is counted");
}

/// After an outage, a connection may take longer than a worker may go without a renewal. The lease's age counts from the claim,
/// not from the wait.
#[tokio::test]
async fn a_claim_that_waited_for_the_database_is_no_lost_lease() {
    let h = Harness::with_answers([Answer::Text("finished")]).await;
    let store = FaultyStore::new(h.store.clone());
    let gate = Arc::new(Notify::new());
    let (late, asked) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&asked);
    store.trouble(move |name| match name {
        "claim_runs" if counter.fetch_add(1, Ordering::SeqCst) == 0 => Fate::Late(Arc::clone(&late)),
        _ => Fate::Goes,
    });
    let mut options = options(&h.ids);
    (options.renew, options.self_stop) = (Duration::from_millis(500), Duration::from_millis(1_500));
    let limit = options.self_stop;
    let (_, run) = h.say("go").await;
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, options).await.unwrap();
    until("a claim", async || (asked.load(Ordering::SeqCst) > 0).then_some(())).await;
    let began = Instant::now();
    until("a long wait", async || (began.elapsed() > limit).then_some(())).await;
    gate.notify_one();
    let done = h.until(&run, RunStatus::Completed).await;
    assert_eq!(done.attempt, 1);
}

/// The rows of a released run are locked, so the release is repeated.
#[tokio::test]
async fn a_run_that_could_not_be_given_up_is_not_forgotten() {
    let h = Harness::on(Kind::Postgres).await;
    h.model.then(Answer::Hang("never to be finished "));
    h.model.then(Answer::Text("finished"));
    let store = FaultyStore::new(h.store.clone());
    let mut options = options(&h.ids);
    // Only the worker's release brings the run back.
    (options.renew, options.self_stop, options.sweep_interval) =
        (Duration::from_millis(100), Duration::from_millis(1_500), Duration::from_secs(3600));
    let _worker = Worker::start(WorkerDeps { store: store.clone(), ..h.deps() }, options).await.unwrap();
    let (conversation, run) = h.say("go").await;
    h.until_event(&conversation, "part.delta").await;
    let mut holder = PgConnection::connect_with(&PgConnectOptions::from_str(&h.database.url).unwrap()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut holder).await.unwrap();
    sqlx::query("SELECT FROM conversation_heads FOR UPDATE").execute(&mut holder).await.unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    store.trouble(move |name| match name {
        "renew_leases" => Fate::Fails(away()),
        "give_up_leases" => {
            counter.fetch_add(1, Ordering::SeqCst);
            Fate::Goes
        }
        _ => Fate::Goes,
    });
    until("to be told again", async || (told.load(Ordering::SeqCst) >= 3).then_some(())).await;
    store.trouble(|_| Fate::Goes);
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    let done = h.until(&run, RunStatus::Completed).await;
    let crashes = h.explain(&run).await.crashes;
    assert_eq!((done.attempt, crashes), (2, 0), "no crash is counted");
}

#[tokio::test]
async fn the_runs_of_a_dead_worker_do_not_wait_for_each_other() {
    let h = Harness::new().await;
    let dead = NodeId::generate(h.ids.as_ref());
    let mut runs = Vec::new();
    for _ in 0..120 {
        runs.push(h.say("go").await.1);
    }
    assert_eq!(h.store.claim_runs(&dead, 120, 1).await.unwrap().len(), 120);
    let store = FaultyStore::new(h.store.clone());
    let sweeps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sweeps);
    store.trouble(move |name| {
        if name == "sweep_expired_leases" {
            seen.lock().unwrap().push(Instant::now());
        }
        Fate::Goes
    });
    let mut numbers = options(&h.ids);
    numbers.node = dead;
    numbers.lease = Duration::from_millis(500);
    // Or the heartbeat would release them as orphaned claims.
    numbers.renew = Duration::from_secs(3600);
    numbers.sweep_interval = Duration::from_secs(8);
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, numbers).await.unwrap();
    for run in runs {
        h.until(&run, RunStatus::Completed).await;
    }
    // Each pass takes 50 runs. The third would start after two pauses of at least six seconds.
    let sweeps = sweeps.lock().unwrap();
    let took = sweeps[2].duration_since(sweeps[0]);
    assert!(took < Duration::from_secs(12), "{took:?}");
}
