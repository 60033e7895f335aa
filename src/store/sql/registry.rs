//! Lists the statements of every aggregate, for the test that prepares them on both databases.
//!
//! Owns the list of modules. Must not know what any statement does.

use super::statement::Statement;
use super::{
    accept, agents, audit, budget, calls, cancel, control, conversation_rows, conversations, copy, feedback, files, grants,
    idempotency, input, keys, load, log, mcp_logins, mcp_servers, new_run, providers, resume, retention, rewind, run_rows, runs,
    search, summaries, tickets, titles, tool_reviews, usage, users,
};

/// Returns the statements of each aggregate with the name of its module.
#[must_use]
pub fn statements() -> Vec<(&'static str, &'static [Statement])> {
    vec![
        ("accept", accept::STATEMENTS),
        ("agents", agents::STATEMENTS),
        ("audit", audit::STATEMENTS),
        ("budget", budget::STATEMENTS),
        ("calls", calls::STATEMENTS),
        ("cancel", cancel::STATEMENTS),
        ("control", control::STATEMENTS),
        ("conversation_rows", conversation_rows::STATEMENTS),
        ("conversations", conversations::STATEMENTS),
        ("copy", copy::STATEMENTS),
        ("feedback", feedback::STATEMENTS),
        ("files", files::STATEMENTS),
        ("grants", grants::STATEMENTS),
        ("idempotency", idempotency::STATEMENTS),
        ("input", input::STATEMENTS),
        ("keys", keys::STATEMENTS),
        ("load", load::STATEMENTS),
        ("log", log::STATEMENTS),
        ("mcp_logins", mcp_logins::STATEMENTS),
        ("mcp_servers", mcp_servers::STATEMENTS),
        ("new_run", new_run::STATEMENTS),
        ("providers", providers::STATEMENTS),
        ("resume", resume::STATEMENTS),
        ("retention", retention::STATEMENTS),
        ("rewind", rewind::STATEMENTS),
        ("run_rows", run_rows::STATEMENTS),
        ("runs", runs::STATEMENTS),
        ("search", search::STATEMENTS),
        ("summaries", summaries::STATEMENTS),
        ("tickets", tickets::STATEMENTS),
        ("titles", titles::STATEMENTS),
        ("tool_reviews", tool_reviews::STATEMENTS),
        ("usage", usage::STATEMENTS),
        ("users", users::STATEMENTS),
        ("users::owned", users::owned::STATEMENTS),
    ]
}
