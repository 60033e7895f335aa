//! Accepted messages whose reply from the database was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use capstan::domain::run::RunStatus;
use capstan::service::{Error, Replay, RequestKey};
use capstan::store::StoreError;
use capstan::worker::{Worker, WorkerDeps};
use tokio::sync::Notify;

use super::faulty::{Fate, FaultyStore, away};
use super::harness::{Answer, Harness, until, without_sweep};
use support::database::Kind;
use support::text_request;

/// D-02, I3. The claim is stored with the message, and the reply is lost. The worker's node releases the orphaned claim. The
/// client repeats the request with its key and gets its only run. Only Postgres claims during the acceptance.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_run_with_lost_reply_is_released_on_postgres() {
    for is_stored in [true, false] {
        let h = Harness::on(Kind::Postgres).await;
        h.model.then(Answer::Text("finished"));
        let store = FaultyStore::new(h.store.clone());
        let mut left = 1;
        store.trouble(move |name| {
            if name != "accept_run" || left == 0 {
                return Fate::Goes;
            }
            left -= 1;
            if is_stored { Fate::Unheard(away()) } else { Fate::Fails(away()) }
        });
        let _worker = Worker::start(h.deps(), without_sweep(&h.ids)).await.unwrap();
        let (service, principal) = (h.service(store), h.principal());
        let key = RequestKey { key: "the-key".to_owned(), fingerprint: "the message".to_owned() };
        let lost = service
            .start_run(&principal, text_request("go", h.ids.as_ref()), Some(key.clone()))
            .await
            .err()
            .expect("the answer is lost");
        assert!(matches!(lost, Error::Store(StoreError::Unavailable(_))), "{lost:?}");
        let started = service.start_run(&principal, text_request("go", h.ids.as_ref()), Some(key)).await.unwrap();
        assert_eq!(started.replay, if is_stored { Replay::Replayed } else { Replay::Fresh });
        let done = h.until(&started.run.id, RunStatus::Completed).await;
        let crashes = h.store.explain_run(&h.owner, &done.id).await.unwrap().unwrap().crashes;
        assert_eq!((done.attempt, crashes), (if is_stored { 2 } else { 1 }, 0), "stored: {is_stored}");
        assert_eq!(h.model.request_count(), 1);
        assert_eq!(h.database.count("SELECT CAST(count(*) AS text) FROM runs").await, 1, "one run for the key");
    }
}

/// D-02. The reply arrives after the release. Its hand-off finds a void fence and asks no model.
#[tokio::test(flavor = "multi_thread")]
async fn hand_off_after_the_release_asks_no_model_on_postgres() {
    let h = Harness::on(Kind::Postgres).await;
    h.model.then(Answer::Text("finished"));
    let store = FaultyStore::new(h.store.clone());
    let (gate, loads) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (late, counter) = (Arc::clone(&gate), Arc::clone(&loads));
    store.trouble(move |name| match name {
        "accept_run" => Fate::HeardLate(Arc::clone(&late)),
        "load_run" => {
            counter.fetch_add(1, Ordering::SeqCst);
            Fate::Goes
        }
        _ => Fate::Goes,
    });
    let deps = WorkerDeps { store: store.clone(), ..h.deps() };
    let worker = Worker::start(deps, without_sweep(&h.ids)).await.unwrap();
    let (service, principal) = (h.service(store), h.principal());
    let replies_late = async {
        until("the run to end without the reply", async || {
            let ended = "SELECT CAST(count(*) AS text) FROM runs WHERE finished_at IS NOT NULL";
            // While its driver is at work, the worker drops the hand-off without loading the run.
            (h.database.count(ended).await == 1 && worker.active() == 0).then_some(())
        })
        .await;
        gate.notify_one();
    };
    let started = Box::pin(service.start_run(&principal, text_request("go", h.ids.as_ref()), None));
    let (started, ()) = futures_util::future::join(started, replies_late).await;
    until("the hand-off to be judged", async || (loads.load(Ordering::SeqCst) == 2 && worker.active() == 0).then_some(())).await;
    let run = h.run(&started.unwrap().run.id).await;
    let crashes = h.store.explain_run(&h.owner, &run.id).await.unwrap().unwrap().crashes;
    assert_eq!((run.status, run.attempt, crashes), (RunStatus::Completed, 2, 0));
    assert_eq!(h.model.request_count(), 1, "the late hand-off asked no model");
}
