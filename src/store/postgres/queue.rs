//! The queue: claims, leases and the sweep. All decisions use the database's clock.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::PgConnection;
use tokio::time::Instant;

use super::PostgresStore;
use super::errors::retry_transaction;
use super::timeouts::{ANSWER_LIMIT, RENEWAL_LIMIT, ask, with_deadline};
use crate::domain::ids::{NodeId, RunId};
use crate::domain::run::{Fence, RunRecord};
use crate::domain::trace::TraceId;
use crate::store::sql::{Backend as _, Row, control_signals, text};
use crate::store::{
    Claim, ControlSignal, ExpiredRun, QueueStore, Renewal, SUSPECT_CRASHES, SUSPECT_LEASES, StoreResult, Sweep, UnnamedLease, rows,
};
use crate::support::failpoint;

/// Selects every owner with claimable runs, with the time of the oldest run. Reads all of them if there are few. Otherwise it skips
/// from owner to owner along the index, one step per owner, however many runs an owner has queued. `$queue` is
/// [`Marks::queue`](super::low_water_marks::Marks::queue), which skips entries that have left the queue before.
macro_rules! owners {
    (postgres $queue:literal) => {
        text!(postgres: "WITH RECURSIVE near AS MATERIALIZED (
                SELECT owner_id, claimable_at FROM runs WHERE claimable_at >= " $queue " ORDER BY claimable_at LIMIT 1001
            ), hop AS (
                (
                    SELECT owner_id, claimable_at FROM runs
                    WHERE claimable_at >= " $queue " AND (SELECT count(*) FROM near) > 1000
                    ORDER BY owner_id, claimable_at, id LIMIT 1
                )
                UNION ALL
                SELECT n.owner_id, n.claimable_at FROM hop o CROSS JOIN LATERAL (
                    SELECT owner_id, claimable_at FROM runs
                    WHERE claimable_at >= " $queue " AND owner_id > o.owner_id
                    ORDER BY owner_id, claimable_at, id LIMIT 1
                ) n
            ), owner AS (
                SELECT owner_id, min(claimable_at) AS claimable_at FROM near
                WHERE (SELECT count(*) FROM near) <= 1000 GROUP BY owner_id
                UNION ALL
                SELECT owner_id, claimable_at FROM hop
            )")
    };
}

/// The epoch of a claim of head `h`: above all earlier epochs of the head, and derived from the current time.
///
/// A failover may lose a claim whose worker is still running. A counter would give the next claim the same epoch, and two workers
/// would hold one fence. There are as many epochs per millisecond as when a copy is accepted, which raises all epochs
/// (`clone_detection::NUMBERS_PER_MS`).
macro_rules! next_epoch {
    (postgres) => {
        "greatest(h.epoch + 1, now_ms() * 1000)"
    };
}
pub(super) use next_epoch;

