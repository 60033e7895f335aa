//! The composition root: configuration, command line, telemetry and the life of the process.
//!
//! Owns the settings, the runtime and the order in which the parts start and stop. The only module that knows every other
//! one; none of them knows it.

mod chat;
mod cleanup;
mod cli;
mod clients;
pub mod config;
mod doctor;
mod healthcheck;
mod keys;
mod lifecycle;
mod listen;
mod log;
mod migrate;
mod models;
mod notify;
mod output;
mod parts;
mod reading;
mod records;
mod secrets;
mod serve;
mod servers;
mod telemetry;
mod upkeep;
mod users;
mod watchdog;

pub use cli::main;
