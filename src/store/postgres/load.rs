//! A claimed run as its worker needs it.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::domain::budget::Lost;
use crate::domain::change::{RunCounters, StepKind, StepRow, StepStatus};
use crate::domain::ids::{RunId, UserId};
use crate::domain::input::InputRequest;
use crate::domain::record::{Fence, RunRecord};
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::tool::ToolCall;
use crate::store::call_record::read_call;
use crate::store::{StoreResult, budget, rows};

/// One statement, and a few more for a run that has steps, or whose agent asks for more. They need no common snapshot: while the fence
/// holds, nobody else writes steps and calls, and once it does not, nothing that comes of them can be written. Calls of earlier runs have
/// all ended.
pub(super) async fn load(connection: &mut PgConnection, fence: &Fence, words: rows::Words) -> StoreResult<Option<RunRecord>> {
    let found = sqlx::query(
        "SELECT r.owner_id, r.attempt, r.crashes, r.claim_cause, r.status, r.reason, r.profile, r.counters, r.usage,
                 t.definitions, r.contexts, r.cancel_requested_by, h.joined, v.system_prompt, v.instructions, now_ms() - r.started_at AS elapsed_ms,
                 EXISTS (SELECT FROM run_steps s WHERE s.run_id = r.id)
                     OR EXISTS (SELECT FROM tool_calls t WHERE t.run_id = r.id)
                     OR EXISTS (SELECT FROM input_requests q WHERE q.run_id = r.id) AS has_steps,
                 ARRAY (
                     SELECT m.body FROM messages m JOIN runs o ON o.id = m.run_id
                     WHERE $4 AND m.conversation_id = r.conversation_id AND m.superseded_by IS NULL AND o.first_seq <= r.first_seq
                         AND (s.body IS NULL OR (o.first_seq, m.position) > (s.first_seq, s.position)
                             OR m.run_id = r.id AND m.role = 'user'
                             OR m.id IN (SELECT json_array_elements_text(s.body::json -> 'asked')))
                     ORDER BY o.first_seq, m.position
                 ) AS history,
                 s.body AS summary,
                 (
                     SELECT count(*) FROM messages m JOIN runs o ON o.id = m.run_id
                     WHERE m.conversation_id = r.conversation_id AND m.superseded_by IS NULL
                         AND (o.first_seq, m.position) <= (s.first_seq, s.position)
                         AND (m.run_id = r.id AND m.role = 'user'
                             OR m.id IN (SELECT json_array_elements_text(s.body::json -> 'asked')))
                 ) AS covered
             FROM conversation_heads h JOIN runs r ON r.id = h.run_id JOIN conversations v ON v.id = h.conversation_id
             LEFT JOIN tool_sets t ON t.hash = r.tools_hash
             LEFT JOIN LATERAL (
                 SELECT c.body, o.first_seq, m.position FROM context_summaries c
                 JOIN messages m ON m.id = c.covers AND m.superseded_by IS NULL JOIN runs o ON o.id = m.run_id
                 WHERE $4 AND c.conversation_id = r.conversation_id AND o.first_seq <= r.first_seq
             ) s ON true
             WHERE h.conversation_id = $1 AND h.run_id = $2 AND h.epoch = $3 AND r.finished_at IS NULL",
    )
    .bind(fence.conversation_id.as_str())
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .bind(words == rows::Words::All)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = found else { return Ok(None) };
    let id = fence.run_id.as_str();
    let (mut steps, mut calls, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    if row.try_get("has_steps")? {
        for row in sqlx::query("SELECT step, kind, status FROM run_steps WHERE run_id = $1 ORDER BY step")
            .bind(id)
            .fetch_all(&mut *connection)
            .await?
        {
            let (kind, status): (String, String) = (row.try_get("kind")?, row.try_get("status")?);
            steps.push(StepRow {
                run_id: fence.run_id.clone(),
                step: rows::unsigned(row.try_get("step")?),
                kind: rows::word("run_steps", "kind", id, &kind, StepKind::from_word)?,
                status: rows::word("run_steps", "status", id, &status, StepStatus::from_word)?,
            });
        }
        calls = tool_calls(connection, &fence.run_id).await?.into_iter().map(Arc::new).collect();
        inputs = open_questions(connection, id).await?;
    }
    let profile = rows::decode_profile(id, &row.try_get::<String, _>("profile")?)?;
    let owner: String = row.try_get("owner_id")?;
    let lost = match profile.budget.is_shared() {
        true => lost_reservation(connection, fence, &owner).await?,
        false => None,
    };
    let status: String = row.try_get("status")?;
    let reason: Option<String> = row.try_get("reason")?;
    let cause: String = row.try_get("claim_cause")?;
    let counters: String = row.try_get("counters")?;
    let mut counters: RunCounters = rows::decode("runs", "counters", id, &counters)?;
    if profile.counts_earlier_failures() && counters.failed_before.is_empty() {
        counters.count_before(calls_before(connection, fence, &owner).await?);
    }
    let usage: String = row.try_get("usage")?;
    let definitions: Option<String> = row.try_get("definitions")?;
    let contexts: Option<String> = row.try_get("contexts")?;
    let history: Vec<String> = row.try_get("history")?;
    let elapsed: Option<i64> = row.try_get("elapsed_ms")?;
    let (summary, covered): (Option<String>, i64) = (row.try_get("summary")?, row.try_get("covered")?);
    Ok(Some(RunRecord {
        fence: fence.clone(),
        owner: UserId::from_stored(owner),
        attempt: rows::unsigned(row.try_get("attempt")?),
        // The claim under way is counted, but has not ended yet.
        crashes: rows::unsigned(row.try_get("crashes")?).saturating_sub(1),
        cause: rows::claim_cause(id, &cause),
        status: rows::word("runs", "status", id, &status, RunStatus::from_word)?,
        reason: reason.map(|reason| rows::word("runs", "reason", id, &reason, WaitReason::from_word)).transpose()?,
        profile: Arc::new(profile),
        own_layers: rows::own_layers(&row)?,
        tools: definitions.map(|json| rows::decode("tool_sets", "definitions", id, &json)).transpose()?,
        contexts: contexts.map(|json| rows::decode("runs", "contexts", id, &json)).transpose()?,
        counters,
        usage: rows::decode("runs", "usage", id, &usage)?,
        lost,
        elapsed_ms: elapsed.map_or(0, |elapsed| u64::try_from(elapsed).unwrap_or(0)),
        history: rows::history(id, &history)?,
        summary: summary.map(|json| rows::decode("context_summaries", "body", id, &json)).transpose()?,
        covered: usize::try_from(covered).unwrap_or(0),
        steps,
        calls,
        inputs,
        cancel_requested_by: row.try_get("cancel_requested_by")?,
        joined: row.try_get("joined")?,
    }))
}

/// The newest calls of earlier runs that have ended well or badly: their tools, and which it was. One that was answered with an earlier
/// call has not been made.
async fn calls_before(connection: &mut PgConnection, fence: &Fence, owner: &str) -> StoreResult<Vec<(String, bool)>> {
    let calls = sqlx::query_as(
        "SELECT t.name, t.state = 'failed' FROM runs r JOIN tool_calls t ON t.run_id = r.id
         WHERE r.conversation_id = $1 AND r.first_seq < (SELECT first_seq FROM runs WHERE id = $2) AND r.owner_id = $3 AND t.owner_id = $3
             AND (t.state = 'failed' OR t.state = 'done' AND t.started_at IS NOT NULL)
         ORDER BY r.first_seq DESC, t.step DESC, t.position DESC LIMIT $4",
    )
    .bind(fence.conversation_id.as_str())
    .bind(fence.run_id.as_str())
    .bind(owner)
    .bind(RunCounters::CALLS_BEFORE)
    .fetch_all(connection)
    .await?;
    Ok(calls)
}

/// The calls of a run, by step and position.
pub(super) async fn tool_calls(connection: &mut PgConnection, run: &RunId) -> StoreResult<Vec<ToolCall>> {
    let found = sqlx::query(
        "SELECT id, message_id, step, position, provider_call_id, name, server, arguments, arguments_hash, replay, state,
                 outcome, repair, key, undoes, handle FROM tool_calls WHERE run_id = $1 ORDER BY step, position",
    )
    .bind(run.as_str())
    .fetch_all(connection)
    .await?;
    found.iter().map(|row| read_call(row, run)).collect()
}

/// Reads the questions of a claimed run on which it has not acted.
async fn open_questions(connection: &mut PgConnection, run: &str) -> StoreResult<Vec<InputRequest>> {
    let columns = rows::INPUT_COLUMNS;
    let statement = format!(
        "SELECT {columns}, expires_at - now_ms() AS expires_in FROM input_requests
         WHERE run_id = $1 AND state IN ('pending', 'answered') ORDER BY created_at, id"
    );
    let found = sqlx::query(AssertSqlSafe(statement)).bind(run).fetch_all(connection).await?;
    found.iter().map(rows::read_open_input).collect()
}

/// Reads the reservation that the run holds under an older fence.
async fn lost_reservation(connection: &mut PgConnection, fence: &Fence, owner: &str) -> StoreResult<Option<Lost>> {
    let found = sqlx::query(
        "SELECT day, held_tokens, held_cost FROM spending
         WHERE owner_id = $1 AND day >= now_ms() / 86400000 - 1 AND run_id = $2 AND held_epoch < $3 ORDER BY day DESC LIMIT 1",
    )
    .bind(owner)
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .fetch_optional(connection)
    .await?;
    Ok(found.as_ref().map(budget::read_lost).transpose()?)
}
