//! Follows jumps of the machine's clock: an operator may set it, or a laptop may sleep. Leases and timers are shifted accordingly.
//!
//! The database's clock is the machine's clock, because there is no other process. Before each decision, it is compared with the
//! monotonic clock. After a jump, leases and timers are shifted by the same amount. Small corrections are not followed.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::SqliteStore;
use super::connection::Tx;
use crate::store::StoreResult;
use crate::support::clock::{Clock as _, SystemClock};

/// The smallest difference that counts as a jump.
const JUMP: Duration = Duration::from_secs(1);

/// A reading of the machine's clock, between two readings of the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    wall_ms: i64,
    before: Instant,
    after: Instant,
}

impl Reading {
    fn now() -> Self {
        let before = Instant::now();
        // Read directly: a statement to read the same clock would make leases wait for a connection.
        let wall_ms = SystemClock.now().0;
        Self { wall_ms, before, after: Instant::now() }
    }

    /// Returns the smallest jump of the clock, in milliseconds, that explains both readings. The duration of the readings does not
    /// count.
    fn jump_since(&self, earlier: &Self) -> Option<i64> {
        let passed = |from: Instant, to: Instant| i64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(i64::MAX);
        let wall = self.wall_ms.saturating_sub(earlier.wall_ms);
        let ahead = wall.saturating_sub(passed(earlier.before, self.after));
        let behind = wall.saturating_sub(passed(earlier.after, self.before));
        let least = i64::try_from(JUMP.as_millis()).unwrap_or(i64::MAX);
        if ahead > least {
            Some(ahead)
        } else if behind < -least {
            Some(behind)
        } else {
            None
        }
    }
}

/// The last reading. Locked during a shift, so that no decision sees a partial shift.
#[derive(Default)]
pub(super) struct MachineClock(Mutex<Option<Reading>>);

impl SqliteStore {
    /// Returns whether [`Self::follow_clock`] has to follow a jump, or is doing so. Never waits.
    pub(super) fn clock_may_have_jumped(&self) -> bool {
        match self.clock.0.try_lock() {
            Ok(last) => last.as_ref().and_then(|last| Reading::now().jump_since(last)).is_some(),
            Err(_) => true,
        }
    }

    /// Reads the clock, and shifts leases and timers if it has jumped since the last reading. Called before decisions that depend
    /// on them.
    pub(super) async fn follow_clock(&self) -> StoreResult<()> {
        let mut last = self.clock.0.lock().await;
        let reading = Reading::now();
        if let Some(jump_ms) = last.as_ref().and_then(|last| reading.jump_since(last)) {
            let mut tx = self.begin_write().await?;
            shift(&mut tx, jump_ms).await?;
            tx.commit().await?;
            tracing::warn!(
                jump_ms,
                "the clock of the machine has jumped, or the machine slept: leases and timers were shifted accordingly"
            );
        }
        *last = Some(reading);
        Ok(())
    }
}

