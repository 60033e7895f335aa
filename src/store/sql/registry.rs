//! Lists the statements of every aggregate, for the test that prepares them on both databases.
//!
//! Owns the list of modules. Must not know what any statement does.

use crate::store::sql::access::{audit, grants, keys, sessions, tickets, users};
use crate::store::sql::conversations::{self, append, conversation_rows, feedback, files, fork, list_items, log};
use crate::store::sql::conversations::{questions, retention, rewind, search, shares, summaries, titles};
use crate::store::sql::records::{agents, mcp_logins, mcp_servers, model_limitations, providers, tool_reviews};
use crate::store::sql::runs::{
    self, accept, calls, cancel, load, new_run, reserve_budget, responses, resume, run_rows, step_requests, usage,
};
use crate::store::sql::{Statement, control_signals, idempotency_keys};

/// Pairs the statements of modules with the names of the modules.
macro_rules! of_modules {
    ($($module:ident)+) => {
        [$((stringify!($module), $module::STATEMENTS)),+]
    };
}

/// Returns the statements of each aggregate with the name of its module.
pub fn all_statements() -> Vec<(&'static str, &'static [Statement])> {
    let mut all = of_modules! {
        accept agents append audit calls cancel control_signals conversation_rows conversations responses
        feedback files fork grants idempotency_keys keys list_items load log mcp_logins mcp_servers model_limitations new_run providers
        questions reserve_budget resume retention rewind run_rows runs search sessions shares step_requests summaries tickets titles
        tool_reviews usage users
    }
    .to_vec();
    all.push(("users::owned", users::owned::STATEMENTS));
    all
}
