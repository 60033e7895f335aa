//! `/api/v1/ws`: one WebSocket, many subscriptions, the same envelopes as everywhere.
//!
//! Owns the state of one socket: its identity, its subscriptions, whether its peer is alive. It writes to the peer before it fetches more, so
//! nothing piles up for a slow peer: its subscriptions wait at the log.

mod connect;
mod frame;
mod identity;
mod methods;
mod session;
mod subscriptions;

pub(crate) use connect::*;
