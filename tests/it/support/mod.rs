//! Shared parts of the integration tests.

use std::io::Write as _;

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
pub mod measure;
pub mod model;
pub mod oauth;
pub mod script;
pub mod server;
pub mod sse;
pub mod vectors;
pub mod wait;
pub mod wire;
pub mod ws;

/// Shows a figure to those who run the tests with `--no-capture`.
pub fn tell(figure: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{figure}");
}

/// A setting of the tests themselves.
pub fn setting(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "settings of the tests come from their caller")]
    let value = std::env::var(name);
    value.ok()
}
