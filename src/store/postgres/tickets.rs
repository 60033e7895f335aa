//! Tickets for streams: kept as hashes, given out once.

use async_trait::async_trait;
use sqlx::Row as _;

use super::PostgresStore;
use crate::domain::ids::UserId;
use crate::domain::ticket::{StreamTicket, TicketTarget};
use crate::store::{StoreResult, TicketStore, rows};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

#[async_trait]
impl TicketStore for PostgresStore {
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        let expires_at = sqlx::query_scalar(
            "INSERT INTO stream_tickets (hash, owner_id, key_hash, target, origin, expires_at)
             VALUES ($1, $2, $3, $4, $5, now_ms() + $6) RETURNING expires_at",
        )
        .bind(hash)
        .bind(ticket.owner.as_str())
        .bind(ticket.key_hash.as_deref())
        .bind(ticket.target.as_str())
        .bind(ticket.origin.as_deref().map(storable))
        .bind(i64::from(lifetime_ms))
        .fetch_one(&self.api)
        .await?;
        Ok(UnixMillis(expires_at))
    }

    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        // Of several that ask at once, one deletes the row; the others wait for it and find none.
        let taken = sqlx::query(
            "DELETE FROM stream_tickets WHERE hash = $1
             RETURNING owner_id, key_hash, target, origin, expires_at > now_ms() AS is_valid",
        )
        .bind(hash)
        .fetch_optional(&self.api)
        .await?;
        let Some(row) = taken else { return Ok(None) };
        if !row.try_get("is_valid")? {
            return Ok(None);
        }
        let target: String = row.try_get("target")?;
        Ok(Some(StreamTicket {
            owner: UserId::from_stored(row.try_get("owner_id")?),
            key_hash: row.try_get("key_hash")?,
            target: rows::word("stream_tickets", "target", hash, &target, TicketTarget::from_word)?,
            origin: row.try_get("origin")?,
        }))
    }

    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        let removed = sqlx::query("DELETE FROM stream_tickets WHERE expires_at <= (SELECT now_ms())").execute(&self.chores).await?;
        Ok(removed.rows_affected())
    }
}
