//! Loads a claimed run with all that the loop needs.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Row as _};

use super::SqliteStore;
use super::connection::Tx;
use crate::domain::budget::Lost;
use crate::domain::change::{RunCounters, StepKind, StepRow, StepStatus};
use crate::domain::context::ContextSummary;
use crate::domain::ids::{RunId, UserId};
use crate::domain::input::InputRequest;
use crate::domain::message::Message;
use crate::domain::record::{Fence, RunRecord};
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::tool::{ToolCall, ToolDefinition};
use crate::store::call_record::read_call;
use crate::store::rows::{INPUT_COLUMNS, Words, claim_cause, decode, decode_profile, own_layers, read_open_input, unsigned, word};
use crate::store::{StoreResult, budget};

impl SqliteStore {
    pub(super) async fn load(&self, fence: &Fence, words: Words) -> StoreResult<Option<RunRecord>> {
        let mut tx = self.read().await?;
        let run = sqlx::query(concat!(
            "SELECT runs.owner_id, runs.status, runs.reason, runs.claim_cause, runs.profile, runs.counters, runs.usage,
                    runs.attempt, runs.crashes, runs.cancel_requested_by, h.joined, tool_sets.definitions, runs.contexts,
                    c.system_prompt, c.instructions,
                    max(coalesce(",
            now!(),
            " - runs.started_at, 0), 0) AS elapsed_ms
             FROM runs
             JOIN conversation_heads h ON h.conversation_id = runs.conversation_id AND h.run_id = runs.id AND h.epoch = ?
             JOIN conversations c ON c.id = runs.conversation_id
             LEFT JOIN tool_sets ON tool_sets.hash = runs.tools_hash
             WHERE runs.id = ? AND runs.finished_at IS NULL"
        ))
        .bind(fence.epoch)
        .bind(fence.run_id.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(run) = run else { return Ok(None) };
        let id = fence.run_id.as_str();
        let reason: Option<&str> = run.try_get("reason")?;
        let tools: Option<&str> = run.try_get("definitions")?;
        let tools = tools.map(|text| decode::<Vec<Arc<ToolDefinition>>>("tool_sets", "definitions", id, text)).transpose()?;
        let contexts: Option<&str> = run.try_get("contexts")?;
        let elapsed_ms: i64 = run.try_get("elapsed_ms")?;
        let profile = decode_profile(id, run.try_get("profile")?)?;
        let lost = match profile.budget.is_shared() {
            true => lost_reservation(&mut tx, fence, run.try_get("owner_id")?).await?,
            false => None,
        };
        let mut counters: RunCounters = decode("runs", "counters", id, run.try_get("counters")?)?;
        if profile.counts_earlier_failures() && counters.failed_before.is_empty() {
            counters.count_before(calls_before(&mut tx, fence, run.try_get("owner_id")?).await?);
        }
        let Remembered { history, summary, covered } = match words {
            Words::All => remembered(&mut tx, fence).await?,
            Words::None => Remembered::default(),
        };
        Ok(Some(RunRecord {
            fence: fence.clone(),
            owner: UserId::from_stored(run.try_get("owner_id")?),
            attempt: unsigned(run.try_get("attempt")?),
            // The claim that is being loaded has been counted already.
            crashes: unsigned(run.try_get("crashes")?).saturating_sub(1),
            cause: claim_cause(id, run.try_get("claim_cause")?),
            status: word("runs", "status", id, run.try_get("status")?, RunStatus::from_word)?,
            reason: reason.map(|text| word("runs", "reason", id, text, WaitReason::from_word)).transpose()?,
            profile: Arc::new(profile),
            own_layers: own_layers(&run)?,
            tools,
            contexts: contexts.map(|text| decode("runs", "contexts", id, text)).transpose()?,
            counters,
            usage: decode("runs", "usage", id, run.try_get("usage")?)?,
            lost,
            elapsed_ms: u64::try_from(elapsed_ms).unwrap_or(0),
            history,
            summary,
            covered,
            steps: steps(&mut tx, &fence.run_id).await?,
            calls: tool_calls(&mut tx, &fence.run_id).await?.into_iter().map(Arc::new).collect(),
            inputs: open_questions(&mut tx, &fence.run_id).await?,
            cancel_requested_by: run.try_get("cancel_requested_by")?,
            joined: run.try_get("joined")?,
        }))
    }
}

/// What a model is to read of a conversation.
#[derive(Default)]
struct Remembered {
    history: Vec<Message>,
    summary: Option<ContextSummary>,
    covered: usize,
}

/// Run by run, because a message that waits for a later run may have come before this run's answer. Of what a summary stands for,
/// only what the user asks.
async fn remembered(tx: &mut Tx, fence: &Fence) -> StoreResult<Remembered> {
    let id = fence.conversation_id.as_str();
    let summary = sqlx::query(
        "SELECT c.body, r.first_seq, m.position FROM context_summaries c
         JOIN messages m ON m.id = c.covers AND m.superseded_by IS NULL JOIN runs r ON r.id = m.run_id
         WHERE c.conversation_id = ? AND r.first_seq <= (SELECT first_seq FROM runs WHERE id = ?)",
    )
    .bind(id)
    .bind(fence.run_id.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let (first_seq, position, body): (Option<i64>, Option<i64>, Option<String>) = match &summary {
        None => (None, None, None),
        Some(row) => (row.try_get("first_seq")?, row.try_get("position")?, row.try_get("body")?),
    };
    let rows = sqlx::query(
        "SELECT m.body, coalesce((r.first_seq, m.position) <= (?3, ?4), 0) AS is_covered FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = ?1 AND m.superseded_by IS NULL AND r.first_seq <= (SELECT first_seq FROM runs WHERE id = ?2)
           AND (?3 IS NULL OR (r.first_seq, m.position) > (?3, ?4) OR m.run_id = ?2 AND m.role = 'user'
             OR m.id IN (SELECT value FROM json_each(?5, '$.asked')))
         ORDER BY r.first_seq, m.position",
    )
    .bind(id)
    .bind(fence.run_id.as_str())
    .bind(first_seq)
    .bind(position)
    .bind(&body)
    .fetch_all(&mut **tx)
    .await?;
    let mut bodies: Vec<String> = Vec::with_capacity(rows.len());
    let mut covered = 0;
    for row in rows {
        bodies.push(row.try_get("body")?);
        covered += usize::from(row.try_get::<bool, _>("is_covered")?);
    }
    let summary = body.map(|body| decode("context_summaries", "body", id, &body)).transpose()?;
    Ok(Remembered { history: crate::store::rows::history(id, &bodies)?, summary, covered })
}

/// The newest calls of earlier runs that have ended well or badly: their tools, and which it was. One that was answered with an earlier
/// call has not been made.
async fn calls_before(tx: &mut Tx, fence: &Fence, owner: &str) -> StoreResult<Vec<(String, bool)>> {
    let calls = sqlx::query_as(
        "SELECT t.name, t.state = 'failed' FROM runs r JOIN tool_calls t ON t.run_id = r.id
         WHERE r.conversation_id = ?1 AND r.first_seq < (SELECT first_seq FROM runs WHERE id = ?2) AND r.owner_id = ?3 AND t.owner_id = ?3
             AND (t.state = 'failed' OR t.state = 'done' AND t.started_at IS NOT NULL)
         ORDER BY r.first_seq DESC, t.step DESC, t.position DESC LIMIT ?4",
    )
    .bind(fence.conversation_id.as_str())
    .bind(fence.run_id.as_str())
    .bind(owner)
    .bind(RunCounters::CALLS_BEFORE)
    .fetch_all(&mut **tx)
    .await?;
    Ok(calls)
}

async fn steps(tx: &mut Tx, run: &RunId) -> StoreResult<Vec<StepRow>> {
    let rows = sqlx::query("SELECT step, kind, status FROM run_steps WHERE run_id = ? ORDER BY step")
        .bind(run.as_str())
        .fetch_all(&mut **tx)
        .await?;
    let steps = rows.iter().map(|row| {
        Ok(StepRow {
            run_id: run.clone(),
            step: unsigned(row.try_get("step")?),
            kind: word("run_steps", "kind", run.as_str(), row.try_get("kind")?, StepKind::from_word)?,
            status: word("run_steps", "status", run.as_str(), row.try_get("status")?, StepStatus::from_word)?,
        })
    });
    steps.collect()
}

pub(super) async fn tool_calls(tx: &mut Tx, run: &RunId) -> StoreResult<Vec<ToolCall>> {
    let rows = sqlx::query(
        "SELECT id, message_id, step, position, provider_call_id, name, server, arguments, arguments_hash, replay, state,
                outcome, repair, key, undoes, handle
         FROM tool_calls WHERE run_id = ? ORDER BY step, position",
    )
    .bind(run.as_str())
    .fetch_all(&mut **tx)
    .await?;
    rows.iter().map(|row| read_call(row, run)).collect()
}

/// Reads the questions of a claimed run on which it has not acted.
async fn open_questions(tx: &mut Tx, run: &RunId) -> StoreResult<Vec<InputRequest>> {
    let now = now!();
    let statement = format!(
        "SELECT {INPUT_COLUMNS}, expires_at - {now} AS expires_in FROM input_requests
         WHERE run_id = ? AND state IN ('pending', 'answered') ORDER BY created_at, id"
    );
    let found = sqlx::query(AssertSqlSafe(statement)).bind(run.as_str()).fetch_all(&mut **tx).await?;
    found.iter().map(read_open_input).collect()
}

/// Reads the reservation that the run holds under an older fence.
async fn lost_reservation(tx: &mut Tx, fence: &Fence, owner: &str) -> StoreResult<Option<Lost>> {
    let found = sqlx::query(concat!(
        "SELECT day, held_tokens, held_cost FROM spending WHERE owner_id = ? AND day >= ",
        now!(),
        " / 86400000 - 1 AND run_id = ? AND held_epoch < ? ORDER BY day DESC LIMIT 1"
    ))
    .bind(owner)
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(found.as_ref().map(budget::read_lost).transpose()?)
}