/// Claims runs, ordered by rank: the number of leases that the owner would have if this run and those before it were claimed.
///
/// It selects more candidates than needed, because other nodes may claim them at the same time. No owner gets more than its limit
/// (`$4`, 0 for none). At most one claimed run is suspected: it crashed at least `$7` workers, and the next crash would end it. The
/// node must not hold another suspected run that it claimed in the last `$8` ms. Runs to be cancelled are never suspected. Locked
/// rows are skipped, so that a claim never waits for a commit or another claim. `$5` and `$6` are the
/// [marks](super::low_water_marks::Marks).
const CLAIM: &str = text!(postgres: (owners "$5")
    ", clock AS MATERIALIZED (
        SELECT now_ms() AS now
    ), live AS (
        SELECT owner_id, count(*) AS leases FROM run_leases WHERE claimed_at >= $6 GROUP BY owner_id
    ), served AS (
        SELECT o.owner_id, coalesce(l.leases, 0) AS leases FROM owner o LEFT JOIN live l ON l.owner_id = o.owner_id
        WHERE o.claimable_at <= (SELECT now FROM clock) AND ($4 = 0 OR coalesce(l.leases, 0) < $4)
        ORDER BY leases, o.claimable_at LIMIT $2 * 2 + 8
    ), roomy AS MATERIALIZED (
        SELECT owner_id, leases, CASE $4 WHEN 0 THEN $2 * 2 + 8 ELSE owner_room(owner_id, $4, $6) END AS room FROM served
    ), candidate AS (
        SELECT q.id, q.conversation_id, q.claimable_at, q.is_suspect,
            s.leases + row_number() OVER (PARTITION BY s.owner_id ORDER BY q.claimable_at, q.id) AS rank
        FROM roomy s CROSS JOIN LATERAL (
            SELECT w.id, w.conversation_id, w.claimable_at, w.is_suspect FROM (
                SELECT r.id, r.conversation_id, r.claimable_at,
                    CASE WHEN r.crashes < $7 OR r.cancel_requested_at IS NOT NULL THEN false
                        ELSE r.max_crashes > 0 AND r.crashes + 1 >= r.max_crashes END AS is_suspect
                FROM runs r
                WHERE r.owner_id = s.owner_id AND r.claimable_at >= $5 AND r.claimable_at <= (SELECT now FROM clock)
            ) w
            WHERE NOT w.is_suspect OR NOT (SELECT EXISTS (
                SELECT 1 FROM run_leases l JOIN runs u ON u.id = l.run_id
                WHERE l.node_id = $1 AND l.claimed_at >= $6 AND l.claimed_at > now_ms() - $8 AND u.crashes > $7
                    AND u.max_crashes > 0 AND u.crashes >= u.max_crashes))
            ORDER BY w.claimable_at, w.id LIMIT least($2 * 2 + 8, s.room)
        ) q
        ORDER BY rank, q.claimable_at, q.id LIMIT $2 * 4 + 16
    ), placed AS (
        SELECT *, row_number() OVER (PARTITION BY is_suspect ORDER BY rank, claimable_at, id) AS place FROM candidate
    ), locked AS (
        SELECT r.id, c.rank, r.claimable_at
        FROM placed c JOIN runs r ON r.id = ANY(ARRAY[c.id])
            JOIN conversation_heads h ON h.conversation_id = ANY(ARRAY[c.conversation_id])
        -- A plain comparison would allow an index of the queue here, and then each candidate would read the whole index.
        WHERE coalesce(r.claimable_at <= (SELECT now FROM clock), false) AND (c.place = 1 OR NOT c.is_suspect)
        ORDER BY c.rank, c.claimable_at, c.id LIMIT $2 FOR UPDATE OF h, r SKIP LOCKED
    ), claimed AS (
        -- An answer that has arrived is loaded with the run. It must not end a later wait early.
        UPDATE runs r SET claimable_at = NULL, answered_at = NULL, attempt = r.attempt + 1, crashes = r.crashes + 1
        FROM locked l WHERE r.id = ANY(ARRAY[l.id])
        RETURNING r.id, r.conversation_id, r.owner_id, r.claim_cause, r.trace_id, r.crashes - 1 AS crashes, l.rank,
            (SELECT now FROM clock) - l.claimable_at AS queued_ms
    ), head AS (
        UPDATE conversation_heads h SET run_id = c.id, epoch = " next_epoch "
        FROM claimed c WHERE h.conversation_id = ANY(ARRAY[c.conversation_id]) RETURNING c.id, h.epoch
    ), lease AS (
        INSERT INTO run_leases (run_id, owner_id, node_id, epoch, claimed_at, lease_until)
        SELECT c.id, c.owner_id, $1, h.epoch, now_ms(), now_ms() + $3 FROM claimed c JOIN head h ON h.id = c.id
        ON CONFLICT (run_id) DO UPDATE SET node_id = excluded.node_id, epoch = excluded.epoch,
            claimed_at = excluded.claimed_at, lease_until = excluded.lease_until
    )
    SELECT c.id, c.conversation_id, c.owner_id, c.claim_cause, c.trace_id, c.crashes, c.queued_ms, h.epoch
    FROM claimed c JOIN head h ON h.id = c.id ORDER BY c.rank");

/// Selects the milliseconds until the first run of an owner below the limit (`$1`, 0 for none) can be claimed. `$2` and `$3` are
/// the [marks](super::low_water_marks::Marks).
const NEXT_CLAIMABLE: &str = text!(postgres: (owners "$2")
    " SELECT greatest(min(claimable_at) - now_ms(), 0) FROM owner o
      WHERE $1 = 0 OR $1 > (SELECT count(*) FROM run_leases l WHERE l.owner_id = o.owner_id AND l.claimed_at >= $3) HAVING count(*) > 0");

/// Takes expired leases. Head, run and lease are locked together or not at all, so that a sweep never waits for a commit. A worker
/// that lost its lease can write nothing more, even before another claim. `$2` is the
/// [mark](super::low_water_marks::Marks::leases), `$3` the time when the leases were counted: leases that expired later may have
/// done so because this statement, like their renewals, had to wait.
const SWEEP: &str = "WITH expired AS (
        SELECT l.run_id, h.conversation_id
        FROM run_leases l JOIN runs r ON r.id = ANY(ARRAY[l.run_id])
            JOIN conversation_heads h ON h.conversation_id = ANY(ARRAY[r.conversation_id])
        WHERE l.claimed_at >= $2 AND l.lease_until < $3 ORDER BY l.lease_until LIMIT $1 FOR UPDATE OF h, r, l SKIP LOCKED
    ), gone AS (
        DELETE FROM run_leases l USING expired e WHERE l.run_id = e.run_id
    ), head AS (
        UPDATE conversation_heads h SET run_id = NULL
        FROM expired e WHERE h.conversation_id = e.conversation_id AND h.run_id = e.run_id
    )
    UPDATE runs r SET claimable_at = now_ms(), claim_cause = 'crash'
    FROM expired e WHERE r.id = ANY(ARRAY[e.run_id]) AND r.finished_at IS NULL RETURNING r.id, r.trace_id";

