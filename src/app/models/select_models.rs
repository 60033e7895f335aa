//! Selects the models of this process at its start: those of configured providers, of a local server, or else the demonstration model.
//!
//! Owns the choice of the default model. Must not know stored providers.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;

use super::endpoint::Endpoint;
use super::first_model_finder::{FirstModelFinder, LIST_TIMEOUT};
use super::limitations::StoredLimitations;
use super::local_servers::{first_with_model, local_endpoints};
use super::ollama_host::{OLLAMA, OLLAMA_PULL, ollama_url};
use super::{DefaultModel, Models};
use crate::app::config::{Environment, Loaded};
use crate::provider::demo::DemoClient;
use crate::provider::{ModelClient, Router, catalog};

/// Selects the models of the settings and the environment. Looks for a local server if no provider and no model is configured, and selects
/// the demonstration model if there is none.
///
/// [`unserved_default`](super::unserved_default) and [`check_served`](super::check_served) check the result.
pub async fn select_models(loaded: &Loaded, environment: &Environment) -> anyhow::Result<Models> {
    let requested = loaded.sources.contains_key("agent.model").then(|| loaded.config.agent.model.clone());
    let agent = &loaded.config.agent;
    let planning = agent.plan.planner.iter().chain(&agent.plan.router);
    let optional = agent.fallbacks.iter().chain(&agent.title_model);
    let named: Vec<&str> = requested.iter().chain(optional).chain(planning).map(String::as_str).collect();
    let embedding: Vec<&str> = loaded.config.embeddings.model.iter().map(String::as_str).collect();
    let mut endpoints = endpoints(loaded, environment, &named, &embedding)?;
    let mut warnings = Vec::new();

    let mut found_model = None;
    if requested.is_none() && endpoints.iter().all(|endpoint| endpoint.rank.is_none()) {
        match first_with_model(local_endpoints(environment)?).await {
            Ok((endpoint, model)) => {
                found_model = Some(model);
                endpoints.push(endpoint);
            }
            Err(without_chat) => warnings.extend(without_chat),
        }
    }

    let limitations = StoredLimitations::default();
    endpoints.iter_mut().for_each(|endpoint| endpoint.remember_in(&limitations));
    let mut router = Router::default().with("demo", Arc::new(DemoClient));
    let mut clients = Vec::new();
    for endpoint in &endpoints {
        let client = endpoint.client(loaded.config.breaker.limits())?;
        clients.push(Arc::clone(&client));
        router = router.with(&endpoint.provider, client);
    }

    let ranked = endpoints.iter().zip(clients).filter(|(endpoint, _)| endpoint.rank.is_some());
    let first = ranked.min_by_key(|(endpoint, _)| endpoint.rank);
    let is_demonstration = first.is_none() && requested.is_none();
    let default_model = match (requested, first) {
        (Some(model), _) => DefaultModel::Known(model),
        (None, Some((endpoint, client))) => default_model_of(endpoint, client, found_model, &mut warnings).await?,
        (None, None) => DefaultModel::Known("demo/demo".to_owned()),
    };
    Ok(Models { router: Arc::new(router), default_model, endpoints, is_demonstration, warnings, limitations })
}

/// Returns the endpoints of all configured providers, by name. A provider that needs no key counts as configured if one of its
/// models is `named`.
fn endpoints(loaded: &Loaded, environment: &Environment, named: &[&str], embedding: &[&str]) -> anyhow::Result<Vec<Endpoint>> {
    let configured = &loaded.config.providers;
    let known = catalog::providers()?;
    let mut found = BTreeMap::new();
    for (name, provider) in known.iter().filter(|(_, provider)| provider.shares_endpoint_with.is_none()) {
        let mut config = configured.get(name).cloned();
        if name == OLLAMA
            && config.as_ref().is_none_or(|config| config.base_url.is_none())
            && let Some(host) = environment.get("OLLAMA_HOST")
        {
            config.get_or_insert_default().base_url = Some(ollama_url(host).into());
        }
        let is_named =
            |models: &[&str]| models.iter().filter_map(|model| model.split_once('/')).any(|(provider, _)| provider == name);
        let (is_wanted, is_embedder) = (is_named(named), is_named(embedding));
        let mut endpoint = Endpoint::of(name, Some(provider), config.as_ref(), environment, is_wanted)?;
        if endpoint.is_none() && is_embedder {
            // A provider that is used for embeddings only does not provide the default model.
            endpoint = Endpoint::of(name, Some(provider), config.as_ref(), environment, true)?;
            endpoint.iter_mut().for_each(|endpoint| endpoint.rank = None);
        }
        if let Some(endpoint) = endpoint {
            found.insert(name.clone(), endpoint);
        }
    }
    for (name, provider) in known {
        if let Some(other) = provider.shares_endpoint_with.as_ref().and_then(|other| found.get(other)) {
            let shared = other.shared_as(name, provider);
            found.insert(name.clone(), shared);
        }
    }
    for (name, config) in configured.iter().filter(|(name, _)| !known.contains_key(*name)) {
        if let Some(endpoint) = Endpoint::of(name, None, Some(config), environment, true)? {
            found.insert(name.clone(), endpoint);
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the default model of an endpoint. `found` is the model that a local server has listed.
async fn default_model_of(
    endpoint: &Endpoint,
    client: Arc<dyn ModelClient>,
    found: Option<String>,
    warnings: &mut Vec<String>,
) -> anyhow::Result<DefaultModel> {
    if let Some(model) = &endpoint.default_model {
        return Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)));
    }
    let first = match found {
        Some(model) => Ok(model),
        None => endpoint.first_model(LIST_TIMEOUT, None).await,
    };
    let url = endpoint.display_url();
    let reason = match first {
        Ok(model) => {
            return Ok(DefaultModel::FirstListed(Arc::new(FirstModelFinder::new(endpoint.clone(), client, Some(model)))));
        }
        Err(reason) => reason,
    };
    // Ollama may just be starting, or its first model may be pulled later.
    if endpoint.provider == OLLAMA {
        warnings.push(format!(
            "{url} {reason}; runs without a model are refused until it lists one: {OLLAMA_PULL}, or set CAPSTAN_MODEL"
        ));
        return Ok(DefaultModel::FirstListed(Arc::new(FirstModelFinder::new(endpoint.clone(), client, None))));
    }
    let known = catalog::providers()?.get(&endpoint.provider).and_then(|known| known.default_model.clone());
    let Some(model) = known else {
        bail!("{url} {reason}; set CAPSTAN_MODEL={}/NAME", endpoint.provider);
    };
    warnings.push(format!("{url} {reason}; {model} is used unless CAPSTAN_MODEL is set"));
    Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)))
}
