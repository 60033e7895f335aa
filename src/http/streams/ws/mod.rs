//! `/api/v1/ws`: one WebSocket with many subscriptions, and the same envelopes as event streams. Other protocols reuse the socket.
//!
//! Owns the state of one socket: its authentication, its subscriptions, and whether its client is alive. It writes to the client
//! before it reads more events, so nothing accumulates for a slow client. Must not know how a use case works.

mod connect;
mod identity;
mod methods;
mod native;
mod requests;
mod socket;
mod subscriptions;

pub(crate) use connect::*;
pub(in crate::http) use socket::{Close, SocketProtocol};
