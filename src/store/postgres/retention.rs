//! Old deltas are folded, and old conversations tidied.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::PostgresStore;
use super::conversations::append;
use super::errors::retried;
use crate::domain::event::StoredEvent;
use crate::domain::fold::FoldedDelta;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::retention::{put_away, read_ended_run};
use crate::store::{EndedRun, RetentionStore, StoreResult, TOOL_SETS_PIECE, Tidying, compose};

/// The lock of whoever folds: of several nodes that begin at the same time, one goes on.
const FOLDING: i64 = 0x0043_4150_464f_4c44;

#[async_trait]
impl RetentionStore for PostgresStore {
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        let found = sqlx::query(
            "SELECT id, conversation_id, owner_id, first_seq, last_seq, finished_at FROM runs
             WHERE folded_at IS NULL AND finished_at IS NOT NULL AND last_seq IS NOT NULL
               AND finished_at <= (SELECT now_ms()) - $1 AND (finished_at, id) > ($2, $3)
             ORDER BY finished_at, id LIMIT $4",
        )
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(after.map_or(i64::MIN, |run| run.finished_at.0))
        .bind(after.map_or("", |run| run.id.as_str()))
        .bind(i64::from(limit))
        .fetch_all(&self.chores)
        .await?;
        found.iter().map(|row| Ok(read_ended_run(row)?)).collect()
    }

    async fn fold_deltas(
        &self,
        conversation: &ConversationId,
        folds: &[FoldedDelta],
        through: Option<&RunId>,
    ) -> StoreResult<bool> {
        self.chores.ask(async |connection| fold(connection, conversation, folds, through).await).await
    }

    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        let statement =
            format!("SELECT owner_id, id FROM conversations c WHERE id > $2 AND {} ORDER BY id LIMIT $3", condition(tidying));
        let found: Vec<(String, String)> = sqlx::query_as(AssertSqlSafe(statement))
            .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
            .bind(after.map_or("", ConversationId::as_str))
            .bind(i64::from(limit))
            .fetch_all(&self.chores)
            .await?;
        Ok(found.into_iter().map(|(owner, id)| (UserId::from_stored(owner), ConversationId::from_stored(id))).collect())
    }

    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        retried(|| self.chores.ask(async |connection| archive(connection, ids, age_ms).await)).await
    }

    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool> {
        self.delete_if(owner, id, condition(tidying), age_ms).await
    }

    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        // Looked for without any lock, for mostly there are none.
        let unused: Vec<String> = sqlx::query_scalar(
            "SELECT s.hash FROM tool_sets s WHERE NOT EXISTS (SELECT FROM runs r WHERE r.tools_hash = s.hash) LIMIT $1",
        )
        .bind(TOOL_SETS_PIECE)
        .fetch_all(&self.chores)
        .await?;
        if unused.is_empty() {
            return Ok(0);
        }
        self.chores.ask(async |connection| remove_tool_sets(connection, &unused).await).await
    }
}

/// Of which conversations `c` it holds that they are to be tidied so, of which nothing has changed for `$1`.
fn condition(tidying: Tidying) -> &'static str {
    match tidying {
        Tidying::Archive => TO_ARCHIVE,
        Tidying::Delete => TO_DELETE,
        Tidying::DeleteEmpty => EMPTY,
    }
}

/// Conversations `c` in which nothing has happened for `$1`.
const TO_ARCHIVE: &str = "c.archived_at IS NULL AND NOT c.pinned AND c.updated_at <= (SELECT now_ms()) - $1 AND c.owner_id <> ''
    AND c.status IN ('idle', 'failed')
    AND NOT EXISTS (SELECT FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)";

/// The same of those that were put away that long ago. What is left of deleted ones is somebody else's to remove.
const TO_DELETE: &str = "c.archived_at <= (SELECT now_ms()) - $1 AND NOT c.pinned
    AND c.updated_at <= (SELECT now_ms()) - $1 AND c.status IN ('idle', 'failed') AND c.owner_id <> ''
    AND NOT EXISTS (SELECT FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)";

/// The same of those in which nothing was ever said, and that nobody has named or prepared for something.
const EMPTY: &str =
    "c.title = '' AND c.tags = '[]' AND c.system_prompt IS NULL AND c.instructions IS NULL AND c.forked_from IS NULL
    AND NOT c.pinned AND c.updated_at <= (SELECT now_ms()) - $1 AND c.owner_id <> ''
    AND NOT EXISTS (SELECT FROM runs r WHERE r.conversation_id = c.id)
    AND NOT EXISTS (SELECT FROM messages m WHERE m.conversation_id = c.id)";

