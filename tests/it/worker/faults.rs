//! A store that is away, replies late or not at all, or fails permanently.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use capstan::domain::agent::{AgentProfile, OnInterrupt};
use capstan::domain::event::EventBody;
use capstan::domain::ids::{ConversationId, NodeId, RunId};
use capstan::domain::run::budget::{Allowance, Budget};
use capstan::domain::run::change::Change;
use capstan::domain::run::record::RunWrite;
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::store::AcceptRun;
use capstan::support::clock::SystemClock;
use capstan::worker::{LogError, LogWriter, Worker, WorkerDeps};
use rstest::rstest;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::faulty::{Fate, FaultyStore, away, locked, wrong};
use super::harness::{Answer, Harness, options, until, without_sweep};
use support::database::Kind;

/// Starts a worker on a store that can fail.
async fn worker(h: &Harness) -> (Arc<FaultyStore>, Arc<Worker>) {
    let store = FaultyStore::new(h.store.clone());
    let deps = WorkerDeps { store: store.clone(), ..h.deps() };
    (store, Worker::start(deps, options(&h.ids)).await.unwrap())
}

/// Makes the first write of a call's outcome fail. Returns the count of these writes.
fn fails_the_first_outcome(store: &FaultyStore) -> Arc<AtomicUsize> {
    let failed = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&failed);
    store.judge(move |writes| {
        let ends_tool = |write: &RunWrite| write.events.iter().any(|event| event.kind == "tool.completed");
        if !writes.iter().any(ends_tool) || counter.fetch_add(1, Ordering::SeqCst) > 0 {
            return Fate::Goes;
        }
        Fate::Fails(away())
    });
    failed
}

/// Sends a message to an agent that does not resume interrupted runs.
async fn say_to_the_careful(h: &Harness) -> (ConversationId, RunId) {
    let id = ConversationId::generate(h.ids.as_ref());
    let message = h.message(&id, "go", OnBusy::Queue);
    let profile = AgentProfile { on_interrupt: OnInterrupt::Fail, ..message.profile.clone() };
    let run = message.run_id.clone();
    h.store.accept_run(AcceptRun { profile, ..message }, None).await.unwrap();
    h.hub.queue_signal().notify_one();
    (id, run)
}

#[tokio::test]
async fn read_only_store_costs_one_model_call() {
    let h = Harness::with_answers([Answer::Text("in vain"), Answer::Text("at last")]).await;
    let (store, _worker) = worker(&h).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tries);
    store.judge(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        Fate::Fails(away())
    });
    let (_, run) = h.say("go").await;
    until("some tries", async || (tries.load(Ordering::SeqCst) >= 5).then_some(())).await;
    assert_eq!(h.model.request_count(), 1);
    store.judge(|_| Fate::Goes);
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!((h.model.request_count(), run.attempt), (2, 1));
}

/// D-02. Whether or not the write was stored, the run continues from its rows, and no crash is counted.
#[tokio::test]
async fn a_write_in_doubt_is_no_interruption() {
    for is_stored in [false, true] {
        let h = Harness::new().await;
        h.model.then(Answer::Calls(vec!["once"]));
        h.model.then(Answer::Text("done"));
        let (store, _worker) = worker(&h).await;
        let mut left = 1;
        store.judge(move |writes| {
            let ends_tool = |write: &RunWrite| write.events.iter().any(|event| event.kind == "tool.completed");
            if left == 0 || !writes.iter().any(ends_tool) {
                return Fate::Goes;
            }
            left -= 1;
            if is_stored { Fate::Unheard(away()) } else { Fate::Fails(away()) }
        });
        let (conversation, run) = say_to_the_careful(&h).await;
        let run = h.until(&run, RunStatus::Completed).await;
        assert_eq!((run.attempt, h.tools.executed.lock().unwrap().len()), (1, 1));
        let kinds = h.kinds(&conversation).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "run.resumed").count(), 1, "{kinds:?}");
        assert_eq!(kinds.iter().filter(|kind| *kind == "tool.completed").count(), 1, "{kinds:?}");
    }
}

