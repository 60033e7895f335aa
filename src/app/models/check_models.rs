//! Checks that the configured models are served: by a configured provider, or by a provider record of the server.
//!
//! Owns the hints about missing providers. Must not know how the models were selected.

use anyhow::{Context as _, bail};

use super::{DefaultModel, Models, provider_of};
use crate::domain::ids::UserId;
use crate::provider::{Router, catalog};
use crate::store::Store;

/// Returns an error text if no provider serves the default model: neither a configured one, nor a record of the server. A record may
/// follow after the start.
pub async fn unserved_default(models: &Models, store: &dyn Store) -> anyhow::Result<Option<String>> {
    match &models.default_model {
        DefaultModel::Known(model) if !is_served(model, models, store).await? => Ok(Some(format!(
            "{}, store a provider of that name (on the chat page, or POST /api/v1/providers), or set another model with \
             CAPSTAN_MODEL; until then, no run without a model is answered",
            not_served_text(model, &models.router)?
        ))),
        DefaultModel::Known(_) | DefaultModel::FirstListed(_) => Ok(None),
    }
}

async fn is_served(model: &str, models: &Models, store: &dyn Store) -> anyhow::Result<bool> {
    if models.router.has_provider(model) {
        return Ok(true);
    }
    // Records of users do not count: this user does not exist and has none.
    let no_user = UserId::from_stored(String::new());
    Ok(store.provider_named(&no_user, provider_of(model)).await.context("the providers in the database cannot be read")?.is_some())
}

/// Refuses fallbacks and title models that no provider serves. Otherwise a fallback would fail during the outage that it is for,
/// and missing titles would never be reported. Configured providers and records of the server count; records of users do not.
pub async fn check_served(setting: &str, requested: &[String], models: &Models, store: &dyn Store) -> anyhow::Result<()> {
    for model in requested {
        if !is_served(model, models, store).await? {
            bail!("{setting}: {}, or remove it", not_served_text(model, &models.router)?);
        }
    }
    Ok(())
}

/// Returns an error text that explains how to configure the provider of a model.
fn not_served_text(model: &str, router: &Router) -> anyhow::Result<String> {
    Ok(format!(
        "no configured provider and no provider record of the server serves the model {model:?} (configured: {}); {}",
        router.providers().join(", "),
        configuration_hint(provider_of(model))?
    ))
}

/// Returns what configures a provider: its variables, or a section of the settings if the catalogue does not know it.
pub(super) fn configuration_hint(name: &str) -> anyhow::Result<String> {
    let known = catalog::providers()?;
    let provider = known
        .get(name)
        .and_then(|provider| provider.shares_endpoint_with.as_ref().map_or(Some(provider), |other| known.get(other)));
    Ok(match provider {
        Some(provider) => {
            let variables: Vec<&str> = provider.key_env.iter().take(1).chain(&provider.base_url_env).map(String::as_str).collect();
            format!("set {} for {name}/...", variables.join(" or "))
        }
        None => format!("add a section [providers.{name}] with its kind and base_url"),
    })
}
