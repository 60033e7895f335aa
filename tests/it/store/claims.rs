//! Claims: their order, their cause and their distribution.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capstan::domain::ids::{NodeId, RunId};
use capstan::domain::run::change::ReleaseCause;
use capstan::domain::run::record::ClaimCause;
use capstan::support::ids::UuidIds;

use super::fixture::{LONG, World, completed, conversation, fresh, hello, released, started, stored, user};
use support::wait::within;

contract! {
    a_claim_says_what_it_is,
    every_run_goes_to_one_of_many_claimers,
    queued_runs_all_get_their_turn,
    owners_take_turns,
    an_owner_with_live_leases_waits,
    the_oldest_of_an_owner_goes_first,
    a_finished_run_is_never_claimed_again,
    the_next_claimable_time_is_known,
    ;
    a_claim_names_the_trace_that_started_the_run,
    a_claim_for_an_unknown_cause_is_one_after_a_crash,
    a_lease_that_was_left_behind_stops_no_claim,
    ten_thousand_timers_do_not_delay_other_runs,
}

/// An unknown cause counts as a crash. If the claim failed instead, it would repeat after each lease.
async fn a_claim_for_an_unknown_cause_is_one_after_a_crash(world: &World) {
    let owner = user();
    let (strange, good) = (world.run(&owner).await.run.id, world.run(&owner).await.run.id);
    world.database.rows(&format!("UPDATE runs SET claim_cause = 'of a later version' WHERE id = '{strange}'")).await;
    let claims = world.claim(10).await;
    let causes: HashMap<_, _> = claims.iter().map(|claim| (&claim.fence.run_id, claim.cause)).collect();
    assert_eq!(causes, HashMap::from([(&strange, ClaimCause::Crash), (&good, ClaimCause::First)]));
    let fence = &claims.iter().find(|claim| claim.fence.run_id == strange).unwrap().fence;
    assert_eq!(world.load(fence).await.cause, ClaimCause::Crash);
    world.commit_one(completed(fence)).await.unwrap();
}

/// The number of runs that a worker claims at a time.
const BATCH: u32 = 64;

/// Retries of four owners, all due now.
const DUE: usize = 10_000;

/// D-13.
async fn ten_thousand_timers_do_not_delay_other_runs(world: &World) {
    let owners = [user(), user(), user(), user()];
    let each = DUE / owners.len();
    for owner in &owners {
        world.run(owner).await;
    }
    let numbers = format!("WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {each})");
    for copy in [
        "INSERT INTO conversations (id, owner_id, title, status, created_at, updated_at)
         SELECT c.id || '_' || i, c.owner_id, 'due', 'waiting', c.created_at, c.updated_at FROM conversations c, n",
        "INSERT INTO conversation_heads (conversation_id, owner_id, last_seq)
         SELECT h.conversation_id || '_' || i, h.owner_id, h.last_seq FROM conversation_heads h, n",
        "INSERT INTO runs (id, conversation_id, owner_id, status, reason, active, claimable_at, claim_cause, profile, agent,
             agent_version, model, counters, usage, first_seq, created_at, max_crashes)
         SELECT r.id || '_' || i, r.conversation_id || '_' || i, r.owner_id, 'waiting', 'backoff', true, r.created_at, 'timer',
             r.profile, r.agent, r.agent_version, r.model, '{}', r.usage, r.first_seq, r.created_at, r.max_crashes FROM runs r, n",
    ] {
        world.database.rows(&format!("{numbers} {copy}")).await;
    }
    let quiet = user();
    let mut claimed = HashSet::new();
    let mut held: HashMap<_, usize> = HashMap::new();
    for round in 1.. {
        // Meanwhile, another owner starts a run now and then.
        let other = if round % 10 == 0 { Some(world.run(&quiet).await.run.id) } else { None };
        let claims = world.claim(BATCH).await;
        assert!(claims.len() <= BATCH as usize, "{} at once", claims.len());
        if claims.is_empty() {
            break;
        }
        let (theirs, timers): (Vec<_>, Vec<_>) = claims.into_iter().partition(|claim| claim.owner == quiet);
        assert_eq!(theirs.iter().map(|claim| &claim.fence.run_id).collect::<Vec<_>>(), other.iter().collect::<Vec<_>>());
        for claim in theirs {
            world.commit_one(completed(&claim.fence)).await.unwrap();
        }
        for claim in timers {
            assert!(claimed.insert(claim.fence.run_id), "claimed twice");
            *held.entry(claim.owner).or_default() += 1;
        }
        let (least, most) = (held.values().min().unwrap(), held.values().max().unwrap());
        assert!(most - least <= 1, "owners take turns: {held:?}");
    }
    assert_eq!((claimed.len(), held.len()), (DUE, owners.len()));
}

