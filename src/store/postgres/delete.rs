//! Deletes a conversation.
//!
//! A long conversation has a million events, and one transaction that removes them would block other work. So the first step
//! removes the conversation's owner, its head and its runs: after that, no query finds it and no write reaches it. The rest is
//! removed in small pieces. If the process ends during this, a later cleaning finds the rest by the empty owner.

use super::PostgresStore;
use super::timeouts::GuardedPool;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::sql::{IdleAge, Transaction, values};
use crate::store::{DeletedConversation, Statement, StoreResult};

/// The owner of a deleted conversation.
const NOBODY: &str = "";

/// Removes the owner, the head and the runs of a conversation. A later write finds no head that matches its fence.
const TAKE_AWAY: Statement = Statement::of_postgres(
    "TAKE_AWAY",
    "WITH run AS (DELETE FROM runs WHERE conversation_id = $1 RETURNING id, active, agent),
     -- Audits the calls without an outcome. The outcome of a started call is unknown, and its duration is the time since its start.
     -- The other calls are never executed: they are denied if a human has denied them, and otherwise skipped.
     audit AS (
         INSERT INTO tool_audit (call_id, owner_id, conversation_id, run_id, agent, name, server, arguments_hash, outcome,
             decided_by, grant_id, duration_ms, at)
         SELECT c.id, c.owner_id, $1, c.run_id, run.agent, c.name, c.server, c.arguments_hash,
             CASE WHEN c.state = 'started' THEN 'unknown'
                 WHEN EXISTS (SELECT FROM input_requests q WHERE q.run_id = c.run_id AND q.call_id = c.id
                     AND q.kind = 'approval' AND q.state = 'answered' AND q.answer::json ->> 'choice' = 'deny') THEN 'denied'
                 ELSE 'skipped' END,
             coalesce((SELECT q.resolved_by FROM input_requests q WHERE q.run_id = c.run_id AND q.call_id = c.id
                 AND q.kind IN ('approval', 'unknown_outcome') AND q.resolved_by IS NOT NULL
                 ORDER BY q.resolved_at DESC LIMIT 1), CASE WHEN c.grant_id IS NOT NULL THEN c.owner_id END),
             c.grant_id, greatest(now_ms() - c.started_at, 0), now_ms()
         FROM tool_calls c JOIN run ON run.id = c.run_id WHERE c.state IN ('planned', 'awaiting_approval', 'started')
         ON CONFLICT DO NOTHING
     ),
     lease AS (
         DELETE FROM run_leases WHERE run_id IN (
             SELECT l.run_id FROM run_leases l JOIN run ON run.id = l.run_id ORDER BY l.run_id FOR UPDATE OF l
         )
     ),
     step AS (DELETE FROM run_steps WHERE run_id IN (SELECT id FROM run)),
     input AS (DELETE FROM input_requests WHERE run_id IN (SELECT id FROM run)),
     call AS (DELETE FROM tool_calls WHERE run_id IN (SELECT id FROM run)),
     summary AS (DELETE FROM context_summaries WHERE conversation_id = $1),
     allowed AS (DELETE FROM tool_grants WHERE conversation_id = $1),
     head AS (DELETE FROM conversation_heads WHERE conversation_id = $1),
     conversation AS (UPDATE conversations SET owner_id = $2 WHERE id = $1)
     SELECT id FROM run WHERE active",
);

const PIECE: i64 = 5_000;

impl PostgresStore {
    /// Removes the remaining rows of deletions that a crash interrupted.
    pub(super) async fn finish_deletions(&self) -> StoreResult<()> {
        let left: Vec<String> =
            sqlx::query_scalar("SELECT id FROM conversations WHERE owner_id = $1").bind(NOBODY).fetch_all(&self.chores).await?;
        for id in left {
            remove_rest(&self.chores, &id).await?;
        }
        Ok(())
    }
}

pub(super) async fn take_away(
    tx: &mut Transaction,
    owner: &UserId,
    id: &ConversationId,
    idle: Option<IdleAge>,
) -> StoreResult<Option<DeletedConversation>> {
    let mut is_wanted = tx.lock_head(owner, id).await?.is_some();
    if is_wanted && let Some(IdleAge { statement, age_ms }) = idle {
        is_wanted = tx.fetch_one(statement, values![age_ms, id.as_str()]).await?.only()?;
    }
    if !is_wanted {
        return Ok(None);
    }
    let row = tx.fetch_optional(TAKE_AWAY, values![id.as_str(), NOBODY]).await?;
    let active_run: Option<String> = row.map(|row| row.only()).transpose()?;
    Ok(Some(DeletedConversation { active_run: active_run.map(RunId::from_stored) }))
}

/// Deletes the conversation's row last, so that its id is not reused before.
pub(super) async fn remove_rest(guarded_pool: &GuardedPool, id: &str) -> StoreResult<()> {
    let pieces = [
        "DELETE FROM messages WHERE conversation_id = $1 AND position <= (
             SELECT max(position) FROM (
                 SELECT position FROM messages WHERE conversation_id = $1 ORDER BY position LIMIT $2
             ) AS piece
         )",
        "DELETE FROM events WHERE conversation_id = $1 AND seq <= (
             SELECT max(seq) FROM (SELECT seq FROM events WHERE conversation_id = $1 ORDER BY seq LIMIT $2) AS piece
         )",
    ];
    for piece in pieces {
        while sqlx::query(piece).bind(id).bind(PIECE).execute(guarded_pool).await?.rows_affected() > 0 {}
    }
    sqlx::query("DELETE FROM conversations WHERE id = $1 AND owner_id = $2").bind(id).bind(NOBODY).execute(guarded_pool).await?;
    Ok(())
}
