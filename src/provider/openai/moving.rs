//! Models that a place which speaks chat completions serves over Responses alone.
//!
//! OpenAI's newer models refuse tools over chat completions, and say where they are to be asked
//! (<https://platform.openai.com/docs/guides/migrate-to-responses>). Which they are changes with each model, so nothing is listed:
//! what is refused so is asked for there, and from then on at once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::chat_completions::ChatCompletions;
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::domain::provider::ModelEntry;
use crate::provider::client::DialectClient;
use crate::provider::error_facts::is_served_over_responses;
use crate::provider::model_client::{ModelClient, ModelStream};
use crate::provider::responses::Responses;

/// Statuses of a place that has no Responses.
const NOT_THERE: [u16; 3] = [404, 405, 501];

/// Statuses of gateways that serve only some paths, and of keys that are good for chat completions alone.
const NOT_ALLOWED: [u16; 2] = [401, 403];

/// Asks over chat completions, and over Responses for what is served there.
pub(super) struct Moving {
    pub(super) chat: DialectClient<ChatCompletions>,
    pub(super) responses: DialectClient<Responses>,
    /// The models that have moved, with whether they were offered tools.
    pub(super) moved: Mutex<BTreeSet<(String, bool)>>,
}

#[async_trait]
impl ModelClient for Moving {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let kind = (request.model.clone(), !request.tools.is_empty());
        if self.moved.lock().unwrap_or_else(PoisonError::into_inner).contains(&kind) {
            match self.responses.ask(&self.there(request.clone())).await {
                Err(error) if has_status(&error, &NOT_THERE) => {
                    // It may have moved back, or the place is another one now.
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
                // Only what was answered has moved: any name may be refused in these words.
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
    /// The request as it is made over Responses, without what chat completions leave out for a model that refuses it.
    fn there(&self, mut request: ModelRequest) -> ModelRequest {
        if !self.chat.dialect().quirks.takes_sampling(&request.model) {
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

/// Whether there is no Responses for us, or the request cannot be made there: then the refusal over chat completions says more.
fn was_not_taken(error: &ModelError) -> bool {
    let cannot_be_said = error.status.is_none() && error.kind == ModelErrorKind::InvalidRequest;
    cannot_be_said || has_status(error, &NOT_THERE) || has_status(error, &NOT_ALLOWED)
}
