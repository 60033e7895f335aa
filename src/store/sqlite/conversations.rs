//! Conversations and their messages.

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use serde_json::json;
use sqlx::Row as _;

use super::SqliteStore;
use super::connection::Tx;
use super::log::append;
use super::{audit, idempotency};
use crate::domain::change::StepKind;
use crate::domain::conversation::{Conversation, ConversationStatus};
use crate::domain::event::{NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::message::Message;
use crate::store::rows::{ConversationRow, encode_storable, reached};
use crate::store::{
    BeforeCursor, Compact, Compacted, ConversationChange, ConversationCursor, ConversationFilter, ConversationStore, Copied,
    CopyConversation, Created, DeletedConversation, EarlierMessages, EarlierPage, IdempotencyClaim, Keyed, MessageCursor,
    NewConversation, Page, PageRequest, Rewind, Rewound, SQL_PAGE_BYTES, StoreResult, compose, messages,
};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// The columns of a [`ConversationRow`], to be followed by conditions.
macro_rules! select_conversation {
    ($rest:literal) => {
        select_conversation!("c.system_prompt, c.instructions", $rest)
    };
    ($layers:literal, $rest:literal) => {
        concat!(
            "SELECT c.id, c.title, c.status, c.created_at, c.updated_at, c.pinned, c.archived_at, c.tags, c.forked_from,
                    c.agent, c.model, h.last_seq, r.id AS active_run_id, r.reason, n.id AS last_run_id, n.status AS last_run_status,
                    n.error AS last_run_error, ",
            $layers,
            " FROM conversations c
             JOIN conversation_heads h ON h.conversation_id = c.id
             LEFT JOIN runs r ON r.conversation_id = c.id AND r.active = 1
             LEFT JOIN runs n ON n.id = (SELECT id FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1) ",
            $rest
        )
    };
}

#[async_trait]
impl ConversationStore for SqliteStore {
    async fn create_conversation(
        &self,
        new: NewConversation,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Created>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, idempotency.as_ref()).await? {
            return Ok(earlier);
        }
        if has_all_conversations(&mut tx, &new.owner, new.max_conversations).await? {
            return Ok(Keyed::Fresh(Created::TooMany));
        }
        if !insert_conversation(&mut tx, &new.id, &new.owner, &new.title, new.now).await? {
            return Ok(Keyed::Fresh(Created::Exists));
        }
        sqlx::query("UPDATE conversations SET system_prompt = ?, instructions = ?, agent = ?, model = ? WHERE id = ?")
            .bind(new.system_prompt.as_deref().map(storable).as_deref())
            .bind(new.instructions.as_deref().map(storable).as_deref())
            .bind(new.choice.agent.as_deref())
            .bind(new.choice.model.as_deref())
            .bind(new.id.as_str())
            .execute(&mut *tx)
            .await?;
        let Some(conversation) = find(&mut tx, &new.owner, &new.id).await? else {
            return Ok(Keyed::Fresh(Created::Exists));
        };
        let created = Created::Conversation(Box::new(conversation));
        idempotency::keep(&mut tx, idempotency.as_ref(), &created).await?;
        tx.commit().await?;
        Ok(Keyed::Fresh(created))
    }

    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        let row = sqlx::query(select_conversation!("WHERE c.id = ? AND c.owner_id = ?"))
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(self.reader())
            .await?;
        row.map(|row| ConversationRow::read(&row)?.into_conversation()).transpose()
    }

    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        let (created_at, id) = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.created_at, after.id.as_str()));
        // SQLite folds the case of ASCII only, so titles are compared here, row by row, until the page is full.
        let wanted = filter.query.as_deref().map(str::to_lowercase);
        let mut rows = sqlx::query(select_conversation!(
            "NULL AS system_prompt, NULL AS instructions",
            "WHERE c.owner_id = ?1 AND (c.created_at, c.id) < (?2, ?3) AND (?4 IS NULL OR (c.archived_at IS NOT NULL) = ?4)
               AND (?5 IS NULL OR c.pinned = ?5) AND (?6 IS NULL OR EXISTS (SELECT 1 FROM json_each(c.tags) WHERE value = ?6))
             ORDER BY c.created_at DESC, c.id DESC"
        ))
        .bind(owner.as_str())
        .bind(created_at)
        .bind(id)
        .bind(filter.archived)
        .bind(filter.pinned)
        .bind(filter.tag.as_deref())
        .fetch(self.reader());
        let mut found: Vec<ConversationRow> = Vec::new();
        let limit = page.limit as usize;
        while let Some(row) = rows.try_next().await? {
            let row = ConversationRow::read(&row)?;
            if wanted.as_ref().is_some_and(|wanted| !row.title.to_lowercase().contains(wanted)) {
                continue;
            }
            found.push(row);
            if found.len() > limit {
                break;
            }
        }
        drop(rows);
        let more = found.len() > limit;
        found.truncate(limit);
        let last_made = found.last().map(|last| last.created_at);
        let items = found.into_iter().map(ConversationRow::into_conversation).collect::<StoreResult<Vec<_>>>()?;
        let last = last_made.zip(items.last()).filter(|_| more);
        let next = last.map(|(created_at, last)| ConversationCursor { created_at, id: last.id.clone() }.to_string());
        Ok(Page { items, next })
    }

    async fn reached(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        let found: Vec<(String, String)> = sqlx::query_as(
            "SELECT run_id, max(kind) FROM run_steps WHERE owner_id = ? AND run_id IN (SELECT value FROM json_each(?)) GROUP BY run_id",
        )
        .bind(owner.as_str())
        .bind(json!(runs).to_string())
        .fetch_all(self.reader())
        .await?;
        reached(found)
    }

    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let tags = change.tags.as_ref().map(|tags| encode_storable("conversations", "tags", id.as_str(), tags)).transpose()?;
        let changed = sqlx::query(
            "UPDATE conversations SET title = coalesce(?1, title), updated_at = ?2, pinned = coalesce(?3, pinned),
                 archived_at = CASE WHEN ?4 IS NULL THEN archived_at WHEN ?4 THEN coalesce(archived_at, ?2) END,
                 tags = coalesce(?5, tags), system_prompt = nullif(coalesce(?8, system_prompt), ''),
                 instructions = nullif(coalesce(?9, instructions), ''), agent = nullif(coalesce(?10, agent), ''),
                 model = nullif(coalesce(?11, model), ''), title_by = CASE WHEN ?1 IS NULL THEN title_by END
             WHERE id = ?6 AND owner_id = ?7",
        )
        .bind(change.title.as_deref().map(storable).as_deref())
        .bind(now.0)
        .bind(change.pinned)
        .bind(change.archived)
        .bind(tags)
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(change.system_prompt.as_deref().map(storable).as_deref())
        .bind(change.instructions.as_deref().map(storable).as_deref())
        .bind(change.agent.as_deref())
        .bind(change.model.as_deref())
        .execute(&mut *tx)
        .await?;
        if changed.rows_affected() == 0 {
            return Ok(None);
        }
        let Some(before) = find(&mut tx, owner, id).await? else { return Ok(None) };
        let event = compose::conversation_updated(&before.title, before.status, now);
        let events = append(&mut tx, id, vec![event]).await?;
        let conversation = find(&mut tx, owner, id).await?;
        tx.commit().await?;
        Ok(conversation.map(|conversation| (conversation, events)))
    }

    async fn compact(&self, compact: Compact, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, idempotency.as_ref()).await? {
            return Ok(earlier);
        }
        let compacted = super::summaries::compact_in(&mut tx, &compact).await?;
        match &compacted {
            Compacted::Done { .. } => {
                idempotency::keep(&mut tx, idempotency.as_ref(), &compacted).await?;
                tx.commit().await?;
            }
            Compacted::Busy | Compacted::NoConversation => {}
        }
        Ok(Keyed::Fresh(compacted))
    }

    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        self.rewind(&rewind, idempotency.as_ref()).await
    }

    async fn copy_conversation(&self, copy: CopyConversation, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        self.copy(&copy, idempotency.as_ref()).await
    }

    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let deleted = delete(&mut tx, owner, id).await?;
        if deleted.is_some() {
            tx.commit().await?;
        }
        Ok(deleted)
    }

    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>> {
        let after = page.after.map_or(0, |MessageCursor(position)| position);
        let mut tx = self.read().await?;
        if find(&mut tx, owner, id).await?.is_none() {
            return Ok(None);
        }
        let rows = sqlx::query(
            // What is too much comes without its body: it only shows that there is more.
            "SELECT id, position, CASE WHEN before < ? THEN body END AS body, rating, comment, rated_at FROM (
                 SELECT page.*, sum(octet_length(body)) OVER (ORDER BY position) - octet_length(body) AS before FROM (
                     SELECT id, position, body, rating, comment, rated_at FROM messages
                     WHERE conversation_id = ? AND owner_id = ? AND superseded_by IS NULL AND position > ?
                     ORDER BY position LIMIT ?
                 ) AS page
             ) ORDER BY position",
        )
        .bind(SQL_PAGE_BYTES)
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(after)
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *tx)
        .await?;
        let mut items = Vec::new();
        let mut last = None;
        for row in rows.iter().take(page.limit as usize) {
            let Some(message) = messages::listed(row)? else { break };
            items.push(message);
            last = Some(row.try_get("position")?);
        }
        let next = last.filter(|_| rows.len() > items.len()).map(|position| MessageCursor(position).to_string());
        Ok(Some(Page { items, next }))
    }

    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>> {
        let BeforeCursor(before) = page.before.unwrap_or(BeforeCursor(i64::MAX));
        let mut tx = self.read().await?;
        if find(&mut tx, owner, id).await?.is_none() {
            return Ok(None);
        }
        let found = sqlx::query(
            "SELECT id, position, CASE WHEN before < ? THEN body END AS body, rating, comment, rated_at FROM (
                 SELECT page.*, sum(octet_length(body)) OVER (ORDER BY position DESC) - octet_length(body) AS before FROM (
                     SELECT id, position, body, rating, comment, rated_at FROM messages
                     WHERE conversation_id = ? AND owner_id = ? AND superseded_by IS NULL AND position < ?
                     ORDER BY position DESC LIMIT ?
                 ) AS page
             ) ORDER BY position DESC",
        )
        .bind(i64::try_from(page.bytes).unwrap_or(i64::MAX))
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(before)
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *tx)
        .await?;
        EarlierMessages::read(&found, page.limit).map(Some)
    }
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

/// The conversation inside a transaction, unless it is missing or somebody else's.
pub(super) async fn find(tx: &mut Tx, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
    let row = sqlx::query(select_conversation!("WHERE c.id = ? AND c.owner_id = ?"))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    row.map(|row| ConversationRow::read(&row)?.into_conversation()).transpose()
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

/// Sets the status. The event that says so, if the status is another one than before.
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
