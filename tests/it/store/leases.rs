//! The end of leases: by release, by expiry, by a restart.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capstan::domain::agent::AgentProfile;
use capstan::domain::ids::{NodeId, RunId};
use capstan::domain::run::change::{Change, ReleaseCause};
use capstan::domain::run::record::{ClaimCause, Fence, RunRecord};
use capstan::domain::run::{RunStatus, WaitReason};
use capstan::store::{AcceptRun, SUSPECT_CRASHES, Sweep, WriteRejection};
use capstan::support::clock::{Clock as _, SystemClock};
use capstan::support::ids::UuidIds;

use super::fixture::{LONG, World, changes, completed, conversation, deltas, failed, hello, released, started, user};
use support::database::Kind;
use support::wait::until;

const DEADLINE: Duration = Duration::from_secs(10);

contract! {
    a_timer_fires_once_and_not_early,
    a_wait_without_end_is_not_claimed,
    renewal_keeps_a_lease,
    renewal_does_not_revive_a_lost_lease,
    a_lease_that_is_given_up_is_no_crash,
    renewal_lists_the_leases_that_were_not_named,
    an_expired_lease_is_swept_and_fenced,
    an_outage_is_not_taken_for_deaths,
    crashes_are_counted_and_releases_are_not,
    runs_that_end_under_their_claim_have_no_crashes,
    suspected_poison_run_is_claimed_alone,
    run_far_from_its_crash_limit_is_claimed_with_others,
    a_fence_that_is_raised_ends_the_one_before,
    later_epoch_belongs_to_one_worker,
    a_sweep_has_a_limit,
    ;
    a_restart_takes_over_what_is_left,
}

async fn a_fence_that_is_raised_ends_the_one_before(world: &World) {
    let (old, other) = (world.claimed(&user()).await, world.claimed(&user()).await);
    world.commit_one(started(&old)).await.unwrap();
    let new = world.store.raise_fence(&old, 1).await.unwrap().expect("the fence is the newest");
    assert_eq!(new, Fence { epoch: old.epoch + 1, ..old.clone() });
    // A pending write is refused, and the old fence cannot load or renew.
    assert_eq!(world.commit_all(&[deltas(&old, 1), deltas(&other, 1)]).await, [Err(WriteRejection::Fenced), Ok(4)]);
    assert_eq!(world.store.load_run(&old).await.unwrap(), None);
    assert_eq!(world.store.renew_leases(&world.node, std::slice::from_ref(&old), LONG, 0).await.unwrap().renewed, []);
    // A lost reply is repeated instead of raising the fence again, and only for the holder of the claim. D-02.
    assert_eq!(world.store.raise_fence(&old, 1).await.unwrap().as_ref(), Some(&new));
    for attempt in [0, 2] {
        assert_eq!(world.store.raise_fence(&old, attempt).await.unwrap(), None, "another claim's attempt");
    }
    // The run still has the same claim.
    assert_eq!(
        world.store.renew_leases(&world.node, std::slice::from_ref(&new), LONG, 0).await.unwrap().renewed,
        std::slice::from_ref(&new.run_id)
    );
    let record = world.load(&new).await;
    assert_eq!((record.attempt, record.crashes, record.status), (1, 0, RunStatus::Processing));
    assert!(world.commit_one(completed(&new)).await.is_ok());
    assert_eq!(world.store.raise_fence(&new, 1).await.unwrap(), None, "the run has ended");
    assert_eq!(world.claim(10).await, []);
}

/// The fence of a later claim has a higher epoch, too, but belongs to another worker.
async fn later_epoch_belongs_to_one_worker(world: &World) {
    let old = dead_claims(world, 1).await.remove(0);
    sweep(world, 10, true).await;
    let new = world.claim_one().await;
    assert!(new.run_id == old.run_id && new.epoch > old.epoch);
    assert_eq!(world.store.raise_fence(&old, 1).await.unwrap(), None);
    assert!(world.commit_one(deltas(&new, 1)).await.is_ok(), "the fence was not raised");
}

/// Claims `count` runs with a lease that expires at once.
async fn dead_claims(world: &World, count: u32) -> Vec<Fence> {
    let owner = user();
    for _ in 0..count {
        world.run(&owner).await;
    }
    let claims = world.store.claim_runs(&world.node, count, 1).await.unwrap();
    assert_eq!(claims.len(), usize::try_from(count).unwrap());
    claims.into_iter().map(|claim| claim.fence).collect()
}

