//! Lists the statements of every aggregate, for the test that prepares them on both databases.
//!
//! Owns the list of modules. Must not know what any statement does.

use crate::store::sql::access::audit;
use crate::store::sql::access::grants;
use crate::store::sql::access::keys;
use crate::store::sql::access::tickets;
use crate::store::sql::access::users;
use crate::store::sql::conversations::conversation_rows;
use crate::store::sql::conversations::copy;
use crate::store::sql::conversations::feedback;
use crate::store::sql::conversations::files;
use crate::store::sql::conversations::input;
use crate::store::sql::conversations::log;
use crate::store::sql::conversations::retention;
use crate::store::sql::conversations::rewind;
use crate::store::sql::conversations::search;
use crate::store::sql::conversations::summaries;
use crate::store::sql::conversations::titles;
use crate::store::sql::records::agents;
use crate::store::sql::records::mcp_logins;
use crate::store::sql::records::mcp_servers;
use crate::store::sql::records::providers;
use crate::store::sql::records::tool_reviews;
use crate::store::sql::runs::accept;
use crate::store::sql::runs::budget;
use crate::store::sql::runs::calls;
use crate::store::sql::runs::cancel;
use crate::store::sql::runs::load;
use crate::store::sql::runs::new_run;
use crate::store::sql::runs::resume;
use crate::store::sql::runs::run_rows;
use crate::store::sql::runs::usage;
use crate::store::sql::statement::Statement;
use crate::store::sql::{control, conversations, idempotency, runs};

/// Returns the statements of each aggregate with the name of its module.
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
