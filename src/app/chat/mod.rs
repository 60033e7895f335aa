//! `capstan chat`: a terminal client of a running server.
//!
//! Owns nothing but a cursor. It uses the public API only, as any other client does.

mod args;
mod asking;
mod client;
mod safe_text;
mod screen;
mod typing;

pub use args::ChatArgs;
pub use client::run;
