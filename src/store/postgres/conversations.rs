//! Conversations and their messages.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Postgres, QueryBuilder, Row as _};

use super::PostgresStore;
use super::errors::{is_unique_violation, retried};
use crate::domain::change::StepKind;
use crate::domain::conversation::{Conversation, ConversationStatus};
use crate::domain::event::{NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::message::Message;
use crate::store::rows::{ConversationRow, reached};
use crate::store::{
    BeforeCursor, Compact, Compacted, ConversationChange, ConversationCursor, ConversationFilter, ConversationStore, Copied,
    CopyConversation, Created, DeletedConversation, EarlierMessages, EarlierPage, IdempotencyClaim, Keyed, MessageCursor,
    NewConversation, Page, PageRequest, Rewind, Rewound, SQL_PAGE_BYTES, StoreError, StoreResult, compose, messages, rows,
};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// Takes the lock that stands for all that happens to a conversation's runs. `last_seq`, or `None` if there is no such
/// conversation of this owner.
pub(super) async fn lock_head(
    connection: &mut PgConnection,
    owner: &UserId,
    conversation: &ConversationId,
) -> StoreResult<Option<i64>> {
    // The owner of a conversation changes only when it is deleted, and its head goes in the same moment: it may be read without
    // a lock.
    let last_seq = sqlx::query_scalar(
        "SELECT h.last_seq FROM conversation_heads h JOIN conversations c ON c.id = h.conversation_id
         WHERE h.conversation_id = $1 AND c.owner_id = $2 FOR UPDATE OF h",
    )
    .bind(conversation.as_str())
    .bind(owner.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(last_seq)
}

/// Appends events to a log whose head is locked and stood at `base`. Runs in `ended` have ended: whoever holds a claim on one
/// is fenced off.
pub(super) async fn append(
    connection: &mut PgConnection,
    conversation: &ConversationId,
    base: i64,
    events: &[NewEvent],
    ended: &[&str],
) -> StoreResult<()> {
    sqlx::query(
        "WITH head AS (
             UPDATE conversation_heads
             SET last_seq = $2 + cardinality($3::text[]), run_id = CASE WHEN run_id = ANY($8::text[]) THEN NULL ELSE run_id END
             WHERE conversation_id = $1 RETURNING owner_id
         )
         INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
         SELECT $1, head.owner_id, $2 + e.place, e.run_id, e.attempt, e.kind, e.at, e.data
         FROM head, unnest($3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::text[])
             WITH ORDINALITY AS e (run_id, attempt, kind, at, data, place)",
    )
    .bind(conversation.as_str())
    .bind(base)
    .bind(events.iter().map(|event| event.run_id.as_ref().map(RunId::as_str)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| rows::signed(event.attempt)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.kind).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.at.0).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.data.as_str()).collect::<Vec<_>>())
    .bind(ended)
    .execute(connection)
    .await?;
    Ok(())
}

/// A query for [`ConversationRow`]s, to be followed by conditions.
macro_rules! select_conversation {
    ($layers:literal, $rest:literal) => {
        concat!(
            "SELECT c.id, c.title, c.status, c.created_at, c.updated_at, c.pinned, c.archived_at, c.tags, c.forked_from, c.agent,
                 c.model, h.last_seq, r.id AS active_run_id, r.reason, n.id AS last_run_id, n.status AS last_run_status,
                 n.error AS last_run_error, ",
            $layers,
            " FROM conversations c JOIN conversation_heads h ON h.conversation_id = c.id
             LEFT JOIN runs r ON r.conversation_id = c.id AND r.active
             LEFT JOIN LATERAL (
                 SELECT id, status, error FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1
             ) n ON true ",
            $rest
        )
    };
}

/// One conversation of an owner, with its parts of the system prompt.
const SELECT_ONE: &str = select_conversation!("c.system_prompt, c.instructions", "WHERE c.id = $1 AND c.owner_id = $2");

/// Reads the conversation, unless it is missing or belongs to another owner.
pub(super) async fn find(connection: &mut PgConnection, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
    let found = sqlx::query(SELECT_ONE).bind(id.as_str()).bind(owner.as_str()).fetch_optional(connection).await?;
    found.as_ref().map(conversation).transpose()
}

fn conversation(row: &PgRow) -> StoreResult<Conversation> {
    ConversationRow::read(row)?.into_conversation()
}