/// Removes those of these sets that no run names. A run takes a set as its own by an INSERT that leaves the row alone if it is there
/// already: until that run is committed nobody can see that the set is in use. So this waits for all who are writing to the table,
/// and whoever writes after it finds out that the row is gone. They wait behind this lock, so it is not waited for long.
async fn remove_tool_sets(connection: &mut PgConnection, unused: &[String]) -> StoreResult<u64> {
    let mut tx = connection.begin().await?;
    sqlx::query("SET LOCAL lock_timeout = '200ms'").execute(&mut *tx).await?;
    sqlx::query("LOCK TABLE tool_sets IN SHARE ROW EXCLUSIVE MODE").execute(&mut *tx).await?;
    let removed = sqlx::query(
        "DELETE FROM tool_sets s WHERE s.hash = ANY($1) AND NOT EXISTS (SELECT FROM runs r WHERE r.tools_hash = s.hash)",
    )
    .bind(unused)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(removed.rows_affected())
}

async fn archive(connection: &mut PgConnection, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
    let ids: Vec<&str> = ids.iter().map(ConversationId::as_str).collect();
    let mut tx = connection.begin().await?;
    // Whoever holds a head is about to change its conversation, which is not idle then: nobody waits for anybody here.
    let locked: Vec<(String, i64)> = sqlx::query_as(
        "SELECT conversation_id, last_seq FROM conversation_heads WHERE conversation_id = ANY($1) FOR UPDATE SKIP LOCKED",
    )
    .bind(ids)
    .fetch_all(&mut *tx)
    .await?;
    let bases: HashMap<String, i64> = locked.into_iter().collect();
    // A statement of its own: it sees what was changed before the heads were held.
    let statement = format!(
        "UPDATE conversations c SET archived_at = now_ms() WHERE id = ANY($2) AND {TO_ARCHIVE} RETURNING id, title, status, archived_at"
    );
    let archived = sqlx::query_as(AssertSqlSafe(statement))
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(bases.keys().map(String::as_str).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await?;
    let mut events = Vec::with_capacity(archived.len());
    for row in archived {
        let (id, event) = put_away(row)?;
        let Some(base) = bases.get(id.as_str()).copied() else { continue };
        let event = vec![event];
        append(&mut tx, &id, base, &event, &[]).await?;
        events.append(&mut compose::numbered(&id, base, event));
    }
    tx.commit().await?;
    Ok(events)
}

async fn fold(
    connection: &mut PgConnection,
    conversation: &ConversationId,
    folds: &[FoldedDelta],
    through: Option<&RunId>,
) -> StoreResult<bool> {
    let gone: Vec<i64> = folds.iter().flat_map(|fold| fold.gone.iter().copied()).collect();
    let mut tx = connection.begin().await?;
    // Nobody waits for the disk here: what a power cut takes is folded again, and every cursor is as good before as after.
    let is_ours: bool = sqlx::query_scalar(
        "SELECT pg_try_advisory_xact_lock($1) FROM (SELECT set_config('synchronous_commit', 'off', true)) AS careless",
    )
    .bind(FOLDING)
    .fetch_one(&mut *tx)
    .await?;
    if !is_ours {
        return Ok(false);
    }
    let (removed, kept): (i64, i64) = sqlx::query_as(
        "WITH gone AS (
             DELETE FROM events WHERE conversation_id = $1 AND seq = ANY($2::bigint[]) RETURNING 1
         ),
         kept AS (
             UPDATE events e SET data = fold.data FROM unnest($3::bigint[], $4::text[]) AS fold (seq, data)
             WHERE e.conversation_id = $1 AND e.seq = fold.seq RETURNING 1
         ),
         through AS (UPDATE runs SET folded_at = now_ms() WHERE id = $5)
         SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)",
    )
    .bind(conversation.as_str())
    .bind(&gone)
    .bind(folds.iter().map(|fold| fold.seq).collect::<Vec<_>>())
    .bind(folds.iter().map(|fold| fold.data.as_str()).collect::<Vec<_>>())
    .bind(through.map(RunId::as_str))
    .fetch_one(&mut *tx)
    .await?;
    if usize::try_from(removed) != Ok(gone.len()) || usize::try_from(kept) != Ok(folds.len()) {
        // A transaction that is dropped would hold the lock a little longer than the call, and the next one would find it taken.
        tx.rollback().await?;
        return Ok(false);
    }
    tx.commit().await?;
    Ok(true)
}
