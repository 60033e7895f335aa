//! The queue of runs: claims, leases, sweeps.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use sqlx::{Row as _, SqliteExecutor};

use super::SqliteStore;
use super::connection::Tx;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::run::{ClaimCause, Fence, RunRecord};
use crate::domain::trace::TraceId;
use crate::store::rows::{TranscriptScope, read_claim, readable_claims, unnamed_lease};
use crate::store::sql::{Backend as _, Row, control_signals};
use crate::store::{
    Claim, ControlSignal, ExpiredRun, QueueStore, Renewal, SUSPECT_CRASHES, SUSPECT_LEASES, StoreResult, Sweep, UnnamedLease,
};
use crate::support::failpoint;

/// A sweep whose start took this long waited for a blocked disk, and renewals did too.
const SLOW: Duration = Duration::from_secs(3);

/// An outage is suspected only if at least this many leases seem expired: a few workers may really have crashed together.
const OUTAGE_FLOOR: i64 = 4;

/// Tests whether a run has crashed at least `?3` workers, and the next crash would end it. A run that is to be cancelled is never
/// suspected.
macro_rules! is_suspect {
    (sqlite $row:literal) => {
        sql!("CASE WHEN " $row ".crashes < ?3 OR " $row ".cancel_requested_at IS NOT NULL THEN 0 ELSE " $row ".max_crashes > 0 AND "
            $row ".crashes + 1 >= " $row ".max_crashes END")
    };
}

