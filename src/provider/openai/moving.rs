//! Models that a provider of chat completions serves over Responses alone.
//!
//! OpenAI's newer models refuse tools over chat completions, and their error names Responses
//! (<https://platform.openai.com/docs/guides/migrate-to-responses>). No table lists these models: after such a refusal the request goes
//! to Responses, and later ones go there at once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::ChatCompletions;
use crate::domain::model::provider::ModelEntry;
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::provider::client::DialectClient;
use crate::provider::errors::facts::is_served_over_responses;
use crate::provider::model_client::{ModelClient, ModelStream};
use crate::provider::responses::Responses;

/// Statuses of an endpoint without Responses.
const NOT_THERE: [u16; 3] = [404, 405, 501];

/// Statuses of gateways that serve only some paths, and of keys for chat completions alone.
const NOT_ALLOWED: [u16; 2] = [401, 403];

pub(super) struct Moving {
    pub(super) chat: DialectClient<ChatCompletions>,
    pub(super) responses: DialectClient<Responses>,
    /// The moved models, with whether the request offered tools.
    pub(super) moved: Mutex<BTreeSet<(String, bool)>>,
}

#[async_trait]
impl ModelClient for Moving {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let kind = (request.model.clone(), !request.tools.is_empty());
        if self.moved.lock().unwrap_or_else(PoisonError::into_inner).contains(&kind) {
            match self.responses.ask(&self.there(request.clone())).await {
                Err(error) if has_status(&error, &NOT_THERE) => {
                    // The model may have moved back, or the endpoint has changed.
                    self.moved.lock().unwrap_or_else(PoisonError::into_inner).remove(&kind);
                }
                answer => return answer,
            }
        }
        let refusal = match self.chat.ask(&request).await {
            Err(error) if is_served_over_responses(&error) => error,
            answer => return answer,
        };
        match self.responses.ask(&self.there(request)).await {
            Ok(answer) => {
                // Only an answered model has moved: any name may be refused in these words.
                self.moved.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
                Ok(answer)
            }
            Err(error) if was_not_taken(&error) => Err(refusal),
            Err(error) => Err(error),
        }
    }

    async fn list_models(&self, patience: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        self.chat.list_models(patience).await
    }
}

impl Moving {
    /// Returns the request over Responses, without the options that chat completions leave out for this model.
    fn there(&self, mut request: ModelRequest) -> ModelRequest {
        if !self.chat.dialect.quirks.takes_sampling(&request.model) {
            request.options.stop.clear();
            request.options.temperature = None;
            request.options.top_p = None;
        }
        request
    }
}

fn has_status(error: &ModelError, statuses: &[u16]) -> bool {
    error.status.is_some_and(|status| statuses.contains(&status))
}

/// Returns whether Responses is unavailable or cannot express the request. Then the refusal over chat completions says more.
fn was_not_taken(error: &ModelError) -> bool {
    let cannot_be_said = error.status.is_none() && error.kind == ModelErrorKind::InvalidRequest;
    cannot_be_said || has_status(error, &NOT_THERE) || has_status(error, &NOT_ALLOWED)
}