async fn a_lease_that_was_left_behind_stops_no_claim(world: &World) {
    let owner = user();
    let old = world.claimed(&owner).await;
    world.database.rows(&format!("UPDATE runs SET claimable_at = 1 WHERE id = '{}'", old.run_id)).await;
    let fence = world.claim_one().await;
    assert_eq!(fence.run_id, old.run_id);
    assert!(fence.epoch > old.epoch);
    assert_eq!(world.store.renew_leases(&world.node, &[old, fence.clone()], LONG, 0).await.unwrap().renewed, [fence.run_id]);
}

async fn a_claim_names_the_trace_that_started_the_run(world: &World) {
    let owner = user();
    // In a new conversation, in an idle one, and behind a run under way.
    let id = conversation();
    let first = hello(&owner, &id);
    world.accept(first.clone()).await;
    let claim = world.claim(1).await.remove(0);
    assert_eq!(claim.trace, Some(first.trace));
    let behind = hello(&owner, &id);
    world.accept(behind.clone()).await;
    world.commit_one(completed(&claim.fence)).await.unwrap();
    let claim = world.claim(1).await.remove(0);
    assert_eq!(claim.trace, Some(behind.trace.clone()));
    // The trace stays with the run in later claims.
    world.commit_one(released(&claim.fence, Some(0), ReleaseCause::Drain)).await.unwrap();
    let claim = world.claim(1).await.remove(0);
    assert_eq!(claim.trace, Some(behind.trace));
    world.commit_one(completed(&claim.fence)).await.unwrap();
    let idle = hello(&owner, &id);
    world.accept(idle.clone()).await;
    let claim = world.claim(1).await.remove(0);
    assert_eq!(claim.trace, Some(idle.trace));
    // A run of an earlier version has no trace.
    let older = world.run(&owner).await.run;
    world.database.rows("UPDATE runs SET trace_id = NULL").await;
    assert_eq!(world.view(&owner, &older.id).await.run.trace_id, None);
    assert_eq!(world.claim(1).await.remove(0).trace, None);
}

async fn a_claim_says_what_it_is(world: &World) {
    let owner = user();
    assert_eq!(world.claim(10).await, []);
    let stored = world.run(&owner).await;
    assert_eq!(world.claim(0).await, []);
    let claims = world.claim(10).await;
    assert_eq!(claims.len(), 1);
    assert_eq!((&claims[0].owner, claims[0].cause), (&owner, ClaimCause::First));
    assert_eq!(claims[0].fence.run_id, stored.run.id);
    assert_eq!(claims[0].fence.conversation_id, stored.run.conversation_id);
    assert!(claims[0].fence.epoch > 0);
    assert!(claims[0].queued_ms < LONG);
    let record = world.load(&claims[0].fence).await;
    assert_eq!((record.attempt, record.crashes, record.cause), (1, 0, ClaimCause::First));

    // Every claim has a higher epoch than the one before, and the old fence is void.
    world.commit_one(released(&claims[0].fence, Some(0), ReleaseCause::Drain)).await.unwrap();
    assert_eq!(world.store.load_run(&claims[0].fence).await.unwrap(), None);
    let again = world.claim(10).await;
    assert_eq!((again.len(), again[0].cause), (1, ClaimCause::HandedBack));
    assert!(again[0].fence.epoch > claims[0].fence.epoch);
    let record = world.load(&again[0].fence).await;
    assert_eq!((record.attempt, record.crashes, record.cause), (2, 0, ClaimCause::HandedBack));
    assert_eq!(world.store.load_run(&claims[0].fence).await.unwrap(), None);
}

async fn every_run_goes_to_one_of_many_claimers(world: &World) {
    let owners = [user(), user(), user()];
    let mut all = HashSet::new();
    for n in 0..60 {
        all.insert(world.run(&owners[n % 3]).await.run.id);
    }
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = world.store.clone();
        claimers.spawn(async move {
            let node = NodeId::generate(&UuidIds);
            let mut mine = Vec::new();
            // Another claimer may hold the row locks, so an empty claim does not prove an empty queue.
            let mut empty = 0;
            while empty < 20 {
                let claims = store.claim_runs(&node, 3, LONG).await.unwrap();
                empty = if claims.is_empty() { empty + 1 } else { 0 };
                mine.extend(claims.into_iter().map(|claim| claim.fence.run_id));
            }
            mine
        });
    }
    let claimed: Vec<RunId> = claimers.join_all().await.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 60, "none twice");
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>(), all, "none forgotten");
}

