//! `capstan chat`: a terminal client of a running server.
//!
//! Owns nothing but a cursor. It uses the public API only, as any other client does.

mod asking;
mod client;
mod screen;
mod typing;

pub use client::run;
