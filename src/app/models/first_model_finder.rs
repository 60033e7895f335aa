//! Chooses the default model of an endpoint: the first listed model that can chat.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use crate::provider::ModelClient;
use crate::service::FindModel;

pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// The delay after an empty list, so that concurrent requests share one attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Requests the model list of an endpoint until it has a chat model. Repeats this if that model refuses to chat.
pub struct FirstModelFinder {
    pub(super) endpoint: Endpoint,
    /// The model found at the start. Later runs may use another one.
    pub(super) first: Option<String>,
    /// Knows refusals of models.
    client: Arc<dyn ModelClient>,
    attempts: Mutex<Attempts>,
}

#[derive(Default)]
struct Attempts {
    /// The name of the model, without its provider.
    found: Option<String>,
    failed_at: Option<Instant>,
}

impl FirstModelFinder {
    pub(super) fn new(endpoint: Endpoint, client: Arc<dyn ModelClient>, first: Option<String>) -> Self {
        let attempts = Mutex::new(Attempts { found: first.clone(), failed_at: None });
        Self { endpoint, first, client, attempts }
    }
}

#[async_trait]
impl FindModel for FirstModelFinder {
    async fn find(&self) -> Result<String, String> {
        let provider = &self.endpoint.provider;
        // Concurrent requests wait here and share the result.
        let mut attempts = self.attempts.lock().await;
        let named = |model: &str| format!("{provider}/{model}");
        if let Some(model) = &attempts.found
            && self.client.may_chat(model).await
        {
            return Ok(named(model));
        }
        // Clients see this text, so it contains neither the URL nor the error of the endpoint.
        let failed = |found: Option<&String>| match found {
            // The client asks another model if this one cannot chat.
            Some(model) => Ok(named(model)),
            None => Err(format!(
                "{provider} lists no models that can chat; `ollama pull` one there, name one in the request, or set CAPSTAN_MODEL"
            )),
        };
        if attempts.failed_at.is_some_and(|at| at.elapsed() < RETRY_PAUSE) {
            return failed(attempts.found.as_ref());
        }
        let Ok(model) = self.endpoint.first_model(LIST_TIMEOUT, Some(self.client.as_ref())).await else {
            attempts.failed_at = Some(Instant::now());
            return failed(attempts.found.as_ref());
        };
        let name = named(&model);
        tracing::info!(model = name, "the default model was found");
        attempts.found = Some(model);
        Ok(name)
    }
}