/// D-11: all runs of a killed worker count a crash, and only one of them may be the cause.
async fn suspected_poison_run_is_claimed_alone(world: &World) {
    let old: Vec<RunId> = dead_claims(world, 4).await.into_iter().map(|fence| fence.run_id).collect();
    for claims in 1..=2 {
        let mut swept = 0;
        while swept < 4 {
            swept += sweep(world, 10, true).await.requeued.len();
        }
        if claims == 1 {
            assert_eq!(world.store.claim_runs(&world.node, 10, 1).await.unwrap().len(), 4, "one crash may be chance");
        }
    }
    let young = world.run(&user()).await.run.id;
    let claims = world.claim(10).await;
    let crashes: HashMap<&RunId, u32> = claims.iter().map(|claim| (&claim.fence.run_id, claim.crashes)).collect();
    assert_eq!((crashes.len(), crashes.get(&young)), (2, Some(&0)), "{claims:?}");
    let first = claims.iter().find(|claim| claim.crashes == SUSPECT_CRASHES).expect("one of the four").fence.clone();
    assert!(old.contains(&first.run_id));
    assert_eq!(world.claim(10).await, [], "the other suspects wait for it");
    let other = NodeId::generate(&UuidIds);
    let elsewhere = world.store.claim_runs(&other, 10, LONG).await.unwrap();
    assert_eq!(elsewhere.len(), 1, "each node claims one");

    let (bare, whole) = (world.store.load_bare(&first).await.unwrap().expect("the fence is the newest"), world.load(&first).await);
    assert!(!whole.history.is_empty());
    assert_eq!(bare, RunRecord { history: Vec::new(), elapsed_ms: bare.elapsed_ms, ..whole });
    let stale = Fence { epoch: first.epoch - 1, ..first.clone() };
    world.store.clear_of_crashes(&stale).await.unwrap();
    assert_eq!((world.store.load_bare(&stale).await.unwrap(), world.claim(10).await), (None, Vec::new()));
    world.store.clear_of_crashes(&first).await.unwrap();
    let next = world.claim(10).await;
    assert_eq!(next.iter().map(|claim| claim.crashes).collect::<Vec<_>>(), [SUSPECT_CRASHES], "the next suspect");
    assert_eq!(world.claim(10).await, []);
    // The time limit is generous: thirty leases of 10 ms expire soon.
    let last = until("the last one", DEADLINE, || async {
        let claims = world.store.claim_runs(&world.node, 10, 10).await.unwrap();
        (!claims.is_empty()).then_some(claims)
    });
    assert_eq!(last.await.iter().map(|claim| claim.crashes).collect::<Vec<_>>(), [SUSPECT_CRASHES]);
    // A run that survived its claim loses one crash of its count.
    assert_eq!(world.load(&first).await.crashes, SUSPECT_CRASHES - 1);
    assert!(world.commit_one(completed(&first)).await.is_ok());
    assert_eq!(world.store.load_bare(&first).await.unwrap(), None);
}

/// A run with a high crash limit is claimed alone only near its limit.
async fn run_far_from_its_crash_limit_is_claimed_with_others(world: &World) {
    let owner = user();
    for _ in 0..3 {
        let message = hello(&owner, &conversation());
        world.accept(AcceptRun { profile: AgentProfile { max_crashes: 4, ..message.profile.clone() }, ..message }).await;
    }
    for alone in [false, false, false, true] {
        let claims = world.store.claim_runs(&world.node, 10, if alone { LONG } else { 1 }).await.unwrap();
        assert_eq!(claims.len(), if alone { 1 } else { 3 }, "{claims:?}");
        let mut swept = if alone { 3 } else { 0 };
        while swept < 3 {
            swept += sweep(world, 10, true).await.requeued.len();
        }
    }
}

/// Sweeps until the result is not empty.
async fn sweep(world: &World, limit: u32, despite_outage: bool) -> Sweep {
    until("a sweep that finds something", DEADLINE, || async {
        let sweep = world.store.sweep_expired_leases(limit, despite_outage).await.unwrap();
        (!sweep.requeued.is_empty() || sweep.outage_suspected).then_some(sweep)
    })
    .await
}