#[async_trait]
impl ConversationStore for PostgresStore {
    async fn create_conversation(
        &self,
        new: NewConversation,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Created>> {
        retried(|| self.create(&new, idempotency.as_ref())).await
    }

    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        let row = sqlx::query(SELECT_ONE).bind(id.as_str()).bind(owner.as_str()).fetch_optional(&self.api).await?;
        row.as_ref().map(conversation).transpose()
    }

    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        // Later than any: the first page.
        let after = page.after.as_ref().map_or((i64::MAX, ""), |after| (after.created_at, after.id.as_str()));
        let limit = usize::try_from(page.limit.clamp(1, 100)).unwrap_or(100);
        // Conditions that ask for nothing would be guessed to leave out most, and the plan would be one for few.
        let mut wanted = QueryBuilder::<Postgres>::new(select_conversation!(
            "NULL::text AS system_prompt, NULL::text AS instructions",
            "WHERE c.owner_id = "
        ));
        wanted.push_bind(owner.as_str());
        wanted.push(" AND (c.created_at, c.id) < (").push_bind(after.0).push(", ").push_bind(after.1).push(")");
        if let Some(query) = &filter.query {
            wanted.push(" AND c.title ILIKE ").push_bind(like_pattern(query));
        }
        match filter.archived {
            Some(true) => wanted.push(" AND c.archived_at IS NOT NULL"),
            Some(false) => wanted.push(" AND c.archived_at IS NULL"),
            None => &mut wanted,
        };
        if let Some(pinned) = filter.pinned {
            wanted.push(" AND c.pinned = ").push_bind(pinned);
        }
        if let Some(tag) = &filter.tag {
            wanted.push(" AND c.tags::jsonb ? ").push_bind(storable(tag).into_owned());
        }
        wanted.push(" ORDER BY c.created_at DESC, c.id DESC LIMIT ").push_bind(i64::try_from(limit).unwrap_or(100) + 1);
        let found = wanted.build().fetch_all(&self.api).await?;
        let mut found = found.iter().map(ConversationRow::read).collect::<Result<Vec<_>, _>>()?;
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
            "SELECT run_id, max(kind COLLATE \"C\") FROM run_steps WHERE owner_id = $1 AND run_id = ANY($2::text[]) GROUP BY run_id",
        )
        .bind(owner.as_str())
        .bind(runs.iter().map(RunId::as_str).collect::<Vec<_>>())
        .fetch_all(&self.api)
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
        retried(|| self.api.ask(async |connection| apply(connection, owner, id, change, now).await)).await
    }

    async fn compact(&self, compact: Compact, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
        retried(|| self.compact_older(&compact, idempotency.as_ref())).await
    }

    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        retried(|| self.rewind(&rewind, idempotency.as_ref())).await
    }

    async fn copy_conversation(&self, copy: CopyConversation, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        retried(|| self.copy(&copy, idempotency.as_ref())).await
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
        let limit = usize::try_from(page.limit.clamp(1, 100)).unwrap_or(100);
        // The conversation comes as a row even if the page is empty.
        let found = sqlx::query(
            // What is too much comes without its body: it only shows that there is more.
            "SELECT m.id, m.position, CASE WHEN m.before < $5 THEN m.body END AS body, m.rating, m.comment, m.rated_at
             FROM conversations c
             LEFT JOIN LATERAL (
                 SELECT page.*, sum(octet_length(body)) OVER (ORDER BY position) - octet_length(body) AS before FROM (
                     SELECT id, position, body, rating, comment, rated_at FROM messages
                     WHERE conversation_id = c.id AND superseded_by IS NULL AND position > $3
                     ORDER BY position LIMIT $4
                 ) page
             ) m ON true
             WHERE c.id = $1 AND c.owner_id = $2 ORDER BY m.position",
        )
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(after)
        .bind(i64::try_from(limit).unwrap_or(100) + 1)
        .bind(SQL_PAGE_BYTES)
        .fetch_all(&self.api)
        .await?;
        if found.is_empty() {
            return Ok(None);
        }
        let mut items = Vec::new();
        let mut last = None;
        let mut more = false;
        for row in &found {
            let Some(position) = row.try_get::<Option<i64>, _>("position")? else { continue };
            let message = if items.len() < limit { messages::listed(row)? } else { None };
            let Some(message) = message else {
                more = true;
                break;
            };
            last = Some(position);
            items.push(message);
        }
        Ok(Some(Page { items, next: last.filter(|_| more).map(|position| MessageCursor(position).to_string()) }))
    }

    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>> {
        let BeforeCursor(before) = page.before.unwrap_or(BeforeCursor(i64::MAX));
        // The conversation comes as a row even if it has no messages.
        let mut found = sqlx::query(
            "SELECT m.id, m.position, CASE WHEN m.before < $4 THEN m.body END AS body, m.rating, m.comment, m.rated_at
             FROM conversations c
             LEFT JOIN LATERAL (
                 SELECT page.*, sum(octet_length(body)) OVER (ORDER BY position DESC) - octet_length(body) AS before FROM (
                     SELECT id, position, body, rating, comment, rated_at FROM messages
                     WHERE conversation_id = c.id AND superseded_by IS NULL AND position < $5 ORDER BY position DESC LIMIT $3
                 ) page
             ) m ON true
             WHERE c.id = $1 AND c.owner_id = $2 ORDER BY m.position DESC",
        )
        .bind(id.as_str())
        .bind(owner.as_str())
        .bind(i64::from(page.limit) + 1)
        .bind(i64::try_from(page.bytes).unwrap_or(i64::MAX))
        .bind(before)
        .fetch_all(&self.api)
        .await?;
        if found.is_empty() {
            return Ok(None);
        }
        if found[0].try_get::<Option<&str>, _>("id")?.is_none() {
            found.clear();
        }
        EarlierMessages::read(&found, page.limit).map(Some)
    }
}