/// A short outage ends no call of a live worker: the result is received, and the call runs once.
#[tokio::test]
async fn a_call_under_way_outlives_a_write_that_failed() {
    let h = Harness::with_answers([Answer::Calls(vec!["once", "gated"]), Answer::Text("done")]).await;
    let (store, _worker) = worker(&h).await;
    let failed = fails_the_first_outcome(&store);
    let (conversation, run) = h.say("go").await;
    // A failed write is repeated at once, before the other call ends.
    h.until_event(&conversation, "tool.completed").await;
    assert!(failed.load(Ordering::SeqCst) > 1, "the first write failed");
    h.tools.gate.notify_one();
    h.until(&run, RunStatus::Completed).await;
    let mut executed = h.tools.executed.lock().unwrap().clone();
    executed.sort();
    assert_eq!(executed, ["gated", "once"]);
    let kinds = h.kinds(&conversation).await;
    assert!(!kinds.contains(&"tool.outcome_unknown".to_owned()), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool.completed").count(), 2, "{kinds:?}");
}

/// A cancellation does not wait for a call that its worker waits for.
#[tokio::test]
async fn a_run_that_waits_for_its_calls_can_be_cancelled() {
    let h = Harness::with_answers([Answer::Calls(vec!["once", "bomb"])]).await;
    let (store, _worker) = worker(&h).await;
    let failed = fails_the_first_outcome(&store);
    let (conversation, run) = h.say("go").await;
    until("the write", async || (failed.load(Ordering::SeqCst) == 1).then_some(())).await;
    h.cancel_and_wait(&run).await;
    let kinds = h.kinds(&conversation).await;
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "tool.completed").count(),
        1,
        "the outcome of the ended call is known: {kinds:?}"
    );
}

