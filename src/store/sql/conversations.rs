//! Conversations and their messages.
//!
//! Owns the statements of use cases on conversations. Must not know what a run does in one.

use async_trait::async_trait;

use super::conversation_rows::{BY_ID, find, read_conversation};
use super::copy::copy_once;
use super::database::Database;
use super::per_backend::PerBackend;
use super::rewind::rewind_once;
use super::row::{Row, read_row};
use super::statement::statements;
use super::summaries::compact_once;
use super::value::values;
use crate::domain::change::StepKind;
use crate::domain::conversation::Conversation;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::message::Message;
use crate::store::messages::listed;
use crate::store::rows::{ConversationRow, encode_storable, reached};
use crate::store::{
    BeforeCursor, Compact, Compacted, ConversationChange, ConversationCursor, ConversationFilter, ConversationStore, Copied,
    CopyConversation, Created, DeletedConversation, EarlierMessages, EarlierPage, IdempotencyClaim, Keyed, MessageCursor,
    NewConversation, Page, PageRequest, Rewind, Rewound, SQL_PAGE_BYTES, StoreResult, compose,
};
use crate::support::clock::UnixMillis;

statements! {
    REACHED = ["SELECT run_id, max(kind", { postgres: " COLLATE \"C\"", sqlite: "" }, ") AS kind FROM run_steps
         WHERE owner_id = $1 AND run_id ", (in_list "$2"), " GROUP BY run_id"];

    CHANGE = ["UPDATE conversations SET title = coalesce($2, title), updated_at = $3, pinned = coalesce($4, pinned),
             archived_at = CASE WHEN CAST($5 AS boolean) IS NULL THEN archived_at WHEN $5 THEN coalesce(archived_at, $3) END,
             tags = coalesce($6, tags), system_prompt = nullif(coalesce($7, system_prompt), ''),
             instructions = nullif(coalesce($8, instructions), ''), agent = nullif(coalesce($9, agent), ''),
             model = nullif(coalesce($10, model), ''), title_by = CASE WHEN CAST($2 AS text) IS NULL THEN title_by END
         WHERE id = $1"];

    // The conversation comes as a row even if the page is empty. A message beyond the limit of bytes comes without its body, and
    // shows that there is more.
    MESSAGES = ["SELECT m.id, m.position, CASE WHEN m.before < $5 THEN m.body END AS body, m.rating, m.comment, m.rated_at
         FROM conversations c LEFT JOIN (
             SELECT page.*, sum(octet_length(body)) OVER (ORDER BY position) - octet_length(body) AS before FROM (
                 SELECT id, position, body, rating, comment, rated_at FROM messages
                 WHERE conversation_id = $1 AND superseded_by IS NULL AND position > $3 ORDER BY position LIMIT $4
             ) AS page
         ) AS m ON true
         WHERE c.id = $1 AND c.owner_id = $2 ORDER BY m.position"];

    EARLIER_MESSAGES = ["SELECT m.id, m.position, CASE WHEN m.before < $5 THEN m.body END AS body, m.rating, m.comment, m.rated_at
         FROM conversations c LEFT JOIN (
             SELECT page.*, sum(octet_length(body)) OVER (ORDER BY position DESC) - octet_length(body) AS before FROM (
                 SELECT id, position, body, rating, comment, rated_at FROM messages
                 WHERE conversation_id = $1 AND superseded_by IS NULL AND position < $3 ORDER BY position DESC LIMIT $4
             ) AS page
         ) AS m ON true
         WHERE c.id = $1 AND c.owner_id = $2 ORDER BY m.position DESC"];
}

#[async_trait]
impl<B: PerBackend> ConversationStore for B {
    async fn create_conversation(
        &self,
        new: NewConversation,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Created>> {
        self.create(&new, idempotency.as_ref()).await
    }

    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        let row = self.database().fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
        row.as_ref().map(read_conversation).transpose()
    }

    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        let limit = page.limit.clamp(1, 100) as usize;
        let mut found = self.list(owner, filter, page.after.as_ref(), limit + 1).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let last_made = found.last().map(|last| last.created_at);
        let items = found.into_iter().map(ConversationRow::into_conversation).collect::<StoreResult<Vec<_>>>()?;
        let last = last_made.zip(items.last()).filter(|_| more);
        let next = last.map(|(created_at, last)| ConversationCursor { created_at, id: last.id.clone() }.to_string());
        Ok(Page { items, next })
    }

    async fn reached(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        let runs = runs.iter().map(RunId::as_str).collect();
        let rows = self.database().fetch_all(REACHED, &[owner.as_str().into(), runs]).await?;
        reached(rows.iter().map(|row| Ok((row.get("run_id")?, row.get("kind")?))).collect::<StoreResult<_>>()?)
    }

    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        let database = self.database();
        database.retry(|| change_once(database, owner, id, change, now)).await
    }

    async fn compact(&self, compact: Compact, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
        let (database, key) = (self.database(), idempotency.as_ref());
        database.once(key, || compact_once(database, &compact, key)).await
    }

    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        let (database, key) = (self.database(), idempotency.as_ref());
        database.once(key, || rewind_once(database, &rewind, key)).await
    }

    async fn copy_conversation(&self, copy: CopyConversation, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        let (database, key) = (self.database(), idempotency.as_ref());
        database.once(key, || copy_once(database, &copy, key)).await
    }

    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        self.delete(owner, id).await
    }

    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>> {
        let after = page.after.map_or(0, |MessageCursor(position)| position);
        let limit = page.limit.clamp(1, 100);
        let page = values![id.as_str(), owner.as_str(), after, limit + 1, SQL_PAGE_BYTES];
        let Some(rows) = message_rows(self.database().fetch_all(MESSAGES, page).await?)? else { return Ok(None) };
        let mut items = Vec::new();
        let mut last = None;
        for row in rows.iter().take(limit as usize) {
            let Some(message) = read_row!(row, listed)? else { break };
            last = Some(row.get("position")?);
            items.push(message);
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
        let bytes = u64::try_from(page.bytes).unwrap_or(u64::MAX);
        let values = values![id.as_str(), owner.as_str(), before, i64::from(page.limit) + 1, bytes];
        let Some(rows) = message_rows(self.database().fetch_all(EARLIER_MESSAGES, values).await?)? else { return Ok(None) };
        let mut items = Vec::new();
        for row in rows.iter().take(page.limit as usize) {
            let Some(message) = read_row!(row, listed)? else { break };
            items.push((BeforeCursor(row.get("position")?), message));
        }
        items.reverse();
        Ok(Some(EarlierMessages { earlier: rows.len() > items.len(), items }))
    }
}

async fn change_once(
    database: Database<'_>,
    owner: &UserId,
    id: &ConversationId,
    change: &ConversationChange,
    now: UnixMillis,
) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
    let mut tx = database.begin().await?;
    let Some(base) = tx.lock_head(owner, id).await? else {
        tx.rollback().await?;
        return Ok(None);
    };
    let tags = change.tags.as_ref().map(|tags| encode_storable("conversations", "tags", id.as_str(), tags)).transpose()?;
    let values = values![
        id.as_str(),
        change.title.as_deref(),
        now,
        change.pinned,
        change.archived,
        tags,
        change.system_prompt.as_deref(),
        change.instructions.as_deref(),
        change.agent.as_deref(),
        change.model.as_deref(),
    ];
    tx.execute(CHANGE, values).await?;
    let Some(mut changed) = find(&mut tx, owner, id).await? else {
        tx.rollback().await?;
        return Ok(None);
    };
    let event = compose::conversation_updated(&changed.title, changed.status, now);
    let events = tx.append(id, base, vec![event], &[]).await?;
    changed.last_seq = base + 1;
    tx.commit().await?;
    Ok(Some((changed, events)))
}

/// Returns the rows of messages; `None` if there is not even the row of their conversation.
fn message_rows(mut rows: Vec<Row>) -> StoreResult<Option<Vec<Row>>> {
    let Some(first) = rows.first() else { return Ok(None) };
    if first.get::<Option<&str>>("id")?.is_none() {
        rows.clear();
    }
    Ok(Some(rows))
}
