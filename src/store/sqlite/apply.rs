//! The changes of one write, carried out in its transaction.

use std::sync::Arc;

use serde_json::{Value, json};

use super::connection::Tx;
use super::summaries::summarize;
use super::{audit, budget, input};
use crate::domain::audit::AuditOutcome;
use crate::domain::change::{Change, ReleaseCause};
use crate::domain::conversation::ConversationStatus;
use crate::domain::handle::Handle;
use crate::domain::ids::{CallId, ConversationId, RunId};
use crate::domain::message::Message;
use crate::domain::problem::ProblemBody;
use crate::domain::record::RunWrite;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::{ToolCall, ToolDefinition, ToolOutcome};
use crate::store::rows::{encode, encode_storable, signed, storable_message};
use crate::store::{StoreResult, compose};
use crate::support::text::storable;

const NOT_PLANNED: &str = "a tool call is started that is not planned";

/// What a write did to its run.
pub(super) enum Applied {
    /// The run goes on.
    Goes,
    /// The run is over or was given up: its fence is void.
    Ended {
        /// The conversation's next run can be claimed now.
        next_waits: bool,
    },
    /// The write breaks a rule of the rows, which is a mistake of its maker. The transaction is to be given up.
    Refused(&'static str),
}

/// Carries out the changes of `write`, whose first event gets the number after `base`.
pub(super) async fn apply(tx: &mut Tx, write: &RunWrite, base: i64) -> StoreResult<Applied> {
    let (run, conversation) = (&write.fence.run_id, &write.fence.conversation_id);
    let mut patch = RunPatch::default();
    let mut messages = 0;
    let mut applied = Applied::Goes;
    for change in &write.changes {
        if matches!(applied, Applied::Ended { .. }) {
            return Ok(Applied::Refused("something follows the end of the run"));
        }
        let refused = match change {
            Change::Status(status, _) if status.is_terminal() => Some("a terminal status is set without ending the run"),
            Change::Status(status, reason) => {
                patch.status = Some((status.as_str(), reason.map(|reason| reason.as_str())));
                set_conversation_status(tx, conversation, (*status).into()).await?;
                None
            }
            Change::Started => {
                patch.started = true;
                None
            }
            Change::FreezeTools(tools) => {
                patch.tools_hash = Some(freeze_tools(tx, run, tools).await?);
                None
            }
            Change::KeepContexts(contexts) => {
                patch.contexts = Some(encode_storable("runs", "contexts", run.as_str(), contexts)?);
                None
            }
            Change::Counters(counters) => {
                patch.counters = Some(encode("runs", "counters", run.as_str(), counters)?);
                None
            }
            Change::Summarize(summary) => {
                summarize(tx, conversation, summary).await?;
                None
            }
            Change::Usage(usage) => {
                patch.usage = Some(encode("runs", "usage", run.as_str(), usage)?);
                None
            }
            Change::Settle { day, amount } => {
                budget::settle(tx, run, *day, *amount).await?;
                None
            }
            Change::StepStarted { step, kind } => {
                sqlx::query(concat!(
                    "INSERT INTO run_steps (run_id, owner_id, step, kind, status, attempt, started_at)
                     SELECT id, owner_id, ?2, ?3, 'started', 1, ",
                    now!(),
                    " FROM runs WHERE id = ?1 ON CONFLICT (run_id, step) DO UPDATE SET kind = excluded.kind, status = excluded.status,
                       attempt = attempt + 1, usage = NULL, started_at = excluded.started_at, ended_at = NULL"
                ))
                .bind(run.as_str())
                .bind(signed(*step))
                .bind(kind.as_str())
                .execute(&mut **tx)
                .await?;
                None
            }
            Change::StepEnded { step, status, usage } => {
                let usage = usage.as_ref().map(|usage| encode("run_steps", "usage", run.as_str(), usage)).transpose()?;
                let ended = sqlx::query(concat!(
                    "UPDATE run_steps SET status = ?, usage = ?, ended_at = ",
                    now!(),
                    " WHERE run_id = ? AND step = ?"
                ))
                .bind(status.as_str())
                .bind(usage)
                .bind(run.as_str())
                .bind(signed(*step))
                .execute(&mut **tx)
                .await?;
                (ended.rows_affected() == 0).then_some("a step ends that never began")
            }
            Change::AddMessage(message) => {
                messages += 1;
                insert_message(tx, message, base + messages).await?;
                None
            }
            Change::AddToolCalls(calls) => {
                add_tool_calls(tx, run, calls).await?;
                None
            }
            Change::ToolAsked(call) => ask_about_tool(tx, run, call).await?,
            Change::ToolEdited { id, arguments, hash } => edit_tool(tx, run, id, arguments, hash).await?,
            Change::ToolStarted(call) => start_tool(tx, run, call).await?,
            Change::ToolHandle(call, handle) => note_handle(tx, run, call, handle.as_ref()).await?,
            Change::ToolFinished(call, outcome) => finish_tool(tx, run, call, outcome).await?,
            Change::AskInput(request) => {
                input::insert(tx, request).await?;
                None
            }
            Change::InputClosed { id, state } => {
                input::close(tx, run, id, *state).await?;
                None
            }
            Change::Finish { status, finish_reason, error, joined: _ } => {
                patch.store(tx, run).await?;
                patch = RunPatch::default();
                // The terminal event need not be the write's last one.
                let terminal = write.events.iter().position(is_terminal).and_then(|at| i64::try_from(at).ok());
                let last_seq = terminal.map(|at| base + 1 + at);
                match finish(tx, run, conversation, *status, *finish_reason, error.as_ref(), last_seq).await? {
                    Applied::Refused(reason) => Some(reason),
                    ended => {
                        applied = ended;
                        None
                    }
                }
            }
            Change::Release { after_ms, cause } => {
                patch.store(tx, run).await?;
                patch = RunPatch::default();
                applied = Applied::Ended { next_waits: false };
                release(tx, run, *after_ms, *cause).await?;
                None
            }
        };
        if let Some(reason) = refused {
            return Ok(Applied::Refused(reason));
        }
    }
    if compose::updates_nothing(write) {
        return Ok(Applied::Refused(compose::UPDATES_NOTHING));
    }
    if messages > i64::try_from(write.events.len()).unwrap_or(i64::MAX) {
        return Ok(Applied::Refused("more messages than events, so that positions would meet"));
    }
    patch.store(tx, run).await?;
    Ok(applied)
}

fn is_terminal(event: &crate::domain::event::NewEvent) -> bool {
    matches!(event.kind, "run.completed" | "run.failed" | "run.cancelled")
}

/// New values for the run's row, gathered so that one write makes one update.
#[derive(Default, PartialEq)]
struct RunPatch {
    status: Option<(&'static str, Option<&'static str>)>,
    started: bool,
    tools_hash: Option<String>,
    contexts: Option<String>,
    counters: Option<String>,
    usage: Option<String>,
}

impl RunPatch {
    async fn store(&self, tx: &mut Tx, run: &RunId) -> StoreResult<()> {
        if *self == Self::default() {
            return Ok(());
        }
        sqlx::query(concat!(
            "UPDATE runs SET
               status = coalesce(?2, status),
               reason = CASE WHEN ?2 IS NULL THEN reason ELSE ?3 END,
               started_at = CASE WHEN ?4 THEN coalesce(started_at, ",
            now!(),
            ") ELSE started_at END,
               tools_hash = coalesce(?5, tools_hash),
               counters = coalesce(?6, counters),
               usage = coalesce(?7, usage),
               contexts = coalesce(?8, contexts)
             WHERE id = ?1"
        ))
        .bind(run.as_str())
        .bind(self.status.map(|(status, _)| status))
        .bind(self.status.and_then(|(_, reason)| reason))
        .bind(self.started)
        .bind(&self.tools_hash)
        .bind(&self.counters)
        .bind(&self.usage)
        .bind(&self.contexts)
        .execute(&mut **tx)
        .await?;
        Ok(())
    }
}

async fn set_conversation_status(tx: &mut Tx, id: &ConversationId, status: ConversationStatus) -> StoreResult<()> {
    sqlx::query(concat!("UPDATE conversations SET status = ?1, updated_at = ", now!(), " WHERE id = ?2 AND status <> ?1"))
        .bind(status.as_str())
        .bind(id.as_str())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn freeze_tools(tx: &mut Tx, run: &RunId, tools: &[Arc<ToolDefinition>]) -> StoreResult<String> {
    let definitions = encode_storable("tool_sets", "definitions", run.as_str(), &tools)?;
    let hash = crate::support::json::hash_bytes(definitions.as_bytes());
    sqlx::query("INSERT INTO tool_sets (hash, definitions) VALUES (?, ?) ON CONFLICT (hash) DO NOTHING")
        .bind(&hash)
        .bind(definitions)
        .execute(&mut **tx)
        .await?;
    Ok(hash)
}

/// Stores a message at a place in its conversation. The owner is that of the conversation.
pub(super) async fn insert_message(tx: &mut Tx, message: &Message, position: i64) -> StoreResult<Message> {
    let (message, body) = storable_message(message.clone())?;
    sqlx::query(concat!(
        "INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
         SELECT ?, id, owner_id, ?, ?, ?, ?, ",
        now!(),
        " FROM conversations WHERE id = ?"
    ))
    .bind(message.id.as_str())
    .bind(message.run_id.as_str())
    .bind(position)
    .bind(message.role.as_str())
    .bind(body)
    .bind(message.conversation_id.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(message)
}

pub(super) async fn add_tool_calls(tx: &mut Tx, run: &RunId, calls: &[ToolCall]) -> StoreResult<()> {
    let mut rows = Vec::with_capacity(calls.len());
    for call in calls {
        let id = call.id.as_str();
        let outcome = call.outcome.as_ref().map(|outcome| encode_storable("tool_calls", "outcome", id, outcome)).transpose()?;
        rows.push(json!([
            id,
            call.message_id,
            call.step,
            call.position,
            storable(&call.provider_call_id),
            storable(&call.name),
            call.server,
            encode_storable("tool_calls", "arguments", id, &call.arguments)?,
            call.arguments_hash,
            encode("tool_calls", "replay", id, &call.replay)?,
            call.state.as_str(),
            outcome,
            call.repair.as_ref().map(|repair| encode_storable("tool_calls", "repair", id, repair)).transpose()?,
            call.key,
            call.undoes,
        ]));
    }
    sqlx::query(concat!(
        "INSERT INTO tool_calls (run_id, owner_id, id, message_id, step, position, provider_call_id, name, server, arguments,
                                 arguments_hash, replay, state, outcome, repair, key, undoes, ended_at)
         SELECT runs.id, runs.owner_id, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
                value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11,
                value ->> 12, value ->> 13, value ->> 14, CASE WHEN value ->> 11 IS NOT NULL THEN ",
        now!(),
        " END
         FROM json_each(?) JOIN runs ON runs.id = ?"
    ))
    .bind(serde_json::Value::Array(rows).to_string())
    .bind(run.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn start_tool(tx: &mut Tx, run: &RunId, call: &CallId) -> StoreResult<Option<&'static str>> {
    let started = sqlx::query(concat!(
        "UPDATE tool_calls SET state = 'started', started_at = ",
        now!(),
        " WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval')"
    ))
    .bind(call.as_str())
    .bind(run.as_str())
    .execute(&mut **tx)
    .await?;
    Ok((started.rows_affected() == 0).then_some(NOT_PLANNED))
}

async fn ask_about_tool(tx: &mut Tx, run: &RunId, call: &CallId) -> StoreResult<Option<&'static str>> {
    let asked = sqlx::query("UPDATE tool_calls SET state = 'awaiting_approval' WHERE id = ? AND run_id = ? AND state = 'planned'")
        .bind(call.as_str())
        .bind(run.as_str())
        .execute(&mut **tx)
        .await?;
    Ok((asked.rows_affected() == 0).then_some(NOT_PLANNED))
}

async fn edit_tool(tx: &mut Tx, run: &RunId, call: &CallId, arguments: &Value, hash: &str) -> StoreResult<Option<&'static str>> {
    let edited = sqlx::query(
        "UPDATE tool_calls SET arguments = ?, arguments_hash = ?
         WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval')",
    )
    .bind(encode_storable("tool_calls", "arguments", call.as_str(), arguments)?)
    .bind(hash)
    .bind(call.as_str())
    .bind(run.as_str())
    .execute(&mut **tx)
    .await?;
    Ok((edited.rows_affected() == 0).then_some(NOT_PLANNED))
}

async fn note_handle(tx: &mut Tx, run: &RunId, call: &CallId, handle: Option<&Handle>) -> StoreResult<Option<&'static str>> {
    let noted = sqlx::query("UPDATE tool_calls SET handle = ? WHERE id = ? AND run_id = ? AND state = 'started'")
        .bind(handle.map(|handle| storable(&handle.to_stored()).into_owned()))
        .bind(call.as_str())
        .bind(run.as_str())
        .execute(&mut **tx)
        .await?;
    Ok((noted.rows_affected() == 0).then_some("a tool call that is not under way gets a handle"))
}

async fn finish_tool(tx: &mut Tx, run: &RunId, call: &CallId, outcome: &ToolOutcome) -> StoreResult<Option<&'static str>> {
    let Some(ended) = AuditOutcome::of(outcome.state) else { return Ok(Some("the outcome of a tool call is none")) };
    let finished = sqlx::query(concat!(
        "UPDATE tool_calls SET state = ?, outcome = ?, ended_at = ",
        now!(),
        " WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval', 'started')"
    ))
    .bind(outcome.state.as_str())
    .bind(encode_storable("tool_calls", "outcome", call.as_str(), outcome)?)
    .bind(call.as_str())
    .bind(run.as_str())
    .execute(&mut **tx)
    .await?;
    if finished.rows_affected() == 0 {
        return Ok(Some("a tool call gets a second outcome"));
    }
    audit::insert(tx, call, ended, outcome.duration_ms).await?;
    Ok(None)
}

