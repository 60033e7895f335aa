//! HTTP clients, and the egress policy for their destinations. Must not know users or settings.

pub mod egress;
pub mod egress_allowlist;
pub mod http;
pub mod origin;
