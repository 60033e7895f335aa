//! The vocabulary of Capstan as plain values: conversations, messages, runs, tool calls, events, agents, errors.
//!
//! Owns no state and does no I/O. Must not know how anything is stored, sent or executed.

pub mod access;
pub mod agent;
pub mod conversation;
mod defaults;
pub(crate) mod enum_names;
pub mod event;
pub mod frame_limit;
pub mod ids;
mod invalid;
pub mod model;
pub mod problem;
pub mod run;
pub mod setting;
pub mod tool;
pub mod trace;
