//! Jumps of the node's clock. Leases, timers and the order of events do not depend on it.

use std::sync::Arc;
use std::time::Duration;

use capstan::domain::model::{ModelError, ModelErrorKind};
use capstan::domain::run::RunStatus;
use capstan::support::clock::{ManualClock, UnixMillis};
use capstan::worker::{Worker, WorkerDeps};
use rstest::rstest;
use tokio::sync::Notify;

use super::harness::{Answer, Harness, options, until};

const HOUR: i64 = 3_600_000;

/// D-10.
#[rstest]
#[case(HOUR)]
#[case(-HOUR)]
#[tokio::test]
async fn a_jump_of_the_clock_changes_nothing(#[case] jump: i64) {
    let h = Harness::new().await;
    let clock = Arc::new(ManualClock::new(UnixMillis(1_767_225_600_000)));
    let gate = Arc::new(Notify::new());
    h.model.then(Answer::Fails(ModelError::new(ModelErrorKind::Overloaded, "later")));
    h.model.then(Answer::Calls(vec!["once"]));
    h.model.then(Answer::Held("finished", Arc::clone(&gate)));
    let mut numbers = options(&h.ids);
    // The lease is renewed often and expires only if the machine stalls for long.
    (numbers.lease, numbers.renew) = (Duration::from_secs(2), Duration::from_millis(100));
    (numbers.self_stop, numbers.sweep_interval) = (Duration::from_millis(1_500), Duration::from_millis(50));
    let worker = Worker::start(WorkerDeps { clock: clock.clone(), ..h.deps() }, numbers).await.unwrap();
    let (conversation, run) = h.say("go").await;
    // While the run waits for its retry, and while it has its lease.
    h.until_event(&conversation, "run.retrying").await;
    clock.advance(jump);
    h.until_event(&conversation, "part.delta").await;
    clock.advance(jump);
    // Longer than a lease lasts without renewals.
    let explain = async || h.store.explain_run(&h.owner, &run).await.unwrap().unwrap();
    until("the lease to be renewed", async || (explain().await.lease_age_ms? > 2_500).then_some(())).await;
    gate.notify_one();
    let done = h.until(&run, RunStatus::Completed).await;
    assert_eq!(done.attempt, 2, "one claim at first and one after the wait");
    assert_eq!(*h.tools.executed.lock().unwrap(), ["once"]);
    let events = h.events(&conversation).await;
    assert!(events.is_sorted_by_key(|event| event.seq));
    let times: Vec<i64> = events.iter().map(|event| event.at.0).collect();
    let span = times.iter().max().unwrap() - times.iter().min().unwrap();
    assert!(span >= HOUR, "the jump shows in the timestamps: {span}");
    worker.drain(Duration::from_secs(1)).await;
}
