//! Applies the changes of one write in its transaction.

use std::sync::Arc;

use serde_json::{Value, json};

use super::audit;
use super::batch::Batch;
use super::connection::Tx;
use crate::domain::access::audit::AuditOutcome;
use crate::domain::conversation::{ConversationStatus, Message};
use crate::domain::ids::{CallId, ConversationId, RunId};
use crate::domain::problem::ProblemBody;
use crate::domain::run::{Amount, Change, ContextSummary, FinishReason, Handle, InputRequest, ReleaseCause, RunStatus, RunWrite};
use crate::domain::tool::{ToolCall, ToolDefinition, ToolOutcome};
use crate::store::StoreResult;
use crate::store::rows::{encode, encode_storable};
use crate::store::runs::{budget, created_rows};
use crate::support::text::{storable, storable_json};

const ALREADY_STARTED: &str = "a tool call changes that has already started or ended";

/// The effect of a write on its run.
pub(super) enum Applied {
    /// The run keeps its lease.
    Continues,
    /// The run has ended or was released: its fence is void.
    LeaseEnded {
        /// Whether the conversation's next run can be claimed now.
        has_next_run: bool,
    },
    /// The write violates a rule of the rows, which is a bug of the writer. The caller rolls the transaction back.
    Refused(&'static str),
}

/// Applies the changes of `write`. Its first event gets the `seq` `base + 1`.
pub(super) async fn apply(tx: &mut Tx, write: &RunWrite, base: i64) -> StoreResult<Applied> {
    if let Some(reason) = created_rows::broken_rule(write) {
        return Ok(Applied::Refused(reason));
    }
    let (run, conversation) = (&write.fence.run_id, &write.fence.conversation_id);
    let (mut patch, mut batch) = (RunPatch::default(), Batch::default());
    let mut messages = 0;
    let mut applied = Applied::Continues;
    for change in &write.changes {
        match change {
            Change::SetStatus(status, reason) => {
                patch.status = Some((status.as_str(), reason.map(|reason| reason.as_str())));
                set_conversation_status(&mut batch, conversation, (*status).into());
            }
            Change::Start => patch.started = true,
            Change::FreezeTools(tools) => patch.tools_hash = Some(freeze_tools(&mut batch, run, tools)?),
            Change::StoreContexts(contexts) => {
                patch.contexts = Some(encode_storable("runs", "contexts", run.as_str(), contexts)?);
            }
            Change::SetCounters(counters) => patch.counters = Some(encode("runs", "counters", run.as_str(), counters)?),
            Change::SetSummary(summary) => summarize(&mut batch, conversation, summary)?,
            Change::SetUsage(usage) => patch.usage = Some(encode("runs", "usage", run.as_str(), usage)?),
            Change::ChargeBudget { day, amount } => charge_budget(&mut batch, run, *day, *amount),
            Change::StartStep { step, kind, request } => {
                batch.add(sql!("INSERT INTO run_steps (run_id, owner_id, step, kind, status, attempt, started_at, request, request_attempt)
                     SELECT id, owner_id, ?, ?, 'started', 1, " now
                    ", ?, 1 FROM runs WHERE id = ? ON CONFLICT (run_id, step) DO UPDATE SET kind = excluded.kind, status = excluded.status,
                       attempt = attempt + 1, usage = NULL, started_at = excluded.started_at, ended_at = NULL,
                       request = excluded.request, request_attempt = attempt + 1"));
                let request = request.as_ref().map(|request| storable_json(request.text.clone()));
                batch.bind(i64::from(*step)).bind(kind.as_str()).bind(request).bind(run.as_str());
            }
            Change::EndStep { step, status, usage } => {
                let usage = usage.as_ref().map(|usage| encode("run_steps", "usage", run.as_str(), usage)).transpose()?;
                batch.add(sql!("UPDATE run_steps SET status = ?, usage = coalesce(?, usage), ended_at = " now
                    " WHERE run_id = ? AND step = ?"));
                batch.bind(status.as_str()).bind(usage).bind(run.as_str()).bind(i64::from(*step));
                batch.require_change("a step ends that never began");
            }
            Change::AddMessage(message) => {
                messages += 1;
                insert_message(&mut batch, message, base + messages)?;
            }
            Change::AddToolCalls(calls) => add_tool_calls(&mut batch, run, calls)?,
            Change::RequestApproval(call) => {
                batch.add("UPDATE tool_calls SET state = 'awaiting_approval' WHERE id = ? AND run_id = ? AND state = 'planned'");
                batch.bind(call.as_str()).bind(run.as_str()).require_change(ALREADY_STARTED);
            }
            Change::EditCall { id, arguments, hash } => edit_tool_call(&mut batch, run, id, arguments, hash)?,
            Change::GrantCall { id, grant } => {
                batch.add(
                    "UPDATE tool_calls SET grant_id = ? WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval')",
                );
                batch.bind(grant.as_str()).bind(id.as_str()).bind(run.as_str()).require_change(ALREADY_STARTED);
            }
            Change::StartCall(call) => {
                batch.add(sql!("UPDATE tool_calls SET state = 'started', started_at = " now
                    " WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval')"));
                batch.bind(call.as_str()).bind(run.as_str()).require_change(ALREADY_STARTED);
            }
            Change::SetHandle(call, handle) => store_handle(&mut batch, run, call, handle.as_ref()),
            Change::FinishCall(call, outcome) => {
                finish_tool_call(&mut batch, run, call, outcome)?;
                if let Some(ended) = AuditOutcome::of(outcome.state) {
                    audit::insert(&mut batch, call, ended, outcome.duration_ms);
                }
            }
            Change::RequestInput(request) => insert_question(&mut batch, request)?,
            Change::CloseInput { id, state } => {
                batch.add(sql!("UPDATE input_requests SET state = ?, resolved_at = coalesce(resolved_at, " now
                    ") WHERE id = ? AND run_id = ?"));
                batch.bind(state.as_str()).bind(id.as_str()).bind(run.as_str());
            }
            Change::Finish { status, finish_reason, error, joined: _ } => {
                std::mem::take(&mut patch).store(&mut batch, run);
                let terminal = created_rows::terminal_event(write).and_then(|at| i64::try_from(at).ok());
                let last_seq = terminal.map(|at| base + 1 + at);
                finish(&mut batch, run, *status, *finish_reason, error.as_ref(), last_seq)?;
                if let Some(reason) = batch.run(tx).await? {
                    return Ok(Applied::Refused(reason));
                }
                // Makes the conversation's next run claimable, if there is one.
                let has_next_run = activate_next_run(tx, conversation).await?;
                let next = if has_next_run { ConversationStatus::Queued } else { (*status).into() };
                set_conversation_status(&mut batch, conversation, next);
                applied = Applied::LeaseEnded { has_next_run };
            }
            Change::Release { after_ms, cause } => {
                std::mem::take(&mut patch).store(&mut batch, run);
                release(&mut batch, run, *after_ms, *cause);
                applied = Applied::LeaseEnded { has_next_run: false };
            }
        }
    }
    patch.store(&mut batch, run);
    Ok(batch.run(tx).await?.map_or(applied, Applied::Refused))
}

/// New values for the run's row, collected so that one write makes one update.
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
    fn store(self, batch: &mut Batch, run: &RunId) {
        if self == Self::default() {
            return;
        }
        batch.add(sql!("UPDATE runs SET
               status = coalesce(?, status),
               reason = CASE WHEN ? THEN ? ELSE reason END,
               started_at = CASE WHEN ? THEN coalesce(started_at, " now ") ELSE started_at END,
               -- If the lease ends after the run has started, the next claim is a hand-back, unless another cause is set.
               claim_cause = CASE WHEN ? THEN 'handed_back' ELSE claim_cause END,
               tools_hash = coalesce(?, tools_hash),
               counters = coalesce(?, counters),
               usage = coalesce(?, usage),
               contexts = coalesce(?, contexts)
             WHERE id = ?"));
        let Self { status, started, tools_hash, contexts, counters, usage } = self;
        batch.bind(status.map(|(status, _)| status)).bind(status.is_some()).bind(status.and_then(|(_, reason)| reason));
        batch.bind(started).bind(started).bind(tools_hash).bind(counters).bind(usage).bind(contexts).bind(run.as_str());
    }
}

fn set_conversation_status(batch: &mut Batch, id: &ConversationId, status: ConversationStatus) {
    batch.add(sql!("UPDATE conversations SET status = ?, updated_at = " now " WHERE id = ? AND status <> ?"));
    batch.bind(status.as_str()).bind(id.as_str()).bind(status.as_str());
}

fn freeze_tools(batch: &mut Batch, run: &RunId, tools: &[Arc<ToolDefinition>]) -> StoreResult<String> {
    let definitions = encode_storable("tool_sets", "definitions", run.as_str(), &tools)?;
    let hash = crate::support::json::hash_bytes(definitions.as_bytes());
    batch.add("INSERT INTO tool_sets (hash, definitions) VALUES (?, ?) ON CONFLICT (hash) DO NOTHING");
    batch.bind(hash.as_str()).bind(definitions);
    Ok(hash)
}

/// Stores a message at a position in its conversation. Its owner is the conversation's.
fn insert_message(batch: &mut Batch, message: &Message, position: i64) -> StoreResult<()> {
    let body = encode_storable("messages", "body", message.id.as_str(), message)?;
    batch.add(sql!("INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
         SELECT ?, id, owner_id, ?, ?, ?, ?, " now " FROM conversations WHERE id = ?"));
    batch.bind(message.id.as_str()).bind(message.run_id.as_str()).bind(position).bind(message.role.as_str()).bind(body);
    batch.bind(message.conversation_id.as_str());
    Ok(())
}

fn add_tool_calls(batch: &mut Batch, run: &RunId, calls: &[ToolCall]) -> StoreResult<()> {
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
    batch.add(sql!(
        "INSERT INTO tool_calls (run_id, owner_id, id, message_id, step, position, provider_call_id, name, server, arguments,
                                 arguments_hash, replay, state, outcome, repair, key, undoes, ended_at)
         SELECT runs.id, runs.owner_id, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
                value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11,
                value ->> 12, value ->> 13, value ->> 14, CASE WHEN value ->> 11 IS NOT NULL THEN " now " END
         FROM json_each(?) JOIN runs ON runs.id = ?"));
    batch.bind(Value::Array(rows).to_string()).bind(run.as_str());
    Ok(())
}

fn edit_tool_call(batch: &mut Batch, run: &RunId, call: &CallId, arguments: &Value, hash: &str) -> StoreResult<()> {
    let arguments = encode_storable("tool_calls", "arguments", call.as_str(), arguments)?;
    batch.add(
        "UPDATE tool_calls SET arguments = ?, arguments_hash = ?, key = NULL
         WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval')",
    );
    batch.bind(arguments).bind(hash).bind(call.as_str()).bind(run.as_str()).require_change(ALREADY_STARTED);
    Ok(())
}

fn store_handle(batch: &mut Batch, run: &RunId, call: &CallId, handle: Option<&Handle>) {
    batch.add("UPDATE tool_calls SET handle = ? WHERE id = ? AND run_id = ? AND state = 'started'");
    batch.bind(handle.map(|handle| storable(&handle.to_stored()).into_owned())).bind(call.as_str()).bind(run.as_str());
    batch.require_change("a tool call that is not under way gets a handle");
}

fn finish_tool_call(batch: &mut Batch, run: &RunId, call: &CallId, outcome: &ToolOutcome) -> StoreResult<()> {
    let stored = encode_storable("tool_calls", "outcome", call.as_str(), outcome)?;
    batch.add(sql!("UPDATE tool_calls SET state = ?, outcome = ?, ended_at = " now
        " WHERE id = ? AND run_id = ? AND state IN ('planned', 'awaiting_approval', 'started')"));
    batch.bind(outcome.state.as_str()).bind(stored).bind(call.as_str()).bind(run.as_str());
    batch.require_change("a tool call gets a second outcome");
    Ok(())
}

fn finish(
    batch: &mut Batch,
    run: &RunId,
    status: RunStatus,
    finish_reason: Option<FinishReason>,
    error: Option<&ProblemBody>,
    last_seq: Option<i64>,
) -> StoreResult<()> {
    let error = error.map(|error| encode_storable("runs", "error", run.as_str(), error)).transpose()?;
    batch.add(sql!(
        // The claim counted a crash in advance. This run ends without one.
        "UPDATE runs SET status = ?, reason = NULL, active = 0, claimable_at = NULL, finish_reason = ?, error = ?,
                crashes = max(crashes - 1, 0), last_seq = ?, contexts = NULL, finished_at = " now
        " WHERE id = ? AND finished_at IS NULL"));
    batch.bind(status.as_str()).bind(finish_reason.map(FinishReason::as_str)).bind(error).bind(last_seq).bind(run.as_str());
    batch.require_change("a run ends twice");
    drop_lease(batch, run);
    // The worker has closed the questions that it knew, but an MCP server may have asked another one at the last moment.
    batch.add(sql!("UPDATE input_requests SET state = 'cancelled', resolved_at = " now " WHERE run_id = ? AND state = 'pending'"));
    batch.bind(run.as_str());
    Ok(())
}

/// Activates the oldest queued run of the conversation. Returns false if there is none.
async fn activate_next_run(tx: &mut Tx, conversation: &ConversationId) -> StoreResult<bool> {
    let promoted = sqlx::query(sql!("UPDATE runs SET active = 1, claimable_at = " now
        " WHERE id = (SELECT id FROM runs WHERE conversation_id = ? AND finished_at IS NULL AND active = 0
                      ORDER BY first_seq LIMIT 1)"))
    .bind(conversation.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(promoted.rows_affected() > 0)
}

fn drop_lease(batch: &mut Batch, run: &RunId) {
    batch.add("DELETE FROM run_leases WHERE run_id = ?").bind(run.as_str());
}

/// Releases an unfinished run. It can be claimed at once if it is to be cancelled, or if the answer that it waits for has arrived.
fn release(batch: &mut Batch, run: &RunId, after_ms: Option<u64>, cause: ReleaseCause) {
    drop_lease(batch, run);
    batch.add(sql!("UPDATE runs SET
           claimable_at = CASE WHEN cancel_requested_at IS NOT NULL OR (reason IN ('input', 'approval', 'client_tool') AND answered_at IS NOT NULL) THEN "
        now " ELSE " now " + ? END,
           answered_at = NULL,
           claim_cause = CASE WHEN cancel_requested_at IS NOT NULL THEN 'request' ELSE ? END,
           crashes = max(crashes - 1, 0)
         WHERE id = ?"));
    batch.bind(after_ms.map(|after| i64::try_from(after).unwrap_or(i64::MAX / 4))).bind(cause.as_str()).bind(run.as_str());
    if cause == ReleaseCause::Waiting {
        // A question may have been stored long before the release, so it may expire before `after_ms` ends.
        batch.add(
            "UPDATE runs SET claimable_at = min(coalesce(claimable_at, q.first), q.first)
             FROM (SELECT min(expires_at) AS first FROM input_requests WHERE run_id = ? AND state = 'pending') AS q
             WHERE id = ? AND reason IN ('input', 'approval', 'client_tool') AND q.first IS NOT NULL",
        );
        batch.bind(run.as_str()).bind(run.as_str());
    }
}

/// Charges a reserved model call to the budgets of its owner, and ends the reservation. Sums stop at [`budget::MAX_CHARGED`].
fn charge_budget(batch: &mut Batch, run: &RunId, day: i64, amount: Amount) {
    let (tokens, cost) = budget::parts(amount);
    let most = i64::try_from(budget::MAX_CHARGED).unwrap_or(i64::MAX);
    batch.add(
        "UPDATE spending SET tokens = min(tokens + ?, ?), cost = min(cost + ?, ?), held_tokens = 0, held_cost = 0, held_epoch = NULL
         WHERE owner_id = (SELECT owner_id FROM runs WHERE id = ?) AND day = ? AND run_id = ?",
    );
    batch.bind(tokens).bind(most).bind(cost).bind(most).bind(run.as_str()).bind(day).bind(run.as_str());
}

fn summarize(batch: &mut Batch, conversation: &ConversationId, summary: &ContextSummary) -> StoreResult<()> {
    let body = encode_storable("context_summaries", "body", conversation.as_str(), summary)?;
    batch.add(sql!("INSERT INTO context_summaries (conversation_id, owner_id, covers, body, updated_at)
         SELECT conversation_id, owner_id, ?, ?, " now
        " FROM conversation_heads WHERE conversation_id = ? ON CONFLICT (conversation_id) DO UPDATE SET covers = excluded.covers, body = excluded.body,
           updated_at = excluded.updated_at"));
    batch.bind(summary.covers.as_str()).bind(body).bind(conversation.as_str());
    Ok(())
}

/// Stores a question of a run. Its owner is the run's.
fn insert_question(batch: &mut Batch, request: &InputRequest) -> StoreResult<()> {
    let question = encode_storable("input_requests", "question", request.id.as_str(), &request.question)?;
    batch.add(sql!("INSERT INTO input_requests (id, conversation_id, run_id, owner_id, call_id, kind, question, state, created_at,
             expires_at)
         SELECT ?, conversation_id, id, owner_id, ?, ?, ?, ?, " now ", " now " + ? FROM runs WHERE id = ?"));
    let call = request.call_id.as_ref().map(CallId::as_str);
    batch.bind(request.id.as_str()).bind(call).bind(request.kind.as_str()).bind(question).bind(request.state.as_str());
    batch.bind(request.expires_in_ms.map(|left| i64::try_from(left).unwrap_or(i64::MAX / 4))).bind(request.run_id.as_str());
    Ok(())
}
