//! HTTP clients and the rules for where they may connect to.

pub mod allowed;
pub mod http;
pub mod origin;
pub mod outbound;
