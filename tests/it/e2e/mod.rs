//! The whole server from outside: real processes, real databases, a model and tools at the wire.

mod harness;
