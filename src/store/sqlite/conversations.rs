//! Conversations as the transactions of SQLite write them, and their list.

use futures_util::TryStreamExt as _;

use super::SqliteStore;
use super::audit;
use super::connection::Tx;
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::NewEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::rows::{ConversationRow, new_conversation};
use crate::store::{ConversationCursor, ConversationFilter, Created, DeletedConversation, NewConversation, StoreResult, compose};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

impl SqliteStore {
    /// Lists at most `limit` conversations, newest first.
    pub(super) async fn list_conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        after: Option<&ConversationCursor>,
        limit: usize,
    ) -> StoreResult<Vec<ConversationRow>> {
        // The first page begins before the latest possible time.
        let (created_at, id) = after.map_or((i64::MAX, ""), |after| (after.created_at, after.id.as_str()));
        // SQLite folds the case of ASCII only, so titles are compared here, row by row, until the page is full.
        let wanted = filter.query.as_deref().map(|query| storable(query).to_lowercase());
        let mut rows = sqlx::query(
            "SELECT c.id, c.title, c.status, c.created_at, c.updated_at, c.pinned, c.archived_at, c.tags, c.forked_from,
                    c.agent, c.model, h.last_seq, r.id AS active_run_id, r.reason, n.id AS last_run_id, n.status AS last_run_status,
                    n.error AS last_run_error, NULL AS system_prompt, NULL AS instructions
             FROM conversations c
             JOIN conversation_heads h ON h.conversation_id = c.id
             LEFT JOIN runs r ON r.conversation_id = c.id AND r.active = 1
             LEFT JOIN runs n ON n.id = (SELECT id FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1)
             WHERE c.owner_id = ?1 AND (c.created_at, c.id) < (?2, ?3) AND (?4 IS NULL OR (c.archived_at IS NOT NULL) = ?4)
               AND (?5 IS NULL OR c.pinned = ?5) AND (?6 IS NULL OR EXISTS (SELECT 1 FROM json_each(c.tags) WHERE value = ?6))
             ORDER BY c.created_at DESC, c.id DESC",
        )
        .bind(owner.as_str())
        .bind(created_at)
        .bind(id)
        .bind(filter.archived)
        .bind(filter.pinned)
        .bind(filter.tag.as_deref().map(storable).as_deref())
        .fetch(self.reader());
        let mut found: Vec<ConversationRow> = Vec::new();
        while found.len() < limit
            && let Some(row) = rows.try_next().await?
        {
            let row = ConversationRow::read(&row)?;
            if wanted.as_ref().is_none_or(|wanted| row.title.to_lowercase().contains(wanted)) {
                found.push(row);
            }
        }
        Ok(found)
    }
}

/// Makes a conversation within a transaction, which is to be rolled back unless one was made.
pub(super) async fn create_in(tx: &mut Tx, new: &NewConversation) -> StoreResult<Created> {
    if has_all_conversations(tx, &new.owner, new.max_conversations).await? {
        return Ok(Created::TooMany);
    }
    if !insert_conversation(tx, &new.id, &new.owner, &new.title, new.now).await? {
        return Ok(Created::Exists);
    }
    sqlx::query("UPDATE conversations SET system_prompt = ?, instructions = ?, agent = ?, model = ? WHERE id = ?")
        .bind(new.system_prompt.as_deref().map(storable).as_deref())
        .bind(new.instructions.as_deref().map(storable).as_deref())
        .bind(new.choice.agent.as_deref().map(storable).as_deref())
        .bind(new.choice.model.as_deref().map(storable).as_deref())
        .bind(new.id.as_str())
        .execute(&mut **tx)
        .await?;
    Ok(Created::Conversation(Box::new(new_conversation(new))))
}

/// Deletes a conversation with all that belongs to it.
pub(super) async fn delete(tx: &mut Tx, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
    let deleted = sqlx::query("DELETE FROM conversations WHERE id = ? AND owner_id = ?")
        .bind(id.as_str())
        .bind(owner.as_str())
        .execute(&mut **tx)
        .await?;
    if deleted.rows_affected() == 0 {
        return Ok(None);
    }
    let active: Option<String> = sqlx::query_scalar("SELECT id FROM runs WHERE conversation_id = ? AND active = 1")
        .bind(id.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    audit::insert_abandoned(tx, id).await?;
    // Without its head the conversation takes no write of any run.
    for statement in [
        "DELETE FROM conversation_heads WHERE conversation_id = ?",
        "DELETE FROM run_leases WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
        "DELETE FROM run_steps WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
        "DELETE FROM input_requests WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
        "DELETE FROM context_summaries WHERE conversation_id = ?",
        "DELETE FROM tool_grants WHERE conversation_id = ?",
        "DELETE FROM tool_calls WHERE run_id IN (SELECT id FROM runs WHERE conversation_id = ?)",
        "DELETE FROM messages WHERE conversation_id = ?",
        "DELETE FROM events WHERE conversation_id = ?",
        "DELETE FROM runs WHERE conversation_id = ?",
    ] {
        sqlx::query(statement).bind(id.as_str()).execute(&mut **tx).await?;
    }
    Ok(Some(DeletedConversation { active_run: active.map(RunId::from_stored) }))
}

/// Whether the owner has as many conversations as allowed, not counting what is archived.
pub(super) async fn has_all_conversations(tx: &mut Tx, owner: &UserId, most: u32) -> StoreResult<bool> {
    if most == 0 {
        return Ok(false);
    }
    let full = sqlx::query_scalar(
        "SELECT count(*) >= ?2 FROM (SELECT 1 FROM conversations WHERE owner_id = ?1 AND archived_at IS NULL LIMIT ?2)",
    );
    Ok(full.bind(owner.as_str()).bind(most).fetch_one(&mut **tx).await?)
}

/// Makes a conversation and its empty log. False if the id is taken.
pub(super) async fn insert_conversation(
    tx: &mut Tx,
    id: &ConversationId,
    owner: &UserId,
    title: &str,
    now: UnixMillis,
) -> StoreResult<bool> {
    let inserted = sqlx::query(
        "INSERT INTO conversations (id, owner_id, title, status, created_at, updated_at) VALUES (?1, ?2, ?3, 'idle', ?4, ?4)
         ON CONFLICT (id) DO NOTHING",
    )
    .bind(id.as_str())
    .bind(owner.as_str())
    .bind(storable(title).as_ref())
    .bind(now.0)
    .execute(&mut **tx)
    .await?;
    if inserted.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query("INSERT INTO conversation_heads (conversation_id, owner_id) VALUES (?, ?)")
        .bind(id.as_str())
        .bind(owner.as_str())
        .execute(&mut **tx)
        .await?;
    Ok(true)
}

/// Sets the status. Returns the event that tells of it, if it differs from before.
pub(super) async fn set_status(
    tx: &mut Tx,
    id: &ConversationId,
    status: ConversationStatus,
    now: UnixMillis,
) -> StoreResult<Option<NewEvent>> {
    let title: Option<String> =
        sqlx::query_scalar("UPDATE conversations SET status = ?1, updated_at = ?2 WHERE id = ?3 AND status <> ?1 RETURNING title")
            .bind(status.as_str())
            .bind(now.0)
            .bind(id.as_str())
            .fetch_optional(&mut **tx)
            .await?;
    Ok(title.map(|title| compose::conversation_updated(&title, status, now)))
}
