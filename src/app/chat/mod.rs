//! `capstan chat`: a terminal client of a running server.
//!
//! Owns nothing but a cursor. It uses the public API only, as any other client does.

mod client;
mod screen;

pub use client::run;