async fn a_timer_fires_once_and_not_early(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.commit_one(started(&fence)).await.unwrap();
    let wait = changes(
        &fence,
        vec![
            Change::SetStatus(RunStatus::Waiting, Some(WaitReason::Backoff)),
            Change::Release { after_ms: Some(300), cause: ReleaseCause::Waiting },
        ],
    );
    let began = SystemClock.now();
    world.commit_one(wait).await.unwrap();
    let run = world.view(&owner, &fence.run_id).await.run;
    assert_eq!((run.status, run.reason), (RunStatus::Waiting, Some(WaitReason::Backoff)));
    assert_eq!(world.status(&owner, &fence.conversation_id).await, "waiting");
    let claims = until("the timer", DEADLINE, || async {
        let claims = world.claim(10).await;
        (!claims.is_empty()).then_some(claims)
    })
    .await;
    // Both clocks truncate milliseconds.
    let now = SystemClock.now();
    assert!(now >= began.after(299), "the timer of {} fired at {}", began.to_rfc3339(), now.to_rfc3339());
    assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Timer));
    assert_eq!(world.claim(10).await, []);
    let record = world.load(&claims[0].fence).await;
    assert_eq!((record.status, record.reason), (RunStatus::Waiting, Some(WaitReason::Backoff)));
    assert_eq!((record.attempt, record.crashes, record.cause), (2, 0, ClaimCause::Timer));
}

async fn a_wait_without_end_is_not_claimed(world: &World) {
    let fence = world.claimed(&user()).await;
    world.commit_one(released(&fence, None, ReleaseCause::Waiting)).await.unwrap();
    assert_eq!(world.store.next_claimable_in().await.unwrap(), None);
    assert_eq!(world.claim(10).await, []);
    assert_eq!(world.store.sweep_expired_leases(10, true).await.unwrap(), Sweep::default());
    assert_eq!(world.commit_one(deltas(&fence, 1)).await, Err(WriteRejection::Fenced), "the lease was released");
}

async fn renewal_keeps_a_lease(world: &World) {
    let fence = dead_claims(world, 1).await.remove(0);
    // Late, but within the grace time: the worker is alive.
    let renewed = world.store.renew_leases(&world.node, std::slice::from_ref(&fence), LONG, LONG).await.unwrap().renewed;
    assert_eq!(renewed, std::slice::from_ref(&fence.run_id));
    assert_eq!(world.store.sweep_expired_leases(10, true).await.unwrap(), Sweep::default());
    assert!(world.commit_one(deltas(&fence, 1)).await.is_ok());
    assert_eq!(world.store.renew_leases(&world.node, &[], LONG, 0).await.unwrap().renewed, []);
    // Only the node that holds the lease renews it, and only with the newest epoch.
    let other = NodeId::generate(&UuidIds);
    assert_eq!(world.store.renew_leases(&other, std::slice::from_ref(&fence), LONG, LONG).await.unwrap().renewed, []);
    let stale = Fence { epoch: fence.epoch - 1, ..fence.clone() };
    assert_eq!(world.store.renew_leases(&world.node, &[stale, fence.clone()], LONG, LONG).await.unwrap().renewed, [fence.run_id]);
}

async fn a_lease_that_is_given_up_is_no_crash(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.store.give_up_leases(std::slice::from_ref(&fence)).await.unwrap();
    assert_eq!(world.commit_one(deltas(&fence, 1)).await, Err(WriteRejection::Fenced), "the fence of a released lease is void");
    let again = world.store.claim_runs(&world.node, 10, 1).await.unwrap().remove(0);
    assert_eq!((again.cause, &again.fence.run_id), (ClaimCause::First, &fence.run_id), "the run has not begun");
    let record = world.load(&again.fence).await;
    assert_eq!((record.attempt, record.crashes), (2, 0), "no crash is counted");
    // A repeated release does not affect the next worker, whose crash counts.
    world.store.give_up_leases(std::slice::from_ref(&fence)).await.unwrap();
    sweep(world, 10, true).await;
    world.store.give_up_leases(&[fence, again.fence]).await.unwrap();
    let last = world.claim(10).await.remove(0);
    assert_eq!(world.load(&last.fence).await.crashes, 1);
    // No worker has processed the cause of that crash.
    assert_eq!(last.cause, ClaimCause::Crash);
    world.store.give_up_leases(&[last.fence]).await.unwrap();
    let last = world.claim(10).await.remove(0);
    assert_eq!(last.cause, ClaimCause::Crash);
    // The next worker has.
    world.commit_one(started(&last.fence)).await.unwrap();
    world.store.give_up_leases(&[last.fence]).await.unwrap();
    let last = world.claim(10).await.remove(0);
    assert_eq!(last.cause, ClaimCause::HandedBack);
    // An ended run stays ended.
    world.commit_one(completed(&last.fence)).await.unwrap();
    world.store.give_up_leases(&[last.fence]).await.unwrap();
    assert_eq!(world.claim(10).await, []);
    world.store.give_up_leases(&[]).await.unwrap();
}

