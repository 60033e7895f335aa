//! The log as use cases write it: under the lock of a conversation's head.
//!
//! Owns how a use case appends events. Must not know what they say; the writes of workers are the log writer's.

use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::domain::event::{NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::rows::encode;
use crate::store::{StoreResult, compose};

statements! {
    // The owner of a conversation changes only when it is deleted, and its head goes at the same moment: it is read without a lock.
    LOCK_HEAD = ["SELECT h.last_seq FROM conversation_heads h JOIN conversations c ON c.id = h.conversation_id
         WHERE h.conversation_id = $1 AND c.owner_id = $2", { postgres: " FOR UPDATE OF h", sqlite: "" }];

    // Postgres moves the head in the same statement.
    APPEND = [{
        postgres: "WITH head AS (
                 UPDATE conversation_heads SET last_seq = $2 + json_array_length($3::json),
                     run_id = CASE WHEN run_id = ANY($4::text[]) THEN NULL ELSE run_id END
                 WHERE conversation_id = $1 RETURNING owner_id
             )
             INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
             SELECT $1, head.owner_id, $2 + e.place, e.value ->> 0, (e.value ->> 1)::bigint, e.value ->> 2, (e.value ->> 3)::bigint,
                 e.value ->> 4
             FROM head, json_array_elements($3::json) WITH ORDINALITY AS e (value, place)",
        sqlite: "INSERT INTO events (conversation_id, owner_id, seq, run_id, attempt, kind, at, data)
             SELECT $1, head.owner_id, $2 + e.key + 1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4
             FROM conversation_heads head, json_each($3) e WHERE head.conversation_id = $1 AND $4 IS NOT NULL"
    }];

    MOVE_HEAD = ["UPDATE conversation_heads SET last_seq = $2, run_id = CASE WHEN run_id ", (in_list "$3"), " THEN NULL ELSE run_id END
         WHERE conversation_id = $1"];
}

impl Transaction {
    /// Locks all that happens to a conversation's runs. Returns the head's `seq`; `None` if the owner has no such conversation.
    pub(super) async fn lock_head(&mut self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<i64>> {
        let row = self.fetch_optional(LOCK_HEAD, values![conversation.as_str(), owner.as_str()]).await?;
        Ok(row.as_ref().map(|row| row.only()).transpose()?)
    }

    /// Appends events to a log whose head is locked and stands at `base`. Runs in `ended` have ended: their claims are fenced.
    pub(super) async fn append(
        &mut self,
        conversation: &ConversationId,
        base: i64,
        events: Vec<NewEvent>,
        ended: &[RunId],
    ) -> StoreResult<Vec<StoredEvent>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let ended = || ended.iter().map(RunId::as_str).collect();
        let rows: Vec<_> =
            events.iter().map(|event| (&event.run_id, event.attempt, event.kind, event.at, event.data.as_str())).collect();
        let rows = encode("events", "data", conversation.as_str(), &rows)?;
        self.execute(APPEND, &[conversation.as_str().into(), base.into(), rows.into(), ended()]).await?;
        match self {
            Self::Postgres(_) => {}
            Self::Sqlite(..) => {
                let head = base + i64::try_from(events.len()).unwrap_or(i64::MAX);
                self.execute(MOVE_HEAD, &[conversation.as_str().into(), head.into(), ended()]).await?;
            }
        }
        Ok(compose::numbered(conversation, base, events))
    }
}
