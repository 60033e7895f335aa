//! `capstan serve`: puts the parts together and keeps them running.

use std::process::ExitCode;

use anyhow::bail;

use super::config::{Environment, Loaded};

/// Serves until told to stop.
pub async fn run(_loaded: Loaded, _environment: &Environment) -> anyhow::Result<ExitCode> {
    bail!("the parts are not put together yet")
}