/// A reservation for a cancelled run is released: the model call is not made and costs nothing.
#[tokio::test]
async fn leave_that_comes_too_late_is_given_back() {
    let h = Harness::new().await;
    let (store, _worker) = worker(&h).await;
    let gate = Arc::new(Notify::new());
    let (asked, looks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (late, reserved, looked) = (Arc::clone(&gate), Arc::clone(&asked), Arc::clone(&looks));
    store.trouble(move |name| match name {
        "reserve" => {
            reserved.fetch_add(1, Ordering::SeqCst);
            Fate::HeardLate(Arc::clone(&late))
        }
        "control_signals" => {
            looked.fetch_add(1, Ordering::SeqCst);
            Fate::Goes
        }
        _ => Fate::Goes,
    });
    let id = ConversationId::generate(h.ids.as_ref());
    let message = h.message(&id, "go", OnBusy::Queue);
    let budget = Budget { day: Allowance { tokens: Some(1_000_000), usd: None }, ..Budget::default() };
    let (profile, run) = (AgentProfile { budget, ..message.profile.clone() }, message.run_id.clone());
    h.store.accept_run(AcceptRun { profile, ..message }, None).await.unwrap();
    h.hub.queue_signal().notify_one();
    let held = "SELECT CAST(count(*) AS text) FROM spending WHERE held_epoch IS NOT NULL";
    until("leave", async || (h.database.count(held).await == 1).then_some(())).await;
    h.cancel(&run).await;
    // The second poll of the control signals starts only after the result of the first one was processed.
    for _ in 0..2 {
        let before = looks.load(Ordering::SeqCst);
        h.hub.notify_control();
        until("a look", async || (looks.load(Ordering::SeqCst) > before).then_some(())).await;
    }
    gate.notify_one();
    h.until(&run, RunStatus::Cancelled).await;
    assert_eq!((asked.load(Ordering::SeqCst), h.model.request_count()), (1, 0));
    let row = h.database.rows("SELECT CAST(tokens AS text), CAST(held_tokens AS text) FROM spending").await;
    assert_eq!(row, [[Some("0".to_owned()), Some("0".to_owned())]]);
}

#[tokio::test]
async fn an_outcome_that_could_not_be_stored_is_not_unknown() {
    let h = Harness::with_answers([Answer::Calls(vec!["once"]), Answer::Text("done")]).await;
    let (store, _worker) = worker(&h).await;
    let mut left = 3;
    store.judge(move |writes| {
        let ends_tool = |write: &RunWrite| write.events.iter().any(|event| event.kind == "tool.completed");
        if left == 0 || !writes.iter().any(ends_tool) {
            return Fate::Goes;
        }
        left -= 1;
        Fate::Fails(away())
    });
    let (conversation, run) = h.say("go").await;
    h.until(&run, RunStatus::Completed).await;
    assert_eq!(*h.tools.executed.lock().unwrap(), ["once"]);
    let kinds = h.kinds(&conversation).await;
    assert!(!kinds.contains(&"tool.outcome_unknown".to_owned()), "{kinds:?}");
    let request = h.model.requests.lock().unwrap()[1].clone();
    assert!(format!("{:?}", request.messages).contains("once ran"), "{:?}", request.messages);
}

/// D-02. The run does not wait for its lease to expire, and no crash is counted.
#[tokio::test]
async fn a_fence_that_was_raised_unheard_is_gone_on_under() {
    let h = Harness::with_answers([Answer::Text("in vain"), Answer::Text("done")]).await;
    let (store, _worker) = worker(&h).await;
    let (mut failing, mut unheard) = (1, 1);
    store.judge(move |_| {
        let fails = failing > 0;
        failing = 0;
        if fails { Fate::Fails(away()) } else { Fate::Goes }
    });
    store.trouble(move |name| {
        if name != "raise_fence" || unheard == 0 {
            return Fate::Goes;
        }
        unheard -= 1;
        Fate::Unheard(away())
    });
    let (_, run) = h.say("go").await;
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!(run.attempt, 1);
}

/// D-08. Postgres ends a statement, as after its timeout: the run continues and does not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_postgres_ends_is_no_failure() {
    let h = Harness::on(Kind::Postgres).await;
    let gate = Arc::new(Notify::new());
    h.model.then(Answer::Held("so far", Arc::clone(&gate)));
    h.model.then(Answer::Text("to the end"));
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    h.until_event(&conversation, "part.delta").await;
    let mut holder = PgConnection::connect(&h.database.url).await.unwrap();
    sqlx::query("BEGIN").execute(&mut holder).await.unwrap();
    sqlx::query("SELECT FROM conversation_heads FOR UPDATE").execute(&mut holder).await.unwrap();
    gate.notify_one();
    let ending = "SELECT CAST(pg_cancel_backend(pid) AS text) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("the commit to be ended", async || (!h.database.rows(ending).await.is_empty()).then_some(())).await;
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!((run.attempt, h.model.request_count()), (1, 2));
}

#[tokio::test]
async fn a_run_that_can_never_be_written_is_given_up() {
    let h = Harness::new().await;
    let (store, worker) = worker(&h).await;
    store.judge(|writes| {
        let gives_up = |write: &RunWrite| matches!(write.changes.as_slice(), [Change::Finish { .. }]);
        if writes.iter().all(gives_up) { Fate::Goes } else { Fate::Fails(wrong()) }
    });
    let (_, run) = h.say("go").await;
    let failed = h.until(&run, RunStatus::Failed).await;
    assert_eq!(failed.error.unwrap().code, "internal_error");
    assert_eq!(h.model.request_count(), 1);
    until("the slot to be free", async || (worker.active() == 0).then_some(())).await;
}

