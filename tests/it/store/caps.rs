//! The limit of concurrent runs for each owner, over all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capstan::domain::ids::{NodeId, RunId};
use capstan::domain::run::change::ReleaseCause;
use capstan::store::{AcceptOutcome, AcceptRun, AcceptingWorker, IdempotentOutcome, SUSPECT_CRASHES, StoreOptions};
use capstan::support::ids::UuidIds;
use rstest::rstest;

use super::fixture::{LONG, World, completed, conversation, hello, released, started, user};
use support::database::Kind;
use support::wait::within;

const LEASES: &str = "SELECT CAST(count(*) AS text) FROM run_leases";

async fn capped(kind: Kind, max_running_per_owner: u32) -> World {
    World::with(kind, &StoreOptions { max_running_per_owner, ..StoreOptions::default() }).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_an_owners_runs_waits(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = capped(kind, 2).await;
    let (busy, other) = (user(), user());
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(world.run(&busy).await.run.id);
    }
    world.run(&other).await;
    let claims = world.claim(10).await;
    assert_eq!(claims.iter().filter(|claim| claim.owner == busy).count(), 2, "{claims:?}");
    assert_eq!(claims.len(), 3, "the other owner has a separate limit");
    assert_eq!(world.claim(10).await, []);
    assert_eq!(world.store.next_claimable_in().await.unwrap(), None, "time alone makes no run claimable");
    assert!(world.store.caps_owners());
    let explain = |index: usize| world.store.explain_run(&busy, &runs[index]);
    let waits = explain(2).await.unwrap().unwrap();
    assert_eq!((waits.owner_cap, waits.queue_position), (Some((2, 2)), Some(0)));
    assert_eq!(explain(0).await.unwrap().unwrap().owner_cap, None, "this run is claimed");

    // An ended run makes room, and so does a waiting one.
    let mut held = claims.into_iter().filter(|claim| claim.owner == busy).map(|claim| claim.fence);
    let (first, second) = (held.next().unwrap(), held.next().unwrap());
    world.commit_one(completed(&first)).await.unwrap();
    assert_eq!(world.store.next_claimable_in().await.unwrap(), Some(0));
    assert_eq!(world.claim_one().await.run_id, runs[2]);
    assert_eq!(world.claim(10).await, []);
    world.commit_one(released(&second, Some(LONG), ReleaseCause::Waiting)).await.unwrap();
    assert_eq!(world.claim_one().await.run_id, runs[3]);
    world.store.close().await;
}

/// A suspect run whose owner is at the limit does not block the suspect runs of other owners.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn suspected_poison_run_waits_for_its_owner_only(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = capped(kind, 1).await;
    let (busy, other) = (user(), user());
    let (ahead, first, second) = (world.run(&busy).await.run.id, world.run(&busy).await.run.id, world.run(&other).await.run.id);
    assert_eq!(world.store.claim_runs(&world.node, 1, LONG).await.unwrap().remove(0).fence.run_id, ahead);
    // The owner of the older run is at its limit.
    let suspect = |run: &RunId| format!("UPDATE runs SET crashes = {SUSPECT_CRASHES} WHERE id = '{run}'");
    for run in [&first, &second] {
        world.database.rows(&suspect(run)).await;
    }
    assert_eq!(world.claim(10).await.into_iter().map(|claim| claim.fence.run_id).collect::<Vec<_>>(), [second]);
    // A cancellation cannot kill the worker, so the run is no suspect.
    world.database.rows(&format!("UPDATE runs SET cancel_requested_at = 1 WHERE id = '{first}'")).await;
    assert_eq!(world.claim(10).await, [], "its owner is at the limit");
    world.store.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_goes_by_turns(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = World::new(kind).await;
    let (busy, quiet) = (user(), user());
    for _ in 0..6 {
        world.run(&busy).await;
    }
    world.claim(2).await;
    let late = world.run(&quiet).await.run.id;
    let explained = world.store.explain_run(&quiet, &late).await.unwrap().unwrap();
    assert_eq!((explained.queue_position, explained.owner_cap), (Some(0), None), "the oldest run need not be claimed first");
    assert_eq!(world.claim(1).await[0].fence.run_id, late);
    world.store.close().await;
}