/// Renews the leases of `$1` that `$2` and `$3` name, and returns the unnamed leases with their conversations. `$6` is the
/// [mark](super::low_water_marks::Marks::leases).
///
/// Each part is a look-up by key or hash: a planner that believes the table empty would choose joins that compare all rows.
const RENEW: &str = "WITH named AS MATERIALIZED (
        SELECT * FROM unnest($2::text[], $3::bigint[]) AS n (run_id, epoch) ORDER BY run_id
    ), locked AS MATERIALIZED (
        SELECT l.run_id FROM named n CROSS JOIN LATERAL (
            SELECT run_id FROM run_leases WHERE run_id = n.run_id AND epoch = n.epoch AND node_id = $1
                AND lease_until > (SELECT now_ms()) - $5 FOR UPDATE
        ) l
    ), renewed AS (
        UPDATE run_leases SET lease_until = now_ms() + $4 WHERE run_id = ANY(ARRAY(SELECT run_id FROM locked)) RETURNING run_id
    )
    SELECT run_id, true, 0::bigint, 0::bigint FROM renewed
    UNION ALL
    SELECT l.run_id, false, l.epoch, (SELECT now_ms()) - l.claimed_at
    FROM run_leases l
    WHERE l.claimed_at >= $6 AND l.node_id = $1 AND l.run_id NOT IN (SELECT run_id FROM named)";

/// Releases leases. Locks like a sweep, and never waits. Ignores a lease that is gone or has another epoch, so that each end is
/// classified once, as a crash or not. Returns the leases that another transaction has locked.
const GIVE_UP: &str = "WITH lost AS MATERIALIZED (
        SELECT l.run_id, l.epoch, r.conversation_id
        FROM unnest($1::text[], $2::bigint[]) AS given (run_id, epoch)
            JOIN run_leases l ON l.run_id = given.run_id AND l.epoch = given.epoch
            JOIN runs r ON r.id = ANY(ARRAY[l.run_id]) AND r.finished_at IS NULL
    ), locked AS MATERIALIZED (
        SELECT r.id, r.conversation_id, lost.epoch
        FROM lost JOIN runs r ON r.id = ANY(ARRAY[lost.run_id])
            JOIN conversation_heads h ON h.conversation_id = ANY(ARRAY[lost.conversation_id])
        WHERE r.finished_at IS NULL FOR UPDATE OF h, r SKIP LOCKED
    ), gone AS (
        DELETE FROM run_leases l USING locked k WHERE l.run_id = k.id AND l.epoch = k.epoch RETURNING l.run_id
    ), head AS (
        UPDATE conversation_heads h SET run_id = NULL
        FROM locked k JOIN gone g ON g.run_id = k.id WHERE h.conversation_id = k.conversation_id AND h.run_id = k.id
    ), run AS (
        UPDATE runs r SET crashes = greatest(r.crashes - 1, 0), claimable_at = now_ms() FROM gone g WHERE r.id = g.run_id
    )
    SELECT lost.run_id FROM lost WHERE NOT EXISTS (SELECT 1 FROM locked k WHERE k.id = lost.run_id)";

impl PostgresStore {
    /// Adds the conversations to unnamed leases, each of which is given as run, epoch, and age in milliseconds.
    ///
    /// This is a separate statement, because a renewal must not wait for a lock on `runs`. If it fails, the next renewal returns
    /// the leases again.
    async fn unnamed_leases(&self, leases: Vec<(String, i64, i64)>) -> Vec<UnnamedLease> {
        let runs: Vec<&str> = leases.iter().map(|(run, ..)| run.as_str()).collect();
        let read = ask(&self.lease, async |connection| {
            let read = sqlx::query_as::<_, (String, String)>("SELECT id, conversation_id FROM runs WHERE id = ANY($1)");
            Ok(read.bind(&runs).fetch_all(connection).await?)
        });
        let conversations: HashMap<String, String> = match with_deadline(RENEWAL_LIMIT, read).await {
            Ok(found) => found.into_iter().collect(),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the runs of orphaned claims could not be read");
                HashMap::new()
            }
        };
        let with_conversation = leases.into_iter().filter_map(|(run, epoch, age_ms)| {
            let conversation = conversations.get(&run)?.clone();
            Some(rows::unnamed_lease((run, conversation, epoch, age_ms)))
        });
        with_conversation.collect()
    }
}

