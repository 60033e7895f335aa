//! The composition root: configuration, command line, telemetry and the life of the process.
//!
//! Owns the settings, the runtime, and the order in which the parts start and stop. It is the only module that knows all others,
//! and none of them knows it.

mod chat;
mod cli;
mod commands;
pub mod config;
mod models;
mod process;
mod wiring;

pub use cli::main;
