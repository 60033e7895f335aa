//! `capstan chat`: a terminal client of a running server.
//!
//! Owns only a cursor. It uses the public API, like any other client. Must not know the service, the store or the worker.

mod args;
mod client;
mod questions;
mod safe_text;
mod screen;
mod terminal_input;

pub use args::ChatArgs;
pub use client::run;