/// A node finds its orphaned claims in this list.
async fn renewal_lists_the_leases_that_were_not_named(world: &World) {
    let (known, ended, orphaned) = (world.claimed(&user()).await, world.claimed(&user()).await, world.claimed(&user()).await);
    world.run(&user()).await;
    let other = NodeId::generate(&UuidIds);
    assert_eq!(world.store.claim_runs(&other, 10, LONG).await.unwrap().len(), 1, "a lease of another node");
    let renew = async |named: &[Fence]| {
        let renewal = world.store.renew_leases(&world.node, named, LONG, 0).await.unwrap();
        let unnamed: Vec<Fence> = renewal.unnamed.into_iter().map(|lease| lease.fence).collect();
        (renewal.renewed, unnamed)
    };
    let (renewed, unnamed) = renew(std::slice::from_ref(&known)).await;
    assert_eq!(renewed, std::slice::from_ref(&known.run_id));
    assert!(unnamed.len() == 2 && unnamed.contains(&ended) && unnamed.contains(&orphaned), "{unnamed:?}");
    world.commit_one(completed(&ended)).await.unwrap();
    // The reply to a raised fence may be under way: the run is named.
    let raised = world.store.raise_fence(&known, 1).await.unwrap().expect("the fence is the newest");
    assert_eq!(renew(std::slice::from_ref(&known)).await, (vec![], vec![orphaned.clone()]));
    until("the lease to be older", DEADLINE, || async {
        let renewal = world.store.renew_leases(&world.node, std::slice::from_ref(&raised), LONG, 0).await.unwrap();
        (renewal.unnamed[0].age >= Duration::from_millis(5)).then_some(())
    })
    .await;
    // Releasing a claim counts no crash, whichever node claims the run next.
    world.store.give_up_leases(std::slice::from_ref(&orphaned)).await.unwrap();
    let again = world.store.claim_runs(&other, 10, LONG).await.unwrap().remove(0);
    assert_eq!((&again.fence.run_id, again.crashes), (&orphaned.run_id, 0));
    assert_eq!(world.commit_one(deltas(&orphaned, 1)).await, Err(WriteRejection::Fenced), "a late write is refused");
    assert_eq!(renew(std::slice::from_ref(&raised)).await, (vec![known.run_id], vec![]));
}

async fn renewal_does_not_revive_a_lost_lease(world: &World) {
    let fence = dead_claims(world, 1).await.remove(0);
    until("the grace to be over", DEADLINE, || async {
        // With a lease of zero length, a renewal in time does not keep it alive either.
        let renewed = world.store.renew_leases(&world.node, std::slice::from_ref(&fence), 0, 1).await.unwrap().renewed;
        renewed.is_empty().then_some(())
    })
    .await;
    assert_eq!(world.store.renew_leases(&world.node, std::slice::from_ref(&fence), LONG, 0).await.unwrap().renewed, []);
}

async fn an_expired_lease_is_swept_and_fenced(world: &World) {
    let fence = dead_claims(world, 1).await.remove(0);
    assert!(world.commit_one(deltas(&fence, 1)).await.is_ok(), "the grace time is not over");
    let swept = sweep(world, 10, false).await;
    assert_eq!(swept.requeued.iter().map(|taken| &taken.run_id).collect::<Vec<_>>(), [&fence.run_id]);
    assert!(!swept.outage_suspected);
    assert_eq!(world.store.sweep_expired_leases(10, false).await.unwrap(), Sweep::default());
    assert_eq!(world.commit_one(deltas(&fence, 1)).await, Err(WriteRejection::Fenced), "the fence of a lost lease is void");
    assert_eq!(world.commit_one(completed(&fence)).await, Err(WriteRejection::Fenced));
    assert_eq!(world.store.renew_leases(&world.node, std::slice::from_ref(&fence), LONG, LONG).await.unwrap().renewed, []);
    let claims = world.claim(10).await;
    assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Crash));
    assert!(claims[0].trace.is_some() && swept.requeued[0].trace == claims[0].trace, "{swept:?} {claims:?}");
    assert_eq!(world.commit_one(deltas(&fence, 1)).await, Err(WriteRejection::Fenced));
    assert!(world.commit_one(deltas(&claims[0].fence, 1)).await.is_ok());
}

