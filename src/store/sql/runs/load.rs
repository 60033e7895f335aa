//! Loads a claimed run for its worker.
//!
//! Owns the statements for everything but the run's row and history, and the composition of the record. Must not know how a
//! database reads the row and the history.

use std::sync::Arc;

use crate::domain::conversation::Message;
use crate::domain::ids::{RunId, UserId};
use crate::domain::run::{
    ContextSummary, Fence, LostReservation, RunCounters, RunRecord, RunStatus, StepKind, StepRow, StepStatus, WaitReason,
};
use crate::store::StoreResult;
use crate::store::rows::{
    claim_cause, decode_profile, own_layers, read_json, read_optional_json, read_optional_word, read_word, unsigned_count,
};
use crate::store::runs::budget;
use crate::store::sql::conversations::questions::open_questions;
use crate::store::sql::runs::calls::calls_of_run;
use crate::store::sql::{Database, Row, statements, values};

statements! {
    STEPS = ["SELECT step, kind, status FROM run_steps WHERE run_id = $1 ORDER BY step"];

    // Selects the newest calls of earlier runs that have succeeded or failed. A duplicate call, which was not executed, does not
    // count.
    EARLIER_CALLS = ["SELECT t.name, t.state = 'failed' AS has_failed FROM runs r JOIN tool_calls t ON t.run_id = r.id
         WHERE r.conversation_id = $1 AND r.first_seq < (SELECT first_seq FROM runs WHERE id = $2) AND r.owner_id = $3 AND t.owner_id = $3
             AND (t.state = 'failed' OR t.state = 'done' AND t.started_at IS NOT NULL)
         ORDER BY r.first_seq DESC, t.step DESC, t.position DESC LIMIT $4"];

    // Selects the reservation that the run holds under an older fence.
    LOST = ["SELECT day, held_tokens, held_cost FROM spending
         WHERE owner_id = $1 AND day >= ", now, " / 86400000 - 1 AND run_id = $2 AND held_epoch < $3 ORDER BY day DESC LIMIT 1"];
}

/// The messages for the model.
#[derive(Default)]
pub struct History {
    pub messages: Vec<Message>,
    pub summary: Option<ContextSummary>,
    /// Number of first messages that the summary covers.
    pub covered: usize,
}

/// Reads everything of a record except the run's row and the history. If the row's `has_steps` is false, the run has no steps, calls
/// or questions, and three reads are saved.
///
/// These statements need no common snapshot. While the fence is valid, no other process writes steps and calls. When it is void, no
/// decision based on them can be written. The calls of earlier runs have all ended.
pub async fn record(database: Database<'_>, fence: &Fence, row: &Row, history: History) -> StoreResult<RunRecord> {
    let (run, id) = (&fence.run_id, fence.run_id.as_str());
    let (mut steps, mut calls, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    if row.get("has_steps")? {
        let rows = database.fetch_all(STEPS, values![id]).await?;
        steps = rows.iter().map(|row| read_step(row, run)).collect::<StoreResult<_>>()?;
        calls = calls_of_run(database, run).await?.into_iter().map(Arc::new).collect();
        inputs = open_questions(database, run).await?;
    }
    let owner = UserId::from_stored(row.get("owner_id")?);
    let profile = decode_profile(id, row.get("profile")?)?;
    let lost = match profile.budget.is_shared() {
        true => lost_reservation(database, fence, &owner).await?,
        false => None,
    };
    let mut counters: RunCounters = read_json(row, "runs", "counters", id)?;
    if profile.counts_earlier_failures() && counters.earlier_failures.is_empty() {
        let before = values![fence.conversation_id.as_str(), id, owner.as_str(), RunCounters::MAX_EARLIER_CALLS];
        let before = database.fetch_all(EARLIER_CALLS, before).await?;
        let before = before.iter().map(|row| Ok((row.get("name")?, row.get("has_failed")?)));
        counters.count_earlier_calls(before.collect::<StoreResult<Vec<(String, bool)>>>()?);
    }
    let elapsed_ms: Option<i64> = row.get("elapsed_ms")?;
    Ok(RunRecord {
        fence: fence.clone(),
        owner,
        attempt: unsigned_count(row.get("attempt")?),
        // The current claim is counted, but has not ended.
        crashes: unsigned_count(row.get("crashes")?).saturating_sub(1),
        cause: claim_cause(id, row.get("claim_cause")?),
        status: read_word(row, "runs", "status", id, RunStatus::from_name)?,
        reason: read_optional_word(row, "runs", "reason", id, WaitReason::from_name)?,
        profile: Arc::new(profile),
        own_layers: own_layers(row)?,
        tools: read_optional_json(row, "tool_sets", "definitions", id)?,
        contexts: read_optional_json(row, "runs", "contexts", id)?,
        counters,
        usage: read_json(row, "runs", "usage", id)?,
        lost,
        elapsed_ms: elapsed_ms.map_or(0, |elapsed| u64::try_from(elapsed).unwrap_or(0)),
        history: history.messages,
        summary: history.summary,
        covered: history.covered,
        steps,
        calls,
        inputs,
        cancel_requested_by: row.get("cancel_requested_by")?,
        joined: row.get("joined")?,
    })
}

fn read_step(row: &Row, run: &RunId) -> StoreResult<StepRow> {
    Ok(StepRow {
        run_id: run.clone(),
        step: unsigned_count(row.get("step")?),
        kind: read_word(row, "run_steps", "kind", run.as_str(), StepKind::from_name)?,
        status: read_word(row, "run_steps", "status", run.as_str(), StepStatus::from_name)?,
    })
}

async fn lost_reservation(database: Database<'_>, fence: &Fence, owner: &UserId) -> StoreResult<Option<LostReservation>> {
    let row = database.fetch_optional(LOST, values![owner.as_str(), fence.run_id.as_str(), fence.epoch]).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(LostReservation { day: row.get("day")?, amount: budget::amount(row.get("held_tokens")?, row.get("held_cost")?) }))
}