impl PostgresStore {
    async fn create(&self, new: &NewConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Created>> {
        if self.api.ask(async |connection| has_all_conversations(connection, &new.owner, new.max_conversations).await).await? {
            return Ok(self.recorded(key).await?.unwrap_or(Keyed::Fresh(Created::TooMany)));
        }
        let title = storable(&new.title);
        let conversation = Conversation {
            id: new.id.clone(),
            title: title.clone().into_owned(),
            status: ConversationStatus::Idle,
            active_run_id: None,
            reason: None,
            pinned: false,
            archived_at: None,
            tags: Vec::new(),
            system_prompt: new.system_prompt.as_deref().map(|text| storable(text).into_owned()),
            instructions: new.instructions.as_deref().map(|text| storable(text).into_owned()),
            forked_from: None,
            last_run: None,
            agent: new.choice.agent.clone(),
            model: new.choice.model.clone(),
            last_seq: 0,
            created_at: new.now.to_rfc3339(),
            updated_at: new.now.to_rfc3339(),
        };
        let created = Created::Conversation(Box::new(conversation));
        // A key that is there already violates its primary key and takes the whole statement back.
        let made = sqlx::query(
            "WITH made AS (
                 INSERT INTO conversations (id, owner_id, title, status, created_at, updated_at, system_prompt, instructions, agent, model)
                 VALUES ($1, $2, $3, 'idle', $4, $4, $9, $10, $11, $12) ON CONFLICT (id) DO NOTHING RETURNING id
             ), head AS (
                 INSERT INTO conversation_heads (conversation_id, owner_id) SELECT id, $2 FROM made
             ), key AS (
                 INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at)
                 SELECT $5, $6, $7, $8, now_ms() FROM made WHERE $6 IS NOT NULL
             )
             SELECT id FROM made",
        )
        .bind(new.id.as_str())
        .bind(new.owner.as_str())
        .bind(&*title)
        .bind(new.now.0)
        .bind(key.map(|key| key.owner.as_str()))
        .bind(key.map(|key| storable(&key.key)))
        .bind(key.map(|key| key.fingerprint.as_str()))
        .bind(key.map(|key| rows::encode("idempotency_keys", "outcome", &key.key, &created)).transpose()?)
        .bind(new.system_prompt.as_deref().map(storable))
        .bind(new.instructions.as_deref().map(storable))
        .bind(new.choice.agent.as_deref())
        .bind(new.choice.model.as_deref())
        .fetch_optional(&self.api)
        .await;
        match made {
            Ok(Some(_)) => Ok(Keyed::Fresh(created)),
            Ok(None) => Ok(self.recorded(key).await?.unwrap_or(Keyed::Fresh(Created::Exists))),
            Err(error) => self.or_recorded(Err(error.into()), key).await,
        }
    }

    /// The outcome of a transaction that writes `key`. If it met a row that is there already, another request came first with
    /// the same key, which no lock of ours has kept apart: then what came of that one.
    pub(super) async fn or_recorded<T: serde::de::DeserializeOwned>(
        &self,
        outcome: StoreResult<Keyed<T>>,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<T>> {
        match outcome {
            Err(StoreError::Statement(error)) if is_unique_violation(&error) => match self.recorded(key).await? {
                Some(recorded) => Ok(recorded),
                None => Err(StoreError::Statement(error)),
            },
            Ok(_) | Err(_) => outcome,
        }
    }

    /// What came of an earlier request with the same key.
    pub(super) async fn recorded<T: serde::de::DeserializeOwned>(
        &self,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Option<Keyed<T>>> {
        let Some(key) = key else { return Ok(None) };
        self.api.ask(async |connection| recorded_key(connection, key).await).await
    }
}

async fn apply(
    connection: &mut PgConnection,
    owner: &UserId,
    id: &ConversationId,
    change: &ConversationChange,
    now: UnixMillis,
) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
    let mut tx = connection.begin().await?;
    let Some(base) = lock_head(&mut tx, owner, id).await? else { return Ok(None) };
    sqlx::query(
        "UPDATE conversations SET title = coalesce($2, title), updated_at = $3, pinned = coalesce($4, pinned),
             archived_at = CASE WHEN $5 IS NULL THEN archived_at WHEN $5 THEN coalesce(archived_at, $3) END,
             tags = coalesce($6, tags), system_prompt = nullif(coalesce($7, system_prompt), ''),
             instructions = nullif(coalesce($8, instructions), ''), agent = nullif(coalesce($9, agent), ''),
             model = nullif(coalesce($10, model), ''), title_by = CASE WHEN $2 IS NULL THEN title_by END
         WHERE id = $1",
    )
    .bind(id.as_str())
    .bind(change.title.as_deref().map(storable))
    .bind(now.0)
    .bind(change.pinned)
    .bind(change.archived)
    .bind(change.tags.as_ref().map(|tags| rows::encode_storable("conversations", "tags", id.as_str(), tags)).transpose()?)
    .bind(change.system_prompt.as_deref().map(storable))
    .bind(change.instructions.as_deref().map(storable))
    .bind(change.agent.as_deref())
    .bind(change.model.as_deref())
    .execute(&mut *tx)
    .await?;
    let Some(mut changed) = find(&mut tx, owner, id).await? else { return Ok(None) };
    changed.last_seq = base + 1;
    let events = vec![compose::conversation_updated(&changed.title, changed.status, now)];
    append(&mut tx, id, base, &events, &[]).await?;
    tx.commit().await?;
    Ok(Some((changed, compose::numbered(id, base, events))))
}

