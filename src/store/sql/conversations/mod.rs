//! Conversations and their messages.
//!
//! Owns the statements of use cases on conversations. Must not know what a run does in a conversation.

pub(super) mod append;
pub(super) mod conversation_rows;
pub(super) mod feedback;
pub(super) mod files;
pub(super) mod fork;
pub(super) mod list_items;
pub(super) mod log;
pub(super) mod questions;
pub(super) mod retention;
pub(super) mod rewind;
pub(super) mod search;
pub(super) mod shares;
pub(super) mod summaries;
pub(super) mod titles;

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use crate::domain::conversation::{Conversation, ConversationSort, Message};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use crate::domain::run::StepKind;
use crate::store::conversations::messages::listed;
use crate::store::pages::page_by_time;
use crate::store::rows::{decode, encode_storable, new_conversation, read_word};
use crate::store::runs::created_rows;
use crate::store::sql::conversations::append::append_in;
use crate::store::sql::conversations::conversation_rows::{
    BY_ID, LIST_BY_CHANGE, LIST_BY_CREATION, find, has_all, insert_conversation, read_conversation,
};
use crate::store::sql::conversations::fork::copy_in;
use crate::store::sql::conversations::rewind::rewind_in;
use crate::store::sql::conversations::summaries::compact_in;
use crate::store::sql::{Backend, Database, Row, Transaction, Value, if_fresh, refuse, statements, values};
use crate::store::{
    AppendMessages, AppendOutcome, BeforeCursor, Compact, CompactOutcome, ConversationChange, ConversationCursor,
    ConversationFilter, ConversationStore, CopyConversation, CopyOutcome, CreateOutcome, DeletedConversation, EarlierMessages,
    EarlierPage, IdempotencyKey, IdempotentOutcome, IdempotentResult, MessageCursor, NewConversation, Page, PageRequest,
    RecordStore, Rewind, RewindOutcome, SQL_PAGE_BYTES, StoreResult,
};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// Number of rows that a title search on SQLite reads at a time.
const SEARCHED_ROWS: u32 = 500;