/// Shifts leases and timers. The times of ended runs do not change.
async fn shift(tx: &mut Tx, by_ms: i64) -> StoreResult<()> {
    for statement in [
        "UPDATE run_leases SET claimed_at = claimed_at + ?1, lease_until = lease_until + ?1",
        "UPDATE runs SET claimable_at = claimable_at + ?1 WHERE claimable_at IS NOT NULL",
        "UPDATE runs SET started_at = started_at + ?1 WHERE finished_at IS NULL",
        "UPDATE input_requests SET expires_at = expires_at + ?1 WHERE state = 'pending' AND expires_at IS NOT NULL",
        "UPDATE idempotency_keys SET created_at = created_at + ?1",
    ] {
        sqlx::query(statement).bind(by_ms).execute(&mut **tx).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::domain::agent::AgentProfile;
    use crate::domain::conversation::AgentChoice;
    use crate::domain::ids::{ConversationId, MessageId, NodeId, RunId, UserId};
    use crate::domain::run::OnBusy;
    use crate::domain::trace::TraceId;
    use crate::store::{AcceptOutcome, AcceptRun, IdempotentOutcome, QueueStore as _, RunStore as _, StoreOptions};
    use crate::support::clock::UnixMillis;
    use crate::support::ids::UuidIds;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn only_what_cannot_be_a_slow_reading_is_a_jump() {
        let start = Instant::now();
        let at = |wall_ms: i64, before: u64, after: u64| Reading {
            wall_ms,
            before: start + Duration::from_millis(before),
            after: start + Duration::from_millis(after),
        };
        let first = at(0, 0, 10);
        assert_eq!(at(5_000, 5_000, 5_001).jump_since(&first), None);
        assert_eq!(at(5_900, 5_000, 5_001).jump_since(&first), None, "a correction");
        assert_eq!(at(9_000, 2_000, 9_500).jump_since(&first), None, "the reading took long");
        assert_eq!(at(2_000, 2_000, 9_500).jump_since(&first), None);
        assert_eq!(at(HOUR + 5_000, 5_000, 5_001).jump_since(&first), Some(HOUR - 1));
        assert_eq!(at(5_000 - HOUR, 5_000, 5_001).jump_since(&first), Some(10 - HOUR));
    }

    impl SqliteStore {
        /// Simulates a clock jump since the last reading: the stored times are from before the jump.
        async fn pretend(&self, jump_ms: i64) {
            let mut tx = self.write().await.unwrap();
            shift(&mut tx, -jump_ms).await.unwrap();
            tx.commit().await.unwrap();
            let mut last = self.clock.0.lock().await;
            last.as_mut().expect("the clock was read").wall_ms -= jump_ms;
        }

        async fn run_of(&self, owner: &UserId) -> RunId {
            let accept = AcceptRun {
                owner: owner.clone(),
                conversation_id: ConversationId::generate(&UuidIds),
                create_with_title: Some(String::new()),
                run_id: RunId::generate(&UuidIds),
                message_id: MessageId::generate(&UuidIds),
                parts: Vec::new(),
                profile: AgentProfile::default(),
                choice: AgentChoice::default(),
                on_busy: OnBusy::Queue,
                max_active_runs: 0,
                max_conversations: 0,
                max_files: 5,
                trace: TraceId::generate(&UuidIds),
                taker: None,
                transcript: None,
                now: UnixMillis(0),
            };
            match self.accept_run(accept, None).await.unwrap() {
                IdempotentOutcome::Fresh(AcceptOutcome::Run { run, .. }) => run.id,
                other => panic!("a run: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn leases_and_timers_do_not_notice_that_the_clock_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("capstan.db").display());
        let (owner, node) = (UserId::generate(&UuidIds), NodeId::generate(&UuidIds));
        for jump in [HOUR, -HOUR] {
            let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
            let held = store.run_of(&owner).await;
            let fence = store.claim_runs(&node, 1, 10_000).await.unwrap().remove(0).fence;
            assert_eq!(fence.run_id, held);
            store.pretend(jump).await;
            assert_eq!(store.sweep_expired_leases(10, true).await.unwrap().requeued, [], "after {jump} ms");
            store.pretend(jump).await;
            assert_eq!(
                store.renew_leases(&node, std::slice::from_ref(&fence), 10_000, 0).await.unwrap().renewed,
                std::slice::from_ref(&held)
            );
            let left = store.explain_run(&owner, &held).await.unwrap().unwrap().lease_expires_in_ms.unwrap();
            assert!((5_000..=10_000).contains(&left), "{left}");

            // A jump neither completes an unfinished wait, nor undoes a finished one.
            let waits = store.run_of(&owner).await;
            let soon = "UPDATE runs SET claimable_at = claimable_at + 60000 WHERE id = ?";
            let mut tx = store.write().await.unwrap();
            sqlx::query(soon).bind(waits.as_str()).execute(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
            store.pretend(jump).await;
            assert_eq!(store.claim_runs(&node, 10, 10_000).await.unwrap(), []);
            store.pretend(jump).await;
            let next = store.next_claimable_in().await.unwrap().unwrap();
            assert!((50_000..=60_000).contains(&next), "{next}");
            let ready = store.run_of(&owner).await;
            store.pretend(jump).await;
            // A run that is accepted after the jump has a new time, even before the clock is checked.
            let sooner = store.run_of(&owner).await;
            let claims = store.claim_runs(&node, 10, 10_000).await.unwrap();
            assert_eq!(claims.iter().map(|claim| &claim.fence.run_id).collect::<Vec<_>>(), [&ready, &sooner]);
            crate::store::Store::close(&store).await;
            std::fs::remove_file(folder.path().join("capstan.db")).unwrap();
        }
    }

    /// The clock was set back while no server ran.
    #[tokio::test]
    async fn queued_writer_does_not_wait_for_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("capstan.db").display());
        let (owner, node) = (UserId::generate(&UuidIds), NodeId::generate(&UuidIds));
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        let (queued, waiting) = (store.run_of(&owner).await, store.run_of(&owner).await);
        let (answered, left) = (store.run_of(&owner).await, store.run_of(&owner).await);
        let mut tx = store.write().await.unwrap();
        shift(&mut tx, HOUR).await.unwrap();
        for (run, cause) in [(&waiting, "timer"), (&answered, "request"), (&left, "crash")] {
            let waits = sqlx::query("UPDATE runs SET status = 'waiting', claim_cause = ? WHERE id = ?");
            waits.bind(cause).bind(run.as_str()).execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
        store.expire_foreign_leases(&node).await.unwrap();
        let claims = store.claim_runs(&node, 10, 10_000).await.unwrap();
        let claimed: HashSet<_> = claims.iter().map(|claim| &claim.fence.run_id).collect();
        assert_eq!(claimed, HashSet::from([&queued, &answered, &left]));
        crate::store::Store::close(&store).await;
    }

    /// A worker that could not renew its lease because the disk stalled has not crashed.
    #[tokio::test]
    async fn a_sweep_that_waited_for_the_disk_takes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("capstan.db").display());
        let (owner, node) = (UserId::generate(&UuidIds), NodeId::generate(&UuidIds));
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        let run = store.run_of(&owner).await;
        let fence = store.claim_runs(&node, 1, 0).await.unwrap().remove(0).fence;
        let mut tx = store.write().await.unwrap();
        sqlx::query("UPDATE run_leases SET lease_until = lease_until - 1000").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let stands_still = store.write().await.unwrap();
        let mut sweep = Box::pin(store.sweep_expired_leases(10, true));
        // While the disk is blocked, there is no answer.
        assert!(tokio::time::timeout(Duration::from_millis(3_100), sweep.as_mut()).await.is_err());
        drop(stands_still);
        let swept = sweep.await.unwrap();
        assert_eq!((swept.requeued, swept.outage_suspected), (vec![], true));
        store.give_up_leases(&[fence]).await.unwrap();
        let again = store.claim_runs(&node, 1, 10_000).await.unwrap().remove(0);
        assert_eq!((again.fence.run_id, again.crashes), (run, 0));
        crate::store::Store::close(&store).await;
    }
}
