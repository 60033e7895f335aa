//! Tickets: a browser cannot send a key with an `EventSource` or a WebSocket, so its page asks for one of these first.
//!
//! A ticket opens one thing, once, within a minute, for the page that asked for it. It is the key that opens it: a ticket is
//! worth nothing once its key is not.

use super::keys::{MAX_KEY_BYTES, hash_key, secret};
use super::{Access, Error, Result, Service};
use crate::domain::principal::Principal;
use crate::domain::ticket::{StreamTicket, TicketTarget};
use crate::support::clock::UnixMillis;

/// How long a ticket can be used, in milliseconds.
const LIFETIME_MS: u32 = 60_000;

/// A ticket that was just made. The database holds only its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTicket {
    /// What its holder shows.
    pub ticket: String,
    /// When it is worth nothing any more, by the database's clock.
    pub expires_at: UnixMillis,
}

/// From which web origin a ticket is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownFrom<'a> {
    /// This one.
    Origin(&'a str),
    /// Not said, by a client that says so whenever the page is of another origin: browsers that open an event stream.
    Unsaid,
    /// Not said, by a client that would always say so: browsers that open a WebSocket.
    Nowhere,
}

/// What came of showing a ticket.
#[derive(Debug, Clone)]
pub enum Redeemed {
    /// It was good, and is used up.
    Access(Access),
    /// It was made for a page of another origin, and is used up.
    ForeignOrigin,
    /// It is unknown, used, expired, for something else, or its key is not good any more.
    Refused,
}

impl Service {
    /// Makes a ticket for something of the caller's own, bound to the web origin that asked for it.
    pub async fn make_ticket(&self, access: &Access, target: TicketTarget, origin: Option<String>) -> Result<NewTicket> {
        let principal = access.principal();
        match &target {
            TicketTarget::Run(id) => {
                self.run(principal, id).await?;
            }
            TicketTarget::Conversation(id) => self.check_conversation(principal, id).await?,
            TicketTarget::Socket => {}
        }
        let ticket = secret("ticket_").map_err(Error::NoRandomness)?;
        let owner = principal.user_id.clone();
        let stored = StreamTicket { owner, key_hash: access.key_hash().map(str::to_owned), target, origin };
        let expires_at = self.store.create_ticket(&hash_key(&ticket), &stored, LIFETIME_MS).await?;
        Ok(NewTicket { ticket, expires_at })
    }

    /// Takes a ticket. However it is answered, it is used up, so that nobody can try where it fits. `local` is who calls on a
    /// server without keys.
    pub async fn redeem_ticket(
        &self,
        ticket: &str,
        target: &TicketTarget,
        from: ShownFrom<'_>,
        local: Option<&Principal>,
    ) -> Result<Redeemed> {
        if ticket.is_empty() || ticket.len() > MAX_KEY_BYTES {
            return Ok(Redeemed::Refused);
        }
        let Some(stored) = self.store.take_ticket(&hash_key(ticket)).await? else { return Ok(Redeemed::Refused) };
        if !may_come_from(&stored, from) {
            return Ok(Redeemed::ForeignOrigin);
        }
        if stored.target != *target {
            return Ok(Redeemed::Refused);
        }
        let access = match stored.key_hash {
            Some(hash) => self.access_by_hash(hash).await?,
            None => local.cloned().map(Access::without_key),
        };
        Ok(match access.filter(|access| access.principal().user_id == stored.owner) {
            Some(access) => Redeemed::Access(access),
            None => Redeemed::Refused,
        })
    }
}

fn may_come_from(ticket: &StreamTicket, from: ShownFrom<'_>) -> bool {
    match (&ticket.origin, from) {
        (None, _) | (Some(_), ShownFrom::Unsaid) => true,
        (Some(bound), ShownFrom::Origin(origin)) => bound == origin,
        (Some(_), ShownFrom::Nowhere) => false,
    }
}
