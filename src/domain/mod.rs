//! The words of Capstan as plain values: conversations, messages, runs, tool calls, events, agents, errors.
//!
//! Owns no state and does no I/O. Must not know how anything is stored, sent or executed.

pub mod admission;
pub mod agent;
pub mod agent_bounds;
pub mod agent_record;
pub mod approval;
pub mod audit;
pub mod budget;
pub mod call_record;
pub mod change;
pub mod context;
pub mod conversation;
pub mod cost;
pub mod event;
pub mod feedback;
pub mod file;
pub mod fold;
pub mod form;
pub mod handle;
pub mod ids;
pub mod input;
pub mod mcp_server;
pub mod message;
pub mod model;
pub mod pin;
pub mod plan;
pub mod preset;
pub mod preview;
pub mod principal;
pub mod problem;
pub mod prompt;
pub mod provider;
pub mod record;
pub mod response_analysis;
pub mod run;
pub mod sampling;
pub mod search;
pub mod status_words;
pub mod summary;
pub mod ticket;
pub mod tool;
pub mod tool_filter;
pub mod trace;
pub mod undo;
pub mod usage;
