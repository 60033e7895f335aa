//! What the integration tests share.

pub mod audit;
pub mod database;
pub mod ledger;
pub mod model;
pub mod script;
pub mod server;
pub mod sse;
pub mod wait;
pub mod wire;
pub mod ws;
