//! The client of a known provider that has no key yet.

use async_trait::async_trait;

use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::provider::{ModelClient, ModelStream};

/// Fails each request with a text that says how to set the provider up.
pub(super) struct MissingKey {
    problem: String,
}

impl MissingKey {
    /// Creates the client. `hint` says what configures the provider.
    pub(super) fn new(provider: &str, hint: &str) -> Self {
        let problem = format!(
            "the provider {provider} has no key: {hint} and restart the server, or store a provider named {provider} (on the \
             chat page, or POST /api/v1/providers)"
        );
        Self { problem }
    }
}

#[async_trait]
impl ModelClient for MissingKey {
    async fn stream(&self, _request: ModelRequest) -> Result<ModelStream, ModelError> {
        Err(ModelError::new(ModelErrorKind::Auth, &self.problem))
    }
}