#[async_trait]
impl QueueStore for PostgresStore {
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>> {
        let marks = self.low_water.marks();
        let claim = || {
            ask(&self.worker, async |connection| {
                let claim = sqlx::query(CLAIM).bind(node.as_str()).bind(i64::from(limit.min(1000))).bind(millis(lease_ms));
                let claim = claim.bind(i64::from(self.owner_cap)).bind(marks.queue).bind(marks.leases);
                let claim = claim.bind(i64::from(SUSPECT_CRASHES)).bind(millis(lease_ms.saturating_mul(SUSPECT_LEASES.into())));
                // The time is taken after the wait for a connection: after an outage, that wait may be longer than a lease.
                let claimed_at = Instant::now().into_std();
                Ok((claimed_at, claim.fetch_all(connection).await?))
            })
        };
        let (claimed_at, found) = with_deadline(ANSWER_LIMIT, retry_transaction(claim)).await?;
        Ok(rows::readable_claims(
            found.into_iter().map(Row::Postgres).map(|row| rows::read_claim(&row, row.get("epoch")?, claimed_at)),
        ))
    }

    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>> {
        let raise = || {
            ask(&self.worker, async |connection| {
                // Waits for the head, and so for writes under the old fence.
                let raised = sqlx::query_scalar(
                    "WITH head AS (
                     UPDATE conversation_heads SET epoch = epoch + 1
                     WHERE conversation_id = $1 AND run_id = $2 AND epoch = $3 RETURNING epoch
                 )
                 UPDATE run_leases l SET epoch = head.epoch FROM head WHERE l.run_id = $2 AND l.epoch = $3 RETURNING l.epoch",
                )
                .bind(fence.conversation_id.as_str())
                .bind(fence.run_id.as_str())
                .bind(fence.epoch)
                .fetch_optional(&mut *connection)
                .await?;
                match raised {
                    Some(epoch) => Ok(Some(epoch)),
                    None => raised_before(connection, fence, attempt).await,
                }
            })
        };
        let epoch: Option<i64> = with_deadline(ANSWER_LIMIT, retry_transaction(raise)).await?;
        Ok(epoch.map(|epoch| Fence { epoch, ..fence.clone() }))
    }

    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()> {
        // Waits for the head, and so for a transaction that takes the run away meanwhile, and then detects that.
        let clear = ask(&self.worker, async |connection| {
            let clear = sqlx::query(
                "WITH head AS (
                     SELECT run_id FROM conversation_heads WHERE conversation_id = $1 AND run_id = $2 AND epoch = $3 FOR UPDATE
                 )
                 UPDATE runs r SET crashes = greatest(r.crashes - 1, 0) FROM head WHERE r.id = head.run_id",
            );
            let clear = clear.bind(fence.conversation_id.as_str()).bind(fence.run_id.as_str()).bind(fence.epoch);
            clear.execute(connection).await?;
            Ok(())
        });
        with_deadline(ANSWER_LIMIT, clear).await
    }

    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.load(fence, rows::TranscriptScope::None).await
    }

    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.load(fence, rows::TranscriptScope::All).await
    }

    async fn renew_leases(&self, node: &NodeId, known: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal> {
        let since = self.low_water.marks().leases;
        let renew = || {
            ask(&self.lease, async |connection| {
                let renew = sqlx::query_as(RENEW).bind(node.as_str());
                let renew = renew.bind(known.iter().map(|fence| fence.run_id.as_str()).collect::<Vec<_>>());
                let renew = renew.bind(known.iter().map(|fence| fence.epoch).collect::<Vec<_>>());
                Ok(renew.bind(millis(lease_ms)).bind(millis(grace_ms)).bind(since).fetch_all(connection).await?)
            })
        };
        let found: Vec<(String, bool, i64, i64)> = with_deadline(RENEWAL_LIMIT, retry_transaction(renew)).await?;
        let mut renewal = Renewal::default();
        let mut unnamed = Vec::new();
        for (run, is_renewed, epoch, age_ms) in found {
            if is_renewed {
                renewal.renewed.push(RunId::from_stored(run));
            } else {
                unnamed.push((run, epoch, age_ms));
            }
        }
        if !unnamed.is_empty() {
            renewal.unnamed = self.unnamed_leases(unnamed).await;
        }
        Ok(renewal)
    }

    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        if fences.is_empty() {
            return Ok(Vec::new());
        }
        let give_up = ask(&self.lease, async |connection| {
            let give_up = sqlx::query_scalar(GIVE_UP).bind(fences.iter().map(|fence| fence.run_id.as_str()).collect::<Vec<_>>());
            Ok(give_up.bind(fences.iter().map(|fence| fence.epoch).collect::<Vec<_>>()).fetch_all(connection).await?)
        });
        let left: Vec<String> = with_deadline(RENEWAL_LIMIT, give_up).await?;
        Ok(left.into_iter().map(RunId::from_stored).collect())
    }

    async fn sweep_expired_leases(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        let since = self.low_water.marks().leases;
        // The wait for a connection counts too, because renewals use the same pool.
        let asked_at = Instant::now();
        let sweep = ask(&self.lease, async |connection| sweep(connection, (asked_at, limit), despite_outage, since).await);
        with_deadline(ANSWER_LIMIT, sweep).await
    }

    async fn expire_foreign_leases(&self, _node: &NodeId) -> StoreResult<u64> {
        Ok(0)
    }

    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
        control_signals(self.worker(), runs).await
    }

    async fn next_claimable_in(&self) -> StoreResult<Option<u64>> {
        let marks = self.low_water.marks();
        let wait = ask(&self.worker, async |connection| {
            let wait = sqlx::query_scalar(NEXT_CLAIMABLE).bind(i64::from(self.owner_cap));
            let wait = wait.bind(marks.queue).bind(marks.leases);
            Ok(wait.fetch_optional(connection).await?)
        });
        let wait: Option<i64> = with_deadline(ANSWER_LIMIT, wait).await?;
        Ok(wait.map(|wait| u64::try_from(wait).unwrap_or(0)))
    }
}

