//! A conversation is deleted.
//!
//! A long one has a million events, and whoever removes them in one transaction holds up all that goes on meanwhile. So it is
//! taken from its owner first, with its head and its runs: from then on nobody finds it, and nobody can write to it. What is left
//! is removed piece by piece. Should the process die over that, the rest is found by its owner, who is nobody.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::PostgresStore;
use super::answer::Line;
use super::conversations::lock_head;
use super::errors::retried;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::{DeletedConversation, StoreResult};

/// Whose a deleted conversation is.
const NOBODY: &str = "";

/// Rows that one statement removes.
const PIECE: i64 = 5_000;

impl PostgresStore {
    pub(super) async fn delete(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        let deleted = retried(|| self.api.ask(async |connection| take_away(connection, owner, id, None).await)).await?;
        if deleted.is_some() {
            remove_rest_or_later(&self.api, id.as_str()).await;
        }
        Ok(deleted)
    }

    /// The same of one of which a condition holds, with `c` for its row and `$1` for `age_ms`.
    pub(super) async fn delete_if(
        &self,
        owner: &UserId,
        id: &ConversationId,
        condition: &'static str,
        age_ms: u64,
    ) -> StoreResult<bool> {
        let only_if = Some((condition, i64::try_from(age_ms).unwrap_or(i64::MAX)));
        let line = &self.chores;
        let deleted = retried(|| line.ask(async |connection| take_away(connection, owner, id, only_if).await)).await?;
        if deleted.is_some() {
            remove_rest_or_later(line, id.as_str()).await;
        }
        Ok(deleted.is_some())
    }

    /// Removes what processes that died have left of deleted conversations.
    pub(super) async fn finish_deletions(&self) -> StoreResult<()> {
        let left: Vec<String> =
            sqlx::query_scalar("SELECT id FROM conversations WHERE owner_id = $1").bind(NOBODY).fetch_all(&self.chores).await?;
        for id in left {
            remove_rest(&self.chores, &id).await?;
        }
        Ok(())
    }
}

async fn remove_rest_or_later(line: &Line, id: &str) {
    if let Err(error) = remove_rest(line, id).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the rest of a deleted conversation is removed later");
    }
}

/// With a condition and what it asks about, only if it holds.
async fn take_away(
    connection: &mut PgConnection,
    owner: &UserId,
    id: &ConversationId,
    only_if: Option<(&'static str, i64)>,
) -> StoreResult<Option<DeletedConversation>> {
    let mut tx = connection.begin().await?;
    if lock_head(&mut tx, owner, id).await?.is_none() {
        return Ok(None);
    }
    if let Some((condition, age_ms)) = only_if {
        let statement = format!("SELECT EXISTS (SELECT FROM conversations c WHERE id = $2 AND {condition})");
        let holds: bool = sqlx::query_scalar(AssertSqlSafe(statement)).bind(age_ms).bind(id.as_str()).fetch_one(&mut *tx).await?;
        if !holds {
            return Ok(None);
        }
    }
    // Whoever writes later finds no head that its fence could match.
    let active_run: Option<String> = sqlx::query_scalar(
        "WITH run AS (DELETE FROM runs WHERE conversation_id = $1 RETURNING id, active, agent),
         -- Calls without an outcome. Of those that may be under way nobody will hear how they end, and the time since they were
         -- started is what is known; the others are not made, and a denial that no worker has acted on is the reason for that.
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
    )
    .bind(id.as_str())
    .bind(NOBODY)
    .fetch_optional(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Some(DeletedConversation { active_run: active_run.map(RunId::from_stored) }))
}

/// The row of the conversation goes last, so that its id is not used again before.
async fn remove_rest(line: &Line, id: &str) -> StoreResult<()> {
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
        while sqlx::query(piece).bind(id).bind(PIECE).execute(line).await?.rows_affected() > 0 {}
    }
    sqlx::query("DELETE FROM conversations WHERE id = $1 AND owner_id = $2").bind(id).bind(NOBODY).execute(line).await?;
    Ok(())
}