/// A live worker that could not renew its lease was not killed by the run, however often that happens.
#[tokio::test]
async fn an_outage_is_no_crash() {
    const OUTAGES: usize = 4;
    let h = Harness::new().await;
    let store = FaultyStore::new(h.store.clone());
    let deps = WorkerDeps { store: store.clone(), ..h.deps() };
    let mut numbers = options(&h.ids);
    numbers.renew = Duration::from_millis(20);
    numbers.self_stop = Duration::from_secs(1);
    // A takeover would wait for this lease to expire.
    numbers.lease = Duration::from_secs(60);
    let worker = Worker::start(deps, numbers).await.unwrap();
    for _ in 0..OUTAGES {
        h.model.then(Answer::Hang("cut short "));
    }
    h.model.then(Answer::Text("at last"));
    let (_, run) = h.say("go").await;
    for outage in 1..=OUTAGES {
        until("a model call", async || (h.model.request_count() >= outage).then_some(())).await;
        store.trouble(|_| Fate::Fails(away()));
        until("the run to be given up", async || (worker.active() == 0).then_some(())).await;
        store.trouble(|_| Fate::Goes);
    }
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!((h.model.request_count(), run.attempt), (OUTAGES + 1, u32::try_from(OUTAGES).unwrap() + 1));
}

/// The same after a raised fence whose reply was lost in an outage.
#[tokio::test]
async fn an_outage_that_begins_with_a_fence_is_no_crash() {
    let h = Harness::with_answers([Answer::Text("in vain"), Answer::Text("at last")]).await;
    let store = FaultyStore::new(h.store.clone());
    let deps = WorkerDeps { store: store.clone(), ..h.deps() };
    let mut numbers = options(&h.ids);
    numbers.renew = Duration::from_millis(20);
    numbers.self_stop = Duration::from_millis(1_000);
    // A takeover would wait for this lease to expire.
    numbers.lease = Duration::from_secs(60);
    let raised = Arc::new(AtomicUsize::new(0));
    let (begun, is_away) = (Arc::clone(&raised), Arc::clone(&raised));
    store.trouble(move |name| match (name, begun.load(Ordering::SeqCst)) {
        ("raise_fence", 0) => {
            begun.fetch_add(1, Ordering::SeqCst);
            Fate::Unheard(away())
        }
        (_, 0) => Fate::Goes,
        (_, _) => Fate::Fails(away()),
    });
    // A write that fails once makes the worker raise the fence.
    let mut left = 1;
    store.judge(move |writes| {
        let ends = |write: &RunWrite| write.changes.iter().any(|change| matches!(change, Change::Finish { .. }));
        let fails = left > 0 && writes.iter().any(ends);
        left -= i32::from(fails);
        if fails { Fate::Fails(away()) } else { Fate::Goes }
    });
    let worker = Worker::start(deps, numbers).await.unwrap();
    let (_, run) = say_to_the_careful(&h).await;
    until("the outage", async || (is_away.load(Ordering::SeqCst) == 1).then_some(())).await;
    until("the run to be given up", async || (worker.active() == 0).then_some(())).await;
    // The claim is too old for an orphaned claim, which would be released as well.
    h.database.rows("UPDATE run_leases SET claimed_at = claimed_at - 60000 RETURNING run_id").await;
    store.trouble(|_| Fate::Goes);
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!((h.model.request_count(), run.attempt), (2, 2));
}

