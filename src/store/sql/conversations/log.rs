//! Appends events of use cases to a conversation's log, and reads the log.
//!
//! Owns the lock of a log's head. Must not know what the events mean. Workers append through [`Backend::commit`].

use async_trait::async_trait;

use crate::domain::event::{EventBody, NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::RunWrite;
use crate::store::rows::{encode, unsigned_count};
use crate::store::runs::created_rows;
use crate::store::sql::{Backend, Row, Transaction, Value, statements, values};
use crate::store::{CommitResults, LogBounds, LogStore, RecordStore, SQL_PAGE_BYTES, StoreResult};
use crate::support::clock::UnixMillis;

/// Selects the events of a log after `$3`, at most `$4`, until their data has `$5` bytes. `page_end` follows.
macro_rules! page_of_log {
    ($dialect:ident) => {
        "SELECT seq, run_id, attempt, kind, at, data FROM (
             SELECT page.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before FROM (
                 SELECT seq, run_id, attempt, kind, at, data FROM events WHERE conversation_id = $1 AND owner_id = $2 AND seq > $3"
    };
}

macro_rules! page_end {
    ($dialect:ident) => {
        " ORDER BY seq LIMIT $4
             ) AS page
         ) AS page WHERE before < $5 ORDER BY seq"
    };
}

