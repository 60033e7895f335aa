//! Writes audit records of tool calls for the log writer.

use super::batch::Batch;
use super::connection::Tx;
use crate::domain::access::audit::AuditOutcome;
use crate::domain::ids::{CallId, ConversationId};
use crate::store::StoreResult;

/// Stores audit records of the calls `c`, of runs `r`, that match `which`, with their outcomes and durations.
///
/// A measured duration of 0 may mean that it was not measured: then the time since the call's start counts. A call may have been
/// approved first, and its unknown outcome decided later: the last decision counts.
macro_rules! keep_ends {
    ($outcome:literal, $duration:literal, $which:literal) => {
        sql!("INSERT INTO tool_audit (call_id, owner_id, conversation_id, run_id, agent, name, server, arguments_hash, outcome,
                                     decided_by, grant_id, duration_ms, at)
             SELECT c.id, c.owner_id, r.conversation_id, c.run_id, r.agent, c.name, c.server, c.arguments_hash, " $outcome
            ", coalesce((SELECT q.resolved_by FROM input_requests q WHERE q.run_id = c.run_id AND q.call_id = c.id
                   AND q.kind IN ('approval', 'unknown_outcome') AND q.resolved_by IS NOT NULL
                   ORDER BY q.resolved_at DESC LIMIT 1), CASE WHEN c.grant_id IS NOT NULL THEN c.owner_id END),
                c.grant_id, coalesce(nullif(" $duration ", 0), max(" now " - c.started_at, 0), 0), " now
            " FROM tool_calls c JOIN runs r ON r.id = c.run_id WHERE " $which)
    };
}

/// Stores the audit record of a call, whose row has its outcome already.
pub(super) fn insert(batch: &mut Batch, call: &CallId, outcome: AuditOutcome, duration_ms: u64) {
    batch.add(keep_ends!("?", "?", "c.id = ?"));
    batch.bind(outcome.as_str()).bind(i64::try_from(duration_ms).unwrap_or(i64::MAX)).bind(call.as_str());
}

/// Stores audit records of calls without an outcome, for a conversation that is being deleted. The outcome of a started call will
/// never be known. The other calls are never executed, because of a denial if one was given.
pub(super) async fn insert_abandoned(tx: &mut Tx, conversation: &ConversationId) -> StoreResult<()> {
    sqlx::query(keep_ends!(
        "CASE WHEN c.state = 'started' THEN 'unknown'
              WHEN EXISTS (SELECT 1 FROM input_requests q WHERE q.run_id = c.run_id AND q.call_id = c.id
                  AND q.kind = 'approval' AND q.state = 'answered' AND q.answer ->> 'choice' = 'deny') THEN 'denied'
              ELSE 'skipped' END",
        "0",
        "r.conversation_id = ? AND c.state IN ('planned', 'awaiting_approval', 'started')"
    ))
    .bind(conversation.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}