/// SQLite's disk may stall for seconds and then complete the write.
#[tokio::test]
async fn a_renewal_that_comes_too_late_is_no_crash() {
    const STALLS: usize = 4;
    let h = Harness::new().await;
    let store = FaultyStore::new(h.store.clone());
    let deps = WorkerDeps { store: store.clone(), ..h.deps() };
    let mut numbers = options(&h.ids);
    numbers.renew = Duration::from_millis(50);
    numbers.self_stop = Duration::from_millis(1_500);
    numbers.lease = Duration::from_secs(60);
    let worker = Worker::start(deps, numbers).await.unwrap();
    for _ in 0..STALLS {
        h.model.then(Answer::Hang("cut short "));
    }
    h.model.then(Answer::Text("at last"));
    let (_, run) = h.say("go").await;
    for stall in 1..=STALLS {
        until("a model call", async || (h.model.request_count() >= stall).then_some(())).await;
        let gate = Arc::new(Notify::new());
        let late = Arc::clone(&gate);
        store.trouble(move |name| if name == "renew_leases" { Fate::Late(Arc::clone(&late)) } else { Fate::Goes });
        until("the run to be given up", async || (worker.active() == 0).then_some(())).await;
        store.trouble(|_| Fate::Goes);
        gate.notify_one();
    }
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!(run.attempt, u32::try_from(STALLS).unwrap() + 1);
}

/// The worker ends while its run waits to be loaded again. No crash is counted, and the next claim need not wait for the lease
/// to expire.
#[tokio::test]
async fn a_run_that_waits_for_the_store_is_handed_back_at_the_end() {
    for is_away in [false, true] {
        let h = Harness::new().await;
        h.model.then(Answer::Text("in vain"));
        h.model.then(Answer::Text("at last"));
        let (store, worker) = worker(&h).await;
        let tries = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&tries);
        store.judge(move |writes| {
            let hands_back = |write: &RunWrite| write.changes.iter().any(|change| matches!(change, Change::Release { .. }));
            if writes.iter().any(hands_back) {
                return Fate::Goes;
            }
            counter.fetch_add(1, Ordering::SeqCst);
            Fate::Fails(away())
        });
        let (_, run) = h.say("go").await;
        // The next backoff is longer than the drain's timeout.
        until("some tries", async || (tries.load(Ordering::SeqCst) >= 5).then_some(())).await;
        if is_away {
            // Writes fail, but the lease can be released.
            store.trouble(|name| if name == "give_up_leases" { Fate::Goes } else { Fate::Fails(away()) });
        }
        worker.drain(Duration::from_millis(10)).await;
        let explanation = h.explain(&run).await;
        assert_eq!((explanation.crashes, explanation.lease_node), (0, None), "away: {is_away}");
        let _next = h.worker().await;
        let run = h.until(&run, RunStatus::Completed).await;
        assert_eq!((h.model.request_count(), run.attempt), (2, 2));
    }
}

/// D-02. A claim is stored and its reply lost: the heartbeat releases it before its lease expires, and no crash is counted.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn claim_with_lost_reply_is_released_before_its_lease_expires(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let h = Harness::on(kind).await;
    h.model.then(Answer::Text("finished"));
    let store = FaultyStore::new(h.store.clone());
    let (lost_at, released_after) = (Arc::new(OnceLock::<Instant>::new()), Arc::new(OnceLock::new()));
    let (lost, released) = (Arc::clone(&lost_at), Arc::clone(&released_after));
    store.trouble(move |name| {
        if name == "claim_runs" && lost.set(Instant::now()).is_ok() {
            return Fate::Unheard(away());
        }
        if name == "give_up_leases" {
            let _ = released.set(lost.get().expect("a claim was lost").elapsed());
        }
        Fate::Goes
    });
    let options = without_sweep(&h.ids);
    let (lease, age) = (options.lease, options.orphan_age());
    let (_, run) = h.say("go").await;
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, options).await.unwrap();
    let done = h.until(&run, RunStatus::Completed).await;
    let crashes = h.explain(&run).await.crashes;
    assert_eq!((done.attempt, crashes), (2, 0), "no crash is counted");
    let after = *released_after.get().unwrap();
    assert!(age <= after && after < lease, "released after {after:?}");
}

