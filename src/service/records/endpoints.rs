//! The port to model endpoints.

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::SecretString;

use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::ModelError;
use crate::domain::model::cost::Prices;
use crate::domain::model::embeddings::Embeddings;
use crate::domain::model::provider::{EgressScope, ModelEntry, ProviderKind, ProviderRecord};
use crate::service::records::configured_providers::{AnyProvider, ConfiguredProvider};
use crate::support::encryption::Vault;

/// A provider to call, with its decrypted key.
pub struct Target<'a> {
    pub record: &'a ProviderRecord,
    /// Addresses that its URL may have by the current settings.
    pub egress: EgressScope,
    pub key: Option<SecretString>,
}

#[derive(Debug)]
pub struct InvalidProvider {
    pub pointer: &'static str,
    pub reason: String,
}

/// Calls model endpoints. Implemented by a module that knows the dialects.
#[async_trait]
pub trait Endpoints: Send + Sync {
    fn default_base_url(&self, kind: ProviderKind) -> Option<&'static str>;

    fn check(&self, target: &Target<'_>) -> std::result::Result<(), InvalidProvider>;

    async fn models(&self, target: &Target<'_>) -> std::result::Result<Vec<ModelEntry>, ModelError>;

    /// Requests a one-word answer from a model.
    async fn test(&self, target: &Target<'_>, model: &str) -> std::result::Result<(), ModelError>;

    /// Returns the prices of an embedding model, if they are known. Fails if no provider of that name supports embeddings.
    async fn embedding_prices(&self, owner: &UserId, model: &str) -> std::result::Result<Option<Prices>, ModelError>;

    /// Returns the vectors of texts by a model of the owner or of the configuration, written as `provider/name`.
    async fn embed(
        &self,
        owner: &UserId,
        model: &str,
        texts: &[String],
        dimensions: Option<u32>,
    ) -> std::result::Result<Embeddings, ModelError>;

    fn configured(&self) -> &[ConfiguredProvider];

    async fn models_of_configured(&self, name: &str) -> std::result::Result<Vec<ModelEntry>, ModelError>;

    async fn test_configured(&self, name: &str, model: &str) -> std::result::Result<(), ModelError>;

    fn catalog_entry(&self, model: &str) -> ModelEntry;

    /// Returns the name of a provider under which the limitations of its models are stored.
    fn limitations_key(&self, provider: &AnyProvider) -> String;

    /// Returns the URL at which the owner of an account consents to a login, or why the configuration allows none.
    fn login_url(&self, callback: &str, challenge: &str) -> std::result::Result<String, String>;

    fn login_api(&self) -> String;

    /// Exchanges the code of a login for a key.
    async fn exchange(&self, code: &str, verifier: &SecretString) -> std::result::Result<SecretString, ModelError>;

    /// Drops the cached client of a provider that was created, changed or deleted.
    fn forget_client(&self, id: &ProviderId);
}

#[derive(Clone)]
pub struct ProviderDeps {
    pub vault: Arc<Vault>,
    pub endpoints: Arc<dyn Endpoints>,
    /// Addresses that the URLs of members may have.
    pub member_egress: EgressScope,
    pub max_per_owner: u32,
}