/// Returns the epoch after the fence's, if this claim has raised it already. This is a separate statement, because a statement that
/// waited for the head would still see the old leases.
async fn raised_before(connection: &mut PgConnection, fence: &Fence, attempt: u32) -> StoreResult<Option<i64>> {
    Ok(sqlx::query_scalar(
        "SELECT h.epoch FROM conversation_heads h JOIN run_leases l ON l.run_id = h.run_id AND l.epoch = h.epoch
            JOIN runs r ON r.id = h.run_id
         WHERE h.conversation_id = $1 AND h.run_id = $2 AND h.epoch = $3 + 1 AND r.attempt = $4",
    )
    .bind(fence.conversation_id.as_str())
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .bind(i64::from(attempt))
    .fetch_optional(connection)
    .await?)
}

async fn sweep(
    connection: &mut PgConnection,
    (asked_at, limit): (Instant, u32),
    despite_outage: bool,
    since: i64,
) -> StoreResult<Sweep> {
    let (all, expired, counted_at): (i64, i64, i64) = sqlx::query_as(
        "SELECT count(*), count(*) FILTER (WHERE lease_until < clock.now), (SELECT now_ms())
         FROM run_leases CROSS JOIN (SELECT now_ms() AS now) AS clock WHERE claimed_at >= $1",
    )
    .bind(since)
    .fetch_one(&mut *connection)
    .await?;
    if expired == 0 {
        return Ok(Sweep::default());
    }
    // If counting took this long, no worker could renew.
    let was_away = asked_at.elapsed() >= RENEWAL_LIMIT;
    if was_away || !despite_outage && expired >= 4 && expired * 2 > all {
        return Ok(Sweep { expired: expired.unsigned_abs(), requeued: Vec::new(), outage_suspected: true });
    }
    failpoint::hit("C28");
    // No lock is waited for, so nothing is retried: the next sweep follows anyway.
    let requeued: Vec<(String, Option<String>)> =
        sqlx::query_as(SWEEP).bind(i64::from(limit)).bind(since).bind(counted_at).fetch_all(connection).await?;
    let requeued = requeued.into_iter();
    let requeued =
        requeued.map(|(id, trace)| ExpiredRun { run_id: RunId::from_stored(id), trace: trace.map(TraceId::from_stored) });
    Ok(Sweep { expired: expired.unsigned_abs(), requeued: requeued.collect(), outage_suspected: false })
}

pub(super) fn millis(value: u64) -> i64 {
    // Far above any lease, and small enough to add to the current time.
    i64::try_from(value).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
