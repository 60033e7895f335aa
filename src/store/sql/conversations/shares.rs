//! Shares of conversations: copies of their messages, found by the hash of a token.
//!
//! Owns the table `conversation_shares`. Must not know what a share shows of a message.

use crate::domain::conversation::shares::{Share, SharedConversation, SharedMessage, Snapshot};
use crate::domain::ids::{ConversationId, ShareId, UserId};
use crate::store::pages::page_by_time;
use crate::store::rows::{decode, encode_storable, unsigned_count};
use crate::store::sql::conversations::conversation_rows::find;
use crate::store::sql::conversations::{MESSAGES, messages_page};
use crate::store::sql::{Row, Transaction, if_fresh, refuse, statements, values};
use crate::store::{
    IdempotencyKey, IdempotentResult, NewShare, Page, PageRequest, RecordStore, SQL_PAGE_BYTES, ShareCursor, ShareOutcome,
    StoreResult,
};
use crate::support::clock::UnixMillis;

/// Number of messages in one read.
const MESSAGES_AT_ONCE: u32 = 100;

statements! {
    COUNT = ["SELECT count(*) FROM conversation_shares WHERE conversation_id = $1 AND expires_at > ", now];

    INSERT = ["INSERT INTO conversation_shares
             (id, owner_id, conversation_id, hash, title, messages, message_count, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, ", now, ", ", now, " + $8) RETURNING created_at, expires_at"];

    LIST = ["SELECT id, conversation_id, title, message_count, created_at, expires_at FROM conversation_shares
         WHERE conversation_id = $1 AND owner_id = $2 AND expires_at > ", now, " ORDER BY created_at DESC, id DESC"];

    // A conversation that is being deleted has no owner, although its shares still do.
    PAGE = ["SELECT s.id, s.conversation_id, s.title, s.message_count, s.created_at, s.expires_at
         FROM conversation_shares s JOIN conversations c ON c.id = s.conversation_id AND c.owner_id = s.owner_id
         WHERE s.owner_id = $1 AND (s.created_at, s.id) < ($2, $3) AND s.expires_at > ", now, "
         ORDER BY s.created_at DESC, s.id DESC LIMIT $4"];

    BY_HASH = ["SELECT s.id, s.title, s.messages, s.created_at, s.expires_at
         FROM conversation_shares s JOIN conversations c ON c.id = s.conversation_id AND c.owner_id = s.owner_id
         WHERE s.hash = $1 AND s.expires_at > ", now];

    DELETE = ["DELETE FROM conversation_shares WHERE id = $1 AND conversation_id = $2 AND owner_id = $3"];

    DELETE_EXPIRED = ["DELETE FROM conversation_shares WHERE expires_at <= ", now];
}

impl dyn RecordStore + '_ {
    /// Stores a copy of a conversation's messages for `lifetime_ms`, by the database's clock.
    pub async fn create_share(&self, new: NewShare, idempotency: Option<IdempotencyKey>) -> IdempotentResult<ShareOutcome> {
        let (database, key) = (self.database(), idempotency.as_ref());
        let is_stored = |outcome: &_| matches!(outcome, ShareOutcome::Shared(_));
        database.once(key, || database.transaction(async |tx| create_in(tx, &new, key).await, if_fresh(is_stored))).await
    }

    /// Returns the shares of a conversation that have not expired, newest first.
    pub async fn shares(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Vec<Share>> {
        self.database().read_all(LIST, values![conversation.as_str(), owner.as_str()], read_share).await
    }

    /// Returns a page of an owner's shares in all conversations that have not expired, newest first.
    pub async fn shares_page(&self, owner: &UserId, page: &PageRequest<ShareCursor>) -> StoreResult<Page<Share>> {
        let limit = page.limit.clamp(1, 100);
        let (at, id) = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let read = |row: &Row| read_share(row).map(|share| (share.created_at.0, share));
        let shares = self.database().read_all(PAGE, values![owner.as_str(), at, id, limit + 1], read).await?;
        Ok(page_by_time(shares, limit, |share| &share.id))
    }

    /// Returns the title and messages of the share whose token has this hash; `None` if it is unknown, revoked or expired.
    pub async fn shared_conversation(&self, hash: &str) -> StoreResult<Option<SharedConversation>> {
        self.database().read_optional(BY_HASH, values![hash], read_shared).await
    }

    /// Deletes a share. Returns false if there is none.
    pub async fn delete_share(&self, owner: &UserId, conversation: &ConversationId, id: &ShareId) -> StoreResult<bool> {
        Ok(self.database().execute(DELETE, values![id.as_str(), conversation.as_str(), owner.as_str()]).await? > 0)
    }

    /// Removes expired shares. Returns their number.
    pub async fn remove_expired_shares(&self) -> StoreResult<u64> {
        self.maintenance_database().execute(DELETE_EXPIRED, &[]).await
    }
}

async fn create_in(tx: &mut Transaction, new: &NewShare, key: Option<&IdempotencyKey>) -> IdempotentResult<ShareOutcome> {
    let (owner, id) = (new.owner.as_str(), new.conversation_id.as_str());
    // The lock prevents changes, deletion and other shares of the conversation until the commit.
    let is_locked = tx.lock_head(&new.owner, &new.conversation_id).await?.is_some();
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let conversation = if is_locked { find(tx, &new.owner, &new.conversation_id).await? } else { None };
    let Some(conversation) = conversation else { return refuse(ShareOutcome::NoConversation) };
    if tx.fetch_one(COUNT, values![id]).await?.only::<i64>()? >= i64::from(new.limits.per_conversation) {
        return refuse(ShareOutcome::TooMany);
    }
    let Some(messages) = snapshot(tx, new).await? else { return refuse(ShareOutcome::TooLarge) };
    let message_count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
    let json = encode_storable("conversation_shares", "messages", new.id.as_str(), &messages)?;
    if json.len() > new.limits.bytes {
        return refuse(ShareOutcome::TooLarge);
    }
    let (title, lifetime_ms) = (&conversation.title, new.lifetime_ms);
    let row = tx.fetch_one(INSERT, values![new.id.as_str(), owner, id, &new.hash, title, json, message_count, lifetime_ms]).await?;
    let share = Share {
        id: new.id.clone(),
        conversation_id: new.conversation_id.clone(),
        title: conversation.title,
        message_count,
        created_at: UnixMillis(row.get("created_at")?),
        expires_at: UnixMillis(row.get("expires_at")?),
    };
    tx.record(key, ShareOutcome::Shared(share)).await
}

/// Reads the messages of a share. `None` if more than `read_bytes` would be read.
async fn snapshot(tx: &mut Transaction, new: &NewShare) -> StoreResult<Option<Vec<SharedMessage>>> {
    let mut snapshot = Snapshot::default();
    let (mut after, mut read_bytes) = (0_i64, 0);
    loop {
        let values = values![new.conversation_id.as_str(), new.owner.as_str(), after, MESSAGES_AT_ONCE + 1, SQL_PAGE_BYTES];
        let rows = tx.fetch_all(MESSAGES, values).await?;
        for row in &rows {
            read_bytes += row.get::<Option<&str>>("body")?.map_or(0, str::len);
        }
        let (messages, next) = messages_page(rows, MESSAGES_AT_ONCE)?.ok_or(sqlx::Error::RowNotFound)?;
        for message in messages {
            snapshot.add(message);
        }
        match next {
            // The limit keeps the transaction short, because other writers wait for it.
            _ if read_bytes > new.limits.read_bytes => return Ok(None),
            Some(position) => after = position,
            None => return Ok(Some(snapshot.into_messages())),
        }
    }
}

fn read_share(row: &Row) -> StoreResult<Share> {
    Ok(Share {
        id: ShareId::from_stored(row.get("id")?),
        conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
        title: row.get("title")?,
        message_count: unsigned_count(row.get("message_count")?),
        created_at: UnixMillis(row.get("created_at")?),
        expires_at: UnixMillis(row.get("expires_at")?),
    })
}

fn read_shared(row: &Row) -> StoreResult<SharedConversation> {
    let id: &str = row.get("id")?;
    Ok(SharedConversation {
        title: row.get("title")?,
        created_at: UnixMillis(row.get("created_at")?).to_rfc3339(),
        expires_at: UnixMillis(row.get("expires_at")?).to_rfc3339(),
        messages: decode("conversation_shares", "messages", id, row.get("messages")?)?,
    })
}
