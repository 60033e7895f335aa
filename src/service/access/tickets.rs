//! Tickets. A browser cannot set the `Authorization` header of an `EventSource` or a WebSocket, so its page requests a ticket.
//!
//! A ticket opens one stream or socket, once, within a minute, for the page that requested it. It becomes invalid together with its
//! key and its session.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::access::principal::Principal;
use crate::domain::access::ticket::{StreamTicket, TicketTarget};
use crate::service::access::keys::{MAX_KEY_BYTES, hash_key, secret};
use crate::service::{Access, Error, Result, Service};

const LIFETIME_MS: u32 = 60_000;

/// A ticket for an event stream or a WebSocket.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamTicket)]
pub struct NewTicket {
    /// The ticket, for the URL parameter `ticket`.
    ticket: String,
    /// When the ticket expires, RFC 3339.
    expires_at: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketOrigin<'a> {
    Origin(&'a str),
    /// No `Origin` header, from a client that sends it for cross-origin requests only: browsers that open an event stream.
    MissingFromStream,
    /// No `Origin` header, from a client that always sends it: browsers that open a WebSocket.
    MissingFromSocket,
}

/// The outcome of using a ticket. The ticket is consumed in any case.
#[derive(Debug, Clone)]
pub enum TicketOutcome {
    Access(Access),
    /// The ticket is for a page of another origin.
    ForeignOrigin,
    /// The ticket is unknown, used, expired, for another resource, or its key or session is no longer valid.
    Refused,
}

impl Service {
    /// Creates a ticket for a resource of the caller, bound to the web origin of the request.
    pub async fn make_ticket(&self, access: &Access, target: TicketTarget, origin: Option<String>) -> Result<NewTicket> {
        let principal = access.principal();
        match &target {
            TicketTarget::Run(id) => drop(self.run_view(principal, id).await?),
            TicketTarget::Conversation(id) => drop(self.conversation(principal, id).await?),
            TicketTarget::Socket => {}
        }
        let ticket = secret("ticket_").map_err(Error::NoRandomness)?;
        let (key_hash, session_hash) = (access.key_hash().map(str::to_owned), access.session_hash().map(str::to_owned));
        let stored = StreamTicket { owner: principal.user_id.clone(), key_hash, session_hash, target, origin };
        let expires_at = self.store.create_ticket(&hash_key(&ticket), &stored, LIFETIME_MS).await?;
        Ok(NewTicket { ticket, expires_at: expires_at.to_rfc3339() })
    }

    /// Redeems a ticket. It is consumed in any case, so that an attacker cannot try several resources. `local` is the principal of
    /// a server without keys.
    pub async fn redeem_ticket(
        &self,
        ticket: &str,
        target: &TicketTarget,
        from: TicketOrigin<'_>,
        local: Option<&Principal>,
    ) -> Result<TicketOutcome> {
        if ticket.is_empty() || ticket.len() > MAX_KEY_BYTES {
            return Ok(TicketOutcome::Refused);
        }
        let Some(stored) = self.store.take_ticket(&hash_key(ticket)).await? else { return Ok(TicketOutcome::Refused) };
        if !may_come_from(&stored, from) {
            return Ok(TicketOutcome::ForeignOrigin);
        }
        if stored.target != *target {
            return Ok(TicketOutcome::Refused);
        }
        let access = match (stored.session_hash, stored.key_hash) {
            (Some(session), _) => self.access_by_session(session).await?,
            (None, Some(key)) => self.access_by_hash(key).await?,
            (None, None) => local.cloned().map(Access::without_key),
        };
        Ok(match access.filter(|access| access.principal().user_id == stored.owner) {
            Some(access) => TicketOutcome::Access(access),
            None => TicketOutcome::Refused,
        })
    }
}

fn may_come_from(ticket: &StreamTicket, from: TicketOrigin<'_>) -> bool {
    match (&ticket.origin, from) {
        (None, _) | (Some(_), TicketOrigin::MissingFromStream) => true,
        (Some(bound), TicketOrigin::Origin(origin)) => bound == origin,
        (Some(_), TicketOrigin::MissingFromSocket) => false,
    }
}