/// Ends a run. The next one of the conversation, if there is one, can be claimed from here on.
async fn finish(
    tx: &mut Tx,
    run: &RunId,
    conversation: &ConversationId,
    status: RunStatus,
    finish_reason: Option<FinishReason>,
    error: Option<&ProblemBody>,
    last_seq: Option<i64>,
) -> StoreResult<Applied> {
    if !status.is_terminal() {
        return Ok(Applied::Refused("a run ends with a status that is not terminal"));
    }
    let error = error.map(|error| encode_storable("runs", "error", run.as_str(), error)).transpose()?;
    let finished = sqlx::query(concat!(
        "UPDATE runs SET status = ?2, reason = NULL, active = 0, claimable_at = NULL, finish_reason = ?3, error = ?4,
                last_seq = ?5, contexts = NULL, finished_at = ",
        now!(),
        " WHERE id = ?1 AND finished_at IS NULL"
    ))
    .bind(run.as_str())
    .bind(status.as_str())
    .bind(finish_reason.map(FinishReason::as_str))
    .bind(error)
    .bind(last_seq)
    .execute(&mut **tx)
    .await?;
    if finished.rows_affected() == 0 {
        return Ok(Applied::Refused("a run ends twice"));
    }
    drop_lease(tx, run).await?;
    let next_waits = promote_next(tx, conversation).await?;
    let next = if next_waits { ConversationStatus::Queued } else { status.into() };
    set_conversation_status(tx, conversation, next).await?;
    Ok(Applied::Ended { next_waits })
}