statements! {
    REACHED = ["SELECT run_id, max(kind", { postgres: " COLLATE \"C\"", sqlite: "" }, ") AS kind FROM run_steps
         WHERE owner_id = $1 AND run_id ", (in_list "$2"), " GROUP BY run_id"];

    CHANGE = ["UPDATE conversations SET title = coalesce($2, title), updated_at = $3, pinned = coalesce($4, pinned),
             archived_at = CASE WHEN CAST($5 AS boolean) IS NULL THEN archived_at WHEN $5 THEN coalesce(archived_at, $3) END,
             tags = coalesce($6, tags), system_prompt = nullif(coalesce($7, system_prompt), ''),
             instructions = nullif(coalesce($8, instructions), ''), agent = nullif(coalesce($9, agent), ''),
             model = nullif(coalesce($10, model), ''), metadata = coalesce($11, metadata),
             title_by = CASE WHEN CAST($2 AS text) IS NULL THEN title_by END
         WHERE id = $1"];

    // The conversation is returned as a row even if the page is empty. A message beyond the limit of bytes is returned without its
    // body, which shows that more messages follow.
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

    // Selects messages by their ids and, for each tool call, the messages of its run from the call on. They have no body if all
    // together exceed the limit of bytes. A replaced message is among them, because the client names it.
    REFERENCED = ["SELECT id, CASE WHEN sum(octet_length(body)) OVER () <= $4 THEN body END AS body FROM messages WHERE id IN (
             SELECT m.id FROM messages m JOIN conversations c ON c.id = m.conversation_id
             WHERE c.owner_id = $1 AND m.id ", (in_list "$2"), "
             UNION
             SELECT m.id FROM tool_calls t JOIN messages a ON a.id = t.message_id JOIN conversations c ON c.id = a.conversation_id
             JOIN messages m ON m.conversation_id = a.conversation_id AND m.run_id = t.run_id AND m.position >= a.position
             WHERE c.owner_id = $1 AND t.id ", (in_list "$3"), "
         )"];
}

impl dyn RecordStore + '_ {
    /// Returns the owner's messages with these ids and, for each tool call, the messages of its run from the call on, in no order.
    /// Returns `None` if they have more than `most_bytes` together.
    pub async fn referenced_messages(
        &self,
        owner: &UserId,
        messages: &[MessageId],
        calls: &[CallId],
        most_bytes: u64,
    ) -> StoreResult<Option<Vec<Message>>> {
        let (messages, calls) = (messages.iter().map(MessageId::as_str).collect(), calls.iter().map(CallId::as_str).collect());
        let values: [Value<'_>; 4] = [owner.as_str().into(), messages, calls, most_bytes.into()];
        let read = |row: &Row| {
            let body = row.get::<Option<&str>>("body")?;
            body.map(|body| decode("messages", "body", row.get("id")?, body)).transpose()
        };
        Ok(self.database().read_all(REFERENCED, &values, read).await?.into_iter().collect())
    }
}

#[async_trait]
impl<B: Backend> ConversationStore for B {
    async fn create_conversation(&self, new: NewConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CreateOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |created: &CreateOutcome| matches!(created, CreateOutcome::Conversation(_));
        database.once(key, || database.transaction(async |tx| create_in(tx, &new, key).await, if_fresh(is_stored))).await
    }

    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        self.database().read_optional(BY_ID, values![id.as_str(), owner.as_str()], read_conversation).await
    }

    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        let limit = page.limit.clamp(1, 100);
        let found = list(self.database(), owner, filter, page.after.as_ref(), limit + 1).await?;
        Ok(page_by_time(found, limit, |last| &last.id))
    }

    async fn run_progress(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        let runs = runs.iter().map(RunId::as_str).collect();
        let read = |row: &Row| {
            let run: String = row.get("run_id")?;
            let kind = read_word(row, "run_steps", "kind", &run, StepKind::from_name)?;
            Ok((RunId::from_stored(run), kind))
        };
        self.database().read_all(REACHED, &[owner.as_str().into(), runs], read).await
    }

    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        let database = self.database();
        database.retry(|| database.transaction(async |tx| change_in(tx, owner, id, change, now).await, Option::is_some)).await
    }

    async fn compact(&self, compact: Compact, key: Option<IdempotencyKey>) -> IdempotentResult<CompactOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |compacted: &CompactOutcome| matches!(compacted, CompactOutcome::Done { .. });
        database.once(key, || database.transaction(async |tx| compact_in(tx, &compact, key).await, if_fresh(is_stored))).await
    }

    async fn rewind_conversation(&self, rewind: Rewind, key: Option<IdempotencyKey>) -> IdempotentResult<RewindOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |rewound: &RewindOutcome| matches!(rewound, RewindOutcome::Conversation { .. });
        database.once(key, || database.transaction(async |tx| rewind_in(tx, &rewind, key).await, if_fresh(is_stored))).await
    }

    async fn append_messages(&self, append: AppendMessages, key: Option<IdempotencyKey>) -> IdempotentResult<AppendOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |appended: &AppendOutcome| matches!(appended, AppendOutcome::Appended { .. });
        database.once(key, || database.transaction(async |tx| append_in(tx, &append, key).await, if_fresh(is_stored))).await
    }

    async fn copy_conversation(&self, copy: CopyConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CopyOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |copied: &CopyOutcome| matches!(copied, CopyOutcome::Conversation(_));
        database.once(key, || database.transaction(async |tx| copy_in(tx, &copy, key).await, if_fresh(is_stored))).await
    }

    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        self.delete(owner, id, None).await
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
        let page = messages_page(self.database().fetch_all(MESSAGES, page).await?, limit)?;
        Ok(page.map(|(items, next)| Page { items, next: next.map(|position| MessageCursor(position).to_string()) }))
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
            let Some(message) = listed(row)? else { break };
            items.push((BeforeCursor(row.get("position")?), message));
        }
        items.reverse();
        Ok(Some(EarlierMessages { earlier: rows.len() > items.len(), items }))
    }
}

async fn create_in(tx: &mut Transaction, new: &NewConversation, key: Option<&IdempotencyKey>) -> IdempotentResult<CreateOutcome> {
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    if has_all(tx, &new.owner, new.max_conversations).await? {
        return refuse(CreateOutcome::TooMany);
    }
    let created_conversation = new_conversation(new);
    if !insert_conversation(tx, &new.owner, &created_conversation, new.now).await? {
        // The insert waited for a concurrent request with the same key. If that has created the conversation, its outcome is
        // returned.
        return Ok(tx.recorded(key).await?.unwrap_or(IdempotentOutcome::Fresh(CreateOutcome::Exists)));
    }
    tx.record(key, CreateOutcome::Conversation(Box::new(created_conversation))).await
}

