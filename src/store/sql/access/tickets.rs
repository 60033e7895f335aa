//! Tickets for streams: kept as hashes, given out once.
//!
//! Owns the table `stream_tickets`. Must not know what a ticket opens.

use async_trait::async_trait;

use crate::domain::access::ticket::{StreamTicket, TicketTarget};
use crate::domain::ids::UserId;
use crate::store::rows::word;
use crate::store::sql::backend::Backend;
use crate::store::sql::row::the_row;
use crate::store::sql::statement::statements;
use crate::store::sql::value::values;
use crate::store::{StoreResult, TicketStore};
use crate::support::clock::UnixMillis;

statements! {
    INSERT = ["INSERT INTO stream_tickets (hash, owner_id, key_hash, target, origin, expires_at)
         VALUES ($1, $2, $3, $4, $5, ", now, " + $6) RETURNING expires_at"];

    EXISTS = ["SELECT EXISTS (SELECT 1 FROM stream_tickets WHERE hash = $1)"];

    // Of several requests at once, one deletes the row. The others wait for it and find none.
    TAKE = ["DELETE FROM stream_tickets WHERE hash = $1
         RETURNING owner_id, key_hash, target, origin, expires_at > ", now, " AS is_valid"];

    DELETE_EXPIRED = ["DELETE FROM stream_tickets WHERE expires_at <= ", now];
}

#[async_trait]
impl<B: Backend> TicketStore for B {
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        let insert = values![
            hash,
            ticket.owner.as_str(),
            ticket.key_hash.as_deref(),
            ticket.target.as_str(),
            ticket.origin.as_deref(),
            lifetime_ms,
        ];
        let row = the_row(self.database().returning(INSERT, insert).await?)?;
        Ok(UnixMillis(row.only()?))
    }

    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        let Some(row) = self.database().take(EXISTS, TAKE, values![hash]).await? else { return Ok(None) };
        if !row.get::<bool>("is_valid")? {
            return Ok(None);
        }
        Ok(Some(StreamTicket {
            owner: UserId::from_stored(row.get("owner_id")?),
            key_hash: row.get("key_hash")?,
            target: word("stream_tickets", "target", hash, row.get("target")?, TicketTarget::from_word)?,
            origin: row.get("origin")?,
        }))
    }

    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        self.chores().execute(DELETE_EXPIRED, &[]).await
    }
}