/// Makes the oldest run that is queued in the conversation its active one. False if there is none.
pub(super) async fn promote_next(tx: &mut Tx, conversation: &ConversationId) -> StoreResult<bool> {
    let promoted = sqlx::query(concat!(
        "UPDATE runs SET active = 1, claimable_at = ",
        now!(),
        " WHERE id = (SELECT id FROM runs WHERE conversation_id = ? AND finished_at IS NULL AND active = 0
                      ORDER BY first_seq LIMIT 1)"
    ))
    .bind(conversation.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(promoted.rows_affected() > 0)
}

async fn drop_lease(tx: &mut Tx, run: &RunId) -> StoreResult<()> {
    sqlx::query("DELETE FROM run_leases WHERE run_id = ?").bind(run.as_str()).execute(&mut **tx).await?;
    Ok(())
}

/// Gives up a run that has not ended. One that was asked to be cancelled meanwhile can be claimed at once, and so can one that
/// would wait for an answer that has come.
async fn release(tx: &mut Tx, run: &RunId, after_ms: Option<u64>, cause: ReleaseCause) -> StoreResult<()> {
    drop_lease(tx, run).await?;
    sqlx::query(concat!(
        "UPDATE runs SET
           claimable_at = CASE WHEN cancel_requested_at IS NOT NULL OR (reason IN ('input', 'approval') AND answered_at IS NOT NULL) THEN ",
        now!(),
        " ELSE ",
        now!(),
        " + ?2 END,
           answered_at = NULL,
           claim_cause = CASE WHEN cancel_requested_at IS NOT NULL THEN 'request' ELSE ?3 END,
           crashes = max(crashes - 1, 0)
         WHERE id = ?1"
    ))
    .bind(run.as_str())
    .bind(after_ms.map(|after| i64::try_from(after).unwrap_or(i64::MAX / 4)))
    .bind(cause.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}
