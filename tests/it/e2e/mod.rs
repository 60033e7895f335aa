//! The whole server from outside: real processes, real databases, a model and tools at the wire.

mod asking;
mod busy;
mod cancel;
mod crash;
mod crowd;
mod damaged;
mod database;
mod drain;
mod flood;
mod harness;
mod hostile;
mod idempotency;
mod keys;
mod matrix;
mod mcp_servers;
mod nodes;
mod ollama;
mod pressure;
mod readme;
mod replay;
mod resume;
mod retention;
mod revoked;
mod traces;
mod zombie;
