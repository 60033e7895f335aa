//! The composition root: configuration, command line, telemetry and the life of the process.
//!
//! Owns the settings, the runtime and the order in which the parts start and stop. The only module that knows every other
//! one; none of them knows it.

mod chat;
mod cli;
mod commands;
pub mod config;
mod models;
mod process;
mod wiring;

pub use cli::main;
