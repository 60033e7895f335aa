//! Shared parts of the integration tests.

use std::io::Write as _;

use capstan::domain::trace::TraceId;
use capstan::service::{Content, StartRun};
use capstan::support::ids::IdSource;

pub mod asker;
pub mod audit;
pub mod browser;
pub mod chance;
pub mod client;
pub mod cluster;
pub mod database;
pub mod desktop;
pub mod dialects;
pub mod documents;
pub mod ledger;
pub mod link;
pub mod mcp;
pub mod measure;
pub mod model;
pub mod model_store;
pub mod oauth;
pub mod pooler;
pub mod refusing;
pub mod repository;
pub mod script;
pub mod server;
pub mod sse;
mod template;
pub mod vectors;
pub mod wait;
pub mod wire;
pub mod ws;

/// Returns a request for a run that answers a text in a new conversation.
pub fn text_request(text: &str, ids: &dyn IdSource) -> StartRun {
    StartRun { create: true, ..StartRun::new(Content::Text(text.to_owned()), "input", TraceId::generate(ids)) }
}

/// Shows a figure to those who run the tests with `--no-capture`.
pub fn print_figure(figure: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{figure}");
}

/// A setting of the tests themselves.
pub fn setting(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "settings of the tests come from their caller")]
    let value = std::env::var(name);
    value.ok()
}
