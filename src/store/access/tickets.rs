//! Stream tickets: the trait.

use async_trait::async_trait;

use crate::domain::access::ticket::StreamTicket;
use crate::store::StoreResult;
use crate::support::clock::UnixMillis;

/// Tickets, by the hash of what their holders show.
#[async_trait]
pub trait TicketStore: Send + Sync {
    /// Stores a ticket for `lifetime_ms`, by the database's clock. Returns when it expires.
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis>;

    /// Takes the ticket: one of concurrent callers gets it. `None` if it is unknown, taken or expired.
    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>>;

    /// Removes expired tickets. Returns how many.
    async fn remove_expired_tickets(&self) -> StoreResult<u64>;
}
