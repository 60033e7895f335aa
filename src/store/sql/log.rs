//! Events that a use case appends to the log of a conversation.
//!
//! Owns the lock under which it does. Must not know what the events say: workers write the rest of the log by `LogStore`.

use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::domain::event::{NewEvent, StoredEvent};
use crate::domain::ids::{ConversationId, UserId};
use crate::store::{StoreResult, compose, postgres, sqlite};

statements! {
    // The owner of a conversation changes only when it is deleted, and its head goes in the same moment: it may be read without a lock.
    LOCK_HEAD = ["SELECT h.last_seq FROM conversation_heads h JOIN conversations c ON c.id = h.conversation_id
         WHERE h.conversation_id = $1 AND c.owner_id = $2", { postgres: " FOR UPDATE OF h", sqlite: "" }];
}

impl Transaction {
    /// Locks the head of a conversation. Returns its newest sequence number; `None` if there is no such conversation.
    pub async fn lock_head(&mut self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<i64>> {
        let row = self.fetch_optional(LOCK_HEAD, values![conversation.as_str(), owner.as_str()]).await?;
        Ok(row.map(|row| row.only()).transpose()?)
    }

    /// Appends events to the log of a conversation, whose head is locked and stood at `base`. They end no run.
    pub async fn append(
        &mut self,
        conversation: &ConversationId,
        base: i64,
        events: Vec<NewEvent>,
    ) -> StoreResult<Vec<StoredEvent>> {
        match self {
            Self::Postgres(tx) => {
                tx.work(async |connection| postgres::conversations::append(connection, conversation, base, &events, &[]).await)
                    .await?;
                Ok(compose::numbered(conversation, base, events))
            }
            Self::Sqlite(tx, _) => sqlite::log::append(tx, conversation, events).await,
        }
    }
}
