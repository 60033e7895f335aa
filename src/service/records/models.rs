//! The models of providers: from their lists, the records and the catalog, with the limitations that refused requests have shown.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use crate::domain::access::principal::Principal;
use crate::domain::ids::ProviderId;
use crate::domain::model::ModelError;
use crate::domain::model::provider::{LearnedLimitation, ModelEntry};
use crate::service::records::configured_providers::AnyProvider;
use crate::service::records::providers::MAX_MODELS;
use crate::service::{Error, Result, Service};
use crate::store::PageRequest;

#[derive(Debug, Clone, PartialEq)]
pub struct ProviderModel {
    /// Includes the limits and abilities that refused requests have shown.
    pub entry: ModelEntry,
    /// Whether the provider lists it now.
    pub available: bool,
    /// The learned limitations. Of several with the same effect, the one that expires last.
    pub learned: Vec<LearnedLimitation>,
}

impl Service {
    /// Returns the name of a provider and its models, also those that only its record names.
    pub async fn provider_models(&self, principal: &Principal, id: &ProviderId) -> Result<(String, Vec<ProviderModel>)> {
        let provider = self.provider(principal, id).await?;
        let (models, error) = self.models_of(&provider).await?;
        match error {
            // Not every endpoint has a list.
            Some(error) if !(matches!(error.status, Some(404 | 405 | 501)) && has_own_models(&provider)) => {
                Err(Error::Provider(error))
            }
            Some(_) | None => Ok((provider.name().to_owned(), models)),
        }
    }

    /// Returns the models of all providers that the principal's runs can use, each with the name of its provider. A provider that
    /// does not answer has the models of its record and of learned limitations.
    pub async fn models(&self, principal: &Principal) -> Result<Vec<(String, ProviderModel)>> {
        let providers = self.usable_providers(principal).await?;
        let listed = join_all(providers.iter().map(|provider| self.models_of(provider))).await;
        let mut all = Vec::new();
        for (provider, listed) in providers.iter().zip(listed) {
            all.extend(listed?.0.into_iter().map(|model| (provider.name().to_owned(), model)));
        }
        Ok(all)
    }

    /// Returns one provider for each name: the one that a run would use.
    async fn usable_providers(&self, principal: &Principal) -> Result<Vec<AnyProvider>> {
        let rank = |provider: &AnyProvider| match provider {
            AnyProvider::Stored(record) if record.owner.is_some() => 0,
            AnyProvider::Stored(_) => 1,
            AnyProvider::Configured(_) => 2,
        };
        let mut found: BTreeMap<String, AnyProvider> = BTreeMap::new();
        let mut page = PageRequest { limit: 100, after: None };
        loop {
            let listed = self.providers(principal, &page).await?;
            page.after = listed.items.last().map(AnyProvider::cursor);
            for provider in listed.items {
                let is_enabled = !matches!(&provider, AnyProvider::Stored(record) if !record.enabled);
                if is_enabled && found.get(provider.name()).is_none_or(|known| rank(&provider) < rank(known)) {
                    found.insert(provider.name().to_owned(), provider);
                }
            }
            if listed.next.is_none() {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// Returns the models of a provider by name, and the error if the provider could not list them.
    async fn models_of(&self, provider: &AnyProvider) -> Result<(Vec<ProviderModel>, Option<ModelError>)> {
        let endpoints = &self.provider_deps()?.endpoints;
        let (own, listed) = match provider {
            AnyProvider::Configured(provider) => (Vec::new(), endpoints.models_of_configured(&provider.name).await),
            AnyProvider::Stored(record) => (record.models.clone(), endpoints.models(&self.target(record)?).await),
        };
        let (listed, error) = match listed {
            Ok(listed) => (listed, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let learned = self.store.model_limitations(&endpoints.limitations_key(provider), None).await?;
        let mut models: BTreeMap<String, ProviderModel> = BTreeMap::new();
        let named = |name: &str| ProviderModel { entry: ModelEntry::named(name), available: false, learned: Vec::new() };
        for entry in own {
            models.insert(entry.name.clone(), ProviderModel { entry, ..named("") });
        }
        for entry in listed {
            let model = models.entry(entry.name.clone()).or_insert_with(|| named(&entry.name));
            model.entry = model.entry.clone().or(&entry);
            model.available = true;
        }
        for model in models.values_mut() {
            model.entry = model.entry.clone().or(&endpoints.catalog_entry(&model.entry.name));
        }
        for limitation in learned {
            if models.len() < MAX_MODELS || models.contains_key(&limitation.model) {
                let model = models.entry(limitation.model.clone()).or_insert_with(|| named(&limitation.model));
                limitation.apply(&mut model.entry);
                if model.learned.iter().all(|known| known.change != limitation.change) {
                    model.learned.push(limitation);
                }
            }
        }
        Ok((models.into_values().collect(), error))
    }
}

fn has_own_models(provider: &AnyProvider) -> bool {
    matches!(provider, AnyProvider::Stored(record) if !record.models.is_empty())
}