/// Returns at most `limit` conversations, newest first, each with the time that orders the list.
///
/// The statement contains only the conditions that the filter needs, because the planner misjudges conditions that are always true.
/// SQLite folds the case of ASCII only, so its titles are compared here until the page is full.
async fn list(
    database: Database<'_>,
    owner: &UserId,
    filter: &ConversationFilter,
    after: Option<&ConversationCursor>,
    limit: u32,
) -> StoreResult<Vec<(i64, Conversation)>> {
    let (statement, time) = match filter.sort {
        ConversationSort::Created => (LIST_BY_CREATION, "created_at"),
        ConversationSort::Updated => (LIST_BY_CHANGE, "updated_at"),
    };
    let (text, tag, title, rows_read) = match database {
        Database::Postgres(_) => (statement.postgres, " AND c.tags::jsonb ? $6", " AND c.title ILIKE $7", limit),
        Database::Sqlite(_) => {
            (statement.sqlite, " AND EXISTS (SELECT 1 FROM json_each(c.tags) WHERE value = $6)", "", limit.max(SEARCHED_ROWS))
        }
    };
    let title_query = filter.query.as_deref().map(|query| storable(query).to_lowercase());
    let rows_read = if title_query.is_some() { rows_read } else { limit };
    let conditions = [
        filter.archived.map(|is| if is { " AND c.archived_at IS NOT NULL" } else { " AND c.archived_at IS NULL" }),
        filter.pinned.map(|_| " AND c.pinned = $5"),
        filter.tag.as_ref().map(|_| tag),
        filter.query.as_ref().map(|_| title),
    ];
    let conditions: String = conditions.into_iter().flatten().collect();
    let text = format!("{text}{conditions} ORDER BY c.{time} DESC, c.id DESC LIMIT $4");
    let query = filter.query.as_deref().map(like_pattern);
    // The first page begins before the largest possible time.
    let (mut at, mut id) = after.map_or((i64::MAX, String::new()), |after| (after.at, after.id.to_string()));
    let mut found = Vec::new();
    loop {
        let values = values![owner.as_str(), at, &id, rows_read, filter.pinned, filter.tag.as_deref(), query.as_deref()];
        let rows = database.fetch_list(AssertSqlSafe(text.clone()), values).await?;
        for row in &rows {
            let conversation = read_conversation(row)?;
            (at, id) = (row.get(time)?, conversation.id.to_string());
            let is_wanted = match (database, &title_query) {
                (Database::Postgres(_), _) | (_, None) => true,
                (Database::Sqlite(_), Some(title_query)) => conversation.title.to_lowercase().contains(title_query),
            };
            if is_wanted {
                found.push((at, conversation));
            }
        }
        if found.len() >= limit as usize || rows.len() < rows_read as usize {
            found.truncate(limit as usize);
            return Ok(found);
        }
    }
}

/// Returns a `LIKE` pattern, with `\` as its escape, for titles that contain `query`.
fn like_pattern(query: &str) -> String {
    format!("%{}%", query.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_"))
}

async fn change_in(
    tx: &mut Transaction,
    owner: &UserId,
    id: &ConversationId,
    change: &ConversationChange,
    now: UnixMillis,
) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
    let Some(base) = tx.lock_head(owner, id).await? else { return Ok(None) };
    let tags = change.tags.as_ref().map(|tags| encode_storable("conversations", "tags", id.as_str(), tags)).transpose()?;
    let metadata =
        change.metadata.as_ref().map(|all| encode_storable("conversations", "metadata", id.as_str(), all)).transpose()?;
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
        metadata,
    ];
    tx.execute(CHANGE, values).await?;
    let Some(mut changed) = find(tx, owner, id).await? else { return Ok(None) };
    let event = created_rows::conversation_updated(&changed.title, changed.status, now);
    let events = tx.append(id, base, vec![event]).await?;
    changed.last_seq = base + 1;
    Ok(Some((changed, events)))
}

/// Reads a page from rows of [`MESSAGES`]. Returns the messages, and the position after which more follow; `None` without a row of
/// the conversation.
fn messages_page(rows: Vec<Row>, limit: u32) -> StoreResult<Option<(Vec<Message>, Option<i64>)>> {
    let Some(rows) = message_rows(rows)? else { return Ok(None) };
    let mut items = Vec::new();
    let mut last = None;
    for row in rows.iter().take(limit as usize) {
        let Some(message) = listed(row)? else { break };
        last = Some(row.get("position")?);
        items.push(message);
    }
    let next = last.filter(|_| rows.len() > items.len());
    Ok(Some((items, next)))
}

/// Returns the rows of messages; `None` without a row of the conversation.
fn message_rows(mut rows: Vec<Row>) -> StoreResult<Option<Vec<Row>>> {
    let Some(first) = rows.first() else { return Ok(None) };
    if first.get::<Option<&str>>("id")?.is_none() {
        rows.clear();
    }
    Ok(Some(rows))
}