/// Messages arrive while earlier runs end: no run is left in the queue, and no two are active.
async fn queued_runs_all_get_their_turn(world: &World) {
    const SENDERS: usize = 4;
    const MESSAGES: usize = 8;
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..SENDERS {
        let (store, owner, id) = (world.store.clone(), owner.clone(), id.clone());
        tasks.spawn(async move {
            for _ in 0..MESSAGES {
                stored(fresh(store.accept_run(hello(&owner, &id), None).await.unwrap()));
            }
        });
    }
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let (store, node, ended) = (world.store.clone(), NodeId::generate(&UuidIds), ended.clone());
        tasks.spawn(async move {
            let all = async {
                while ended.load(Ordering::SeqCst) < SENDERS * MESSAGES + 1 {
                    for claim in store.claim_runs(&node, 4, LONG).await.unwrap() {
                        let answers = store.commit(&[started(&claim.fence), completed(&claim.fence)]).await.unwrap();
                        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
                        ended.fetch_add(1, Ordering::SeqCst);
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
    assert_eq!(world.status(&owner, &id).await, "idle");
    assert_eq!(world.store.run_counts().await.unwrap(), []);
    let kinds = world.kinds(&owner, &id).await;
    let of = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert_eq!((of("run.queued"), of("run.completed")), (SENDERS * MESSAGES + 1, SENDERS * MESSAGES + 1));
}

async fn owners_take_turns(world: &World) {
    let (busy, quiet) = (user(), user());
    for _ in 0..20 {
        world.run(&busy).await;
    }
    for _ in 0..2 {
        world.run(&quiet).await;
    }
    // In one claim or in several.
    let both = world.claim(4).await;
    assert_eq!(both.iter().filter(|claim| claim.owner == quiet).count(), 2, "{both:?}");
    let alone = world.claim(5).await;
    assert_eq!(alone.len(), 5, "free slots are used while there is work: {alone:?}");
}

async fn an_owner_with_live_leases_waits(world: &World) {
    let (busy, quiet) = (user(), user());
    for _ in 0..5 {
        world.run(&busy).await;
    }
    assert_eq!(world.claim(3).await.len(), 3);
    for _ in 0..3 {
        world.run(&quiet).await;
    }
    let next = world.claim(3).await;
    assert!(next.iter().all(|claim| claim.owner == quiet), "{next:?}");
    assert_eq!(world.claim(3).await.len(), 2);
}

async fn the_oldest_of_an_owner_goes_first(world: &World) {
    let owner = user();
    let mut accepted = Vec::new();
    for _ in 0..6 {
        accepted.push(world.run(&owner).await.run.id);
    }
    let mut claimed = Vec::new();
    for limit in [1, 2, 3] {
        // Within one millisecond, the order is that of the ids, which rise with time.
        claimed.extend(world.claim(limit).await.into_iter().map(|claim| claim.fence.run_id));
    }
    assert_eq!(claimed, accepted);
}

async fn a_finished_run_is_never_claimed_again(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.claim(10).await, []);
    assert_eq!(world.store.next_claimable_in().await.unwrap(), None);
    assert_eq!(world.store.run_counts().await.unwrap(), []);
    assert_eq!(world.store.load_run(&fence).await.unwrap(), None);
}

async fn the_next_claimable_time_is_known(world: &World) {
    assert_eq!(world.store.next_claimable_in().await.unwrap(), None);
    let owner = user();
    let id = conversation();
    world.accept(hello(&owner, &id)).await;
    assert_eq!(world.store.next_claimable_in().await.unwrap(), Some(0));
    let fence = world.claim_one().await;
    assert_eq!(world.store.next_claimable_in().await.unwrap(), None);
    world.commit_one(released(&fence, Some(LONG), ReleaseCause::Waiting)).await.unwrap();
    let next = world.store.next_claimable_in().await.unwrap().unwrap();
    assert!(next > LONG / 2 && next <= LONG, "{next}");
    assert_eq!(world.claim(10).await, [], "not before its time");
}