/// The renewal that would have found the claim fails. The next one finds it before its lease expires.
#[tokio::test]
async fn claim_with_lost_reply_outlives_a_failed_renewal() {
    let h = Harness::with_answers([Answer::Text("finished")]).await;
    let store = FaultyStore::new(h.store.clone());
    let mut options = without_sweep(&h.ids);
    // As many renewals in a lease as by default, and an expired lease is found at once.
    (options.renew, options.sweep_interval) = (options.lease / 4, Duration::from_millis(100));
    let age = options.orphan_age();
    let failures = Arc::new(AtomicUsize::new(0));
    let (lost_at, failed) = (OnceLock::<Instant>::new(), Arc::clone(&failures));
    store.trouble(move |name| {
        if name == "claim_runs" && lost_at.set(Instant::now()).is_ok() {
            return Fate::Unheard(away());
        }
        let is_old = lost_at.get().is_some_and(|lost| lost.elapsed() >= age);
        if name == "renew_leases" && is_old && failed.fetch_add(1, Ordering::SeqCst) == 0 {
            return Fate::Fails(away());
        }
        Fate::Goes
    });
    let (_, run) = h.say("go").await;
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, options).await.unwrap();
    let done = h.until(&run, RunStatus::Completed).await;
    let crashes = h.explain(&run).await.crashes;
    assert!(failures.load(Ordering::SeqCst) > 0, "a renewal failed");
    assert_eq!((done.attempt, crashes), (2, 0), "no crash is counted");
}

/// A lease that the worker knows is never released, however old it is.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn known_claim_is_never_released(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let h = Harness::on(kind).await;
    h.model.then(Answer::Hang("not yet "));
    let store = FaultyStore::new(h.store.clone());
    let (renewals, releases) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counters = (Arc::clone(&renewals), Arc::clone(&releases));
    store.trouble(move |name| {
        match name {
            "renew_leases" => counters.0.fetch_add(1, Ordering::SeqCst),
            "give_up_leases" => counters.1.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        Fate::Goes
    });
    let options = without_sweep(&h.ids);
    let (age, begun) = (options.orphan_age(), Instant::now());
    let (_, run) = h.say("go").await;
    let worker = Worker::start(WorkerDeps { store, ..h.deps() }, options).await.unwrap();
    until("the run to be claimed", async || (worker.active() == 1).then_some(())).await;
    until("a renewal after the age of orphans", async || (begun.elapsed() > age * 3 / 2).then_some(())).await;
    assert!(renewals.load(Ordering::SeqCst) > 3);
    let explained = h.explain(&run).await;
    assert_eq!((releases.load(Ordering::SeqCst), h.run(&run).await.attempt), (0, 1));
    assert!(explained.lease_node.is_some());
}

/// A driver that panics leaves a lease that has to expire: the node knows of the claim, and the crash counts.
#[tokio::test]
async fn claim_of_a_panicked_driver_is_not_released() {
    let h = Harness::with_answers([Answer::Text("finished")]).await;
    let store = FaultyStore::new(h.store.clone());
    let (panicked, releases) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let released = Arc::clone(&releases);
    store.trouble(move |name| match name {
        "load_run" if panicked.fetch_add(1, Ordering::SeqCst) == 0 => Fate::Panics,
        "give_up_leases" => {
            released.fetch_add(1, Ordering::SeqCst);
            Fate::Goes
        }
        _ => Fate::Goes,
    });
    let mut options = without_sweep(&h.ids);
    (options.lease, options.self_stop) = (Duration::from_secs(2), Duration::from_millis(1_500));
    options.sweep_interval = Duration::from_millis(200);
    let (_, run) = h.say("go").await;
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, options).await.unwrap();
    let done = h.until(&run, RunStatus::Completed).await;
    let crashes = h.explain(&run).await.crashes;
    assert_eq!((done.attempt, releases.load(Ordering::SeqCst), crashes), (2, 0, 1));
}

