//! Conversations as the transactions of Postgres write them, and their list.

use sqlx::{PgConnection, Postgres, QueryBuilder};

use super::PostgresStore;
use super::errors::is_unique_violation;
use crate::domain::event::NewEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::rows::{ConversationRow, new_conversation};
use crate::store::{
    ConversationCursor, ConversationFilter, Created, IdempotencyClaim, Keyed, NewConversation, StoreError, StoreResult, rows,
};
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

impl PostgresStore {
    /// Lists at most `limit` conversations, newest first.
    pub(super) async fn list_conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        after: Option<&ConversationCursor>,
        limit: usize,
    ) -> StoreResult<Vec<ConversationRow>> {
        // The first page begins before the latest possible time.
        let after = after.map_or((i64::MAX, ""), |after| (after.created_at, after.id.as_str()));
        // The planner takes a condition that is always true for one that leaves out most rows, and plans for few.
        let mut wanted = QueryBuilder::<Postgres>::new(
            "SELECT c.id, c.title, c.status, c.created_at, c.updated_at, c.pinned, c.archived_at, c.tags, c.forked_from, c.agent,
                 c.model, h.last_seq, r.id AS active_run_id, r.reason, n.id AS last_run_id, n.status AS last_run_status,
                 n.error AS last_run_error, NULL::text AS system_prompt, NULL::text AS instructions
             FROM conversations c JOIN conversation_heads h ON h.conversation_id = c.id
             LEFT JOIN runs r ON r.conversation_id = c.id AND r.active
             LEFT JOIN LATERAL (
                 SELECT id, status, error FROM runs WHERE conversation_id = c.id ORDER BY first_seq DESC LIMIT 1
             ) n ON true
             WHERE c.owner_id = ",
        );
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
        wanted.push(" ORDER BY c.created_at DESC, c.id DESC LIMIT ").push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let found = wanted.build().fetch_all(&self.api).await?;
        Ok(found.iter().map(ConversationRow::read).collect::<Result<Vec<_>, _>>()?)
    }

    /// Makes a conversation by one statement.
    pub(super) async fn make_conversation(
        &self,
        new: &NewConversation,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Created>> {
        if self.api.ask(async |connection| has_all_conversations(connection, &new.owner, new.max_conversations).await).await? {
            return Ok(self.recorded(key).await?.unwrap_or(Keyed::Fresh(Created::TooMany)));
        }
        let created = Created::Conversation(Box::new(new_conversation(new)));
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
        .bind(storable(&new.title))
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