/// Whether the owner has as many conversations as allowed, not counting what is archived. Requests that come at once may exceed that by
/// as many: nothing is locked that all of an owner's conversations share.
pub(super) async fn has_all_conversations(connection: &mut PgConnection, owner: &UserId, most: u32) -> StoreResult<bool> {
    if most == 0 {
        return Ok(false);
    }
    let full = sqlx::query_scalar(
        "SELECT count(*) >= $2 FROM (SELECT FROM conversations WHERE owner_id = $1 AND archived_at IS NULL LIMIT $2) AS kept",
    );
    Ok(full.bind(owner.as_str()).bind(i64::from(most)).fetch_one(connection).await?)
}

/// What came of an earlier request with the same key, read by the current transaction.
pub(super) async fn recorded_key<T: serde::de::DeserializeOwned>(
    connection: &mut PgConnection,
    key: &IdempotencyClaim,
) -> StoreResult<Option<Keyed<T>>> {
    let found: Option<(String, String)> =
        sqlx::query_as("SELECT fingerprint, outcome FROM idempotency_keys WHERE owner_id = $1 AND key = $2")
            .bind(key.owner.as_str())
            .bind(storable(&key.key))
            .fetch_optional(connection)
            .await?;
    let Some((fingerprint, outcome)) = found else { return Ok(None) };
    if fingerprint != key.fingerprint {
        return Ok(Some(Keyed::Mismatch));
    }
    Ok(Some(Keyed::Replayed(rows::decode("idempotency_keys", "outcome", &key.key, &outcome)?)))
}

/// A `LIKE` pattern, with `\` as its escape, for titles that contain `query`.
fn like_pattern(query: &str) -> String {
    let mut pattern = String::with_capacity(query.len() + 2);
    pattern.push('%');
    for c in storable(query).chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}