async fn a_sweep_has_a_limit(world: &World) {
    let dead = dead_claims(world, 3).await;
    until("all leases to be over", DEADLINE, || async {
        for fence in &dead {
            let owner = world.load(fence).await.owner;
            let explained = world.store.explain_run(&owner, &fence.run_id).await.unwrap().unwrap();
            if explained.lease_expires_in_ms.unwrap() >= 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
    assert_eq!(sweep(world, 2, false).await.requeued.len(), 2);
    assert_eq!(sweep(world, 2, false).await.requeued.len(), 1);
    assert_eq!(world.claim(10).await.len(), 3);
}

async fn an_outage_is_not_taken_for_deaths(world: &World) {
    let dead = dead_claims(world, 4).await;
    let suspected = sweep(world, 10, false).await;
    // An early sweep may find only some of the leases expired, which is too few.
    if suspected.outage_suspected {
        assert_eq!(suspected.requeued, []);
        assert_eq!(world.claim(10).await, [], "no run is taken over");
        let forced = world.store.sweep_expired_leases(10, true).await.unwrap();
        assert_eq!((forced.requeued.len(), forced.outage_suspected), (dead.len(), false));
    }
    // Four expired leases among many live ones are crashes.
    world.claim(100).await;
    let owner = user();
    for _ in 0..5 {
        world.run(&owner).await;
    }
    world.claim(100).await;
    let dead = dead_claims(world, 4).await;
    let taken = AtomicUsize::new(0);
    until("all the dead to be swept", DEADLINE, || async {
        let sweep = world.store.sweep_expired_leases(10, false).await.unwrap();
        assert!(!sweep.outage_suspected);
        let taken = taken.fetch_add(sweep.requeued.len(), Ordering::SeqCst) + sweep.requeued.len();
        (taken == dead.len()).then_some(())
    })
    .await;
}

async fn a_restart_takes_over_what_is_left(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    assert_eq!(world.store.expire_foreign_leases(&world.node).await.unwrap(), 0, "its own leases are not foreign");
    let reborn = NodeId::generate(&UuidIds);
    let expired = world.store.expire_foreign_leases(&reborn).await.unwrap();
    match world.database.kind {
        Kind::Postgres => assert_eq!(expired, 0, "other nodes may be alive"),
        Kind::Sqlite => {
            assert_eq!(expired, 1);
            assert_eq!(world.commit_one(deltas(&fence, 1)).await, Err(WriteRejection::Fenced));
            let claims = world.store.claim_runs(&reborn, 10, LONG).await.unwrap();
            assert_eq!((claims.len(), claims[0].cause), (1, ClaimCause::Crash));
        }
    }
}

async fn crashes_are_counted_and_releases_are_not(world: &World) {
    dead_claims(world, 1).await;
    for crashes in 1..=3 {
        sweep(world, 10, true).await;
        let claims = world.store.claim_runs(&world.node, 1, 1).await.unwrap();
        let record = world.load(&claims[0].fence).await;
        assert_eq!((record.attempt, record.crashes), (crashes + 1, crashes));
    }
    sweep(world, 10, true).await;
    let fence = world.claim_one().await;
    world.commit_one(released(&fence, Some(0), ReleaseCause::Drain)).await.unwrap();
    let fence = world.claim_one().await;
    let record = world.load(&fence).await;
    assert_eq!((record.attempt, record.crashes), (6, 4));
    world.commit_one(completed(&fence)).await.unwrap();
    let explained = world.store.explain_run(&record.owner, &fence.run_id).await.unwrap().unwrap();
    assert_eq!((explained.run.status, explained.crashes), (RunStatus::Completed, 4), "the claim under which it ended is no crash");
}

async fn runs_that_end_under_their_claim_have_no_crashes(world: &World) {
    let owner = user();
    let crashes = async |fence: &Fence| world.store.explain_run(&owner, &fence.run_id).await.unwrap().unwrap().crashes;
    for end in [completed, failed] {
        let fence = world.claimed(&owner).await;
        assert_eq!(crashes(&fence).await, 0);
        world.commit_one(end(&fence)).await.unwrap();
        assert_eq!(crashes(&fence).await, 0);
    }
    // Handed back by a drain, then waiting for a timer, then ended.
    let mut fence = world.claimed(&owner).await;
    for cause in [ReleaseCause::Drain, ReleaseCause::Waiting] {
        world.commit_one(released(&fence, Some(0), cause)).await.unwrap();
        assert_eq!(crashes(&fence).await, 0);
        fence = world.claim_one().await;
    }
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(crashes(&fence).await, 0);
}