/// An agent that does not resume after a crash resumes after a claim whose reply was lost: no worker has crashed.
#[tokio::test]
async fn claim_with_lost_reply_is_no_interruption() {
    let h = Harness::with_answers([Answer::Calls(vec!["quick"]), Answer::Hang("not yet "), Answer::Text("finished")]).await;
    let worker = h.worker().await;
    let (conversation, run) = say_to_the_careful(&h).await;
    h.until_event(&conversation, "part.delta").await;
    worker.drain(Duration::from_millis(10)).await;
    let store = FaultyStore::new(h.store.clone());
    let unheard = AtomicUsize::new(1);
    store.trouble(move |name| {
        let is_lost = name == "claim_runs" && unheard.swap(0, Ordering::SeqCst) > 0;
        if is_lost { Fate::Unheard(away()) } else { Fate::Goes }
    });
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, without_sweep(&h.ids)).await.unwrap();
    let done = h.until(&run, RunStatus::Completed).await;
    assert_eq!((done.attempt, h.model.request_count()), (3, 3));
}

/// The decision about a crash is made even if the takeover's first write fails: an agent without resumption ends the run.
#[tokio::test]
async fn takeover_is_decided_after_any_failure() {
    for is_loaded in [false, true] {
        let h = Harness::new().await;
        h.model.then(Answer::Hang("not yet "));
        let (store, _worker) = worker(&h).await;
        let (conversation, run) = say_to_the_careful(&h).await;
        h.until_event(&conversation, "part.delta").await;
        let left = Arc::new(AtomicUsize::new(1));
        let fails = move |now: bool| now && left.fetch_min(0, Ordering::SeqCst) > 0;
        match is_loaded {
            false => store.trouble(move |name| if fails(name == "load_run") { Fate::Fails(away()) } else { Fate::Goes }),
            true => store.judge(move |_| if fails(true) { Fate::Fails(away()) } else { Fate::Goes }),
        }
        let other = NodeId::generate(h.ids.as_ref());
        assert_eq!(h.store.expire_foreign_leases(&other).await.unwrap(), 1);
        h.hub.queue_signal().notify_one();
        let failed = h.until(&run, RunStatus::Failed).await;
        assert_eq!((failed.error.unwrap().code.as_str(), failed.attempt, h.model.request_count()), ("interrupted", 2, 1));
    }
}

/// Only virtual time advances.
#[tokio::test]
async fn a_database_that_hangs_does_not_keep_the_process() {
    let h = Harness::new().await;
    let (store, worker) = worker(&h).await;
    let hangs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&hangs);
    store.judge(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        Fate::Hangs
    });
    h.say("go").await;
    until("the write", async || (hangs.load(Ordering::SeqCst) > 0).then_some(())).await;
    tokio::time::pause();
    let drained = tokio::time::timeout(Duration::from_secs(60), worker.drain(Duration::from_secs(1))).await;
    assert!(drained.is_ok(), "the drain waits for the database");
}

#[tokio::test]
async fn a_task_that_ends_by_itself_ends_the_worker() {
    let h = Harness::new().await;
    let store = FaultyStore::new(h.store.clone());
    let deps = WorkerDeps { store: store.clone(), ..h.deps() };
    let mut numbers = options(&h.ids);
    numbers.sweep_interval = Duration::from_millis(20);
    let worker = Worker::start(deps, numbers).await.unwrap();
    store.panics.store(true, Ordering::SeqCst);
    tokio::time::timeout(Duration::from_secs(20), worker.failed()).await.expect("the sweeper's end is noticed");
    worker.drain(Duration::from_millis(10)).await;
}

/// Two runs of one log writer, and the batches that its store gets.
struct Pair {
    h: Harness,
    store: Arc<FaultyStore>,
    logs: Vec<(RunId, ConversationId, capstan::worker::RunLog)>,
    writer: LogWriter,
}

