//! Tickets for streams: kept as hashes, given out once.

use async_trait::async_trait;
use sqlx::Row as _;

use super::SqliteStore;
use crate::domain::ids::UserId;
use crate::domain::ticket::{StreamTicket, TicketTarget};
use crate::store::rows::word;
use crate::store::{StoreResult, TicketStore};
use crate::support::clock::UnixMillis;

#[async_trait]
impl TicketStore for SqliteStore {
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let expires_at = sqlx::query_scalar(concat!(
            "INSERT INTO stream_tickets (hash, owner_id, key_hash, target, origin, expires_at)
             VALUES (?, ?, ?, ?, ?, ",
            now!(),
            " + ?) RETURNING expires_at"
        ))
        .bind(hash)
        .bind(ticket.owner.as_str())
        .bind(ticket.key_hash.as_deref())
        .bind(ticket.target.as_str())
        .bind(ticket.origin.as_deref())
        .bind(lifetime_ms)
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(UnixMillis(expires_at))
    }

    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        // Asked of a reader first, so that guesses do not queue for the writer.
        let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM stream_tickets WHERE hash = ?)")
            .bind(hash)
            .fetch_one(self.reader())
            .await?;
        if !exists {
            return Ok(None);
        }
        let (_turn, mut tx) = self.write_in_turn().await?;
        let taken = sqlx::query(concat!(
            "DELETE FROM stream_tickets WHERE hash = ? RETURNING owner_id, key_hash, target, origin, expires_at > ",
            now!(),
            " AS is_valid"
        ))
        .bind(hash)
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        let Some(row) = taken else { return Ok(None) };
        if !row.try_get("is_valid")? {
            return Ok(None);
        }
        Ok(Some(StreamTicket {
            owner: UserId::from_stored(row.try_get("owner_id")?),
            key_hash: row.try_get("key_hash")?,
            target: word("stream_tickets", "target", hash, row.try_get("target")?, TicketTarget::from_word)?,
            origin: row.try_get("origin")?,
        }))
    }

    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let removed = sqlx::query(concat!("DELETE FROM stream_tickets WHERE expires_at <= ", now!()))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(removed)
    }
}
