//! Stream tickets: stored as hashes, and used once.
//!
//! Owns the table `stream_tickets`. Must not know what a ticket allows.

use crate::domain::access::ticket::{StreamTicket, TicketTarget};
use crate::domain::ids::UserId;
use crate::store::rows::parse_word;
use crate::store::sql::{statements, the_row, values};
use crate::store::{RecordStore, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    INSERT = ["INSERT INTO stream_tickets (hash, owner_id, key_hash, session_hash, target, origin, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, ", now, " + $7) RETURNING expires_at"];

    EXISTS = ["SELECT EXISTS (SELECT 1 FROM stream_tickets WHERE hash = $1)"];

    // Of several concurrent requests, one deletes the row. The others wait for it and find none.
    TAKE = ["DELETE FROM stream_tickets WHERE hash = $1
         RETURNING owner_id, key_hash, session_hash, target, origin, expires_at > ", now, " AS is_valid"];

    DELETE_EXPIRED = ["DELETE FROM stream_tickets WHERE expires_at <= ", now];
}

/// Tickets, identified by the hash of their secret.
impl dyn RecordStore + '_ {
    /// Stores a ticket for `lifetime_ms`, by the database's clock. Returns when it expires.
    pub async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        let insert = values![
            hash,
            ticket.owner.as_str(),
            ticket.key_hash.as_deref(),
            ticket.session_hash.as_deref(),
            ticket.target.as_str(),
            ticket.origin.as_deref(),
            lifetime_ms,
        ];
        let row = the_row(self.database().returning(INSERT, insert).await?)?;
        Ok(UnixMillis(row.only()?))
    }

    /// Consumes the ticket: only one of several concurrent callers receives it. `None` if it is unknown, consumed or expired.
    pub async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        let Some(row) = self.database().take(EXISTS, TAKE, values![hash]).await? else { return Ok(None) };
        if !row.get::<bool>("is_valid")? {
            return Ok(None);
        }
        Ok(Some(StreamTicket {
            owner: UserId::from_stored(row.get("owner_id")?),
            key_hash: row.get("key_hash")?,
            session_hash: row.get("session_hash")?,
            target: parse_word("stream_tickets", "target", hash, row.get("target")?, TicketTarget::from_name)?,
            origin: row.get("origin")?,
        }))
    }

    /// Removes expired tickets. Returns their number.
    pub async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        self.maintenance_database().execute(DELETE_EXPIRED, &[]).await
    }
}
