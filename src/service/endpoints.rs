//! The port to model endpoints, which the service asks on behalf of those who keep providers.

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::SecretString;

use super::configured::ConfiguredProvider;
use crate::domain::ids::ProviderId;
use crate::domain::model::ModelError;
use crate::domain::provider::{ModelEntry, ProviderKind, ProviderRecord, Reach};
use crate::support::seal::Vault;

/// A provider as it is asked, its key open.
pub struct Target<'a> {
    /// What is kept of it.
    pub record: &'a ProviderRecord,
    /// Where its URL may lead now.
    pub reach: Reach,
    /// The key.
    pub key: Option<SecretString>,
}

/// Why a provider cannot be used as it is described.
#[derive(Debug)]
pub struct Unfit {
    /// The field that says it.
    pub pointer: &'static str,
    /// What is wrong, and the way out.
    pub reason: String,
}

/// What speaks with model endpoints. Implemented where the wires are known.
#[async_trait]
pub trait Endpoints: Send + Sync {
    /// Where a kind's own API is, if there is one place.
    fn usual_url(&self, kind: ProviderKind) -> Option<&'static str>;

    /// Whether the endpoint can be used as it is described.
    ///
    /// # Errors
    /// [`Unfit`].
    fn check(&self, target: &Target<'_>) -> std::result::Result<(), Unfit>;

    /// The models that it lists.
    ///
    /// # Errors
    /// A typed failure.
    async fn models(&self, target: &Target<'_>) -> std::result::Result<Vec<ModelEntry>, ModelError>;

    /// Asks a model for a word.
    ///
    /// # Errors
    /// A typed failure.
    async fn test(&self, target: &Target<'_>, model: &str) -> std::result::Result<(), ModelError>;

    /// The providers of the configuration.
    fn configured(&self) -> &[ConfiguredProvider];

    /// The models that the one of this name lists.
    ///
    /// # Errors
    /// A typed failure.
    async fn models_of_configured(&self, name: &str) -> std::result::Result<Vec<ModelEntry>, ModelError>;

    /// Asks a model of the one of this name for a word.
    ///
    /// # Errors
    /// A typed failure.
    async fn test_configured(&self, name: &str, model: &str) -> std::result::Result<(), ModelError>;

    /// What is known of a model by its name alone.
    fn known(&self, model: &str) -> ModelEntry;

    /// Where the owner of an account agrees to a login.
    ///
    /// # Errors
    /// In words, if the server is configured to go to no URL.
    fn login_url(&self, callback: &str, challenge: &str) -> std::result::Result<String, String>;

    /// The API that a login gives a key for.
    fn login_api(&self) -> String;

    /// The key for the code of a login.
    ///
    /// # Errors
    /// A typed failure.
    async fn exchange(&self, code: &str, verifier: &SecretString) -> std::result::Result<SecretString, ModelError>;

    /// A provider was made, changed or deleted: what is remembered of it is to be read again.
    fn changed(&self, id: &ProviderId);
}

/// What providers are kept with.
#[derive(Clone)]
pub struct ProviderDeps {
    /// Seals their keys.
    pub vault: Arc<Vault>,
    /// Speaks with them.
    pub endpoints: Arc<dyn Endpoints>,
    /// Where those of members may be.
    pub reach_of_members: Reach,
    /// How many one owner may have.
    pub max_per_owner: u32,
}
