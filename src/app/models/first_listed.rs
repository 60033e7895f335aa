//! The model of runs that name none, where its endpoint lists one only later.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use crate::service::FindModel;

/// How long a list of models is waited for.
pub(super) const LIST_PATIENCE: Duration = Duration::from_secs(2);

/// How long an endpoint that listed no models is not asked again: requests that come together share one look.
const FAILURE_HOLDS: Duration = Duration::from_secs(1);

/// Asks an endpoint for its first model until it has one.
pub struct FirstListed {
    pub(super) endpoint: Endpoint,
    looked: Mutex<Looked>,
}

/// What came of looking.
#[derive(Default)]
struct Looked {
    found: Option<String>,
    failed_at: Option<Instant>,
}

impl FirstListed {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, looked: Mutex::default() }
    }
}

#[async_trait]
impl FindModel for FirstListed {
    async fn find(&self) -> Result<String, String> {
        let provider = &self.endpoint.provider;
        // Whoever comes while somebody looks waits here, and takes what that one found.
        let mut looked = self.looked.lock().await;
        if let Some(model) = &looked.found {
            return Ok(model.clone());
        }
        // Runs are told this: where the endpoint is, and with which credentials, is the operator's own.
        let failed =
            || Err(format!("{provider} lists no models; `ollama pull` one there, name one in the request, or set CAPSTAN_MODEL"));
        if looked.failed_at.is_some_and(|at| at.elapsed() < FAILURE_HOLDS) {
            return failed();
        }
        let Some(model) = self.endpoint.first_model(LIST_PATIENCE).await else {
            looked.failed_at = Some(Instant::now());
            return failed();
        };
        let model = format!("{provider}/{model}");
        tracing::info!(model, "the model of runs that name none was found");
        looked.found = Some(model.clone());
        Ok(model)
    }
}