/// Concurrent claims and hand-offs never exceed the limit, and all runs end.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_cap_holds_in_a_crowd(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    const CAP: i64 = 3;
    const SENDERS: usize = 6;
    const MESSAGES: usize = 8;
    let world = Arc::new(capped(kind, 3).await);
    let owner = user();
    let ended = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..SENDERS {
        let (world, owner, ended) = (Arc::clone(&world), owner.clone(), Arc::clone(&ended));
        tasks.spawn(async move {
            for _ in 0..MESSAGES {
                let taker = Some(AcceptingWorker { node: NodeId::generate(&UuidIds), lease_ms: LONG });
                let accept = AcceptRun { taker, ..hello(&owner, &conversation()) };
                let accepted = world.store.accept_run(accept, None).await.unwrap();
                let IdempotentOutcome::Fresh(AcceptOutcome::Run { claim, .. }) = accepted else { panic!("a run: {accepted:?}") };
                assert!(world.database.count(LEASES).await <= CAP);
                if let Some(claim) = claim {
                    end(&world, &claim.fence, &ended).await;
                }
            }
        });
    }
    for _ in 0..3 {
        let (world, node, ended) = (Arc::clone(&world), NodeId::generate(&UuidIds), Arc::clone(&ended));
        tasks.spawn(async move {
            let all = async {
                while ended.load(Ordering::SeqCst) < SENDERS * MESSAGES {
                    let claims = world.store.claim_runs(&node, 8, LONG).await.unwrap();
                    assert!(world.database.count(LEASES).await <= CAP);
                    for claim in claims {
                        end(&world, &claim.fence, &ended).await;
                    }
                    tokio::task::yield_now().await;
                }
            };
            within("all runs to end", Duration::from_secs(60), all).await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(world.store.run_counts().await.unwrap(), []);
    world.store.close().await;
}

async fn end(world: &World, fence: &capstan::domain::run::record::Fence, ended: &AtomicUsize) {
    let answers = world.store.commit(&[started(fence), completed(fence)]).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    ended.fetch_add(1, Ordering::SeqCst);
}

/// Only Postgres has the hand-off: SQLite leaves every run to the queue.
#[tokio::test(flavor = "multi_thread")]
async fn accept_claims_within_the_cap_on_postgres() {
    let world = capped(Kind::Postgres, 2).await;
    let owner = user();
    let mut claimed = Vec::new();
    for _ in 0..4 {
        let taker = Some(AcceptingWorker { node: world.node.clone(), lease_ms: LONG });
        let accept = AcceptRun { taker, ..hello(&owner, &conversation()) };
        let accepted = world.store.accept_run(accept, None).await.unwrap();
        let IdempotentOutcome::Fresh(AcceptOutcome::Run { claim, .. }) = accepted else { panic!("a run: {accepted:?}") };
        claimed.push(claim);
    }
    assert_eq!(claimed.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(world.claim(10).await, []);
    let first = claimed.remove(0).unwrap();
    world.commit_one(completed(&first.fence)).await.unwrap();
    assert_eq!(world.claim(10).await.len(), 1);
    // An idle conversation, too.
    let idle = AcceptRun {
        taker: Some(AcceptingWorker { node: world.node.clone(), lease_ms: LONG }),
        ..hello(&owner, &first.fence.conversation_id)
    };
    let accepted = world.store.accept_run(idle, None).await.unwrap();
    assert!(matches!(accepted, IdempotentOutcome::Fresh(AcceptOutcome::Run { claim: None, .. })), "{accepted:?}");
    world.store.close().await;
}