#[async_trait]
impl QueueStore for SqliteStore {
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>> {
        self.follow_clock().await?;
        // A reader checks first, so that the polling of an idle worker does not use the writer.
        let any: bool = sqlx::query_scalar(sql!("SELECT EXISTS (SELECT 1 FROM runs WHERE claimable_at <= " now ")"))
            .fetch_one(self.reader())
            .await?;
        if !any || limit == 0 {
            return Ok(Vec::new());
        }
        let mut tx = self.write().await?;
        let claims = claim(&mut tx, node, limit, lease_ms, self.owner_cap).await?;
        tx.commit().await?;
        Ok(claims)
    }

    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>> {
        let mut tx = self.write().await?;
        let epoch: Option<i64> = sqlx::query_scalar(
            "UPDATE conversation_heads SET epoch = epoch + 1
             WHERE conversation_id = ?1 AND run_id = ?2 AND epoch = ?3
               AND EXISTS (SELECT 1 FROM run_leases WHERE run_id = ?2 AND epoch = ?3)
             RETURNING epoch",
        )
        .bind(fence.conversation_id.as_str())
        .bind(fence.run_id.as_str())
        .bind(fence.epoch)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(epoch) = epoch else {
            // Detects whether this claim has raised it already.
            let epoch: Option<i64> = sqlx::query_scalar(
                "SELECT h.epoch FROM conversation_heads h JOIN run_leases l ON l.run_id = h.run_id AND l.epoch = h.epoch
                 JOIN runs r ON r.id = h.run_id
                 WHERE h.conversation_id = ?1 AND h.run_id = ?2 AND h.epoch = ?3 + 1 AND r.attempt = ?4",
            )
            .bind(fence.conversation_id.as_str())
            .bind(fence.run_id.as_str())
            .bind(fence.epoch)
            .bind(i64::from(attempt))
            .fetch_optional(&mut *tx)
            .await?;
            return Ok(epoch.map(|epoch| Fence { epoch, ..fence.clone() }));
        };
        sqlx::query("UPDATE run_leases SET epoch = ? WHERE run_id = ?")
            .bind(epoch)
            .bind(fence.run_id.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Some(Fence { epoch, ..fence.clone() }))
    }

    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()> {
        let mut tx = self.write().await?;
        sqlx::query(
            "UPDATE runs SET crashes = max(crashes - 1, 0) WHERE id = ?1 AND EXISTS (
               SELECT 1 FROM conversation_heads h WHERE h.conversation_id = runs.conversation_id AND h.run_id = ?1 AND h.epoch = ?2)",
        )
        .bind(fence.run_id.as_str())
        .bind(fence.epoch)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.load(fence, TranscriptScope::None).await
    }

    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.load(fence, TranscriptScope::All).await
    }

    async fn renew_leases(&self, node: &NodeId, known: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal> {
        self.follow_clock().await?;
        if known.is_empty() {
            // An idle worker does not use the writer.
            return Ok(Renewal { renewed: Vec::new(), unnamed: unnamed_leases(self.reader(), node, "[]").await? });
        }
        let named: Vec<_> = known.iter().map(|fence| (&fence.run_id, fence.epoch)).collect();
        let named = json!(named).to_string();
        let mut tx = self.write().await?;
        let renewed: Vec<String> = sqlx::query_scalar(sql!("UPDATE run_leases SET lease_until = " now " + ?3
             FROM (SELECT value ->> 0 AS run_id, value ->> 1 AS epoch FROM json_each(?1)) AS named
             WHERE run_leases.run_id = named.run_id AND run_leases.epoch = named.epoch AND run_leases.node_id = ?2
               AND run_leases.lease_until >= " now " - ?4
             RETURNING run_leases.run_id"))
        .bind(&named)
        .bind(node.as_str())
        .bind(millis(lease_ms))
        .bind(millis(grace_ms))
        .fetch_all(&mut *tx)
        .await?;
        let unnamed = unnamed_leases(&mut *tx, node, &named).await?;
        tx.commit().await?;
        Ok(Renewal { renewed: renewed.into_iter().map(RunId::from_stored).collect(), unnamed })
    }

    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        let lost: Vec<_> = fences.iter().map(|fence| (&fence.run_id, fence.epoch)).collect();
        let mut tx = self.write().await?;
        // A lease that is gone or has another epoch has ended otherwise. So each end is classified once, as a crash or not.
        let held: Vec<String> = sqlx::query_scalar(
            "SELECT l.run_id FROM json_each(?) AS lost JOIN run_leases l
             ON l.run_id = lost.value ->> 0 AND l.epoch = lost.value ->> 1",
        )
        .bind(json!(lost).to_string())
        .fetch_all(&mut *tx)
        .await?;
        sqlx::query(
            "UPDATE runs SET crashes = max(crashes - 1, 0) WHERE id IN (SELECT value FROM json_each(?)) AND finished_at IS NULL",
        )
        .bind(json!(held).to_string())
        .execute(&mut *tx)
        .await?;
        take_away(&mut tx, &held, None).await?;
        tx.commit().await?;
        // No other transaction writes at the same time.
        Ok(Vec::new())
    }

    async fn sweep_expired_leases(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        self.follow_clock().await?;
        let asked_at = Instant::now();
        let count = sql!("SELECT count(l.run_id), count(l.run_id) FILTER (WHERE l.lease_until < t.now), t.now
             FROM (SELECT " now " AS now) t LEFT JOIN run_leases l ON true");
        let (all, expired, counted_at): (i64, i64, i64) = sqlx::query_as(count).fetch_one(self.reader()).await?;
        if expired == 0 {
            return Ok(Sweep::default());
        }
        let found = expired.unsigned_abs();
        if !despite_outage && expired >= OUTAGE_FLOOR && expired * 2 > all {
            return Ok(Sweep { expired: found, requeued: Vec::new(), outage_suspected: true });
        }
        let mut tx = self.write().await?;
        if asked_at.elapsed() >= SLOW {
            // While the disk was blocked, no worker could renew: live workers wait for this same connection.
            return Ok(Sweep { expired: found, requeued: Vec::new(), outage_suspected: true });
        }
        // Leases that expired after they were counted may have done so while a blocked disk delayed both this sweep and renewals.
        let expired = sqlx::query_as(
            "SELECT l.run_id, r.trace_id FROM run_leases l LEFT JOIN runs r ON r.id = l.run_id WHERE l.lease_until < ?
             ORDER BY l.lease_until LIMIT ?",
        );
        let expired: Vec<(String, Option<String>)> = expired.bind(counted_at).bind(limit).fetch_all(&mut *tx).await?;
        let (runs, traces): (Vec<_>, Vec<_>) = expired.into_iter().unzip();
        take_away(&mut tx, &runs, Some(ClaimCause::Crash)).await?;
        tx.commit().await?;
        let requeued = runs.into_iter().zip(traces);
        let requeued =
            requeued.map(|(id, trace)| ExpiredRun { run_id: RunId::from_stored(id), trace: trace.map(TraceId::from_stored) });
        Ok(Sweep { expired: found, requeued: requeued.collect(), outage_suspected: false })
    }

    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64> {
        let mut tx = self.write().await?;
        let foreign: Vec<String> =
            sqlx::query_scalar("SELECT run_id FROM run_leases WHERE node_id <> ?").bind(node.as_str()).fetch_all(&mut *tx).await?;
        take_away(&mut tx, &foreign, Some(ClaimCause::Crash)).await?;
        // Only a waiting run with the cause `timer` keeps a time in the future. Any other run can be claimed now: its time may come
        // from a clock that was ahead.
        sqlx::query(sql!("UPDATE runs SET claimable_at = " now " WHERE claimable_at > " now
            " AND (status <> 'waiting' OR claim_cause <> 'timer')"))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(foreign.len() as u64)
    }

    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
        control_signals(self.worker(), runs).await
    }

    async fn next_claimable_in(&self) -> StoreResult<Option<u64>> {
        self.follow_clock().await?;
        let next: Option<i64> = sqlx::query_scalar(sql!("SELECT min(claimable_at) - " now
            " FROM runs WHERE claimable_at IS NOT NULL AND (?1 = 0 OR owner_id NOT IN (
                   SELECT owner_id FROM run_leases GROUP BY owner_id HAVING count(*) >= ?1
                 ))"))
        .bind(self.owner_cap)
        .fetch_one(self.reader())
        .await?;
        Ok(next.map(|millis| u64::try_from(millis).unwrap_or(0)))
    }
}

/// Returns the leases of a node without the runs in `named`, a JSON list of runs and epochs.
async fn unnamed_leases(executor: impl SqliteExecutor<'_>, node: &NodeId, named: &str) -> StoreResult<Vec<UnnamedLease>> {
    let unnamed = sqlx::query_as(sql!("SELECT l.run_id, r.conversation_id, l.epoch, " now
        " - l.claimed_at FROM run_leases l JOIN runs r ON r.id = l.run_id
         WHERE l.node_id = ?1 AND l.run_id NOT IN (SELECT value ->> 0 FROM json_each(?2))"));
    let unnamed: Vec<(String, String, i64, i64)> = unnamed.bind(node.as_str()).bind(named).fetch_all(executor).await?;
    Ok(unnamed.into_iter().map(unnamed_lease).collect())
}

/// Converts a duration for the database. Settings are far below the limit.
fn millis(span: u64) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX / 4)
}

async fn claim(tx: &mut Tx, node: &NodeId, limit: u32, lease_ms: u64, cap: u32) -> StoreResult<Vec<Claim>> {
    let claimed_at = Instant::now();
    // Owners with claimable runs are found by skipping along the index, and no more rows of an owner are read than can be claimed.
    // An owner's n-th run counts as if the n-1 runs before it had leases, which makes one claim of many runs as fair as many claims
    // of one. No run is claimed above `cap`, if there is a limit. At most one claimed run is suspected of crashing its workers.
    let rows = sqlx::query(sql!("WITH RECURSIVE owners (owner_id) AS (
           SELECT min(owner_id) FROM runs WHERE claimable_at IS NOT NULL
           UNION ALL
           SELECT (SELECT min(owner_id) FROM runs WHERE claimable_at IS NOT NULL AND owner_id > owners.owner_id)
           FROM owners WHERE owners.owner_id IS NOT NULL
         ),
         live (owner_id, leases) AS (SELECT owner_id, count(*) FROM run_leases GROUP BY owner_id)
         SELECT id, conversation_id, owner_id, claim_cause, trace_id, crashes, queued_ms FROM (
          SELECT *, row_number() OVER (PARTITION BY is_suspect ORDER BY rank, claimable_at, id) AS place FROM (
           SELECT r.id, r.conversation_id, r.owner_id, r.claim_cause, r.trace_id, r.claimable_at, r.crashes, " now
        " - r.claimable_at AS queued_ms, " (is_suspect "r") " AS is_suspect,
             coalesce(live.leases, 0) + row_number() OVER (PARTITION BY r.owner_id ORDER BY r.claimable_at, r.id) AS rank
           FROM owners
           JOIN runs r ON r.id IN (
             SELECT q.id FROM runs q WHERE q.owner_id = owners.owner_id AND q.claimable_at <= " now " AND NOT (" (is_suspect "q")
        " AND EXISTS (
               SELECT 1 FROM run_leases l JOIN runs s ON s.id = l.run_id WHERE l.node_id = ?4 AND l.claimed_at > " now
        " - ?5 AND s.crashes > ?3 AND s.max_crashes > 0 AND s.crashes >= s.max_crashes))
             ORDER BY q.claimable_at, q.id LIMIT ?1)
           LEFT JOIN live ON live.owner_id = r.owner_id
         )
         WHERE ?2 = 0 OR rank <= ?2)
         WHERE place = 1 OR NOT is_suspect
         ORDER BY rank, claimable_at, id LIMIT ?1"))
    .bind(limit)
    .bind(cap)
    .bind(SUSPECT_CRASHES)
    .bind(node.as_str())
    .bind(millis(lease_ms.saturating_mul(SUSPECT_LEASES.into())))
    .fetch_all(&mut **tx)
    .await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&str> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
    let ids = json!(ids).to_string();
    // Derived from the time, as on Postgres: the number after an epoch is its raised fence, never a later claim.
    let epochs: Vec<(String, i64)> =
        sqlx::query_as(sql!("UPDATE conversation_heads SET run_id = r.id, epoch = max(epoch + 1, " now
        " * 1000)
         FROM json_each(?) AS claimed JOIN runs r ON r.id = claimed.value
         WHERE conversation_heads.conversation_id = r.conversation_id
         RETURNING conversation_heads.conversation_id, conversation_heads.epoch"))
        .bind(&ids)
        .fetch_all(&mut **tx)
        .await?;
    let epochs: HashMap<String, i64> = epochs.into_iter().collect();
    sqlx::query(
        "UPDATE runs SET attempt = attempt + 1, crashes = crashes + 1, claimable_at = NULL, answered_at = NULL
         WHERE id IN (SELECT value FROM json_each(?))",
    )
    .bind(&ids)
    .execute(&mut **tx)
    .await?;
    sqlx::query(sql!("INSERT INTO run_leases (run_id, owner_id, node_id, epoch, claimed_at, lease_until)
         SELECT r.id, r.owner_id, ?2, h.epoch, " now ", " now " + ?3
         FROM json_each(?1) AS claimed JOIN runs r ON r.id = claimed.value
         JOIN conversation_heads h ON h.conversation_id = r.conversation_id
         WHERE true ON CONFLICT (run_id) DO UPDATE SET node_id = excluded.node_id, epoch = excluded.epoch,
           claimed_at = excluded.claimed_at, lease_until = excluded.lease_until"))
    .bind(&ids)
    .bind(node.as_str())
    .bind(millis(lease_ms))
    .execute(&mut **tx)
    .await?;
    Ok(readable_claims(rows.into_iter().map(Row::Sqlite).map(|row| {
        let epoch = epochs.get(row.get::<&str>("conversation_id")?).copied().unwrap_or_default();
        read_claim(&row, epoch, claimed_at)
    })))
}

/// Releases runs whose workers have crashed, are late, or have given them up. Their fences become void. `cause` is the cause of the
/// next claim; `None` keeps the stored one.
async fn take_away(tx: &mut Tx, runs: &[String], cause: Option<ClaimCause>) -> StoreResult<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let ids = json!(runs).to_string();
    let heads = "UPDATE conversation_heads SET run_id = NULL
         WHERE conversation_id IN (SELECT r.conversation_id FROM runs r WHERE r.id IN (SELECT value FROM json_each(?1)))
           AND run_id IN (SELECT value FROM json_each(?1))";
    sqlx::query(heads).bind(&ids).execute(&mut **tx).await?;
    let rows = sql!("UPDATE runs SET claimable_at = " now
        ", claim_cause = coalesce(?2, claim_cause) WHERE id IN (SELECT value FROM json_each(?1)) AND finished_at IS NULL");
    sqlx::query(rows).bind(&ids).bind(cause.map(ClaimCause::as_str)).execute(&mut **tx).await?;
    let leases = "DELETE FROM run_leases WHERE run_id IN (SELECT value FROM json_each(?1))";
    sqlx::query(leases).bind(&ids).execute(&mut **tx).await?;
    failpoint::hit("C28");
    Ok(())
}
