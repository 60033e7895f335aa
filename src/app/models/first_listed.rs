//! The default model of an endpoint that listed no model at the start.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use crate::service::FindModel;

pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a list without models: requests that come together share one attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Lists the models of an endpoint until there is a first one.
pub struct FirstListed {
    pub(super) endpoint: Endpoint,
    attempts: Mutex<Attempts>,
}

#[derive(Default)]
struct Attempts {
    found: Option<String>,
    failed_at: Option<Instant>,
}

impl FirstListed {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, attempts: Mutex::default() }
    }
}

#[async_trait]
impl FindModel for FirstListed {
    async fn find(&self) -> Result<String, String> {
        let provider = &self.endpoint.provider;
        // A request that comes during an attempt waits here and shares the result.
        let mut attempts = self.attempts.lock().await;
        if let Some(model) = &attempts.found {
            return Ok(model.clone());
        }
        // Clients see this text, so it has neither the URL nor the error of the endpoint.
        let failed =
            || Err(format!("{provider} lists no models; `ollama pull` one there, name one in the request, or set CAPSTAN_MODEL"));
        if attempts.failed_at.is_some_and(|at| at.elapsed() < RETRY_PAUSE) {
            return failed();
        }
        let Some(model) = self.endpoint.first_model(LIST_TIMEOUT).await else {
            attempts.failed_at = Some(Instant::now());
            return failed();
        };
        let model = format!("{provider}/{model}");
        tracing::info!(model, "the model of runs that name none was found");
        attempts.found = Some(model.clone());
        Ok(model)
    }
}
