//! The port to model endpoints.

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::SecretString;

use crate::domain::ids::ProviderId;
use crate::domain::model::ModelError;
use crate::domain::model::provider::{ModelEntry, ProviderKind, ProviderRecord, Reach};
use crate::service::records::configured::ConfiguredProvider;
use crate::support::seal::Vault;

/// A provider as it is asked, with its key decrypted.
pub struct Target<'a> {
    pub record: &'a ProviderRecord,
    /// Where its URL may lead by the present settings.
    pub reach: Reach,
    pub key: Option<SecretString>,
}

/// The reason why a provider cannot be used as it is described.
#[derive(Debug)]
pub struct Unfit {
    pub pointer: &'static str,
    pub reason: String,
}

/// Asks model endpoints. Implemented where the wires are known.
#[async_trait]
pub trait Endpoints: Send + Sync {
    fn usual_url(&self, kind: ProviderKind) -> Option<&'static str>;

    fn check(&self, target: &Target<'_>) -> std::result::Result<(), Unfit>;

    async fn models(&self, target: &Target<'_>) -> std::result::Result<Vec<ModelEntry>, ModelError>;

    /// Asks a model for one word.
    async fn test(&self, target: &Target<'_>, model: &str) -> std::result::Result<(), ModelError>;

    fn configured(&self) -> &[ConfiguredProvider];

    async fn models_of_configured(&self, name: &str) -> std::result::Result<Vec<ModelEntry>, ModelError>;

    async fn test_configured(&self, name: &str, model: &str) -> std::result::Result<(), ModelError>;

    fn known(&self, model: &str) -> ModelEntry;

    /// Returns where the owner of an account agrees to a login, or why the server is configured to go to no URL.
    fn login_url(&self, callback: &str, challenge: &str) -> std::result::Result<String, String>;

    fn login_api(&self) -> String;

    /// Exchanges the code of a login for a key.
    async fn exchange(&self, code: &str, verifier: &SecretString) -> std::result::Result<SecretString, ModelError>;

    /// Drops what is cached of a provider that was made, changed or deleted.
    fn changed(&self, id: &ProviderId);
}

#[derive(Clone)]
pub struct ProviderDeps {
    pub vault: Arc<Vault>,
    pub endpoints: Arc<dyn Endpoints>,
    /// Where the URLs of members may lead.
    pub reach_of_members: Reach,
    pub max_per_owner: u32,
}