statements! {
    // The owner of a conversation changes only at its deletion, which also removes the head. So the owner is read without a lock.
    LOCK_HEAD = ["SELECT h.last_seq FROM conversation_heads h JOIN conversations c ON c.id = h.conversation_id
         WHERE h.conversation_id = $1 AND c.owner_id = $2", { postgres: " FOR UPDATE OF h", sqlite: "" }];

    RAISE_HEAD = ["UPDATE conversation_heads SET last_seq = $2 WHERE conversation_id = $1"];

    APPEND = ["INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
         SELECT h.conversation_id, h.owner_id, CAST(e.value ->> 0 AS bigint), e.value ->> 1, CAST(e.value ->> 2 AS bigint),
             e.value ->> 3, CAST(e.value ->> 4 AS bigint), e.value ->> 5
         FROM conversation_heads h CROSS JOIN ", (elements "$2"), " WHERE h.conversation_id = $1"];

    EVENTS = [page_of_log, page_end];

    OF_KINDS = [page_of_log, " AND run_id = $6 AND kind ", (in_list "$7"), page_end];

    LAST_OF_RUN = ["SELECT seq FROM events WHERE conversation_id = $1 AND owner_id = $2 AND run_id = $3 ORDER BY seq DESC LIMIT 1"];

    BOUNDS = ["SELECT last_seq, (SELECT min(seq) FROM events e WHERE e.conversation_id = h.conversation_id) AS oldest
         FROM conversation_heads h WHERE conversation_id = $1 AND owner_id = $2"];

    HEADS = ["SELECT conversation_id, last_seq FROM conversation_heads WHERE conversation_id ", (in_list "$1"), " AND last_seq > 0"];

    // `$1` is a JSON array of pairs of conversation id and sequence number.
    NEWS = [{
        postgres: "SELECT w.value ->> 0 AS id, e.seq, e.run_id, e.attempt, e.kind, e.at, e.data
             FROM json_array_elements(CAST($1 AS json)) AS w (value) CROSS JOIN LATERAL (
                 SELECT page.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before FROM (
                     SELECT seq, run_id, attempt, kind, at, data FROM events
                     WHERE conversation_id = w.value ->> 0 AND seq > CAST(w.value ->> 1 AS bigint) ORDER BY seq LIMIT $2
                 ) AS page
             ) AS e WHERE e.before < $3 ORDER BY id, e.seq",
        sqlite: "SELECT id, seq, run_id, attempt, kind, at, data FROM (
                 SELECT w.value ->> 0 AS id, e.*, row_number() OVER log AS place,
                     sum(octet_length(e.data)) OVER log - octet_length(e.data) AS before
                 FROM json_each($1) AS w JOIN events e ON e.conversation_id = w.value ->> 0 AND e.seq > w.value ->> 1
                 WINDOW log AS (PARTITION BY e.conversation_id ORDER BY e.seq)
             ) WHERE place <= $2 AND before < $3 ORDER BY id, seq"
    }];
}

impl dyn RecordStore + '_ {
    /// Returns a page of the events of a run that have one of these kinds. The page has the limits of [`LogStore::events`].
    pub async fn run_events_of_kinds(
        &self,
        owner: &UserId,
        (conversation, run): (&ConversationId, &RunId),
        kinds: &[&str],
        after: i64,
        limit: u32,
    ) -> StoreResult<Vec<StoredEvent>> {
        let page = [
            Value::from(conversation.as_str()),
            owner.as_str().into(),
            after.into(),
            limit.clamp(1, 1_000).into(),
            SQL_PAGE_BYTES.into(),
            run.as_str().into(),
            kinds.iter().copied().collect(),
        ];
        self.database().read_all(OF_KINDS, &page, |row| Ok(read_event(row, conversation)?)).await
    }

    /// Returns the `seq` of a run's newest event.
    pub async fn last_run_event(&self, owner: &UserId, (conversation, run): (&ConversationId, &RunId)) -> StoreResult<Option<i64>> {
        let row = self.database().fetch_optional(LAST_OF_RUN, values![conversation.as_str(), owner.as_str(), run.as_str()]).await?;
        Ok(row.map(|row| row.only()).transpose()?)
    }
}

impl Transaction {
    /// Locks the head of a conversation. Returns its newest sequence number; `None` if there is no such conversation.
    ///
    /// The head protects the conversation's runs. The caller reads them with a later statement: this statement may wait for the
    /// lock, and sees other tables as they were before the wait.
    pub async fn lock_head(&mut self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<i64>> {
        let row = self.fetch_optional(LOCK_HEAD, values![conversation.as_str(), owner.as_str()]).await?;
        Ok(row.map(|row| row.only()).transpose()?)
    }

    /// Appends events to the log of a conversation whose head is locked, with `base` as its newest number.
    pub async fn append(
        &mut self,
        conversation: &ConversationId,
        base: i64,
        events: Vec<NewEvent>,
    ) -> StoreResult<Vec<StoredEvent>> {
        let events = created_rows::number_events(conversation, base, events);
        let Some(last) = events.last() else { return Ok(events) };
        let rows: Vec<_> =
            events.iter().map(|event| (event.seq, &event.run_id, event.attempt, &event.kind, event.at, &event.data)).collect();
        let rows = encode("events", "data", conversation.as_str(), &rows)?;
        self.write(RAISE_HEAD, values![conversation.as_str(), last.seq]).await?;
        self.write(APPEND, values![conversation.as_str(), rows]).await?;
        Ok(events)
    }
}

#[async_trait]
impl<B: Backend> LogStore for B {
    async fn ready(&self) -> StoreResult<()> {
        Backend::ready(self).await
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<CommitResults> {
        Backend::commit(self, writes).await
    }

    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        let page = values![conversation.as_str(), owner.as_str(), after, limit.clamp(1, 1_000), SQL_PAGE_BYTES];
        self.database().read_all(EVENTS, page, |row| Ok(read_event(row, conversation)?)).await
    }

    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        let row = self.database().fetch_optional(BOUNDS, values![conversation.as_str(), owner.as_str()]).await?;
        let Some(row) = row else { return Ok(None) };
        let head = row.get("last_seq")?;
        Ok(Some(LogBounds { oldest: row.get::<Option<i64>>("oldest")?.unwrap_or(head + 1), head }))
    }

    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        if conversations.is_empty() {
            return Ok(Vec::new());
        }
        self.maintenance_database()
            .read_all(HEADS, &[conversations.iter().map(ConversationId::as_str).collect()], |row| {
                Ok((ConversationId::from_stored(row.get("conversation_id")?), row.get("last_seq")?))
            })
            .await
    }

    async fn events_after(
        &self,
        after: &[(ConversationId, i64)],
        limit: u32,
    ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        let page = values![serde_json::json!(after).to_string(), limit.clamp(1, 1_000), SQL_PAGE_BYTES];
        let mut news: Vec<(ConversationId, Vec<StoredEvent>)> = Vec::new();
        for row in self.maintenance_database().fetch_all(NEWS, page).await? {
            let id = ConversationId::from_stored(row.get("id")?);
            let event = read_event(&row, &id)?;
            match news.last_mut().filter(|(last, _)| *last == id) {
                Some((_, events)) => events.push(event),
                None => news.push((id, vec![event])),
            }
        }
        Ok(news)
    }
}

fn read_event(row: &Row, conversation: &ConversationId) -> Result<StoredEvent, sqlx::Error> {
    let kind: &str = row.get("kind")?;
    Ok(StoredEvent {
        seq: row.get("seq")?,
        kind: match EventBody::KINDS.iter().find(|known| **known == kind) {
            Some(known) => (*known).into(),
            None => kind.to_owned().into(),
        },
        conversation_id: conversation.clone(),
        run_id: row.get::<Option<String>>("run_id")?.map(RunId::from_stored),
        attempt: unsigned_count(row.get("attempt")?),
        at: UnixMillis(row.get("at")?),
        data: row.get("data")?,
    })
}
