//! The search for a model server on this machine, for a process without a configured provider.
//!
//! Owns the servers that it asks, and their order. Must not know what happens if none is found: `select_models.rs` then selects the
//! demonstration model.

use std::time::Duration;

use futures_util::future::join_all;

use super::endpoint::{Endpoint, NoModel};
use super::ollama_host::{OLLAMA, OLLAMA_PULL};
use crate::app::config::Environment;
use crate::provider::catalog;

/// Servers on this machine that are found without a setting, in this order.
pub(super) const LOCAL: [&str; 4] = [OLLAMA, "lmstudio", "llamacpp", "vllm"];

const LOCAL_TIMEOUT: Duration = Duration::from_millis(300);

/// Returns the endpoints of the servers in [`LOCAL`].
pub(super) fn local_endpoints(environment: &Environment) -> anyhow::Result<Vec<Endpoint>> {
    let known = catalog::providers()?;
    let endpoints = LOCAL.iter().map(|name| Endpoint::of(name, known.get(*name), None, environment, true));
    Ok(endpoints.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Returns the first server that lists a chat model, and that model. Otherwise returns a text about each server that answers. All are asked
/// at the same time.
pub(super) async fn first_with_model(endpoints: Vec<Endpoint>) -> Result<(Endpoint, String), Vec<String>> {
    let answers = join_all(endpoints.iter().map(|endpoint| endpoint.first_model(LOCAL_TIMEOUT, None))).await;
    let mut without_chat = Vec::new();
    for (mut endpoint, answer) in endpoints.into_iter().zip(answers) {
        match answer {
            Ok(model) => {
                endpoint.rank = Some(u32::MAX);
                return Ok((endpoint, model));
            }
            // Most machines have none of these servers.
            Err(NoModel::Unlisted(_)) => {}
            Err(reason @ (NoModel::Empty | NoModel::Chatless(_))) => {
                let hint = if endpoint.provider == OLLAMA { OLLAMA_PULL } else { "load a chat model there" };
                without_chat.push(format!("{} at {} {reason}: {hint}", endpoint.provider, endpoint.display_url()));
            }
        }
    }
    Err(without_chat)
}