impl Pair {
    async fn new() -> Self {
        let h = Harness::new().await;
        let writer = LogWriter::new(Duration::from_millis(25), 1024);
        let node = NodeId::generate(h.ids.as_ref());
        let mut logs = Vec::new();
        for _ in 0..2 {
            h.say("go").await;
            let fence = h.store.claim_runs(&node, 1, 10_000).await.unwrap().remove(0).fence;
            let (run, conversation) = (fence.run_id.clone(), fence.conversation_id.clone());
            logs.push((run, conversation, writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock))));
        }
        Self { store: FaultyStore::new(h.store.clone()), h, logs, writer }
    }

    /// Commits two steps of the first run and one of the second in one batch. Returns the result of each, and the runs of each
    /// batch.
    async fn write(
        &self,
        mut judge: impl FnMut(&[RunWrite]) -> Fate + Send + 'static,
    ) -> (Vec<Result<(), LogError>>, Vec<Vec<RunId>>) {
        let asked: Arc<Mutex<Vec<Vec<RunId>>>> = Arc::default();
        let seen = Arc::clone(&asked);
        self.store.judge(move |writes| {
            seen.lock().unwrap().push(writes.iter().map(|write| write.fence.run_id.clone()).collect());
            judge(writes)
        });
        let step = |step| [EventBody::StepReset { step, reason: "test".to_owned() }];
        let (one, two) = (&self.logs[0].2, &self.logs[1].2);
        let (first, second, other) = (step(1), step(2), step(1));
        let all = [one.commit(&first, Vec::new()), one.commit(&second, Vec::new()), two.commit(&other, Vec::new())];
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (writer, store, hub, token) = (self.writer.clone(), self.store.clone(), self.h.hub.clone(), stop.clone());
        // All three are queued before the writer looks.
        let writing = async {
            tasks.spawn(async move { writer.run(store, hub, token).await });
        };
        let (answers, ()) = futures_util::future::join(futures_util::future::join_all(all), writing).await;
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        let asked = asked.lock().unwrap().clone();
        (answers, asked)
    }
}

#[tokio::test]
async fn writes_after_a_failed_one_are_not_stored() {
    let pair = Pair::new().await;
    let (one, two) = (pair.logs[0].0.clone(), pair.logs[1].0.clone());
    let damaged = one.clone();
    let (answers, asked) = pair
        .write(move |writes| match writes {
            [only] if only.fence.run_id != damaged => Fate::Goes,
            _ => Fate::Fails(wrong()),
        })
        .await;
    assert!(matches!(answers[..], [Err(LogError::Store(_)), Err(LogError::Stopped), Ok(())]), "{answers:?}");
    assert_eq!(asked, [vec![one.clone(), one.clone(), two.clone()], vec![one], vec![two]]);
    assert!(pair.logs[0].2.is_broken_permanently());
    assert_eq!(pair.h.kinds(&pair.logs[0].1).await.len(), 3, "no more events than those of the message");
    assert_eq!(pair.h.kinds(&pair.logs[1].1).await.last().map(String::as_str), Some("step.reset"));
}

/// D-08.
#[tokio::test]
async fn a_run_that_is_locked_keeps_no_other_from_being_written() {
    let pair = Pair::new().await;
    let held = pair.logs[0].0.clone();
    let judge = move |writes: &[RunWrite]| match writes.iter().any(|write| write.fence.run_id == held) {
        true => Fate::Fails(locked()),
        false => Fate::Goes,
    };
    let (answers, _) = pair.write(judge).await;
    assert!(matches!(answers[..], [Err(LogError::Store(_)), Err(LogError::Stopped), Ok(())]), "{answers:?}");
    assert!(pair.logs[0].2.broken().is_cancelled() && !pair.logs[0].2.is_broken_permanently());
}

#[tokio::test]
async fn a_database_that_is_locked_is_not_asked_again_for_every_run() {
    let pair = Pair::new().await;
    let (answers, asked) = pair.write(|_| Fate::Fails(away())).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    assert_eq!(asked.len(), 1, "the error applies to all of them");
}
